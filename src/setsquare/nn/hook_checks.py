"""Checks of what goes into and comes out of a network with hooks: padding, and outputs recorded before a correction."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from setsquare.errors import InputError, NotOrthogonalError, UncorrectedOutputWarning
from setsquare.nn.network_layers import in_checkpoint
from setsquare.nn.row_axes import Rows

#: Outputs of corrections that are still in use, by identity: other hooks must not replace them.
CORRECTED: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()


def refuse_uncorrected(out: Any, uncorrected: Sequence[tuple[str, weakref.ref[Tensor]]]) -> None:
    """Refuse an output of the network that holds the output of a blinded layer as it was before the correction."""
    if not uncorrected:
        return
    alive = {id(y): name for name, ref in uncorrected if (y := ref()) is not None}
    for tensor in _tensors(out) if alive else ():
        if id(tensor) in alive:
            raise NotOrthogonalError(
                f"The network returns the output of layer {alive[id(tensor)]!r} as it was before the correction: "
                "something recorded it inside the layer. Do not return it (output_hidden_states=False), or blind a "
                "module that contains this layer."
            )


def refuse_idle(layers: Sequence[str]) -> None:
    """Refuse a pass in which blinded layers did not run."""
    if layers:
        raise NotOrthogonalError(
            f"The network did not run the layer(s) {', '.join(layers)}, so nothing was corrected there: choose "
            "layers that it calls as modules (a fused kernel may bypass inner modules)."
        )


def warn_of_others(name: str, uses: Sequence[str]) -> None:
    """Warn that a network used elements of a layer's output that are not corrected."""
    warnings.warn(
        f"The network also uses element {', '.join(dict.fromkeys(uses))} of the output of layer {name!r}, which is not "
        "corrected, such as the last state of a recurrent layer: read the corrected element alone, or blind a module "
        "that contains what the network uses.",
        UncorrectedOutputWarning,
        stacklevel=2,
    )


def refuse_unhooked(layers: Sequence[str]) -> NoReturn:
    """Refuse a pass of a network without its hooks."""
    raise NotOrthogonalError(
        f"The network did not run with its hooks, so {', '.join(layers)} were not corrected: inside the context call "
        "the original network; to compile it, blind it first: torch.compile(blind(model, ...))."
    )


def refuse_replaced(name: str) -> NoReturn:
    """Refuse a correction that another hook undid or changed."""
    raise NotOrthogonalError(
        f"A hook of layer {name!r} changes its input or output after the correction, so the correction may not hold: "
        "remove the hook, or blind a module that contains this layer."
    )


def _tensors(out: Any) -> Iterator[Tensor]:
    if isinstance(out, Tensor):
        yield out
    elif isinstance(out, Mapping):
        for part in out.values():
            yield from _tensors(part)
    elif isinstance(out, tuple | list):
        for part in out:
            yield from _tensors(part)


#: Arguments of networks in the convention of transformers that say which tokens count, with 1 or True.
MASKS = ("attention_mask", "decoder_attention_mask")


def find_attention_masks(model: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the masks that a network was called with, by name."""
    given = dict(named)
    if inputs and not torch.compiler.is_compiling():
        given |= zip(list(signature(model.forward).parameters)[: len(inputs)], inputs, strict=False)
    return {name: given[name] for name in MASKS if isinstance(given.get(name), Tensor)}


def mask_of_layer(model: nn.Module, layer: str, masks: Mapping[str, Tensor]) -> Tensor | None:
    """Return the mask of the tokens of a layer: a decoder behind an encoder has tokens of its own."""
    two = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    if not two or "decoder" not in layer.split("."):
        return masks.get(MASKS[0])
    if MASKS[0] in masks and MASKS[1] not in masks:
        raise InputError(
            f"Layer {layer!r} is in the decoder, and the attention_mask is that of the encoder, so it is not known "
            "which positions are padding: pass decoder_attention_mask, or mask=."
        )
    return masks.get(MASKS[1])


def fit_attention_mask(mask: Tensor | None, y: Tensor, rows: Rows) -> Tensor | None:
    """Return the attention mask if it is one of the positions of ``y`` (n, tokens, ...); refuse padding as units."""
    if mask is None or y.ndim < 3 or rows == "pixels":
        return None
    if rows == "tokens":
        if mask.shape != y.shape[:-1]:
            raise InputError(
                f"The attention_mask has shape {tuple(mask.shape)} and the layer {tuple(y.shape)}, so it is not known "
                "which positions are padding: pass mask= of shape (n, positions), true for the positions that count."
            )
        return mask
    fits = mask.shape == y.shape[:2] and not torch.compiler.is_compiling()
    if fits and bool((mask == 0).any()):
        raise InputError(
            f"The attention_mask leaves out {int((mask == 0).sum())} positions of the batch (padding), which would "
            'enter the moments of the layer: blind it with rows="tokens".'
        )
    return None


def check_call(name: str, running: bool, own: bool) -> None:
    """Refuse a call of a layer in which it could not be corrected once."""
    if not own:
        raise InputError(
            f"Layer {name!r} runs in a copy of the blinded network: copy it outside the context, and blind the copy."
        )
    if not running:
        raise InputError(
            f"Layer {name!r} runs outside a call of the network: call the whole network, or blind only the part "
            "that you call."
        )
    if in_checkpoint():
        raise InputError(
            f"Layer {name!r} runs inside torch.utils.checkpoint, which runs it again for the gradient, so it would "
            "learn twice or not be blinded: blind a layer outside the checkpoint, or switch checkpointing off."
        )


def hint(protected: Any, y: Tensor, batch_dim: int) -> str:
    """Advice about protected columns that are missing, or do not fit the output of a layer."""
    if protected is None:
        return " Call blinded(inputs, protected=X), or set .protected inside the context."
    rows = torch.Size(getattr(protected, "shape", ()))[:1]
    other = [axis for axis in range(y.ndim) if y.shape[axis : axis + 1] == rows and axis != batch_dim]
    return f" If axis {other[0]} of the layer is the batch, pass batch_dim={other[0]}." if other else ""


def check_axes(name: str, y: Tensor, batch_dim: int) -> None:
    """Refuse an output without an axis for the rows, or that is not made of numbers."""
    if y.is_quantized:
        raise InputError(
            f"Layer {name!r} is quantised, so its output is rounded to a few whole numbers and cannot be corrected: "
            "blind the network before it is quantised, or a layer that is not."
        )
    if y.is_nested:
        raise InputError(
            f"Layer {name!r} gets nested tensors, whose rows differ in shape: build the encoder with "
            "enable_nested_tensor=False."
        )
    if not -y.ndim <= batch_dim < y.ndim:
        raise InputError(
            f"Layer {name!r} has shape {tuple(y.shape)} and thus no axis {batch_dim} for the rows: pass another "
            "batch_dim, or choose a layer with one row per row of the batch."
        )
