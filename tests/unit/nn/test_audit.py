"""Audit of a layer: what it sees, what it finds, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import setsquare as sq
from setsquare._typing import Array
from setsquare.auditing import AuditResult
from setsquare.errors import InputError, MissingValuesError
from setsquare.nn import Orthogonalize, audit_layer, blind, fit_layer

torch.set_num_threads(1)
quick = partial(audit_layer, n_permutations=99)


def draw(n: int = 800, shift: float = 0.3, spread: float = 0.0) -> tuple[Tensor, Tensor]:
    """Images whose level, or whose spread alone, follows the group."""
    torch.manual_seed(0)
    group = (torch.arange(n) % 2).float()[:, None]
    wide = (1.0 + spread * group) * torch.randn(n, 1)
    images = 0.5 * torch.randn(n, 2, 6, 6) + (wide + shift * group)[:, :, None, None]
    return images.double(), group


def loader(*parts: Any, size: int = 150) -> list[tuple[Any, ...]]:
    return list(zip(*(part.split(size) for part in parts), strict=True))


def network() -> nn.Sequential:
    torch.manual_seed(1)
    layers = [nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Flatten(), nn.Linear(48, 2)]
    return nn.Sequential(*layers).double()


def largest(result: AuditResult) -> float:
    assert result.effect_map is not None
    return float(result.effect_map.correlation.max())


def n_hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_a_leak_is_found_and_the_result_is_that_of_the_activations_collected_by_hand() -> None:
    images, group = draw()
    model = network()
    result = quick(model, iter(loader(images, torch.zeros(800), group)), "0")
    assert result.is_leak and result.reason.startswith("Units of layer '0' depend on")
    by_hand = model[0](images).detach().numpy()  # before the ReLU, which works in place
    expected = sq.audit(by_hand, group.numpy(), n_permutations=99)
    assert result.evaluations == expected.evaluations
    assert result.certificate == expected.certificate
    assert result.effect_map == expected.effect_map
    assert result.effect_map is not None and result.effect_map.correlation.shape == (3, 4, 4)
    assert "layer '0' at test time" in str(result)


@pytest.mark.parametrize(("name", "where"), [("0", "post"), ("1", None)])
def test_a_fitted_correction_passes_on_its_rows_and_nothing_did_before(name: str, where: Any) -> None:
    images, group = draw(2000)
    model, batches = network(), loader(images, group)
    assert quick(model, batches, name).is_leak
    blinded = blind(model, [name], where=where)
    fit_layer(blinded, batches)
    after = quick(blinded, batches, name)
    assert after.verdict == "no leak found" and after.p_value == 1.0
    assert largest(after) < 1e-6
    with blinded:
        assert quick(blinded, batches, name).effect_map == after.effect_map
    assert quick(model, batches, name).is_leak  # the network itself is as it was


def test_the_published_correction_leaves_a_leak_behind_the_relu_and_the_generalised_one_none() -> None:
    images, group = draw(3000, shift=0.0, spread=3.0)
    batches, found = loader(images, group, size=500), {}
    for where in ("pre", "generalized"):
        blinded = blind(network(), ["1"], where=where)  # type: ignore[arg-type]
        fit_layer(blinded, batches)
        found[where] = quick(blinded, batches, "1")
    assert found["pre"].is_leak and largest(found["pre"]) > 0.1
    assert found["generalized"].verdict == "no leak found" and largest(found["generalized"]) < 1e-6


def test_held_out_rows_are_audited_as_the_network_meets_them() -> None:
    images, group = draw(6000)
    model = network()
    blinded = blind(model, ["1"])
    fit_layer(blinded, loader(images[:5000], group[:5000]))
    new = loader(images[5000:], group[5000:])
    before, after = quick(model, new, "1"), quick(blinded, new, "1")
    assert before.is_leak and not after.is_leak
    assert 1e-3 < largest(after) < 0.6 * largest(before)


class Square(nn.Module):
    """Units that follow a column, but not linearly."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, 0] ** 2 + x[:, 1], x[:, 2], x[:, 3]], 1)


@pytest.fixture(scope="module")
def mirrored() -> tuple[Tensor, Array]:
    """Rows in pairs with opposite ages, so that no line explains a unit."""
    z = torch.from_numpy(np.random.default_rng(0).normal(size=(100, 4)))
    return torch.cat([z, z]), torch.cat([z[:, 0], -z[:, 0]]).numpy()


def test_relu_finds_what_is_not_linear_and_equals_the_audit_of_each_unit(mirrored: tuple[Tensor, Array]) -> None:
    x, age = mirrored
    model, batches = nn.Sequential(Square()), [(part,) for part in x.split(75)]
    assert not quick(model, batches, "0", age).is_leak
    result = audit_layer(model, batches, "0", age, evaluation="relu", n_permutations=199)
    assert [e.name for e in result.evaluations] == ["tensor", "relu"]
    assert result.is_leak and "ReLU evaluation model" in result.reason
    alone = [
        sq.audit(y, age, family="gaussian", evaluation="relu", n_permutations=199).evaluations[0]
        for y in model(x).numpy().T
    ]
    assert result.evaluation("relu").joint.p_value == 3 * min(e.joint.p_value for e in alone) == 0.015
    effects = {e.term: e.estimate for e in result.evaluation("relu").effects}
    assert effects == {f"x0, unit ({j},)": e.effects[0].estimate for j, e in enumerate(alone)}


