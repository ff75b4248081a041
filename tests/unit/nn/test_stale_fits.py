"""Corrections that no longer hold are noticed: other weights, replaced modules, hooks, cells that were never seen."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import setsquare as sq
from setsquare.errors import InputError, NotOrthogonalError, PooledLevelWarning, StaleCorrectionWarning
from setsquare.nn.hook_checks import mask_of_layer

torch.manual_seed(1)
GROUP = (torch.arange(400) % 2).float()[:, None]
X = torch.randn(400, 6) + GROUP


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def fitted(seed: int = 0, **options: Any) -> sq.nn.Blinded:
    blinded = sq.nn.blind(network(seed), ["2"], **options).eval()
    sq.nn.fit_layer(blinded, [(X, GROUP)])
    return blinded


def gap(blinded: sq.nn.Blinded) -> float:
    """Largest difference of the layer's means between the groups."""
    seen: list[Tensor] = []
    handle = blinded.model[3].register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        blinded(X, protected=GROUP)
    handle.remove()
    return float((seen[0][::2].mean(0) - seen[0][1::2].mean(0)).abs().max())


class Adapter(nn.Module):
    """A frozen layer with something beside it, as LoRA has it."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base, self.beside = base, nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.beside(x)


def adapt(blinded: sq.nn.Blinded) -> None:
    blinded.model[0] = Adapter(blinded.model[0])


def replace(blinded: sq.nn.Blinded) -> None:
    blinded.model[0] = nn.Linear(6, 8)


def pass_in_training(blinded: sq.nn.Blinded) -> None:
    blinded.model[1].train()  # its running statistics move, without any step of an optimizer
    blinded.model[:2](3.0 * X + 1.0)
    blinded.eval()


def move_one_weight(blinded: sq.nn.Blinded) -> None:
    with torch.no_grad():
        blinded.model[0].weight[3, 4] += 2.0


@pytest.mark.parametrize("change", [adapt, replace, pass_in_training, move_one_weight])
def test_a_changed_network_is_noticed(change: Callable[[Any], None]) -> None:
    blinded = fitted()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gap(blinded) < 1e-5
    change(blinded)
    with pytest.warns(StaleCorrectionWarning, match="not those that it was fitted to"):
        left = gap(blinded)
    assert left > 0.01


class Switched(Adapter):
    """An adapter that can be switched off, by the attributes of peft's layers; no tensor changes."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__(base)
        self._disable_adapters, self._active_adapter, self.scaling = False, ["default"], {"default": 2.0}

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 0.0 if self._disable_adapters else self.base(x) + self.scaling["default"] * self.beside(x)


@pytest.mark.parametrize("change", [{"_disable_adapters": True}, {"scaling": {"default": 0.0}}])
def test_adapters_that_are_switched_off_or_scaled_are_noticed(change: dict[str, Any]) -> None:
    def build() -> sq.nn.Blinded:
        model = network()
        model[0] = Switched(model[0])
        return sq.nn.blind(model, ["2"]).eval()

    blinded = build()
    sq.nn.fit_layer(blinded, [(X, GROUP)])
    loaded = build()
    loaded.load_state_dict(blinded.state_dict())
    for one in (blinded, loaded):
        before = dict(vars(one.model[0]))
        if one is blinded:
            assert gap(one) < 1e-5
        vars(one.model[0]).update(change)
        with pytest.warns(StaleCorrectionWarning, match="not those that it was fitted to"):
            assert gap(one) > 0.01
        vars(one.model[0]).update(before)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert gap(one) < 1e-5


def test_one_weight_of_many_is_noticed() -> None:
    model = nn.Sequential(nn.Embedding(5000, 8), nn.Flatten(), nn.ReLU(), nn.Linear(8, 1))
    blinded = sq.nn.blind(model, ["2"]).eval()
    sq.nn.fit_layer(blinded, [(torch.arange(400), GROUP)])
    with torch.no_grad():
        model[0].weight[7, 3] += 1e-3
    with pytest.warns(StaleCorrectionWarning):
        blinded(torch.arange(400), protected=GROUP)


def test_weights_that_move_in_inference_mode_are_noticed() -> None:
    with torch.inference_mode():
        blinded = fitted()
        blinded.model[0].weight.mul_(-1.0)
        with pytest.warns(StaleCorrectionWarning):
            assert gap(blinded) > 0.01


