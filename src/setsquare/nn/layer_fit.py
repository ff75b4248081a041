"""Fit the corrections of a trained network on a data loader, in bounded memory."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from setsquare.errors import InputError, MissingValuesError, NotOrthogonalError, WeakUnitsWarning
from setsquare.nn.activations import ACTIVATIONS
from setsquare.nn.batches import (
    JoinedBatches,
    KeptBatches,
    MaskOf,
    call_with_protected,
    check_mask_of,
    refuse_shuffled,
)
from setsquare.nn.blinded import listed_name
from setsquare.nn.distributed import is_distributed, sum_over_processes
from setsquare.nn.functional import refuse_missing
from setsquare.nn.generalized_moments import GeneralizedMoments
from setsquare.nn.generalized_solver import Minimum, Prior, ProblemState, assemble, minimise, row_sums
from setsquare.nn.held_out import Sums, layers_on, warn_if_left
from setsquare.nn.layer import Orthogonalize
from setsquare.nn.layer_fit_checks import (
    Rounding,
    check_columns,
    refuse_compiled,
    refuse_no_rows,
    switch_off,
    warn_of_rounding,
)
from setsquare.nn.moment_maps import MomentMap
from setsquare.nn.network_layers import eval_mode, takes_protected
from setsquare.nn.weight_watch import Progress, WeightWatch, follow

#: Largest correlation that may be left on the rows of the loader.
TOLERANCE = 1e-6
#: A unit is weak if the mean slope of its activation is at most this (for ReLU: the share of rows that activate it).
#: Weak units that the passes did not solve are solved in memory, in at most so many steps.
WEAK, STEPS_IN_MEMORY = 0.05, 300
#: Bytes of batches that are kept in memory, so that the loader is read once.
MAX_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class LayerFit:
    """Result of fitting the correction of one layer.

    Attributes
    ----------
    name : str
    n_rows : int
        Number of rows; with ``rows`` "tokens" or "pixels", of positions that count.
    n_passes : int
        Number of passes of the network over the rows.
    residual : float
        Largest remaining correlation between an activation and a protected column on these rows. NaN if it was not
        measured: in a linear mode, where it is rounding error, or after a single pass. Where rounding is coarse, as
        of large numbers in bfloat16, it is measured in one more pass.
    weak : tuple of int
        Units that could not be solved because few rows activate them. They are switched off: their activation is
        constant, so nothing leaks through them.
    held_out : float
        The same on the held-out rows; NaN if none were given.
    """

    name: str
    n_rows: int
    n_passes: int
    residual: float
    weak: tuple[int, ...] = ()
    held_out: float = float("nan")


def fit_layer(
    model: nn.Module,
    loader: Iterable[Any],
    layer: Orthogonalize | None = None,
    *,
    protected: Any = None,
    mask: MaskOf | None = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    max_passes: int = 20,
    max_bytes: float = MAX_BYTES,
    held_out: Iterable[Any] | None = None,
) -> dict[str, LayerFit]:
    """Fit the corrections of a trained network exactly on the rows of a loader, and freeze them.

    The linear modes take one pass per layer, in the order in which the network runs the layers, because each correction
    changes the input of the next layer. In the generalised mode each further pass is a Newton step. The loader is read
    once if its batches fit in ``max_bytes``, otherwise once per pass; memory then holds the moments and one batch. The
    model runs in ``eval`` mode without gradients; its parameters do not change.

    The correction holds for these weights. If weights before the layer change later, the layer warns
    (:class:`~setsquare.errors.StaleCorrectionWarning`); in training it also learns again. Then call
    ``fit_layer`` again.

    Parameters
    ----------
    model : torch.nn.Module
        A network from :func:`~setsquare.nn.blind`, or your own with :class:`~setsquare.nn.Orthogonalize` layers.
    loader : iterable
        Batches ``(inputs, ..., protected)`` on the device of the model, or dicts of inputs with the key "protected".
        In batches of two elements, the protected columns have shape (n, p): values of shape (n,) may be the outcome.
        Use rows that the network was not trained on: the layers of an overfitted network depend on the protected
        columns differently on its training rows, and a correction learned there does not hold on new rows.
    layer : Orthogonalize, optional
        Fit only this layer; by default all that the model runs.
    protected : Tensor or array of shape (n, p), optional
        Protected columns of all rows, in the order of the loader, which must not shuffle. By default, the last element
        of each batch.
    mask : callable, optional
        ``mask(batch)`` returns the positions that count, (n, positions), for ``rows`` "tokens" or "pixels". By default
        the ``attention_mask`` among the inputs, if there is one.
    forward : callable, optional
        ``forward(model, batch)``, for batches in another format.
    max_passes : int
        Largest number of passes per layer. With 1, the generalised mode keeps its running solution, an approximation.
    max_bytes : float
        Size of the batches up to which they are kept in memory; 0 to read the loader again in each pass.
    held_out : iterable, optional
        Further batches, in the same format, that neither the network nor this correction has seen. The correlation
        there is measured (``LayerFit.held_out``); a :class:`~setsquare.errors.TrainingRowsWarning` says if it exceeds
        chance, as it does where the loader has the training rows of an overfitted network.

    Examples
    --------
    >>> import torch
    >>> from setsquare.nn import blind
    >>> _ = torch.manual_seed(0)
    >>> sex = (torch.arange(200.0) % 2)[:, None]
    >>> x = torch.randn(200, 3) + sex
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    >>> blinded = blind(model, layers=["1"])
    >>> fits = fit_layer(blinded, list(zip(x.split(50), sex.split(50))))
    >>> out = blinded.eval()(x, protected=sex)
    >>> bool((out[::2].mean(0) - out[1::2].mean(0)).abs().max() < 1e-6)
    True
    """
    if forward is not None and (mask is not None or protected is not None):
        raise InputError("Pass either forward=, or protected= and mask=: forward= hands both to the model itself.")
    check_mask_of(mask)
    refuse_compiled(model)
    forward = partial(call_with_protected, mask=mask) if forward is None else forward
    if protected is not None:
        refuse_shuffled(loader)
        loader = JoinedBatches(loader, protected)
    batches = KeptBatches(loader, max_bytes)
    with torch.no_grad(), eval_mode(model):
        names = _running_order(model, batches, forward) if layer is None else _name_of(model, layer)
        fitter = _Fitter(model, batches, forward, max_passes, names)
        fits = {name: fitter.fit(name) for name in names}
    coarse = [name for name in names if fitter.rounding[name].is_coarse]
    for name, sums in layers_on(model, coarse, batches, forward).items() if coarse else ():
        fits[name] = replace(fits[name], residual=float(sums.correlations().abs().max()))
    warn_of_rounding(((listed_name(model, name), fits[name].residual) for name in coarse), stacklevel=3)
    if held_out is None:
        return fits
    found = layers_on(model, names, held_out, forward)
    return {name: _on_held_out(fits[name], listed_name(model, name), sums) for name, sums in found.items()}


def _on_held_out(fit: LayerFit, shown: str, sums: Sums) -> LayerFit:
    """Fit with the correlation on held-out rows, and a warning if it exceeds chance."""
    advice = "fit the layer on rows that the network was not trained on."
    left = warn_if_left(f"layer {shown!r}", sums.correlations().cpu(), fit.n_rows, sums.n_rows, advice)
    return replace(fit, held_out=left)


@dataclass(slots=True)
class _Fitter:
    model: nn.Module
    loader: KeptBatches
    forward: Callable[[nn.Module, Any], Any]
    max_passes: int
    names: list[str]
    n_passes: int = 0
    shown: str = ""
    watch: WeightWatch | None = None
    weak: tuple[int, ...] = ()
    rounding: dict[str, Rounding] = field(default_factory=dict)

    def fit(self, name: str) -> LayerFit:
        layer = self.model.get_submodule(name)
        assert isinstance(layer, Orthogonalize)
        before = copy.deepcopy(layer.moments)
        layer.moments.reset()
        self.n_passes, self.watch, self.weak, self.shown = 0, None, (), listed_name(self.model, name)
        try:
            residual = self._solve(name, layer)
        except Exception:
            layer.moments = before  # an unsolved correction must not be used
            raise
        layer.freeze(self.watch)
        return LayerFit(name, int(layer.moments.rows), self.n_passes, residual, self.weak)

    def _map(self, name: str, layer: Orthogonalize, moments: MomentMap) -> float:
        """Gather the units of all rows in memory, and fit a map to them."""
        parts: list[tuple[Tensor, Tensor]] = []
        held = 0.0

        def keep(units: Tensor, X: Tensor) -> None:
            nonlocal held
            held += units.numel() * units.element_size()
            if held > self.loader.max_bytes:
                raise InputError(
                    f"The rows of layer {self.shown!r} take more than {self.loader.max_bytes / 2**20:.0f} MB, and "
                    'moments=2 or inference="features" needs them at once: pass fewer rows, or increase max_bytes.'
                )
            parts.append((units.clone(), X))

        self._pass(name, keep)
        if not parts:
            refuse_no_rows(self.shown)
        units, X = (torch.cat(part) for part in zip(*parts, strict=True))
        refuse_missing(units, f"The units of layer {self.shown!r} have")
        if is_distributed():
            raise InputError('moments=2 and inference="features" are fitted by one process: fit before distributing.')
        moments.fit(units, X, layer.n_preserved)
        return float("nan")

    def _solve(self, name: str, layer: Orthogonalize) -> float:
        moments = layer.moments
        if isinstance(moments, MomentMap):
            return self._map(name, layer, moments)
        momentum, moments.momentum = moments.momentum, None
        try:
            self._pass(name, lambda units, X: moments.learn(units.double(), X))
        finally:
            moments.momentum = momentum
        if moments.is_empty:
            refuse_no_rows(self.shown)
        if moments.skipped > 0:
            raise MissingValuesError(
                f"{int(moments.skipped)} batch(es) of layer {self.shown!r} have missing or infinite values: remove or "
                "fill those of the inputs, or check the weights for infinite values."
            )
        check_columns(self.shown, moments, stacklevel=6)
        if isinstance(moments, GeneralizedMoments) and self.max_passes > 1:
            return self._newton(name, moments)
        return float("nan")

    def _newton(self, name: str, moments: GeneralizedMoments) -> float:
        """Take exact Newton steps from the running solution, one pass per step."""
        prior = moments.exact_prior()
        rounding = torch.finfo(torch.float64).eps

        def sums(B: Tensor) -> ProblemState:
            total = torch.zeros((), dtype=B.dtype, device=B.device)

            def add(units: Tensor, X: Tensor) -> None:
                nonlocal total, rounding
                rounding = max(rounding, torch.finfo(units.dtype).eps)
                total = total + _row_sums(moments, units, X, B)

            self._pass(name, add)
            return assemble(sum_over_processes(total), moments.rows, B, prior)

        # With a loader that shuffles and is read again, single precision rounds differently in each pass.
        found = _minimise(sums, moments.solution.clone(), prior, self.max_passes - 2, lambda: rounding)
        weak = ~found.converged & (found.last.curvature[0] <= WEAK)
        self._refuse_unsolved(found, found.converged | weak)
        if bool(weak.any()):
            return self._solve_weak(name, moments, found, weak)
        moments.solution.copy_(found.B)
        return float(found.residual.max())

    def _solve_weak(self, name: str, moments: GeneralizedMoments, found: Minimum, weak: Tensor) -> float:
        """Solve weak units in memory, where steps are cheap, and switch off those that have no solution."""
        parts: list[tuple[Tensor, Tensor]] = []
        self._pass(name, lambda units, X: parts.append((units[:, weak], X)))
        all_units, prior = torch.cat([units for units, _ in parts]), moments.exact_prior()
        design = moments.design(torch.cat([X for _, X in parts]), len(weak))
        own = Prior(prior.share, prior.centre, prior.target[weak], prior.scale)
        h = ACTIVATIONS[moments.activation]

        def sums(B: Tensor) -> ProblemState:
            total = row_sums(all_units.double(), design, B, h)
            return assemble(sum_over_processes(total), moments.rows, B, own)

        again = _minimise(sums, found.B[:, weak], own, STEPS_IN_MEMORY)
        B, left, off = found.B.clone(), found.residual.clone(), weak.clone()
        B[:, weak], left[weak], off[weak] = again.B, again.residual, ~again.converged
        self.weak = tuple(off.nonzero()[:, 0].tolist())
        if self.weak:
            switch_off(self.shown, B, off, all_units[:, off[weak]].double(), h)
            left[off] = 0.0
            warnings.warn(
                f"{len(self.weak)} of {len(off)} units of layer {self.shown!r} are active in too few rows to be solved "
                "and were switched off (LayerFit.weak lists them): pass more rows, or increase max_passes.",
                WeakUnitsWarning,
                stacklevel=6,
            )
        moments.solution.copy_(B)
        return float(left.max())

    def _refuse_unsolved(self, found: Minimum, fine: Tensor) -> None:
        if not bool(fine.all()):
            raise NotOrthogonalError(
                f"{int((~fine).sum())} of {len(fine)} units of layer {self.shown!r} were not solved in "
                f"{self.n_passes} passes (remaining correlation {float(found.residual.max()):.1e}): "
                "increase max_passes."
            )

    def _pass(self, name: str, visit: Callable[[Tensor, Tensor], Any]) -> None:
        """Run the model over the loader; earlier layers are corrected, this one and later ones are not."""
        later = self.names[self.names.index(name) :]
        layers = [module for key in later if isinstance(module := self.model.get_submodule(key), Orthogonalize)]
        progress: Progress | None = None

        def override(y: Tensor, protected: Tensor | None, mask: Tensor | None) -> Tensor:
            if self.watch is None and progress is not None:
                self.watch = progress.watch(layers[0])
            if len(y):
                units, X = layers[0].select(y, protected, mask)
                if not self.n_passes:
                    self.rounding.setdefault(name, Rounding()).add(units, y.dtype)
                visit(units, X)
            return y

        try:
            layers[0].override = override
            for layer in layers[1:]:
                layer.override = _pass_through
            for batch in self.loader:
                watching: AbstractContextManager[Progress | None] = (
                    follow(self.model) if self.watch is None else nullcontext()
                )
                with watching as progress:
                    self.forward(self.model, batch)
        finally:
            for layer in layers:
                layer.override = None
        self.n_passes += 1


def _row_sums(moments: GeneralizedMoments, units: Tensor, X: Tensor, B: Tensor) -> Tensor:
    design = moments.design(X, units.shape[1])
    return row_sums(units.double(), design, B, ACTIVATIONS[moments.activation])


def _minimise(
    sums: Callable[[Tensor], ProblemState],
    start: Tensor,
    prior: Prior,
    max_iter: int,
    noise: Callable[[], float] | None = None,
) -> Minimum:
    eps = torch.finfo(torch.float64).eps
    aim = 0.01 * TOLERANCE
    return minimise(sums, start, prior, eps=eps, tolerance=TOLERANCE, aim=aim, max_iter=max_iter, noise=noise)


def _pass_through(y: Tensor, *_: Tensor | None) -> Tensor:
    return y


def _name_of(model: nn.Module, layer: Orthogonalize) -> list[str]:
    names = [name for name, module in model.named_modules() if module is layer]
    if not names:
        raise InputError("The layer is not part of the model: pass one of its Orthogonalize modules.")
    return names[:1]


def _running_order(model: nn.Module, loader: KeptBatches, forward: Callable[[nn.Module, Any], Any]) -> list[str]:
    """Names of the model's Orthogonalize modules, in the order in which a forward pass runs them."""
    own = [name for name, module in model.named_modules() if isinstance(module, Orthogonalize)]
    if not own and not takes_protected(model):
        raise InputError("The model has no Orthogonalize layer: blind it first (setsquare.nn.blind), or add one.")
    found: dict[Orthogonalize, None] = {}

    def find(module: nn.Module, _: Any) -> None:
        if isinstance(module, Orthogonalize) and any(module is own for own in model.modules()):
            found[module], module.override = None, _pass_through

    handle = register_module_forward_pre_hook(find)  # a pass can also create layers
    try:
        forward(model, loader.first())
    finally:
        handle.remove()
        for module in found:
            module.override = None
    if not found:
        raise InputError("The model ran no Orthogonalize layer: blind it first (setsquare.nn.blind), or add one.")
    return [_name_of(model, module)[0] for module in found]