def test_the_forest_of_the_components_is_that_of_all_standardised_units(mirrored: tuple[Tensor, Array]) -> None:
    x, age = mirrored
    settings: dict[str, Any] = {"evaluation": "forest", "n_permutations": 19, "confidence": 0.9}
    result = audit_layer(nn.Sequential(Square()), [x], "0", age, **settings)
    assert result.is_leak and "forest" in result.reason
    units = Square()(x).numpy()
    forest = sq.audit((units - units.mean(0)) / units.std(0), age, family="gaussian", **settings).evaluations[0]
    found = result.evaluation("forest")
    assert found.joint.p_value == forest.joint.p_value == 0.05
    assert found.joint.statistic == pytest.approx(forest.joint.statistic, rel=1e-9)
    assert "3 principal component(s) of the standardised units, 100% of their variance" in found.notes[-1]


def test_the_choice_of_units_does_not_raise_false_alarms() -> None:
    rng, alarms, by_effect = np.random.default_rng(1), 0, 0
    model, settings = nn.Sequential(nn.Identity()), {"evaluation": "relu", "n_permutations": 39}
    for _ in range(20):
        units, column = 5.0 + rng.normal(size=(40, 200)), rng.normal(size=40)
        found = audit_layer(model, [torch.from_numpy(units)], "0", column, n_components=2, **settings)  # type: ignore[arg-type]
        alarms += found.evaluation("relu").joint.p_value <= 0.05
        largest = np.abs((column - column.mean()) @ (units - units.mean(0)) / units.std(0)).argmax()
        worst = sq.audit(units[:, largest], column, family="gaussian", **settings)  # type: ignore[arg-type]
        by_effect += worst.p_value <= 0.05
    assert alarms <= 5  # at most 1 expected; more than 5 less than once in 1000
    assert by_effect >= 15  # what choosing the unit with the largest effect would do


def test_names_and_levels_of_a_table_and_text_in_the_batches() -> None:
    images, group = draw()
    site = np.where(group[:, 0] == 1.0, "Basel", "Aachen")
    by_table = quick(network(), DataLoader(TensorDataset(images), batch_size=100), "1", pd.DataFrame({"site": site}))
    assert by_table.table()["term"].tolist() == ["site[Basel]"]
    batches = [(a, list(b)) for a, b in zip(images.split(100), np.split(site, 8), strict=True)]
    assert quick(network(), batches, "1").effect_map is not None
    assert largest(quick(network(), batches, "1")) == pytest.approx(largest(by_table), rel=1e-12)


def test_pool_and_batch_axis() -> None:
    images, group = draw()
    batches = loader(images, group)
    whole = network()[0](images).detach().numpy()
    pooled = quick(network(), batches, "0", pool=(2, 3))
    expected = sq.audit(whole.mean((2, 3)), group.numpy(), n_permutations=99).effect_map
    assert pooled.effect_map is not None and expected is not None
    np.testing.assert_allclose(pooled.effect_map.correlation, expected.correlation, rtol=1e-10)
    rectified = quick(network(), batches, "0", pool=torch.relu)
    assert rectified.effect_map == quick(network(), batches, "1").effect_map
    turned = [(a.flatten(1).T.contiguous(), b) for a, b in batches]
    first = quick(nn.Sequential(nn.Identity()), turned, "0", batch_dim=1)
    assert first.effect_map == quick(nn.Sequential(nn.Flatten()), batches, "0").effect_map


def test_rows_that_sum_to_one_are_units_and_half_precision_is_read() -> None:
    images, group = draw()
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 3), nn.Softmax(1)).to(torch.bfloat16)
    result = quick(model, loader(images.bfloat16(), group), "2")
    assert result.effect_map is not None and result.effect_map.correlation.shape == (3,)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.second = nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5)
        self.memory, self.unused = nn.LSTM(5, 2, batch_first=True), nn.Linear(1, 1)
        self.correct = Orthogonalize(1)

    def forward(self, x: Tensor, protected: Tensor) -> Tensor:
        y = self.relu(self.second(self.relu(self.first(x))))
        return self.correct(self.memory(y[:, None])[1][0][0], protected)


