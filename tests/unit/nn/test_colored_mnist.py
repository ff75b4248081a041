"""The experiment on coloured digits: on made-up ones here; the real one is slow and marked so."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from setsquare.errors import InputError
from studies.datasets import available, load_colored_mnist
from studies.paper import catalogue, colored_mnist, fig4
from studies.paper.colored_mnist_training import (
    MODES,
    Mode,
    Network,
    Penalty,
    Published,
    Rows,
    Settings,
    pooled,
    train,
)

TINY = Settings(epochs=1, batch=32)


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noisy rings and bars in the place of 0 and 9."""
    rng = np.random.default_rng(0)
    i, j = np.mgrid[:28, :28] - 13.5
    shapes = np.stack([np.abs(np.hypot(i, j) - 8) < 2, (np.abs(j) < 2) & (np.abs(i) < 10)])
    arrays = {}
    for part, n in (("train", 80), ("test", 40)):
        label = rng.integers(0, 2, n)
        arrays[f"x_{part}"] = (shapes[label] * rng.integers(128, 256, (n, 28, 28))).astype(np.uint8)
        arrays[f"y_{part}"] = (9 * label).astype(np.uint8)
    (tmp_path / "mnist").mkdir()
    np.savez(tmp_path / "mnist" / "mnist_0_9.npz", **arrays)
    monkeypatch.setenv("SETSQUARE_DATA", str(tmp_path))
    monkeypatch.setattr(colored_mnist, "load_colored_mnist", partial(load_colored_mnist, verify=False))


def test_every_mode_runs_and_says_what_it_measured(digits: None) -> None:
    result = colored_mnist.run(seeds=[0], settings=TINY)
    assert result["red_and_label"] == pytest.approx(-1.0), "red is the label"
    assert [row["mode"] for row in result["runs"]] == list(result["table"]) == list(MODES)
    for row in result["runs"]:
        assert all(0.0 <= row[part] <= 1.0 for part in colored_mnist.PARTS) and row["epochs"] == 1
        assert -1.0 <= row["influence_output"] <= 1.0 and sorted(row["influence_units"]) == row["influence_units"]


def test_a_seed_fixes_everything(digits: None) -> None:
    first, second, other = (colored_mnist.measure("uncorrected", seed, TINY) for seed in (0, 0, 1))
    assert first | {"seconds": 0.0} == second | {"seconds": 0.0} and first["before"] == 0.0
    assert first["influence_units"] != other["influence_units"]


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(InputError, match="There is no mode magic: choose from uncorrected; "):
        colored_mnist.run(["magic"])


def test_the_figure_holds_every_mode_that_was_run(digits: None, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    record, paths = catalogue.run("fig4", tmp_path, quick=True)
    assert [row[0] for row in record.tables[0].rows] == [fig4.SHOWN[mode] for mode in fig4.QUICK]
    assert any("correlation of red with the label is -1.000 in the training rows" in one for one in record.reasons)
    assert [path.name for path in paths] == ["fig4.json", "fig4.csv", "fig4.png"]
    assert fig4.draw(record, tmp_path / "colour.svg").read_text().count("generalised") == 1


def test_the_network_is_the_published_one() -> None:
    sizes = [tuple(parameter.shape) for name, parameter in Network(Mode()).named_parameters() if "weight" in name]
    assert sizes == [(8, 3, 3, 3), (16, 8, 3, 3), (64, 2304), (1, 64)]
    responses = Network(Mode())(torch.rand(2, 3, 28, 28), torch.zeros(2, 1))
    assert [tuple(part.shape) for part in responses] == [(2,), (2, 8, 26, 26), (2, 16, 24, 24)]


def test_the_published_layer_removes_red_and_the_mean_in_training_only() -> None:
    generator = torch.Generator().manual_seed(0)
    red = (torch.arange(64) % 2).double()[:, None]
    y = torch.rand(64, 3, 4, dtype=torch.float64, generator=generator) + red[:, :, None]
    layer = Published()
    effect = torch.tensordot(red[:, 0] - 0.5, y, 1)
    assert effect.abs().min() > 1.0
    corrected = layer(y, red)
    assert torch.tensordot(red[:, 0] - 0.5, corrected, 1).abs().max() < 1e-10 and corrected.mean(0).abs().max() < 1e-12
    assert layer.eval()(y, red) is y


def test_pooled_responses_of_a_colour_blind_network_know_no_colour() -> None:
    generator = torch.Generator().manual_seed(0)
    grey = torch.rand(40, 28, 28, generator=generator)
    images = torch.zeros(120, 3, 28, 28)
    for channel in range(3):
        images[40 * channel : 40 * (channel + 1), channel] = grey
    colour = torch.repeat_interleave(torch.eye(3)[:, :2], 40, dim=0)
    for mode in (MODES["pooled, colour"], MODES["moments, colour"]):
        torch.manual_seed(0)
        network, left = Network(mode), []
        for blind in (False, True):
            if blind:
                network.first.weight.data[:] = network.first.weight.data[:, :1]
            penalty = Penalty(mode, 2, TINY)
            penalty(pooled(network(images, colour), images, mode), colour)
            left.append(max(part.residual for part in penalty))
        assert left[0] > 0.5 and left[1] < 1e-5


def test_training_stops_as_soon_as_it_cannot_get_better() -> None:
    generator = torch.Generator().manual_seed(0)
    label = (torch.arange(64) % 2).float()
    images = torch.zeros(64, 3, 28, 28)
    images[:, 0] = label[:, None, None] * torch.rand(64, 28, 28, generator=generator)
    rows = Rows(images, label, label[:, None])
    _, easy = train(Mode(), rows, rows, Settings(epochs=30, batch=16), 0, lambda: None)
    assert easy["epochs"] == easy["best_epoch"] < 30
    hopeless = rows._replace(label=1.0 - label)  # the better it learns, the worse it does here
    _, hard = train(Mode(), rows, hopeless, Settings(epochs=30, batch=16, patience=2), 0, lambda: None)
    assert hard["epochs"] == hard["best_epoch"] + 2 < 30


def test_a_training_that_was_stopped_goes_on(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    label = (torch.arange(64) % 2).float()
    rows = Rows(torch.rand(64, 3, 28, 28, generator=generator), label, label[:, None])
    other = rows._replace(label=(torch.rand(64, generator=generator) > 0.5).float())

    def reach(epochs: int, checkpoint: Path | None) -> tuple[Network, dict[str, float]]:
        return train(Mode(), rows, other, Settings(epochs=epochs, batch=16), 0, lambda: None, checkpoint)

    whole, about = reach(4, None)
    _, half = reach(2, tmp_path / "x.pt")
    again, rest = reach(4, tmp_path / "x.pt")
    assert about["epochs"] == rest["epochs"] == 4 and half["epochs"] == 2 and rest["before"] > 0.0 == about["before"]
    for one, two in zip(whole.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.slow
def test_the_constraint_makes_the_network_read_the_digit() -> None:
    if "SETSQUARE_DATA" not in os.environ or not available("colored_mnist"):
        pytest.skip("mnist/mnist_0_9.npz is not in SETSQUARE_DATA")
    # Fewer rows in smaller batches than published, and one seed: half the steps, each on half the rows.
    settings = Settings(epochs=10, batch=64, n_train=2500)
    plain, blinded = (colored_mnist.measure(name, 0, settings) for name in ("uncorrected", "moments, colour"))
    assert plain["test"] < 0.6 and abs(plain["influence_output"]) > 0.9
    assert blinded["test"] > 0.95 and abs(blinded["influence_output"]) < 0.1
