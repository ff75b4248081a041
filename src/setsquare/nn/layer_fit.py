"""Fit the corrections of a trained network on a data loader, in bounded memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from setsquare.errors import InputError, MissingValuesError, NotOrthogonalError
from setsquare.nn.activations import ACTIVATIONS
from setsquare.nn.distributed import sum_over_processes
from setsquare.nn.functional import flatten, read_protected
from setsquare.nn.generalized_moments import GeneralizedMoments
from setsquare.nn.generalized_solver import ProblemState, assemble, minimise, row_sums
from setsquare.nn.layer import Orthogonalize
from setsquare.nn.network_layers import call_model, eval_mode, takes_protected
from setsquare.tables.validation import refuse_constant_protected

#: Largest correlation that may be left on the rows of the loader.
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class LayerFit:
    """Result of fitting the correction of one layer.

    Attributes
    ----------
    name : str
    n_rows : int
    n_passes : int
        Number of passes over the loader.
    residual : float
        Largest remaining correlation between an activation and a protected column on these rows. NaN if it was not
        measured: in a linear mode, where it is rounding error, or after a single pass.
    """

    name: str
    n_rows: int
    n_passes: int
    residual: float


def call_with_protected(model: nn.Module, batch: Any) -> None:
    """Run a model on a batch ``(inputs, ..., protected)``: ``model(inputs, protected=protected)``."""
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise InputError(
            "A batch must be (inputs, ..., protected): for another format, pass forward= to call the model."
        )
    call_model(model, batch[0], protected=batch[-1])


def fit_layer(
    model: nn.Module,
    loader: Iterable[Any],
    layer: Orthogonalize | None = None,
    *,
    forward: Callable[[nn.Module, Any], Any] = call_with_protected,
    max_passes: int = 20,
) -> dict[str, LayerFit]:
    """Fit the corrections of a trained network exactly on the rows of a loader, and freeze them.

    The linear modes take one pass per layer, in the order in which the network runs the layers, because each correction
    changes the input of the next layer. In the generalised mode each further pass is a Newton step. Memory holds the
    moments and one batch. The model runs in ``eval`` mode without gradients; its parameters do not change.

    Parameters
    ----------
    model : torch.nn.Module
        A network from :func:`~setsquare.nn.blind`, or your own with :class:`~setsquare.nn.Orthogonalize` layers.
    loader : iterable
        Batches ``(inputs, ..., protected)`` on the device of the model; an iterator allows a single pass only. Use
        rows that the network was not trained on: the layers of an overfitted network depend on the protected columns
        differently on its training rows, and a correction learned there does not hold on new rows.
    layer : Orthogonalize, optional
        Fit only this layer; by default all that the model runs.
    forward : callable
        ``forward(model, batch)``, for batches in another format.
    max_passes : int
        Largest number of passes per layer. With 1, the generalised mode keeps its running solution, an approximation.

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
    with torch.no_grad(), eval_mode(model):
        names = _running_order(model, loader, forward) if layer is None else _name_of(model, layer)
        fitter = _Fitter(model, loader, forward, max_passes, names)
        return {name: fitter.fit(name) for name in names}


