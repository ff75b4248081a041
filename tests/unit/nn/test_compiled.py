"""Blinded networks as one graph: ``torch.compile(..., fullgraph=True)``, and what it leaves on the network."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import setsquare as sq
from setsquare.errors import InputError, NotOrthogonalError, StaleCorrectionWarning
from setsquare.nn.compiled import LayerHook, attach

GROUP = (torch.arange(40) % 2).float()[:, None]
X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)) + GROUP

pytestmark = [  # torch itself does what it warns of
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]


class Network(nn.Module):
    """An activation and a layer after it, which may run twice."""

    def __init__(self, calls: int = 1) -> None:
        super().__init__()
        self.first, self.act, self.second, self.head = nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 1)
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.first(x))
        for _ in range(self.calls):
            y = self.second(y)
        return self.head(y)


def fitted(layers: tuple[str, ...] = ("act", "second"), calls: int = 1, **options: Any) -> sq.nn.Blinded:
    torch.manual_seed(1)
    blinded = sq.nn.blind(Network(calls), layers, **options)
    sq.nn.fit_layer(blinded, [(X, GROUP)])
    return blinded.eval()


def whole(model: nn.Module) -> Any:
    return torch.compile(model, backend="aot_eager", fullgraph=True)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("layers", "options"),
    [
        (("act", "second"), {"calls": 2}),
        (("second",), {"moments": 2}),
        (("second",), {"inference": "features"}),
    ],
)
def test_one_graph_gives_the_same_outputs_and_gradients(layers: tuple[str, ...], options: dict[str, Any]) -> None:
    blinded = fitted(layers, **options)
    compiled, weight = whole(blinded), blinded.model.first.weight
    expected = blinded(X, protected=GROUP)
    assert not torch.allclose(blinded.model(X), expected, atol=1e-3)
    for n in (40, 7):
        torch.testing.assert_close(compiled(X[:n], protected=GROUP[:n]), expected[:n])
    (mine,) = torch.autograd.grad(compiled(X, protected=GROUP).square().sum(), weight)
    (other,) = torch.autograd.grad(expected.square().sum(), weight)
    torch.testing.assert_close(mine, other)


def test_what_stays_on_the_layers_acts_in_compiled_calls_only() -> None:
    blinded = fitted()
    model, plain, expected = blinded.model, blinded.model(X), blinded(X, protected=GROUP)
    assert not model.act._forward_pre_hooks and not model.second._forward_hooks
    compiled = whole(blinded)
    for _ in range(2):
        torch.testing.assert_close(compiled(X, protected=GROUP), expected)
    assert [type(hook).__mro__[1] for hook in model.second._forward_hooks.values()] == [LayerHook]
    torch.testing.assert_close(model(X), plain, rtol=0.0, atol=0.0)
    torch.testing.assert_close(blinded(X, protected=GROUP), expected, rtol=0.0, atol=0.0)
    with blinded:
        blinded.protected = GROUP
        torch.testing.assert_close(model(X), expected)
    other = sq.nn.blind(model, ["second"]).train()  # another wrapper of the same network
    assert not torch.allclose(other(X, protected=GROUP), expected, atol=1e-4)
    saved = io.BytesIO()
    torch.save(blinded, saved)
    for copied in (copy.deepcopy(blinded), torch.load(io.BytesIO(saved.getvalue()), weights_only=False)):
        torch.testing.assert_close(copied.model(X), plain, rtol=0.0, atol=0.0)
        torch.testing.assert_close(copied(X, protected=GROUP), expected, rtol=0.0, atol=0.0)
    torch.testing.assert_close(whole(copied)(X, protected=GROUP), expected)


def test_what_dynamo_must_not_trace_has_its_mark() -> None:
    """The mark is set without importing the compiler."""
    assert vars(attach) == vars(torch.compiler.assume_constant_result(lambda: True))


def test_a_replaced_layer_is_corrected_too() -> None:
    blinded = fitted(("second",))
    compiled = whole(blinded)
    compiled(X, protected=GROUP)
    blinded.model.second = nn.Linear(4, 4).eval()
    with pytest.warns(StaleCorrectionWarning):
        expected = blinded(X, protected=GROUP)
    torch.testing.assert_close(compiled(X, protected=GROUP), expected)


def test_weights_that_changed_are_noticed_when_a_network_is_compiled() -> None:
    blinded = fitted(("second",))
    with torch.no_grad():
        blinded.model.first.weight.mul_(2.0)
    with pytest.warns(StaleCorrectionWarning, match="not those that it was fitted to"):
        whole(blinded)(X, protected=GROUP)


@pytest.mark.parametrize("kind", ["not fitted", "no columns", "idle"])
def test_what_cannot_be_corrected_is_not_compiled(kind: str) -> None:
    """Torch turns every error of ours inside one graph into its own, which shows where ours was raised."""
    blinded = {
        "not fitted": lambda: sq.nn.blind(Network(), ["second"], n_protected=1).eval(),
        "no columns": fitted,
        "idle": lambda: sq.nn.blind(Network(calls=0), ["second"], inference="off").eval(),
    }[kind]()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="Observed exception"):
        whole(blinded)(X, protected=None if kind == "no columns" else GROUP)
    if kind == "idle":
        error, message = NotOrthogonalError, "did not run the layer"
    else:
        error, message = InputError, "has not seen a batch" if kind == "not fitted" else "protected=X"
    with pytest.raises(error, match=message):
        blinded(X, protected=None if kind == "no columns" else GROUP)
