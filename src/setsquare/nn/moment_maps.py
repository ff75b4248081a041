"""Maps of a layer's units that are fitted to all rows at once: erasure without protected columns, and transport."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from setsquare._typing import Array
from setsquare.errors import InputError
from setsquare.estimators.warn import warn_squares, warn_unknown_cells
from setsquare.nn.functional import has_values
from setsquare.nn.moments import DoubleModule
from setsquare.projection import Eraser, Transport, fit_quadratic, protected_basis

#: Standard deviation of a direction of units, in roundings of their numbers, up to which it is taken for rounding: a
#: sum of many products is off by a few.
ROUNDING = 30.0


class MomentMap(DoubleModule):
    """Base of the maps: nothing is learned batch by batch, :func:`~setsquare.nn.fit_layer` fits them.

    Attributes
    ----------
    n_moments : {1, 2}
        Whether means alone are corrected, or second moments too.
    """

    rows: Tensor  # (1,) number of rows of the fit
    skipped: Tensor  # (1,)
    NAMES: tuple[str, ...] = ()

    def __init__(self, n_moments: int) -> None:
        super().__init__()
        self.n_moments = n_moments
        self.momentum, self.n_repeats = None, 1.0
        for name in ("rows", "skipped", *self.NAMES):
            self.register_buffer(name, torch.zeros(0, dtype=torch.float64))
        self.reset()

    def reset(self) -> None:
        """Forget the fit."""
        zeros = self.rows.new_zeros
        for name in self.NAMES:
            setattr(self, name, zeros(0))
        self.rows, self.skipped = zeros(1), zeros(1)

    @property
    def is_empty(self) -> bool:
        """Whether there is no fit."""
        return getattr(self, self.NAMES[0]).numel() == 0  # type: ignore[no-any-return]

    def fit(self, units: Tensor, X: Tensor, n_preserved: int) -> None:
        """Fit to units (n, d) and protected columns (n, p), the last of which may be columns to preserve."""
        p = X.shape[1] - n_preserved
        Z, P, Y = (part.double().cpu().numpy() for part in (units, X[:, :p], X[:, p:]))
        Z = without_rounding(Z, torch.finfo(units.dtype).eps)
        for name, value in self._fit(Z, P, Y if n_preserved else None).items():
            setattr(self, name, torch.as_tensor(np.ascontiguousarray(value), device=self.rows.device))
        self.rows = self.rows.new_tensor([float(len(units))])

    def _fit(self, Z: Any, X: Any, Y: Any) -> dict[str, Any]:
        raise NotImplementedError

    def correct(self, units: Tensor, X: Tensor | None) -> Tensor:
        """Correct units (n, d); ``X`` (n, p) if the map needs the protected columns."""
        raise NotImplementedError

    def _check_width(self, units: Tensor, width: int) -> None:
        if units.shape[1] != width:
            raise InputError(
                f"The layer was fitted to {width} units, and the batch has {units.shape[1]}: use one layer for each "
                "shape, or fit it again."
            )


class ErasureMap(MomentMap):
    """``units - (units - mean) @ matrix``, which needs no protected columns."""

    mean: Tensor  # (d,)
    matrix: Tensor  # (d, d)
    squares: Tensor  # (1,) largest correlation of a squared direction that is left; NaN if only means were erased
    NAMES = ("mean", "matrix", "squares")

    def _fit(self, Z: Any, X: Any, Y: Any) -> dict[str, Any]:
        n, q = Z.shape
        if n <= q:
            raise InputError(
                f"Too few rows ({n}) to erase the protected columns from {q} units without knowing them: pass more "
                'rows, or inference="protected".'
            )
        basis = protected_basis(X)
        found = fit_quadratic(Z, basis, X, None, Y) if self.n_moments == 2 else Eraser.fit(Z, basis, X, preserve=Y)
        warn_squares(found, "inference")
        return {"mean": found.mean, "matrix": found.directions @ found.loadings, "squares": np.array([found.squares])}

    def correct(self, units: Tensor, X: Tensor | None = None) -> Tensor:
        """Correct units (n, d)."""
        self._check_width(units, len(self.mean))
        mean, matrix = self.mean.to(units.dtype), self.matrix.to(units.dtype)
        return torch.addmm(units, units - mean, matrix, alpha=-1.0)


class TransportMap(MomentMap):
    """Units moved to a common mean and covariance by the map of their cell of the protected columns."""

    first: Tensor  # (1 + p, d) shift and effects that are subtracted before
    last: Tensor  # (1 + p, d) and after
    thresholds: Tensor  # (p, t) cuts of each column, filled up with infinity
    codes: Tensor  # (K, p)
    matrices: Tensor  # (K, d, d)
    shifts: Tensor  # (K, d)
    NAMES = ("first", "last", "thresholds", "codes", "matrices", "shifts")

    def _fit(self, Z: Any, X: Any, Y: Any) -> dict[str, Any]:
        found = Transport.fit(Z, X)
        cuts = found.cells.thresholds
        thresholds = np.full((len(cuts), max(map(len, cuts))), np.inf)
        for row, values in zip(thresholds, cuts, strict=True):
            row[: len(values)] = values
        eye = np.eye(Z.shape[1])
        change = found.transform @ (found.maps - np.eye(found.maps.shape[1])) @ found.loadings  # (K, d, d)
        moved = np.einsum("kr,krs->ks", found.centres, found.maps) @ found.loadings
        return {
            "first": _linear(found.first),
            "last": _linear(found.last),
            "thresholds": thresholds,
            "codes": found.cells.codes.astype(np.float64),
            "matrices": eye + change,
            "shifts": -moved - found.mean @ change,
        }

    def correct(self, units: Tensor, X: Tensor | None) -> Tensor:
        """Correct units (n, d) by their protected columns (n, p); those of an unknown cell only linearly."""
        assert X is not None
        self._check_width(units, self.shifts.shape[1])
        dtype = units.dtype
        D = torch.cat([torch.ones_like(X[:, :1]), X], dim=1).to(self.first.dtype)
        clean = units - (D @ self.first).to(dtype)
        # As torch.searchsorted(..., right=True), which ONNX does not have.
        parts = (X[:, :, None] >= self.thresholds).sum(2).to(self.codes.dtype)
        moved, known = clean, torch.zeros_like(X[:, 0], dtype=torch.bool)
        for code, matrix, shift in zip(self.codes, self.matrices.to(dtype), self.shifts.to(dtype), strict=True):
            own = (parts == code).all(dim=1)
            moved, known = torch.where(own[:, None], clean @ matrix + shift, moved), known | own
        if has_values(known):
            warn_unknown_cells(int((~known).sum()), len(known))
        return moved - (D @ self.last).to(dtype)


def without_rounding(Z: Array, eps: float) -> Array:
    """Return units (n, q) without the directions in which they vary by no more than the rounding of their dtype.

    A layer with more units than inputs has such directions. A map that used them would have large entries, and undo
    itself by rounding when it is applied.

    Examples
    --------
    >>> import numpy as np
    >>> z = np.random.default_rng(0).normal(size=(100, 1))
    >>> Z = np.hstack([z, 2.0 * z + 1e-7 * np.cos(np.arange(100.0))[:, None]])
    >>> [int(np.linalg.matrix_rank(each - each.mean(axis=0), tol=1e-12)) for each in (Z, without_rounding(Z, 1e-7))]
    [2, 1]
    """
    noise = eps * np.sqrt(np.square(Z).mean(0))
    C = (Z - Z.mean(0)) / np.where(noise > 0.0, noise, 1.0)
    values, vectors = np.linalg.eigh(C.T @ C / len(C))
    small = vectors[:, values <= ROUNDING**2]
    return Z - (C @ small) @ small.T * noise if small.shape[1] else Z


def _linear(projector: Any) -> Any:
    """Shift and effects (1 + p, d) of the protected columns themselves, from those of their basis."""
    effects = projector.basis.transform @ projector.coefficients
    return np.vstack([-projector.basis.mean @ effects, effects])
