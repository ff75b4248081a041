"""Networks with weights of a few bits: outputs that are numbers are corrected exactly, others are refused by name."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from setsquare.errors import InputError, StaleCorrectionWarning
from setsquare.nn import audit_layer, blind, fit_layer

# Torch moves these tools to a package of their own; networks that they made are around.
pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning"),
]
LAYERS = ("0", "1", "2", "3", "4")
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"where": "post"}, {"moments": 2}, {"inference": "features"})


def draw(n: int = 200) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    group = (torch.arange(n) % 2).float()[:, None]
    return torch.randn(n, 12) + 0.5 * group, group


def network(seed: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)).eval()


class Int8Linear(nn.Module):
    """Weights of 8 bits and one scale per unit."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127.0
        self.register_buffer("scale", scale)
        self.weight = nn.Parameter((linear.weight.detach() / scale).round().to(torch.int8), requires_grad=False)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)


def with_int8_weights(seed: int = 1) -> nn.Module:
    return nn.Sequential(*(Int8Linear(part) if isinstance(part, nn.Linear) else part for part in network(seed)))


def quantised_dynamically(seed: int = 1) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(network(seed), {nn.Linear}, dtype=torch.qint8)


KINDS = {"dynamic": quantised_dynamically, "int8 weights": with_int8_weights}


def batches(x: Tensor, group: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(size), group.split(size), strict=True))


def left(blinded: Any, layer: str, parts: list[tuple[Tensor, Tensor]]) -> float:
    """Largest correlation of a unit of the layer with the group, in these batches."""
    seen: list[Tensor] = []
    handle = blinded.model.get_submodule(layer).register_forward_hook(lambda _m, _i, out: seen.append(out))
    with torch.no_grad():
        for x, group in parts:
            blinded.eval()(x, protected=group)
    handle.remove()
    out, X = torch.cat(seen).double(), torch.cat([group for _, group in parts]).double()
    out, X = out - out.mean(0), X - X.mean(0)
    return float(((X / X.norm(dim=0)).T @ (out / out.norm(dim=0).clamp_min(1e-9))).abs().max())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_that_are_numbers_are_corrected_exactly(kind: str, layer: str, options: dict[str, Any]) -> None:
    x, group = draw()
    model, parts = KINDS[kind](), batches(x, group, 100)
    assert left(blind(model, [layer], inference="off"), layer, parts) > 0.1
    blinded = blind(model, [layer], **options)
    fit_layer(blinded, parts)
    assert left(blinded, layer, parts) < 1e-6
    # Dynamic quantisation rounds the inputs of a batch by the largest of them, so an output depends on its batch.
    limit = 0.01 if kind == "dynamic" else 1e-6
    for size in (1, 77, 200):
        assert left(blinded, layer, batches(x, group, size)) < limit


@pytest.mark.parametrize("kind", KINDS)
def test_other_weights_are_noticed(kind: str) -> None:
    """Those of quantised layers are neither parameters nor buffers."""
    x, group = draw()
    model, other = KINDS[kind](), KINDS[kind](seed=2)
    blinded = blind(model, ["1"])
    fit_layer(blinded, [(x, group)])
    with warnings.catch_warnings():
        warnings.simplefilter("error", StaleCorrectionWarning)
        blinded.eval()(x, protected=group)
        model.load_state_dict(copy.deepcopy(model.state_dict()))  # the same
        assert left(copy.deepcopy(blinded), "1", [(x, group)]) < 1e-6
    model.load_state_dict(other.state_dict())
    with pytest.warns(StaleCorrectionWarning, match="are not those that it was fitted to"):
        assert left(blinded, "1", [(x, group)]) > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_correction_knows_its_quantised_weights(kind: str) -> None:
    x, group = draw()
    blinded = blind(KINDS[kind](), ["1"])
    fit_layer(blinded, [(x, group)])
    buffer = io.BytesIO()
    torch.save(blinded.state_dict(), buffer)
    again = blind(KINDS[kind](seed=2), ["1"])
    again.load_state_dict(torch.load(io.BytesIO(buffer.getvalue()), weights_only=False))
    with warnings.catch_warnings():
        warnings.simplefilter("error", StaleCorrectionWarning)
        assert left(again, "1", [(x, group)]) < 1e-6
    alone = blind(KINDS[kind](seed=2), ["1"])
    alone.corrections.load_state_dict(blinded.corrections.state_dict())
    with pytest.warns(StaleCorrectionWarning):
        assert left(alone, "1", [(x, group)]) > 0.1


@pytest.mark.parametrize("config", ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"])
def test_weights_of_torchao(config: str) -> None:
    """They are tensors made of others."""
    tools = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    x, group = draw()
    model, other = network(), network(seed=2)
    for one in (model, other):
        tools.quantize_(one, getattr(tools, config)())
    parts = batches(x, group, 100)
    for layer in LAYERS:
        blinded = blind(model, [layer])
        fit_layer(blinded, parts)
        assert left(blind(model, [layer], inference="off"), layer, parts) > 0.1
        assert left(blinded, layer, parts) < 1e-6 and left(blinded, layer, batches(x, group, 77)) < 1e-6
    before, model[0].weight = model[0].weight, other[0].weight
    with pytest.warns(StaleCorrectionWarning):
        assert left(blinded, layer, parts) > 0.01
    model[0].weight = before


def test_recurrent_layers_that_are_quantised() -> None:
    x, group = draw(200)
    steps, recurrent = x.view(200, 3, 4) + group[:, :, None], nn.Sequential(nn.LSTM(4, 5, batch_first=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.ao.quantization.quantize_dynamic(recurrent, {nn.LSTM}, dtype=torch.qint8)
    blinded = blind(model, ["0"], rows="tokens", output=0)
    fit_layer(blinded, [(steps, group)])
    with torch.no_grad():
        plain, out = model(steps)[0].mean(1), blinded.eval()(steps, protected=group)[0].mean(1)
    assert float((plain[::2].mean(0) - plain[1::2].mean(0)).abs().max()) > 0.05
    assert float((out[::2].mean(0) - out[1::2].mean(0)).abs().max()) < 1e-6


@pytest.fixture
def quantised_statically() -> Iterator[nn.Module]:
    class Static(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.body = torch.ao.quantization.QuantStub(), nn.Linear(12, 16)
            self.act, self.dequant = nn.ReLU(), torch.ao.quantization.DeQuantStub()
            self.head = nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.dequant(self.act(self.body(self.quant(x)))))

    torch.manual_seed(0)
    model = Static().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.qconfig = torch.ao.quantization.get_default_qconfig(torch.backends.quantized.engine)
        model.head.qconfig = None
        torch.ao.quantization.prepare(model, inplace=True)
        model(draw()[0])
        yield torch.ao.quantization.convert(model, inplace=True)


def test_static_quantisation(quantised_statically: nn.Module) -> None:
    """Layers inside the quantised part are refused by name; what leaves it is corrected exactly."""
    x, group = draw()
    for layer in ("quant", "body", "act"):
        with pytest.raises(InputError, match=f"Layer '{layer}' is quantised, so its output is rounded"):
            fit_layer(blind(quantised_statically, [layer]), [(x, group)])
        assert audit_layer(quantised_statically, [(x, group)], layer).verdict == "leak"
    for layer in ("dequant", "head"):
        blinded = blind(quantised_statically, [layer])
        fit_layer(blinded, batches(x, group, 100))
        for size in (1, 77, 200):
            assert left(blinded, layer, batches(x, group, size)) < 1e-6
