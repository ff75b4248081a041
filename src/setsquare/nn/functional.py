"""Stateless projections of a batch of tensors, and the checks of their inputs."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from setsquare.errors import InputError, NotOrthogonalError
from setsquare.nn.activations import ACTIVATIONS, refuse_decreasing
from setsquare.nn.generalized_solver import ImplicitCorrection, Prior, assemble, minimise, row_sums
from setsquare.projection.basis import COLLINEAR, CONSTANT
from setsquare.tables.validation import check_moments, refuse_not_finite


def project_out(y: Tensor, protected: Tensor, weight: Tensor | None = None) -> Tensor:
    """Remove the linear effect of ``protected`` (n, p) from ``y`` (n, ...), keeping the mean of each unit.

    The torch counterpart of :func:`setsquare.projection.project_out`, on any device and differentiable in ``y``. Only
    the means remain of a batch of p rows or fewer; :class:`~setsquare.nn.Orthogonalize` also uses earlier batches.

    Parameters
    ----------
    y : Tensor of shape (n, ...)
        float16 and bfloat16 are computed in float32; the result has the dtype of ``y``.
    protected : Tensor of shape (n, p) or (n,)
        Columns that are constant in the batch, or linear combinations of others, have no effect.
    weight : Tensor of shape (n,), optional

    Examples
    --------
    >>> import torch
    >>> project_out(torch.tensor([1.0, 2.0, 5.0, 6.0]), torch.tensor([0.0, 0.0, 1.0, 1.0]))
    tensor([3., 4., 3., 4.])
    """
    units = flatten(y)
    X = read_protected(protected, y)
    w = _read_weight(weight, X)
    with full_precision(y):
        Q = _basis(X, w)
        Q, wQ = Q.to(units.dtype), (w[:, None] * Q).to(units.dtype)
        shift = units[:1].detach()  # affects only the rounding
        for _ in range(2):  # the second pass removes the rounding error of the first
            effect = wQ.T @ (units - shift)
            units = units - Q @ effect
    refuse_missing(effect, "The tensor to correct has")
    return units.to(y.dtype).reshape(y.shape)


def generalized_project_out(
    pre: Tensor, protected: Tensor, activation: str, *, max_iter: int = 100, strict: bool = True
) -> Tensor:
    """Correct pre-activations so that ``protected`` has no linear effect on the *activations*, whose means are kept.

    The torch counterpart of :class:`setsquare.projection.GeneralizedProjector`: returns ``pre - a - Qb`` for each unit,
    after which ``activation(...)`` is uncorrelated with every protected column and stays in its range. Gradients are
    those of the exact solution, by the implicit function theorem.

    Parameters
    ----------
    pre : Tensor of shape (n, ...)
    protected : Tensor of shape (n, p) or (n,)
    activation : {"identity", "relu", "sigmoid", "tanh", "exp", "leaky_relu", "softplus", "elu", "gelu"}
        Function that the network applies to the result, or a name given to :func:`~setsquare.nn.register_activation`.
        "leaky_relu" has the slope 0.01 below zero, "elu" the parameter 1; "gelu" increases only above -0.7518, and
        pre-activations below are refused.
    max_iter : int
        Largest number of Newton steps.
    strict : bool
        Raise :class:`~setsquare.errors.NotOrthogonalError` if a unit did not converge; otherwise return the
        best solution found.

    Examples
    --------
    >>> import torch
    >>> pre = torch.tensor([-1.0, 1.0, 0.0, 3.0])
    >>> torch.relu(generalized_project_out(pre, torch.tensor([0.0, 0.0, 1.0, 1.0]), "relu")).round(decimals=4)
    tensor([0., 2., 0., 2.])
    """
    check_activation(activation)
    h, eta = ACTIVATIONS[activation], flatten(pre)
    X = read_protected(protected, pre)
    n, d = eta.shape
    refuse_missing(eta, "The pre-activations have")
    refuse_decreasing(activation, eta)
    with full_precision(pre):
        Q = _basis(X, X.new_full((n,), 1.0 / n))
        D = torch.cat([torch.ones_like(Q[:, :1]), Q], dim=1)
        m, D = D.shape[1], D.to(eta.dtype)
        with torch.no_grad():
            target = h.h(eta).mean(0).to(X.dtype)
            prior = Prior(1.0, D.mean(0).to(X.dtype), target, X.new_ones(m))
            eps = torch.finfo(eta.dtype).eps
            found = minimise(
                lambda B: assemble(row_sums(eta, D, B, h), n, B, prior),
                X.new_zeros(m, d),
                prior,
                eps=eps,
                tolerance=1e-10 if eta.dtype == torch.float64 else 1e-5,
                aim=eps,
                max_iter=max_iter,
            )
        _check_converged(found.converged, found.residual, strict)
        corrected, _ = ImplicitCorrection.apply(  # type: ignore[no-untyped-call]
            eta, found.B, D, n, prior.share, prior.centre, None, activation, False
        )
    result: Tensor = corrected.to(pre.dtype).reshape(pre.shape)
    return result


def check_n_given(n_given: int, n_protected: int | None, generalized: bool) -> None:
    """Raise for a number of controls that cannot be."""
    if not isinstance(n_given, int) or n_given < 0:
        raise InputError(f"n_given must be 0 or a positive whole number, not {n_given!r}.")
    if n_given and n_protected is None:
        raise InputError("n_given needs n_protected, so that protected columns and controls can be told apart.")
    if n_given and generalized:
        raise InputError("n_given is for linear corrections: pass where='post' or where='pre'.")


def check_maps(moments: int, n_preserved: int, n_given: int, where: str, inference: str) -> None:
    """Raise for options of maps that are fitted to all rows at once which do not go together."""
    check_moments(moments)
    if not isinstance(n_preserved, int) or n_preserved < 0 or (n_preserved and inference != "features"):
        raise InputError('n_preserved must be 0, or a positive whole number together with inference="features".')
    if moments == 1 and inference != "features":
        return
    if where == "generalized":
        raise InputError('moments=2 and inference="features" are linear corrections: pass where="post".')
    if n_given:
        raise InputError('n_given cannot be combined with moments=2 or inference="features": leave it out.')
    if moments == 2 and inference not in ("protected", "features"):
        raise InputError(f'moments=2 needs inference="protected" or "features", not {inference!r}.')


def read_protected(protected: Any, y: Tensor, n_protected: int | None = None) -> Tensor:
    """Return protected columns (n, p) in double precision and without gradients, on the device of ``y`` (n, ...)."""
    if protected is None:
        raise InputError("The protected columns of the batch are missing: pass them with one row per row of the batch.")
    X = _as_tensor(protected)
    X = X[:, None] if X.ndim == 1 else X
    if y.ndim > 0 and y.shape[0] == 0:
        raise InputError("The batch has no rows: pass at least one.")
    if y.ndim == 0 or X.ndim != 2 or X.shape[0] != y.shape[0]:
        raise InputError(
            f"The protected columns have shape {tuple(X.shape)} and the tensor to correct has {tuple(y.shape)}: "
            "pass columns of shape (n, p) for the same n rows."
        )
    if n_protected is not None and X.shape[1] != n_protected:
        raise InputError(
            f"Expected {n_protected} protected column(s), got {X.shape[1]}: pass the same columns as before."
        )
    refuse_ids(X)
    X = X.to(device=y.device, dtype=torch.float64)
    refuse_missing(X, "The protected columns have")
    return X


def _as_tensor(protected: Any) -> Tensor:
    if isinstance(protected, Tensor):
        return protected.detach()
    try:
        return torch.as_tensor(np.array(protected))  # np.array also reads tables
    except (TypeError, ValueError):
        raise InputError(
            "The protected columns are not all numbers: pass a tensor with one dummy column per category, such as "
            "torch.tensor(pandas.get_dummies(table, drop_first=True).to_numpy(float))."
        ) from None


def full_precision(y: Tensor) -> AbstractContextManager[Any]:
    """Switch autocast off on the device of a tensor; the meta device has none."""
    return nullcontext() if y.is_meta else torch.autocast(y.device.type, enabled=False)


def has_values(*tensors: Tensor) -> bool:
    """Whether Python may look at values: not in a compiled graph, on the meta device or under ``torch.func``."""
    return not torch.compiler.is_compiling() and is_concrete(*tensors)


def is_concrete(*tensors: Tensor) -> bool:
    """Whether tensors have values: not on the meta device or under ``torch.func``."""
    return not any(tensor.is_meta or is_functorch_wrapped_tensor(tensor) for tensor in tensors)


def refuse_ids(X: Tensor) -> None:
    """Refuse integers other than 0 and 1: they may be group ids, whose linear effect is meaningless."""
    whole = not (X.is_floating_point() or X.dtype == torch.bool)
    if whole and has_values(X) and bool(((X != 0) & (X != 1)).any()):
        raise InputError(
            "The protected columns have an integer dtype and may be group ids: for groups pass "
            "torch.nn.functional.one_hot(ids, n_groups), for counts pass ids.float()."
        )


def flatten(y: Tensor) -> Tensor:
    """Flatten a tensor (n, ...) to units (n, d), in float32 or wider."""
    if not isinstance(y, Tensor) or not y.is_floating_point() or y.ndim == 0:
        kind = f"{y.dtype} of shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise InputError(f"Only floating-point tensors (n, ...) can be corrected, not {kind}: convert it first.")
    wide = torch.float64 if y.dtype == torch.float64 else torch.float32  # promote_types would be a node of a graph
    return y.reshape(y.shape[0], math.prod(y.shape[1:])).to(wide)


def check_activation(name: str | None) -> None:
    """Refuse an activation that is unknown or not increasing."""
    if name not in ACTIVATIONS:
        raise InputError(
            f"No generalised projection for the activation {name!r}: choose one of {', '.join(ACTIVATIONS)}, "
            'or correct the output linearly (where="post").'
        )


def _read_weight(weight: Tensor | None, X: Tensor) -> Tensor:
    if weight is None:
        return X.new_full((len(X),), 1.0 / len(X))
    w = torch.as_tensor(weight).detach().to(X)
    wrong = w.shape != X.shape[:1]
    if not wrong and has_values(w):
        wrong = not bool((torch.isfinite(w) & (w >= 0.0)).all() & (w > 0.0).any())
    if wrong:
        raise InputError("Weights must be one finite, non-negative number per row, and not all zero.")
    return w / w.sum()


def _basis(X: Tensor, w: Tensor) -> Tensor:
    """Orthonormal, centred basis of ``X``, (n, min(n, p)), with ``Q' diag(w) Q = I``.

    Columns that are not needed are zero rather than dropped, so that no shape depends on the data.
    """
    mean = w @ X
    Xc = X - mean
    Xc = Xc - w @ Xc
    spread = (w @ Xc.square()).sqrt()
    eps = torch.finfo(X.dtype).eps
    varies = spread > CONSTANT * mean.abs()
    scale = torch.where(varies, spread, torch.inf)
    S = Xc / scale  # each column relative to its own standard deviation
    _, s, V = torch.linalg.svd(w.sqrt()[:, None] * S, full_matrices=False)
    # A copy of a column that is shifted far from zero differs from it only by rounding.
    limit = (4.0 * eps * (mean.abs() / scale).max()).clamp_min(COLLINEAR)
    Q: Tensor = S @ (V.T / torch.where(s > limit, s, torch.inf))
    return Q


def check_n_protected(n_protected: int) -> None:
    """Refuse a number of protected columns below one."""
    if n_protected < 1:
        raise InputError(f"n_protected must be the number of protected columns, at least 1, not {n_protected}.")


def refuse_missing(values: Tensor, what: str, remedy: str = "remove or fill them") -> None:
    """Refuse values that are not finite, with the message "``what`` missing or infinite values: ``remedy``"."""
    # A compiled graph cannot branch on data; there, values that are not finite remain in the result.
    if has_values(values) and not bool(torch.isfinite(values).all()):
        refuse_not_finite(what, remedy)


def _check_converged(converged: Tensor, residual: Tensor, strict: bool) -> None:
    if strict and has_values(converged) and not bool(converged.all()):
        raise NotOrthogonalError(
            f"{int((~converged).sum())} of {len(converged)} units could not be made orthogonal (remaining "
            f"correlation {float(residual[~converged].max()):.1e}): check for outliers, or pass strict=False."
        )
