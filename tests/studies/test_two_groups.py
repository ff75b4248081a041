"""Two groups of images: the generator, MetadataNorm's layer, and the benchmark that compares it with ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import two_groups as benchmark
from benchmarks.two_groups_show import draw_figure, summarise
from numpy.testing import assert_allclose
from scipy import stats

from setsquare.errors import InputError
from setsquare.nn.constraint import OrthogonalityConstraint, Scale
from setsquare.nn.functional import project_out
from setsquare.nn.layer import Orthogonalize
from studies.datasets.two_groups import NOISE, RANGES, best_accuracy, make_two_groups
from studies.paper.published_layers import MetadataNorm

torch.set_num_threads(1)


# ------------------------------------------------------------------------------------------------ images
def test_images_are_the_published_kernels_times_their_intensities() -> None:
    data = make_two_groups(200, 0)
    edges = np.linspace(-5.0 - 11.0 / 32.0, 5.0 + 11.0 / 32.0, 17)
    mass = stats.norm.cdf(edges[1:]) - stats.norm.cdf(edges[:-1])
    kernel = np.sqrt(np.outer(mass, mass))
    kernel /= kernel.sum()
    expected = np.zeros((400, 32, 32))
    expected[:, :16, :16] = expected[:, 16:, 16:] = data.signal[:, None, None] * kernel
    expected[:, 16:, :16] = data.confounder[:, None, None] * kernel
    noise = data.images - expected
    assert noise.std() == pytest.approx(NOISE, rel=0.01) and abs(noise.mean()) < 1e-4
    assert np.abs(noise).max() < 6.0 * NOISE


@pytest.mark.parametrize("confounded", [True, False])
def test_intensities_of_the_groups(confounded: bool) -> None:
    data = make_two_groups(5000, 1, size=4, confounded=confounded)
    for g, (low, high) in enumerate(RANGES):
        assert stats.kstest(data.signal[data.group == g], "uniform", (low, high - low)).pvalue > 1e-3
        assert abs(np.corrcoef(data.signal[data.group == g], data.confounder[data.group == g])[0, 1]) < 0.05
    correlation = np.corrcoef(data.group, data.confounder)[0, 1]
    assert correlation == pytest.approx(np.sqrt(1.0 / 1.75) if confounded else 0.0, abs=0.03)


def test_best_accuracies_are_those_of_the_densities() -> None:
    grid = np.arange(500) * 1e-2 + 1.005
    f = [stats.uniform.pdf(grid, low, high - low) for low, high in RANGES]
    assert best_accuracy(confounder=False) == pytest.approx(0.5e-2 * np.maximum(*f).sum(), abs=1e-9)
    both = [np.outer(density, density) for density in f]
    assert best_accuracy(confounder=True) == pytest.approx(0.5e-4 * np.maximum(*both).sum(), abs=1e-9)


@pytest.mark.parametrize(
    ("weight", "threshold", "accuracies"),
    [(1.0, 7.0, (17.0 / 18.0, 13.0 / 18.0)), (-4.0 / 7.0, 1.5, (0.643, 0.791))],
)
def test_rules_that_use_the_confounder(weight: float, threshold: float, accuracies: tuple[float, float]) -> None:
    """Accuracies where the confounder is that of the group, and where it is not; the second rule is uncorrelated."""
    for confounded, expected in zip((True, False), accuracies, strict=True):
        data = make_two_groups(100_000, 2, size=4, confounded=confounded)
        score = data.signal + weight * data.confounder
        assert np.mean((score > threshold) == (data.group == 1.0)) == pytest.approx(expected, abs=0.004)
        if confounded and weight < 0.0:
            assert abs(np.corrcoef(score, data.confounder)[0, 1]) < 0.01


@pytest.mark.parametrize(("options", "name"), [({"n_per_group": 0}, "n_per_group"), ({"size": 15}, "size")])
def test_what_cannot_be_drawn(options: dict[str, int], name: str) -> None:
    with pytest.raises(InputError, match=f"{name} must be"):
        make_two_groups(**options)


# ------------------------------------------------------------------------------------------------ layers
def partial_effects(y: torch.Tensor, rows: benchmark.Rows) -> np.ndarray:
    """Effects of group, confounder and a constant on each unit, by least squares."""
    D = torch.cat([rows.group[:, None], rows.confounder, torch.ones_like(rows.confounder)], 1)
    return np.linalg.lstsq(D.double().numpy(), y.double().numpy(), rcond=None)[0]


@pytest.fixture
def rows() -> benchmark.Rows:
    data = benchmark.draw(300, np.random.default_rng(0), confounded=True)
    return benchmark.Rows(*(part.double() for part in data))


@pytest.fixture
def units(rows: benchmark.Rows) -> torch.Tensor:
    """Noise, a mixture of everything, and the confounder itself."""
    noise = torch.from_numpy(np.random.default_rng(1).normal(size=(600, 2)))
    noise[:, 1] += 2.0 + 3.0 * rows.confounder[:, 0] - rows.group
    return torch.cat([noise, rows.confounder], 1)


def test_metadata_norm_removes_the_partial_effect_and_keeps_the_groups(
    rows: benchmark.Rows, units: torch.Tensor
) -> None:
    layer = MetadataNorm(rows.confounder, rows.group, momentum=1.0)
    corrected = layer(units, rows.confounder, rows.group)
    before, after = partial_effects(units, rows), partial_effects(corrected, rows)
    assert np.abs(before[1]).max() > 0.9
    assert_allclose(after[1:], 0.0, atol=1e-12)
    assert_allclose(after[0], before[0], atol=1e-12)
    # at test time: the running effects, without the groups
    assert_allclose(layer.eval()(units, rows.confounder), corrected, atol=1e-12)


def test_metadata_norm_leaves_what_the_confounder_tells_through_the_group(
    rows: benchmark.Rows, units: torch.Tensor
) -> None:
    """Its measure is the effect beside the label; that of the metadata alone, the paper's, is not zero."""

    def alone(y: torch.Tensor) -> np.ndarray:
        design = np.column_stack([rows.confounder, np.ones(len(y))])
        return np.asarray(np.linalg.lstsq(design, y.numpy(), rcond=None)[0][0])

    after = alone(MetadataNorm(rows.confounder, rows.group)(units, rows.confounder, rows.group))
    assert np.abs(after).max() > 0.05
    assert_allclose(alone(project_out(units, rows.confounder)), 0.0, atol=1e-12)


