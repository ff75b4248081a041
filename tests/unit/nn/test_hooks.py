"""Blinding networks as they are: a ResNet in torchvision's manner, a transformer encoder, recurrent layers."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from setsquare.errors import InputError, NotOrthogonalError
from setsquare.nn import Blinded, blind, fit_layer, list_layers


class Block(nn.Module):
    """Two convolutions and a shortcut; the one ReLU module is called twice, and works in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + x)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.layer1, self.layer4 = nn.Sequential(Block(4)), nn.Sequential(Block(4), Block(4))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer1(x))
        return self.fc(torch.flatten(self.avgpool(x), 1))


@pytest.fixture
def resnet() -> Iterator[ResNet]:
    torch.manual_seed(0)
    model = ResNet().eval()
    yield model
    assert not n_hooks(model)


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    group = (torch.rand(60, 1) < 0.5).float()
    return torch.randn(60, 3, 8, 8) + group[:, :, None, None], group


def n_hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def gap(out: Tensor, group: Tensor) -> float:
    inside = group.ravel() > 0.5
    return float((out[inside].mean(0) - out[~inside].mean(0)).abs().max().detach())


def outputs(model: nn.Module, names: list[str], run: object) -> dict[str, list[Tensor]]:
    seen: dict[str, list[Tensor]] = {name: [] for name in names}
    handles = [
        model.get_submodule(name).register_forward_hook(
            lambda _m, _i, out, n=name: seen[n].append(out.detach().clone())
        )
        for name in names
    ]
    run()
    for handle in handles:
        handle.remove()
    return seen


# ------------------------------------------------------------------------------------------------------ ResNet
def test_every_blinded_layer_of_a_resnet_is_orthogonal(resnet: ResNet, batch: tuple[Tensor, Tensor]) -> None:
    x, group = batch
    names = ["conv1", "layer4.0.relu", "layer4.1.bn2"]
    plain = outputs(resnet, names, lambda: resnet(x))
    expected = resnet(x)
    blinded = blind(resnet, names)
    fit_layer(blinded, list(zip(x.split(20), group.split(20), strict=True)))
    assert set(blinded.corrections) == {"conv1", "layer4/0/relu", "layer4/0/relu#2", "layer4/1/bn2"}
    # Hooks run in the order of their registration: within the context, those of the correction come first.
    with blinded.eval():
        blinded.protected = group
        seen = outputs(resnet, names, lambda: resnet(x))
    for name in names:
        for before, after in zip(plain[name], seen[name], strict=True):
            assert gap(before, group) > 0.05
            assert gap(after, group) < 1e-5
    assert len(seen["layer4.0.relu"]) == 2 and all(float(out.min()) >= 0.0 for out in seen["layer4.0.relu"])
    assert float((blinded(x, protected=group) - expected).detach().abs().max()) > 1e-3
    torch.testing.assert_close(resnet(x), expected)


def test_saved_and_loaded_it_is_the_same(resnet: ResNet, batch: tuple[Tensor, Tensor]) -> None:
    x, group = batch
    blinded = blind(resnet, ["conv1", "layer4.0.relu"]).train()
    blinded(x, protected=group)
    blinded.eval()
    expected = blinded(x, protected=group)
    file = io.BytesIO()
    torch.save(blinded.state_dict(), file)
    file.seek(0)
    fresh = blind(ResNet(), ["conv1", "layer4.0.relu"])
    fresh.load_state_dict(torch.load(file))
    torch.testing.assert_close(fresh.eval()(x, protected=group), expected)
    whole = io.BytesIO()
    torch.save(blinded, whole)
    whole.seek(0)
    for other in (copy.deepcopy(blinded), torch.load(whole, weights_only=False)):
        torch.testing.assert_close(other(x, protected=group), expected)


def test_training_a_blinded_network(resnet: ResNet, batch: tuple[Tensor, Tensor]) -> None:
    x, group = batch
    blinded = blind(resnet, ["layer4"]).train()
    optimiser = torch.optim.SGD(blinded.parameters(), lr=0.05)
    before = resnet.conv1.weight.clone()
    for _ in range(3):
        loss = nn.functional.cross_entropy(blinded(x, protected=group), group.ravel().long())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert float((resnet.conv1.weight - before).detach().abs().max()) > 0.0
    # What leaves the blinded layer has one mean for both groups, so a linear head cannot tell them apart on average.
    assert gap(blinded(x, protected=group), group) < 1e-5
    assert gap(resnet(x), group) > 1e-2


