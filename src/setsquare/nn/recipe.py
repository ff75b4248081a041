"""Blind layers, fit their corrections and refit the head, in one call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from setsquare.errors import InputError
from setsquare.glm.solver import Solution
from setsquare.nn.blinded import Blinded
from setsquare.nn.head import refit_head
from setsquare.nn.hooks import blind
from setsquare.nn.layer_fit import LayerFit, fit_layer


@dataclass(frozen=True, slots=True)
class BlindedFit:
    """Result of :func:`blind_and_refit`: the network, the fits of its layers, and that of its head."""

    model: Blinded
    layers: dict[str, LayerFit]
    head: Solution


def blind_and_refit(
    model: nn.Module,
    loader: Iterable[tuple[Any, Any, Any]],
    layers: Iterable[str],
    head: str,
    *,
    blind_options: dict[str, Any] | None = None,
    **head_options: Any,
) -> BlindedFit:
    """Blind layers of a trained network and make its *output* orthogonal too.

    A blinded layer has no linear effect of the protected columns left, but the layers after it can recover some, so the
    output still leaks. This calls :func:`~setsquare.nn.blind`, :func:`~setsquare.nn.fit_layer` and then
    :func:`~setsquare.nn.refit_head`, in this order: the head is refitted to the activations of the blinded network. To
    train a network with an orthogonal output from the start, use :class:`~setsquare.nn.OrthogonalityConstraint`.

    Layers and output are orthogonal on the rows of the loader, so use rows that the network was not trained on. On new
    rows sampling error is left; ``orthogonal_on="new rows"`` removes the part of it that the fit of the head causes.

    Parameters
    ----------
    model : torch.nn.Module
        The weight and bias of its head are changed in place.
    loader : iterable of (inputs, outcome, protected)
        Read at least twice, so an iterator is refused.
    layers : iterable of str
        Layers to blind, see :func:`~setsquare.nn.list_layers`; not the head.
    head : str
        Name of the last ``torch.nn.Linear``.
    blind_options : dict, optional
        Options of :func:`~setsquare.nn.blind`, such as ``{"rows": "tokens"}``.
    **head_options
        Options of :func:`~setsquare.nn.refit_head`, such as ``family``, ``l2`` or ``orthogonal_on="new rows"``.

    Examples
    --------
    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> sex = (torch.arange(200.0) % 2)[:, None]
    >>> x = torch.randn(200, 3) + sex
    >>> y = (x[:, 0] + torch.randn(200) > 0.5).float()
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    >>> fit = blind_and_refit(model, [(x.double(), y, sex)], layers=["1"], head="2")
    >>> out = torch.sigmoid(fit.model.eval()(x.double(), protected=sex)).detach()
    >>> bool((out[::2].mean() - out[1::2].mean()).abs() < 1e-6)
    True
    """
    layers = [layers] if isinstance(layers, str) else list(layers)
    if head in layers:
        raise InputError(f"Layer {head!r} is the head, which is refitted and not blinded: leave it out of layers.")
    if iter(loader) is loader:
        raise InputError("An iterator can be read only once: pass a DataLoader as the loader.")
    blinded = blind(model, layers, **(blind_options or {}))
    fits = fit_layer(blinded, loader)
    return BlindedFit(blinded, fits, refit_head(blinded, loader, f"model.{head}", **head_options))