def test_a_layer_that_is_called_twice_one_that_returns_tuples_and_a_network_that_takes_protected() -> None:
    torch.manual_seed(0)
    x, group = torch.randn(400, 3), (torch.arange(400.0) % 2)[:, None]
    model, batches = Twice(), loader(x + group, group)
    fit_layer(model, batches)
    shapes = {}
    for layer in ("relu", "relu#2"):
        result = quick(model, batches, layer)
        assert result.effect_map is not None and any("2 times per forward pass" in note for note in result.notes)
        shapes[layer] = result.effect_map.correlation.shape
    assert shapes == {"relu": (4,), "relu#2": (5,)}
    assert quick(model, batches, "memory", output=0).is_leak
    assert not quick(model, batches, "correct").is_leak
    as_dict = [{"x": a, "protected": b} for a, b in batches]
    again = quick(model, as_dict, "correct", group, forward=lambda model, batch: model(**batch))
    assert largest(again) < 1e-5


def test_the_network_is_left_as_it_was() -> None:
    images, group = draw()
    blinded = blind(network(), ["0"], where="post")
    fit_layer(blinded, loader(images, group))
    blinded.train()
    blinded.model[2].eval()  # type: ignore[index]
    flags = [module.training for module in blinded.modules()]
    before = {name: value.clone() for name, value in blinded.state_dict().items()}
    quick(blinded, loader(images, group), "0")
    assert [module.training for module in blinded.modules()] == flags
    assert all(torch.equal(value, before[name]) for name, value in blinded.state_dict().items())
    assert not n_hooks(blinded)
    assert all(p.grad is None for p in blinded.parameters())
    with pytest.raises(InputError):
        quick(blinded, [(images, group[:5])], "0")
    assert not n_hooks(blinded) and [module.training for module in blinded.modules()] == flags


IMAGES, GROUP = draw(40)
TWICE, BATCHES = Twice(), loader(torch.randn(40, 3), GROUP, size=20)
fit_layer(TWICE, BATCHES)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quick(network(), [(IMAGES, GROUP)], "10"), r"no layer '10': did you mean '1', '0'"),
        (lambda: quick(network(), [(IMAGES, GROUP)], "0#x"), "no layer '0#x'"),
        (lambda: quick(network(), [], "0"), "no batches"),
        (
            lambda: quick(network(), [(IMAGES, GROUP[:9])], "0"),
            "'0' for a batch has 40 rows but the protected columns have 9",
        ),
        (
            lambda: quick(network(), [(IMAGES,)], "0", GROUP[:9]),
            "'0' for the loader has 40 rows but the protected columns have 9",
        ),
        (lambda: quick(network(), [IMAGES], "0"), "pass the columns of all rows"),
        (lambda: quick(TWICE, BATCHES, "memory"), "returns a tuple: choose the tensor to be audited, output"),
        (lambda: quick(TWICE, BATCHES, "unused"), "did not run the layer 'unused'"),
        (lambda: quick(TWICE, BATCHES, "relu#3"), "did not run the layer 'relu#3'"),
        (lambda: quick(network(), [(IMAGES, GROUP)], "0", max_values=100), "48 units and so more than 100 values"),
        (lambda: quick(network(), [(IMAGES, GROUP)], "0", batch_dim=4), r"shape \(40, 3, 4, 4\): choose batch_dim="),
        (
            lambda: quick(network(), [(IMAGES, GROUP)], "3", pool=(2, 3)),
            r"shape \(40, 48\): choose batch_dim= and pool=",
        ),
        (lambda: quick(network(), [(IMAGES, GROUP)], "0", evaluation="glm"), "evaluation='glm' is not one of"),
        (lambda: quick(network(), [(IMAGES, GROUP)], "0", n_components=0), "at least 1"),
        (
            lambda: quick(nn.Sequential(nn.ReLU()), [(IMAGES, GROUP), (IMAGES[..., :3], GROUP)], "0"),
            r"shape \(2, 6, 6\), then \(2, 6, 3\): pool=",
        ),
        (
            lambda: quick(network(), DataLoader(TensorDataset(IMAGES), shuffle=True), "0", GROUP),
            "shuffles its rows",
        ),
    ],
)
def test_bad_input_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_missing_values_are_named() -> None:
    images = IMAGES.clone()
    images[30] = torch.nan
    with pytest.raises(MissingValuesError, match=r"Layer '0' returned missing \(NaN\) or infinite values in batch 2"):
        quick(network(), loader(images, GROUP, size=20), "0")


def test_too_few_permutations_for_so_many_units_are_said() -> None:
    images, group = draw(200)
    result = audit_layer(network(), [(images, group)], "1", evaluation="relu", n_permutations=59, n_components=4)
    (note,) = [note for note in result.notes if note.code == "few-permutations"]
    assert "reduce n_components" in note and note.severity == "warning"
    assert len(result.evaluation("relu").effects) == 4


def test_ids_of_groups_are_not_taken_for_numbers() -> None:
    ids = torch.arange(80) % 4
    for batches, protected in (([(torch.randn(80, 3), ids[:, None])], None), ([torch.randn(80, 3)], ids)):
        with pytest.raises(InputError, match=r"one_hot\(ids, n_groups\)"):
            audit_layer(torch.nn.Sequential(torch.nn.Linear(3, 2)), batches, "0", protected)
