"""Hooks that stay on the layers of a compiled network: a graph cannot hold the registration of a hook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from setsquare.nn.layer import Orthogonalize

if TYPE_CHECKING:
    from setsquare.nn.blinded import Blinded


class LayerHook:
    """Hook that stays on a layer, and acts only in traced calls of its owner; copies of it do nothing."""

    def __init__(self, owner: Blinded, name: str) -> None:
        self.owner, self.name = owner, name

    def __reduce__(self) -> Any:
        return _make_idle, ()


class CorrectInput(LayerHook):
    """Correct the input of an activation."""

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the corrected inputs, or nothing outside a traced call."""
        return self.owner._correct_input(self.name, module, inputs, named) if self.owner._traced else None


class CorrectOutput(LayerHook):
    """Correct the output of a layer."""

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], out: Any) -> Any:
        """Return the corrected output, or nothing outside a traced call."""
        return self.owner._correct_output(self.name, module, out) if self.owner._traced else None


def _make_idle() -> Any:
    return _do_nothing


def _do_nothing(*_: Any) -> None:
    return None


def attach(blinded: Blinded) -> bool:
    """Leave a hook on each layer that has none of this network yet; look for changed weights, as a graph cannot."""
    for key, correction in blinded.corrections.items():
        assert isinstance(correction, Orthogonalize)
        correction.train(blinded.model.get_submodule(key.split("#")[0].replace("/", ".")).training).notice_changes()
    for name in blinded.layers:
        module = blinded.model.get_submodule(name)
        hooks: list[Any] = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        if any(isinstance(hook, LayerHook) and hook.owner is blinded for hook in hooks):
            continue
        if blinded._corrects_input(module):
            module.register_forward_pre_hook(CorrectInput(blinded, name), with_kwargs=True)
        else:
            module.register_forward_hook(CorrectOutput(blinded, name), prepend=True)
    return True


# What `torch.compiler.assume_constant_result` sets, without importing the compiler, which takes as long as torch:
# Dynamo runs it while it traces, and does not trace it.
attach._dynamo_marked_constant = True  # type: ignore[attr-defined]
