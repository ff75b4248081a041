"""Fitting corrections of a trained network on a loader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from setsquare.errors import DroppedColumnWarning, InputError, MissingValuesError, NotOrthogonalError, WeakUnitsWarning
from setsquare.nn import Orthogonalize, audit_layer, blind, fit_layer
from setsquare.nn.functional import generalized_project_out, project_out


def draw(n: int = 500) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    X = torch.cat([(torch.rand(n, 1) < 0.3).double(), torch.randn(n, 1).double() * 10.0 + 40.0], 1)
    return torch.randn(n, 4).double() + X[:, :1] + 0.05 * X[:, 1:], X


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3), nn.Tanh()).double()


def loader(x: Tensor, X: Tensor, size: int = 64) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(size), X.split(size), strict=True))


def correlation(out: Tensor, X: Tensor) -> float:
    out, X = out.detach() - out.detach().mean(0), X - X.mean(0)
    return float(((X / X.norm(dim=0)).T @ (out / out.norm(dim=0))).abs().max())


def test_one_pass_in_a_linear_mode_is_exact() -> None:
    x, X = draw()
    model = network()
    blinded = blind(model, ["0"])
    (fit,) = fit_layer(blinded, loader(x, X)).values()
    assert (fit.n_rows, fit.n_passes) == (500, 1)
    hidden = model[0](x).detach()
    seen = []
    with blinded.eval():
        blinded.protected = X
        handle = model[1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
        model(x)
        handle.remove()
    assert correlation(hidden, X) > 0.2
    torch.testing.assert_close(seen[0], project_out(hidden, X), rtol=0.0, atol=1e-10)


def test_the_generalised_mode_ends_at_the_solution_of_all_rows() -> None:
    x, X = draw()
    model = network()
    blinded = blind(model, ["1"])
    fits = fit_layer(blinded, loader(x, X, 30))
    fit = fits["corrections.1"]
    assert fit.n_rows == 500 and 2 <= fit.n_passes <= 10 and fit.residual < 1e-6
    hidden = model[0](x).detach()
    exact = generalized_project_out(hidden, X, "relu")
    correction = blinded.corrections["1"].eval()
    torch.testing.assert_close(correction(hidden, X), exact, rtol=0.0, atol=1e-5)
    assert correlation(torch.relu(hidden), X) > 0.2
    assert correlation(torch.relu(correction(hidden, X)), X) < 1e-6


def test_several_layers_are_fitted_in_the_order_in_which_they_run() -> None:
    x, X = draw()
    model = network()
    blinded = blind(model, ["4", "1"])
    assert list(fit_layer(blinded, loader(x, X))) == ["corrections.1", "corrections.4"]
    out = blinded.eval()(x, protected=X)
    assert correlation(model.eval()(x), X) > 0.05
    assert correlation(out, X) < 1e-6
    assert all(layer.override is None and layer.frozen for layer in blinded.corrections.values())


def test_the_model_stays_as_it_was_and_the_correction_is_frozen() -> None:
    x, X = draw()
    model = network().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    blinded = blind(model, ["1"]).train()
    fit_layer(blinded, loader(x, X))
    assert all(module.training for module in blinded.modules())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    moments = {name: value.clone() for name, value in blinded.corrections.state_dict().items()}
    blinded(x + 1.0, protected=X)
    for name, value in blinded.corrections.state_dict().items():
        assert torch.equal(value, moments[name])


def test_a_network_with_the_layer_inside() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.layer = nn.Linear(4, 6).double(), Orthogonalize(2)

        def forward(self, x: Tensor, protected: Tensor) -> Tensor:
            return self.layer(self.first(x), protected)

    x, X = draw()
    model = Own()
    (fit,) = fit_layer(model, iter(loader(x, X)), model.layer).values()  # one pass may come from an iterator
    assert fit.name == "layer"
    assert correlation(model.first(x), X) > 0.2
    assert correlation(model.eval()(x, X), X) < 1e-10
    batches = [{"x": a, "protected": b} for a, b in loader(x, X)]
    fit_layer(model, batches, forward=lambda model, batch: model(**batch))
    assert correlation(model(x, X), X) < 1e-10


def test_what_cannot_be_fitted() -> None:
    x, X = draw()
    with pytest.raises(InputError, match="has no Orthogonalize layer: blind it first"):
        fit_layer(network(), loader(x, X), forward=lambda model, batch: model(batch[0]))
    with pytest.raises(InputError, match="not part of the model"):
        fit_layer(network(), loader(x, X), Orthogonalize(2))
    with pytest.raises(InputError, match="iterator"):
        fit_layer(blind(network(), ["1"]), iter(loader(x, X)), max_bytes=0)
    with pytest.raises(InputError, match="forward="):
        fit_layer(blind(network(), ["1"]), [x])
    for layer in (None, "1"):
        blinded = blind(network(), ["1"])
        with pytest.raises(InputError, match="gave no"):
            fit_layer(blinded, [], None if layer is None else blinded.corrections[layer])
    blinded = blind(network(), ["1"])
    with pytest.raises(NotOrthogonalError, match="increase max_passes"):
        fit_layer(blinded, loader(x, X, 20), max_passes=2)
    with pytest.raises(InputError, match="Layer '1': The layer has not seen a batch"):
        blinded.eval()(x, protected=X)  # what was not solved is not used
    assert fit_layer(blinded, iter(loader(x, X)), max_passes=1)["corrections.1"].n_passes == 1


@pytest.mark.parametrize("layer", ["0", "1"])
def test_a_batch_that_is_not_finite_is_not_left_out_in_silence(layer: str) -> None:
    x, X = draw()
    x[3] = torch.nan
    with pytest.raises(MissingValuesError, match=f"1 batch\\(es\\) of layer '{layer}' have missing"):
        fit_layer(blind(network(), [layer]), loader(x, X))


def test_a_batch_without_rows_adds_none_and_a_loader_is_read_once_if_its_batches_fit_in_memory() -> None:
    class Loader:
        """Starting a DataLoader may start processes: asking whether it is an iterator must not."""

        starts = 0

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            self.starts += 1
            return iter([*loader(x, X), (x[:0], X[:0])])

    x, X = draw()
    fitted = []
    for max_bytes in (1e6, 0):
        batches = Loader()
        blinded = blind(network(), ["1", "3", "4"])
        fits = fit_layer(blinded, batches, max_bytes=max_bytes)
        assert all(fit.n_rows == 500 for fit in fits.values())
        assert batches.starts == (1 if max_bytes else sum(fit.n_passes for fit in fits.values()))
        fitted.append(blinded.eval()(x, protected=X))
    torch.testing.assert_close(*fitted, rtol=0.0, atol=0.0)


def test_batches_that_share_their_memory_are_not_kept() -> None:
    class Loader:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            memory = torch.empty(50, 4).double(), torch.empty(50, 2).double()
            for a, b in loader(x, X, 50):
                yield memory[0].copy_(a), memory[1].copy_(b)

    x, X = draw()
    blinded = blind(network(), ["1"])
    assert fit_layer(blinded, Loader())["corrections.1"].n_rows == 500
    hidden = blinded.model[0](x)
    assert correlation(torch.relu(hidden), X) > 0.2
    assert correlation(torch.relu(blinded.corrections["1"].eval()(hidden, X)), X) < 1e-6


def test_a_frozen_correction_is_still_frozen_when_it_is_loaded(tmp_path: Path) -> None:
    x, X = draw()
    blinded = blind(network(), ["1"])
    fit_layer(blinded, loader(x, X))
    torch.save(blinded.state_dict(), tmp_path / "saved.pt")
    again = blind(network(), ["1"])
    again.load_state_dict(torch.load(tmp_path / "saved.pt", weights_only=True))
    before = again.eval()(x, protected=X)
    again.train()(x[:100] + 10.0, protected=X[:100])  # it would learn from these
    torch.testing.assert_close(again.eval()(x, protected=X), before, rtol=0.0, atol=0.0)
    torch.testing.assert_close(before, blinded.eval()(x, protected=X), rtol=0.0, atol=0.0)


def test_a_loader_that_shuffles_single_precision_is_solved_too() -> None:
    x, X = draw()
    x = x - x.mean(0)  # no unit is dead
    torch.manual_seed(3)
    for _ in range(5):
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        shuffled = DataLoader(TensorDataset(x.float(), X.float()), 50, shuffle=True)
        blinded = blind(model, ["1"])
        (fit,) = fit_layer(blinded, shuffled).values()
        assert fit.residual < 1e-6
        assert correlation(model(x.float()), X.float()) > 0.1
        assert correlation(blinded.eval()(x.float(), protected=X.float()), X.float()) < 1e-5


@pytest.mark.parametrize(
    ("protected", "message"),
    [((torch.arange(500) % 4)[:, None], "one_hot"), (torch.ones(500, 1), "Every protected column is constant")],
)
def test_a_fit_that_fails_leaves_the_one_before(protected: Tensor, message: str) -> None:
    x, X = draw()
    blinded = blind(network(), ["1"])
    fit_layer(blinded, loader(x, X[:, :1]))
    before = blinded.eval()(x, protected=X[:, :1])
    with pytest.raises(InputError, match=message):
        fit_layer(blinded, loader(x, protected))
    torch.testing.assert_close(blinded(x, protected=X[:, :1]), before, rtol=0.0, atol=0.0)


def test_messages_name_the_layer_as_the_user_does() -> None:
    x, X = draw()
    inner = nn.Sequential(nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.Linear(6, 1)).double()
    constant = torch.cat([X, torch.ones(500, 1)], 1)
    for model in (blind(inner, ["0.0"]), nn.ModuleDict({"part": blind(inner, ["0.0"])})):
        forward = {"forward": lambda model, batch: model["part"](batch[0], protected=batch[1])}
        options: dict[str, Any] = {} if not isinstance(model, nn.ModuleDict) else forward
        with pytest.warns(DroppedColumnWarning, match=r"are constant in the rows of the loader, so layer '0\.0' keeps"):
            fit_layer(model, loader(x, constant), **options)
        with pytest.raises(InputError, match=r"there is nothing to remove from layer '0\.0';"):
            fit_layer(model, loader(x, torch.ones(500, 1)), **options)
    own = nn.ModuleDict({"corrections": nn.ModuleDict({"mine": Orthogonalize(1)})})
    with pytest.raises(InputError, match=r"remove from layer 'corrections\.mine';"):
        fit_layer(own, loader(x, torch.ones(500, 1)), forward=lambda model, batch: model["corrections"]["mine"](*batch))


def rarely_active() -> tuple[nn.Sequential, Tensor, Tensor]:
    torch.manual_seed(1)
    group = (torch.rand(2000, 1) < 0.5).float()
    x = torch.randn(2000, 20) + 0.5 * group
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU())
    with torch.no_grad():
        model[0].bias.sub_(torch.linspace(0.0, 2.6, 64))
    return model, x, group


def test_units_that_few_rows_activate_are_solved_in_memory() -> None:
    model, x, group = rarely_active()
    before = model(x).detach()
    share = (before > 0.0).double().mean(0)
    assert int(((share > 0.0) & (share < 0.02)).sum()) > 5
    blinded = blind(model, ["1"])
    (fit,) = fit_layer(blinded, loader(x, group, 500), max_passes=6).values()
    assert fit.residual < 1e-6 and fit.weak == () and fit.n_passes == 7  # six, and one that collects weak units
    out = blinded.eval()(x, protected=group).double()
    live = before.std(0) > 0.0
    assert correlation(before[:, live], group) > 0.1 and correlation(out[:, live], group.double()) < 1e-4
    torch.testing.assert_close(out.mean(0), before.double().mean(0), rtol=1e-3, atol=1e-5)


def test_units_that_cannot_be_solved_are_switched_off_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("setsquare.nn.layer_fit.STEPS_IN_MEMORY", 0)
    model, x, group = rarely_active()
    blinded = blind(model, ["1"])
    with pytest.warns(WeakUnitsWarning, match="of 64 units of layer '1' are active in too few rows"):
        (fit,) = fit_layer(blinded, loader(x, group, 500), max_passes=6).values()
    assert 0 < len(fit.weak) < 32 and fit.residual < 1e-6
    out = blinded.eval()(3.0 * x, protected=group).detach()  # rows far from those of the fit
    off = torch.zeros(64, dtype=torch.bool)
    off[list(fit.weak)] = True
    assert float(out[:, off].abs().max()) == 0.0 and float(out[:, ~off].abs().max()) > 1.0


def test_a_bfloat16_network_with_a_generalised_correction() -> None:
    x, X = draw()
    model = network().bfloat16()
    blinded = blind(model, ["1", "4"])
    fits = fit_layer(blinded, loader(x.bfloat16(), X))
    assert all(fit.residual < 1e-6 for fit in fits.values())  # of the correction, before the result is rounded
    out = blinded.eval()(x.bfloat16(), protected=X)
    assert out.dtype == torch.bfloat16
    assert correlation(model.eval()(x.bfloat16()).double(), X) > 0.05 and correlation(out.double(), X) < 0.02


def test_an_outcome_is_not_mistaken_for_protected_columns() -> None:
    x, X = draw()
    y = (x[:, 0] > 0.0).double()
    pairs = DataLoader(TensorDataset(x, y), 64)
    with pytest.raises(InputError, match=r"values of shape \(64,\), which may be the outcome"):
        fit_layer(blind(network(), ["1"]), pairs)
    with pytest.raises(InputError, match="may be the outcome"):
        audit_layer(network(), pairs, "1")
    blinded, same = blind(network(), ["1"]), blind(network(), ["1"])
    fit_layer(blinded, pairs, protected=X)
    fit_layer(same, [{"input": a, "protected": b} for a, b in loader(x, X)])
    torch.testing.assert_close(blinded.eval()(x, protected=X), same.eval()(x, protected=X), rtol=0.0, atol=0.0)
    with pytest.raises(InputError, match="The loader gave 500 rows and protected has 400"):
        fit_layer(blinded, pairs, protected=X[:400])
    with pytest.raises(InputError, match="shuffles its rows"):
        fit_layer(blinded, DataLoader(TensorDataset(x, y), 64, shuffle=True), protected=X)
