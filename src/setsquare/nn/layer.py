"""Layer that removes the linear effect of the protected columns from its input."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args
from zlib import crc32

import torch
from torch import Tensor, nn

from setsquare.errors import InputError, NotFiniteWarning, StaleCorrectionWarning
from setsquare.nn.distributed import sum_over_processes
from setsquare.nn.functional import (
    check_activation,
    check_maps,
    check_n_given,
    check_n_protected,
    full_precision,
    has_values,
)
from setsquare.nn.generalized_moments import GeneralizedMoments
from setsquare.nn.moment_maps import ErasureMap, MomentMap, TransportMap
from setsquare.nn.moments import Momentum, RunningMoments
from setsquare.nn.network_layers import refuse_checkpoint
from setsquare.nn.row_axes import Rows, check_rows, from_units, read_mask, read_rows, select_rows, to_units
from setsquare.nn.weight_watch import WeightWatch
from setsquare.tables.validation import check_choice

Where: TypeAlias = Literal["post", "pre", "generalized"]
Inference: TypeAlias = Literal["protected", "features", "marginal", "off"]
#: Format of the state of a layer, the first number of which is this, or one more if the moments are frozen.
STATE = 2.0


class Orthogonalize(nn.Module):
    """Layer ``forward(y, protected)`` that removes the linear effect of the protected columns from each unit.

    It subtracts ``a + (x - mean)'b`` from each unit, with separate ``a`` and ``b`` for each. In training these are
    estimated from the batch and, the smaller the batch, from running moments of earlier batches; so a batch may have
    fewer rows than columns, or lack a level. In ``eval`` mode only the running moments are used. Both modes keep the
    means, so activations do not shift between them. The layer has no parameters.

    ===============  =========================  ==================================================================
    ``where``        ``y`` is                   guaranteed
    ===============  =========================  ==================================================================
    "post"           the activation's output    no linear effect on it; it may leave its range (below 0 after ReLU)
    "pre"            the pre-activation         no linear effect on the pre-activation; *nothing* for the activation
    "generalized"    the pre-activation         no linear effect on ``activation(output)``, which keeps its range
    ===============  =========================  ==================================================================

    The guarantee is exact for the rows that the moments are computed from: for the batch if it is large (see the notes
    for "generalized"), and after :func:`~setsquare.nn.fit_layer` for all rows of its loader, up to the rounding of the
    output. On new rows it holds up to sampling error. It is about this layer: later ones can recover nonlinear traces.

    Parameters
    ----------
    n_protected : int, optional
        Number of protected columns; by default taken from the first batch.
    where : {"post", "pre", "generalized"}, optional
        By default "generalized" if an activation is given, otherwise "post".
    activation : {"identity", "relu", "sigmoid", "tanh", "exp"}, optional
        Function that the network applies next; for "generalized".
    momentum : float, "auto" or None
        Share of a batch in the running moments; None for the exact moments of all rows seen. "auto" averages over at
        least 10 batches and 200 rows per coefficient.
    inference : {"protected", "features", "marginal", "off"}
        Behaviour in ``eval`` mode. "protected" corrects each row by its own protected columns. "features" does not need
        them: it erases what the units of the layer say about them, by the map of
        ``LinearOrthogonalizer(using="features")``, in training as well. "marginal" does not need
        them: it subtracts the correction averaged over the population, which is zero in the linear modes (means are
        kept) and the shift ``a`` in the generalised mode, so that pre-activations keep their training mean; this
        *guarantees nothing*. "off" returns the input unchanged, as the published layer does.
    rows : {"samples", "tokens", "pixels"}
        What counts as a row. "samples": each position of the input (n, ...) is a unit with its own correction, so all
        inputs have the same shape. "tokens": the units are the last axis of (n, ..., units), and all positions share
        one correction per unit; sequences may differ in length. "pixels": the same for convolution maps
        (n, units, height, width). Each position has the protected columns of its sample.
    n_given : int
        Number of further columns of ``protected``, the last ones, that are controls: the effects of the protected
        columns are estimated given them, and only the former are subtracted. In ``eval`` mode the controls may be left
        out, so that they can be the outcome. Not with "generalized".
    moments : {1, 2}
        2 also removes the effects of the protected columns on the variances and covariances of the units, as
        ``LinearOrthogonalizer(moments=2)`` does: with inference "protected" by optimal transport between cells, with
        "features" by keeping only directions whose squares and products are uncorrelated with the protected columns.
    n_preserved : int
        With inference "features": number of further columns of ``protected``, the last ones, whose covariances with the
        units are kept, such as the outcome. Only :func:`~setsquare.nn.fit_layer` reads them.

    Attributes
    ----------
    moments : RunningMoments
        ``moments.rows`` is the number of rows in memory; ``moments.skipped`` counts batches with values that were not
        finite; ``moments.unsolved`` (generalised) counts units of the last batch that did not converge.
    frozen : bool
        Whether training uses the moments without updating them, as ``eval`` does; set by
        :func:`~setsquare.nn.fit_layer`. Ends when the layer is run in training after weights before it have changed.

    Notes
    -----
    A batch with at least ten rows per coefficient (p + 1 of them) is corrected by its own moments alone. Smaller
    batches are supplemented by the running moments, which lag behind changing weights: use a low learning rate, and
    call :func:`~setsquare.nn.fit_layer` at the end.

    The generalised mode solves the first batch exactly. For each later training batch it takes at most two Newton steps
    from the running solution, until 98 % of the units have a correlation of at most 0.01. The correlation that remains
    in training is below that of chance in a batch of 128 rows, and largest in units that few rows activate;
    ``moments.unsolved`` counts them. After :func:`~setsquare.nn.fit_layer` none remains.

    With ``moments=2`` or inference "features" nothing is learned from training batches: call
    :func:`~setsquare.nn.fit_layer` before training, which gathers the units of all rows in memory, and again if the
    weights before the layer have changed. Put the layer where nothing before it is trained, such as at the input.

    In a distributed run the sums are taken over all processes, so each process must pass the same number of batches.
    The first batch sets the number of units: with ``DataParallel``, pass one batch before replicating.

    Examples
    --------
    >>> import torch
    >>> layer = Orthogonalize(1)
    >>> sex = torch.tensor([[0.0], [0.0], [1.0], [1.0]])
    >>> layer(torch.tensor([[1.0], [2.0], [5.0], [6.0]]), sex).ravel()
    tensor([3., 4., 3., 4.])
    >>> layer.eval()(torch.tensor([[6.0]]), torch.tensor([[1.0]]))
    tensor([[4.]])
    """

    def __init__(
        self,
        n_protected: int | None = None,
        where: Where | None = None,
        activation: str | None = None,
        momentum: Momentum = "auto",
        inference: Inference = "protected",
        rows: Rows = "samples",
        n_given: int = 0,
        moments: Literal[1, 2] = 1,
        n_preserved: int = 0,
    ) -> None:
        super().__init__()
        check_rows(rows)
        where = ("post" if activation is None else "generalized") if where is None else where
        check_choice("where", where, get_args(Where))
        check_choice("inference", inference, get_args(Inference))
        if n_protected is not None:
            check_n_protected(n_protected)
        if momentum not in (None, "auto") and not (isinstance(momentum, float | int) and 0 < momentum <= 1):
            raise InputError(f'momentum must be above 0 and at most 1, "auto" or None, not {momentum!r}.')
        self.n_protected, self.where, self.activation, self.inference = n_protected, where, activation, inference
        self.rows: Rows = rows
        check_n_given(n_given, n_protected, where == "generalized")
        self.n_given, self.n_moments, self.n_preserved = n_given, moments, n_preserved
        #: Whether the layer has a map that is fitted to all rows at once.
        self.is_mapped = moments == 2 or inference == "features"
        check_maps(moments, n_preserved, n_given, where, inference)
        self.moments: RunningMoments | MomentMap
        if self.is_mapped:
            self.moments = ErasureMap(moments) if inference == "features" else TransportMap(moments)
        elif where == "generalized":
            check_activation(activation)
            assert activation is not None
            self.moments = GeneralizedMoments(momentum, activation)
        else:
            self.moments = RunningMoments(momentum, n_given)
        self.frozen, self._n_warned = False, 0
        self._watch: WeightWatch | None = None
        self._fitted_to: Tensor | None = None  # fingerprint of the weights that a loaded correction was fitted to
        self._told: set[bool] = set()
        self._copied: WeightWatch | None = None  # the moments of a copy, until it learns, is loaded or fitted
        #: Replaces the correction while :func:`~setsquare.nn.fit_layer` runs.
        self.override: Callable[[Tensor, Tensor | None, Tensor | None], Tensor] | None = None

    def forward(self, y: Tensor, protected: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Correct a batch ``y`` (n, ...) by its protected columns, (n, p) or (n,).

        The protected columns are not needed in ``eval`` mode with ``inference`` "marginal" or "off". With ``rows``
        "tokens" or "pixels", ``mask`` (n, positions) is true for the positions that count; the others, such as padding,
        do not enter the moments but get the same correction. In ``eval`` mode the mask makes no difference.
        """
        if self.override is not None:
            return self.override(y, protected, mask)
        self._check_weights()
        self._check_moments()
        learning = self.training and not self.frozen and not self.is_mapped
        if y.shape[0] == 0 or (self.inference == "off" and not learning):
            return y
        if not learning and self.moments.is_empty:
            raise InputError("The layer has not seen a batch: train the network, or call setsquare.nn.fit_layer first.")
        if learning:
            refuse_checkpoint("The Orthogonalize layer")
        units = to_units(y, self.rows)
        with full_precision(y):
            if learning:
                corrected = self._learn(y, units, protected, mask)
            elif self.inference == "protected":
                corrected = self.moments.correct(units, self._read(protected, y))
            elif isinstance(self.moments, ErasureMap):
                corrected = self.moments.correct(units)
            else:
                assert isinstance(self.moments, RunningMoments)
                corrected = units - self.moments.average().to(units.dtype)
        if learning:
            self._warn_of_skipped()
        return from_units(corrected, y, self.rows)

    def select(self, y: Tensor, protected: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return units (n_rows, d) and protected columns (n_rows, p) of the rows of a batch that count."""
        units, X = select_rows(y, protected, mask, self.rows, self._n_columns)
        if self.rows != "samples":
            n_rows, n_samples = sum_over_processes(X.new_tensor([len(units), len(y)])).tolist()
            self.moments.n_repeats = n_rows / n_samples  # positions of one sample are not independent rows
        return units, X

    @property
    def _n_columns(self) -> int | None:
        """Number of protected columns and controls."""
        return None if self.n_protected is None else self.n_protected + self.n_given + self.n_preserved

    def _read(self, protected: Tensor | None, y: Tensor) -> Tensor:
        """Protected columns of rows to be corrected; the controls may be absent."""
        width = protected.shape[1] if protected is not None and protected.ndim == 2 else 1
        absent = self.n_given > 0 and width == self.n_protected
        return read_rows(protected, y, self.rows, self.n_protected if absent else self._n_columns)

    def _learn(self, y: Tensor, units: Tensor, protected: Tensor | None, mask: Tensor | None) -> Tensor:
        assert isinstance(self.moments, RunningMoments)
        learned = self.moments.learn(*self.select(y, protected, mask))
        counts = read_mask(mask, y, self.rows)
        if counts is None:
            return learned
        others = self.moments.correct(units, read_rows(protected, y, self.rows, self._n_columns))
        return others.index_put((counts,), learned)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._copied = WeightWatch.of([self.moments]) if not self.frozen else None

    def freeze(self, watch: WeightWatch | None) -> None:
        """Keep the moments from now on, for the weights that ``watch`` knows."""
        self.frozen, self._watch, self._fitted_to, self._told, self._copied = True, watch, None, set(), None
        if isinstance(self.moments, RunningMoments):
            self.moments.remember_coefficients()

    def resume(self, watch: WeightWatch) -> None:
        """Watch the weights of a correction that was loaded; they may not be those that it was fitted to."""
        if self._fitted_to is not None:
            watch.expect(self._fitted_to)
        self.freeze(watch)

    @property
    def is_unwatched(self) -> bool:
        """Whether the moments are frozen but the weights that they belong to are not known, as after loading."""
        return self.frozen and self._watch is None

    @property
    def is_stale(self) -> bool:
        """Whether weights before the layer changed after :func:`~setsquare.nn.fit_layer`."""
        return self._watch is not None and self._watch.has_moved(self.training)

    def _check_weights(self) -> None:
        if self._watch is not None and not torch.compiler.is_compiling():
            self.notice_changes()

    def notice_changes(self) -> None:
        """Warn if the fitted correction no longer holds; in training, learn again."""
        if not self.is_stale:  # weights may come back, as after torch.func.functional_call
            self._told.clear()
            return
        if self.training not in self._told:
            self._told.add(self.training)
            learns = self.training and not self.is_mapped
            then = "it learns again from training batches" if learns else "it may not hold"
            warnings.warn(
                f"Weights before an Orthogonalize layer are not those that it was fitted to, so {then}: call "
                "setsquare.nn.fit_layer again when training is over.",
                StaleCorrectionWarning,
                stacklevel=4,
            )
        if self.training and not self.is_mapped:
            self.frozen = False

    def _check_moments(self) -> None:
        """Warn of a copy that neither learned its moments nor was loaded, as in an average of weights."""
        if self._copied is None or torch.compiler.is_compiling():
            return
        if self.training:
            self._copied = None
        elif self._copied.has_moved():
            self._copied = None
            warnings.warn(
                "The moments of an Orthogonalize layer were copied from another network, whose weights may differ, as "
                "AveragedModel does, so the correction may not hold: call setsquare.nn.fit_layer on this network.",
                StaleCorrectionWarning,
                stacklevel=4,
            )

    def _warn_of_skipped(self) -> None:
        if not has_values(self.moments.skipped):
            return
        skipped = int(self.moments.skipped)
        if skipped > self._n_warned:
            warnings.warn(
                "An Orthogonalize layer received a batch with missing or infinite values: the batch is not corrected, "
                "and the moments were not updated. Check the inputs, or reduce the learning rate.",
                NotFiniteWarning,
                stacklevel=3,
            )
        self._n_warned = skipped

    @property
    def _settings(self) -> float:
        """Checksum of the settings that give the moments their meaning."""
        settings = (self.where, self.activation, self.rows, self.n_given, self.n_moments, self.inference == "features")
        return float(crc32(repr(settings).encode()))

    def get_extra_state(self) -> Tensor:
        """Return what ``state_dict`` holds besides the moments: settings, whether frozen, and for which weights."""
        known = self._fitted_to if self._watch is None else self._watch.values
        own = torch.tensor([STATE + self.frozen, self._settings], dtype=torch.float64)
        return own if known is None or not self.frozen or known.is_meta else torch.cat([own, known.reshape(-1)])

    def set_extra_state(self, state: Tensor) -> None:
        """Restore it from a ``state_dict``."""
        state = state.reshape(-1).double().cpu()
        is_old = float(state[0]) < STATE  # without settings, and with another summary of the weights, if any
        if not is_old and float(state[1]) != self._settings:
            raise InputError(
                "The state was saved by an Orthogonalize layer with other settings (where, activation, rows, n_given, "
                f"moments) than Orthogonalize({self.extra_repr()}), so it would correct wrongly: build the layer, or "
                "blind the network, as it was then."
            )
        self.frozen = bool(state[0] % STATE)
        known = state[2:2] if is_old else state[2:].reshape(-1, 4)
        self._fitted_to = known if len(known) else None
        self._watch, self._told, self._copied = None, set(), None  # the weights are being loaded too

    def extra_repr(self) -> str:
        """Show the settings."""
        named = "" if self.activation is None else f", activation={self.activation!r}"
        named += f", moments={self.n_moments}" if self.n_moments != 1 else ""
        return f"{self.n_protected}, where={self.where!r}{named}, inference={self.inference!r}, rows={self.rows!r}"