@dataclass(slots=True)
class _Fitter:
    model: nn.Module
    loader: Iterable[Any]
    forward: Callable[[nn.Module, Any], Any]
    max_passes: int
    names: list[str]
    n_passes: int = 0

    def fit(self, name: str) -> LayerFit:
        layer = self.model.get_submodule(name)
        assert isinstance(layer, Orthogonalize)
        before = copy.deepcopy(layer.moments)
        layer.moments.reset()
        self.n_passes = 0
        try:
            residual = self._solve(name, layer)
        except Exception:
            layer.moments = before  # an unsolved correction must not be used
            raise
        layer.frozen = True
        return LayerFit(name, int(layer.moments.rows), self.n_passes, residual)

    def _solve(self, name: str, layer: Orthogonalize) -> float:
        moments = layer.moments
        momentum, moments.momentum = moments.momentum, None
        try:
            self._pass(name, lambda y, X: moments.learn(flatten(y).double(), X))
        finally:
            moments.momentum = momentum
        if moments.is_empty:
            raise InputError(f"The loader gave no rows for layer {name!r}: pass at least one batch.")
        if moments.skipped > 0:
            raise MissingValuesError(
                f"{int(moments.skipped)} batch(es) of layer {name!r} have missing or infinite values: remove or fill "
                "those of the inputs, or check the weights for infinite values."
            )
        if not bool((moments.gram.diagonal()[1:] > moments.gram[0, 1:].square()).any()):
            refuse_constant_protected(("the last element of each batch",), f"remove from layer {name!r}")
        if isinstance(moments, GeneralizedMoments) and self.max_passes > 1:
            return self._newton(name, moments)
        return float("nan")

    def _newton(self, name: str, moments: GeneralizedMoments) -> float:
        """Take exact Newton steps from the running solution, one pass per step."""
        h, prior = ACTIVATIONS[moments.activation], moments.exact_prior()
        rounding = torch.finfo(torch.float64).eps

        def sums(B: Tensor) -> ProblemState:
            total = torch.zeros((), dtype=B.dtype, device=B.device)

            def add(y: Tensor, X: Tensor) -> None:
                nonlocal total, rounding
                rounding = max(rounding, torch.finfo(y.dtype).eps)
                units = flatten(y).double()
                total = total + row_sums(units, moments.design(X, units.shape[1]), B, h)

            self._pass(name, add)
            return assemble(sum_over_processes(total), moments.rows, B, prior)

        found = minimise(
            sums,
            moments.solution.clone(),
            prior,
            eps=torch.finfo(torch.float64).eps,
            tolerance=TOLERANCE,
            aim=0.01 * TOLERANCE,
            max_iter=self.max_passes - 2,
            # With a shuffling loader, single precision rounds differently in each pass.
            noise=lambda: rounding,
        )
        if not bool(found.converged.all()):
            raise NotOrthogonalError(
                f"{int((~found.converged).sum())} of {len(found.converged)} units of layer {name!r} were not solved in "
                f"{self.n_passes} passes (remaining correlation {float(found.residual.max()):.1e}): "
                "increase max_passes."
            )
        moments.solution.copy_(found.B)
        return float(found.residual.max())

    def _pass(self, name: str, visit: Callable[[Tensor, Tensor], Any]) -> None:
        """Run the model over the loader; earlier layers are corrected, this one and later ones are not."""
        if self.n_passes and isinstance(self.loader, Iterator):
            raise InputError("An iterator can be read only once: pass a DataLoader as the loader, or max_passes=1.")
        later = self.names[self.names.index(name) :]
        layers = [module for key in later if isinstance(module := self.model.get_submodule(key), Orthogonalize)]

        def override(y: Tensor, protected: Tensor | None) -> Tensor:
            if len(y):
                visit(y, read_protected(protected, y, layers[0].n_protected))
            return y

        try:
            layers[0].override = override
            for layer in layers[1:]:
                layer.override = _pass_through
            for batch in self.loader:
                self.forward(self.model, batch)
        finally:
            for layer in layers:
                layer.override = None
        self.n_passes += 1


def _pass_through(y: Tensor, _: Tensor | None) -> Tensor:
    return y


def _name_of(model: nn.Module, layer: Orthogonalize) -> list[str]:
    names = [name for name, module in model.named_modules() if module is layer]
    if not names:
        raise InputError("The layer is not part of the model: pass one of its Orthogonalize modules.")
    return names[:1]


def _running_order(model: nn.Module, loader: Iterable[Any], forward: Callable[[nn.Module, Any], Any]) -> list[str]:
    """Names of the model's Orthogonalize modules, in the order in which a forward pass runs them."""
    own = [name for name, module in model.named_modules() if isinstance(module, Orthogonalize)]
    if not own and not takes_protected(model):
        raise InputError("The model has no Orthogonalize layer: blind it first (setsquare.nn.blind), or add one.")
    if isinstance(loader, Iterator):  # its first batch cannot be read twice
        return own
    found: dict[Orthogonalize, None] = {}

    def find(module: nn.Module, _: Any) -> None:
        if isinstance(module, Orthogonalize) and any(module is own for own in model.modules()):
            found[module], module.override = None, _pass_through

    handle = register_module_forward_pre_hook(find)  # a pass can also create layers
    try:
        for batch in loader:
            forward(model, batch)
            break
        else:
            raise InputError("The loader gave no batch: pass at least one.")
    finally:
        handle.remove()
        for module in found:
            module.override = None
    if not found:
        raise InputError("The model ran no Orthogonalize layer: blind it first (setsquare.nn.blind), or add one.")
    return [_name_of(model, module)[0] for module in found]