def test_a_replaced_head_changes_nothing() -> None:
    blinded = fitted()
    blinded.model[3] = nn.Linear(8, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gap(blinded) < 1e-5


@pytest.mark.parametrize("options", [{}, {"moments": 2}, {"inference": "features"}])
def test_a_saved_correction_knows_its_weights(options: dict[str, Any]) -> None:
    blinded, buffer = fitted(**options), io.BytesIO()
    torch.save(blinded.state_dict(), buffer)
    fresh = sq.nn.blind(network(5), ["2"], **options).eval()
    fresh.load_state_dict(torch.load(io.BytesIO(buffer.getvalue())))
    again = sq.nn.blind(network(6), ["2"], **options).eval()
    again.load_state_dict(fresh.state_dict())  # saved before it ran
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gap(fresh) < 1e-4 and gap(again.double().float()) < 1e-4
    other = sq.nn.blind(network(5), ["2"], **options).eval()
    other.corrections.load_state_dict(blinded.corrections.state_dict())
    move_one_weight(blinded)
    stale = sq.nn.blind(network(), ["2"], **options).eval()
    stale.load_state_dict(blinded.state_dict())
    for wrong in (other, stale):
        with pytest.warns(StaleCorrectionWarning):
            assert gap(wrong) > 0.01


def test_states_of_older_versions_are_loaded() -> None:
    blinded, fresh = fitted(), sq.nn.blind(network(), ["2"]).eval()
    state = blinded.state_dict() | {"corrections.2._extra_state": torch.tensor(True)}
    fresh.load_state_dict(state)
    assert gap(fresh) < 1e-5 and fresh.corrections["2"].frozen


@pytest.mark.parametrize("kind", ["forward", "forward_pre"])
def test_hooks_behind_the_correction_of_an_activation_are_refused(kind: str) -> None:
    model = network()
    blinded = sq.nn.blind(model, ["2"]).eval()
    sq.nn.fit_layer(blinded, [(X, GROUP)])
    if kind == "forward":
        model[2].register_forward_hook(lambda _m, _i, out: out + X[:, :1])
        with pytest.raises(NotOrthogonalError, match="hook of layer '2' changes its input or output"):
            blinded(X, protected=GROUP)
        return
    with blinded:
        blinded.protected = GROUP
        model(X)
        model[2].register_forward_pre_hook(lambda _m, inputs: (inputs[0] + X[:, :1],))
        with pytest.raises(NotOrthogonalError, match="hook of layer '2' changes its input or output"):
            model(X)


def test_cells_without_rows_are_named_when_a_network_is_transported() -> None:
    columns = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]])[torch.arange(399) % 3]
    blinded = sq.nn.blind(network(), ["2"], moments=2).eval()
    sq.nn.fit_layer(blinded, [(X[:399], columns)])
    with pytest.warns(PooledLevelWarning, match="5 of 6 rows have a combination of protected columns without"):
        blinded(X[:6], protected=torch.tensor([[0.0, 0.0], *5 * [[1.0, 1.0]]]))


def test_a_group_whose_rows_all_weigh_nothing() -> None:
    rng = np.random.default_rng(0)
    columns = np.column_stack([np.arange(300) % 3 == 0, np.arange(300) % 2]).astype(float)
    Z, weight = rng.normal(size=(300, 3)) + columns[:, 1:], 1.0 - columns[:, 0]
    with pytest.warns(sq.errors.DroppedColumnWarning, match="constant: x0"):
        moved = sq.LinearOrthogonalizer().fit(Z, protected=columns, sample_weight=weight).transform(Z, columns)
    alone = weight > 0.0
    expected = sq.LinearOrthogonalizer().fit_transform(Z[alone], protected=columns[alone, 1:])
    np.testing.assert_allclose(moved[alone], expected, atol=1e-12)
    with pytest.raises(InputError, match="2 of 4 cells of the protected columns have no more rows"):
        sq.LinearOrthogonalizer(moments=2, shrinkage=0.0).fit(Z, protected=columns, sample_weight=weight)


def test_the_mask_of_an_encoder_is_not_that_of_its_decoder() -> None:
    class Config:
        is_encoder_decoder = True

    model, masks = nn.Identity(), {"attention_mask": torch.ones(2, 3)}
    assert mask_of_layer(model, "model.decoder.layers.0", masks) is masks["attention_mask"]  # one stack of layers
    model.config = Config()
    assert mask_of_layer(model, "encoder.block.0", masks) is masks["attention_mask"]
    with pytest.raises(InputError, match="pass decoder_attention_mask, or mask="):
        mask_of_layer(model, "decoder.block.0", masks)
    own = masks | {"decoder_attention_mask": torch.zeros(2, 3)}
    assert mask_of_layer(model, "decoder.block.0", own) is own["decoder_attention_mask"]