def test_metadata_norm_is_inexact_on_a_part_of_the_rows(rows: benchmark.Rows) -> None:
    layer, some = MetadataNorm(rows.confounder, rows.group), slice(None, None, 38)
    y = rows.confounder[some]
    assert layer(y, y, rows.group[some]).std() > 0.1 * y.std()
    assert layer(rows.confounder, rows.confounder, rows.group).std() < 1e-12


def test_keeping_the_label_is_exact_and_needs_no_group_at_test_time(rows: benchmark.Rows, units: torch.Tensor) -> None:
    layer = Orthogonalize(1, n_given=1)
    corrected = layer(units, torch.cat([rows.confounder, rows.group[:, None]], 1))
    before, after = partial_effects(units, rows), partial_effects(corrected, rows)
    assert np.abs(before[1]).max() > 0.9
    assert_allclose(after[1], 0.0, atol=1e-12)
    assert_allclose(after[0], before[0], atol=1e-12)
    assert_allclose(layer.eval()(units, rows.confounder), corrected, atol=1e-12)


def test_a_layer_given_the_confounder_less_its_group_mean_shows_the_group(rows: benchmark.Rows) -> None:
    """The trap: what is left of the confounder is its group's mean, which tells the group without error."""
    within = benchmark.protected_columns(rows, benchmark.METHODS["our layer, confounder given group"])
    left = project_out(rows.confounder, within)[:, 0]
    first, second = left[rows.group == 0.0], left[rows.group == 1.0]
    assert first.std() < 1e-12 and second.std() < 1e-12 and second.mean() - first.mean() > 1.8
    kept = Orthogonalize(1, n_given=1)(rows.confounder, torch.cat([rows.confounder, rows.group[:, None]], 1))
    assert kept.std() < 1e-12


