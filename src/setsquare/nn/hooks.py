"""Blind layers of an existing network with hooks, without changing its code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from torch import Tensor, nn

from setsquare.errors import InputError
from setsquare.nn.blinded import Blinded
from setsquare.nn.layer import Inference, Where
from setsquare.nn.moments import Momentum
from setsquare.nn.network_layers import check_layer, list_layers
from setsquare.nn.row_axes import Rows


def blind(
    model: nn.Module,
    layers: Iterable[str],
    protected: Tensor | None = None,
    *,
    n_protected: int | None = None,
    where: Where | None = None,
    activation: str | None = None,
    momentum: Momentum = "auto",
    inference: Inference = "protected",
    output: int | str | None = None,
    batch_dim: int = 0,
    rows: Rows = "samples",
    n_given: int = 0,
    moments: Literal[1, 2] = 1,
    n_preserved: int = 0,
) -> Blinded:
    """Blind layers of a network to the protected columns, with a permanent wrapper or a temporary context.

    This removes the columns from the layers, *not from the output* of the network: later layers can recover what is
    left in nonlinear form. For an output without an effect use :func:`~setsquare.nn.blind_and_refit`, which also refits
    the head, or train with :class:`~setsquare.nn.OrthogonalityConstraint`; audit the predictions either way.

    Each layer gets an :class:`~setsquare.nn.Orthogonalize`, which updates its moments whenever it is in training mode.
    Train the wrapper like any network, or blind a trained one; then call :func:`~setsquare.nn.fit_layer`: no linear
    effect is left on the rows of its loader, and on new rows only sampling error. Without it, running moments lag
    behind the weights, and a network trained with a high learning rate can leak.

    Parameters
    ----------
    model : torch.nn.Module
        Its code and its state are not changed.
    layers : iterable of str
        Names as in :func:`list_layers`. For an activation module (ReLU, Sigmoid, Tanh) the default is the generalised
        correction of its input, which makes its output orthogonal. A module that the network has under several names is
        corrected wherever it runs.
    protected : Tensor of shape (n, p), optional
        Protected columns of all following batches; otherwise pass them with each batch.
    n_protected, where, activation, momentum, inference
        Parameters of each :class:`~setsquare.nn.Orthogonalize`.
    output : int or str, optional
        Element to correct if a layer returns a tuple or a dict.
    batch_dim : int
        Axis that holds the samples; 1 for sequence-first transformers.
    rows : {"samples", "tokens", "pixels"}
        "tokens" for the layers of a transformer, (n, tokens, units), and "pixels" for convolution maps,
        (n, units, height, width): all positions share one correction per unit. Padding must not enter the moments: with
        "tokens", the ``attention_mask`` of the call is used, or pass ``blinded(inputs, protected=X, mask=mask)``.
    n_given : int
        Number of the last columns of ``protected`` that are controls; see :class:`~setsquare.nn.Orthogonalize`.
    moments, n_preserved
        Whether to remove effects on variances and covariances, too, and columns to preserve; see
        :class:`~setsquare.nn.Orthogonalize`. Such layers learn nothing in training: call
        :func:`~setsquare.nn.fit_layer` first.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    >>> x, sex = torch.randn(20, 3), (torch.arange(20.0) % 2)[:, None]
    >>> blinded = blind(model, layers=["1"])
    >>> blinded(x, protected=sex).shape
    torch.Size([20, 1])
    >>> with blind(model, layers=["1"]) as b:
    ...     b.protected = sex
    ...     y = model(x)
    """
    names = [info.name for info in list_layers(model)]
    layers = [] if isinstance(layers, str) else [str(name) for name in layers]
    if not layers:
        raise InputError(f"layers must be a list of layer names, such as {names[:2]}.")
    for name in layers:
        check_layer(name, names)
    inner = [part for part in model.modules() if isinstance(part, Blinded)]
    known = {part.model.get_submodule(name) for part in inner for name in part.layers}
    if twice := [name for name in layers if model.get_submodule(name) in known]:
        raise InputError(
            f"Already blinded: layer(s) {', '.join(twice)}. A second correction would undo the first: choose other "
            "layers, or blind the original network (blinded.model)."
        )
    once = {model.get_submodule(name): name for name in reversed(layers)}  # a module with two names is one layer
    settings = {"n_protected": n_protected, "where": where, "activation": activation, "rows": rows, "n_given": n_given}
    settings |= {"moments": moments, "n_preserved": n_preserved}
    chosen = [name for name in dict.fromkeys(layers) if name in once.values()]
    blinded = Blinded(model, chosen, output, batch_dim, **settings, momentum=momentum, inference=inference)
    blinded.protected = protected
    return blinded