def test_hooks_are_gone_after_the_context_even_if_it_fails(resnet: ResNet, batch: tuple[Tensor, Tensor]) -> None:
    x, group = batch
    with blind(resnet, ["conv1"], protected=group) as b:
        assert n_hooks(resnet) == 4  # two of them count the passes, one checks the output
        resnet.train()(x)
        assert b.corrections["conv1"].training
        resnet.eval()(x)
        assert not b.corrections["conv1"].training
    assert n_hooks(resnet) == 0 and b.protected is None

    def fail() -> None:
        with blind(resnet, ["conv1"]):
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert n_hooks(resnet) == 0
    with pytest.raises(InputError, match="Layer 'conv1'"):
        blind(resnet, ["conv1"])(x)


# ------------------------------------------------------------------------------------------------- transformer
@pytest.mark.parametrize("batch_first", [False, True])
def test_a_transformer_encoder(batch_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    group = (torch.rand(50, 1) < 0.5).float()
    tokens = torch.randn(50, 5, 8) + group[:, :, None] * torch.randn(8)
    tokens = tokens if batch_first else tokens.transpose(0, 1)
    axis = 0 if batch_first else 1
    blinded = blind(model, ["layers.0", "layers.1.linear1"], batch_dim=axis)
    batches = [(part, label) for part, label in zip(tokens.split(25, axis), group.split(25), strict=True)]
    fit_layer(blinded, batches)
    with torch.no_grad(), blinded.eval():
        blinded.protected = group
        seen = outputs(model, ["layers.0"], lambda: model(tokens))["layers.0"][0]
    assert n_hooks(model) == 0
    before = outputs(model, ["layers.0"], lambda: model(tokens))["layers.0"][0]
    assert gap(before.movedim(axis, 0), group) > 0.1
    assert gap(seen.movedim(axis, 0), group) < 1e-5
    if not batch_first:
        with pytest.raises(InputError, match="pass batch_dim=1"):
            blind(model, ["layers.0"]).train()(tokens, protected=group)


# ------------------------------------------------------------------------------------ tuples, names, bad input
def test_layers_that_return_tuples_and_dicts() -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"mean": x, "name": "pair"}

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.pair = nn.LSTM(3, 4, batch_first=True), Pair()

        def forward(self, x: Tensor) -> Tensor:
            return self.pair(self.lstm(x)[0])["mean"]

    torch.manual_seed(0)
    group = (torch.rand(40, 1) < 0.5).float()
    x, model = torch.randn(40, 6, 3) + group[:, :, None], Network()
    assert gap(model(x), group) > 0.05
    for name, output in (("lstm", 0), ("pair", "mean")):
        with pytest.raises(InputError, match=f"choose the tensor to be corrected, output={output!r}"):
            blind(model, [name])(x, protected=group)
        assert gap(blind(model, [name], output=output)(x, protected=group), group) < 1e-5
    assert n_hooks(model) == 0


def test_layers_are_listed_and_wrong_names_get_the_nearest(resnet: ResNet, batch: tuple[Tensor, Tensor]) -> None:
    layers = {info.name: info for info in list_layers(resnet, batch[0])}
    assert layers["conv1"].type == "Conv2d" and layers["conv1"].shapes == ((60, 4, 6, 6),)
    assert len(layers["layer4.0.relu"].shapes) == 2
    assert list_layers(resnet)[0].shapes == ()
    with pytest.raises(InputError, match=r"no layer 'layer4.0.relo': did you mean 'layer4.0.relu'"):
        blind(resnet, ["layer4.0.relo"])
    for layers_given in ("conv1", []):
        with pytest.raises(InputError, match="must be a list"):
            blind(resnet, layers_given)


def test_what_cannot_be_blinded(resnet: ResNet, batch: tuple[Tensor, Tensor]) -> None:
    x, group = batch
    with pytest.raises(InputError, match="activation="):
        blind(resnet, ["conv1"], where="generalized")
    with pytest.raises(InputError, match=r"Layer 'conv1': .* missing.*protected=X"):
        blind(resnet, ["conv1"]).train()(x)
    with pytest.raises(InputError, match="Layer 'conv1': The protected columns have shape"):
        blind(resnet, ["conv1"]).train()(x, protected=group[:7])

    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    with pytest.raises(NotOrthogonalError, match="did not run the layer\\(s\\) unused"):
        blind(Idle(), ["used", "unused"])(torch.randn(9, 3), protected=torch.randn(9, 1))


@pytest.mark.parametrize("where", ["post", "pre", "generalized"])
def test_where_the_correction_enters(where: str) -> None:
    torch.manual_seed(0)
    group = (torch.rand(80, 1) < 0.5).float()
    x = torch.randn(80, 3) * (1.0 + group) + group
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    blinded: Blinded = blind(model, ["1"], where=where)
    out = blinded(x, protected=group).detach()
    assert gap(model(x), group) > 0.2
    assert (gap(out, group) < 1e-5) == (where != "pre")
    assert (float(out.min()) >= 0.0) == (where != "post")
    named = blind(model, ["0"], activation="relu")(x, protected=group).detach()
    if where == "generalized":
        torch.testing.assert_close(named, out)