def test_columns_of_the_constraint_tell_nothing_of_the_group(rows: benchmark.Rows) -> None:
    X = benchmark.protected_columns(rows, benchmark.METHODS["our constraint given group"])
    assert X.shape == (600, 3)
    given_group = torch.cat([torch.ones_like(X[:, 2:]), X[:, 2:]], 1)
    left = X[:, :2] - given_group @ torch.linalg.lstsq(given_group, X[:, :2]).solution
    for g in (0.0, 1.0):
        assert_allclose(left[rows.group == g].mean(0), 0.0, atol=1e-12)
        assert_allclose(X[rows.group == g][:, 1 - int(g)], 0.0, atol=0.0)
    # the confounder itself does tell
    assert abs(np.corrcoef(rows.confounder[:, 0], rows.group)[0, 1]) > 0.7


# ------------------------------------------------------------------------------------------------ benchmark
def test_every_method_runs_and_is_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(benchmark, "MAX_STEPS", 2)
    results = {"runs": [benchmark.measure(name, 8, 0, n_per_group=30) for name in benchmark.METHODS]}
    cells = summarise(results)
    assert [cell["method"] for cell in cells] == list(benchmark.METHODS)
    for cell in cells:
        assert 0.0 <= cell["unconfounded"] <= 1.0 and -1.0 <= cell["dcor2_prediction"] <= 1.0
    pytest.importorskip("matplotlib")
    draw_figure(results, tmp_path / "images" / "figure.png")
    assert (tmp_path / "images" / "figure.png").stat().st_size > 10_000


def test_a_plain_network_owes_its_accuracy_to_the_confounder() -> None:
    row = benchmark.measure("uncorrected", 128, 0)
    assert row["confounded"] > 0.92 > 0.80 > row["unconfounded"]
    assert min(row["dcor2_prediction"]) > 0.1 and row["p_prediction"] == [0.025, 0.025]


@pytest.mark.parametrize("scale", [0.5, "unit"])
def test_a_constraint_in_tiny_batches_keeps_the_decisions(scale: Scale, monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions hardly vary at first. With a penalty relative to their own spread they never do, and that is told."""
    made = []

    def make(n_protected: int, n_given: int = 0) -> OrthogonalityConstraint:
        made.append(OrthogonalityConstraint(n_protected, n_given=n_given, scale=scale))
        return made[-1]

    monkeypatch.setattr(benchmark, "OrthogonalityConstraint", make)
    method, rng = benchmark.METHODS["our constraint given group"], np.random.default_rng(0)
    training, new = (benchmark.draw(1000, rng, confounded=confounded) for confounded in (True, False))
    network = benchmark.train(method, training, 16, 0)
    with torch.no_grad():
        prediction = network(training.images, training.confounder)[0].sigmoid()
        accuracy = ((network(new.images, new.confounder)[0] > 0.0) == (new.group > 0.5)).double().mean()
    if scale == "unit":
        assert prediction.std() < 0.01 and np.isnan(made[-1].residual)
    else:
        X = benchmark.protected_columns(training, method)
        assert prediction.std() > 0.25 and accuracy > 0.81
        given = torch.column_stack([torch.ones(len(X)), X[:, 2:]])
        residual = X[:, :2] - given @ torch.linalg.lstsq(given, X[:, :2]).solution
        assert torch.column_stack([prediction, residual]).T.corrcoef()[0, 1:].abs().max() < 0.03
        assert made[-1].residual < 0.3
