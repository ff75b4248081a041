"""The paper's movies: its LSTM as published, trainings that go on, and the exactly corrected text model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.progress import Progress
from sklearn.linear_model import PoissonRegressor

from setsquare import OrthogonalGLMRegressor, PredictionOrthogonalizer
from studies import datasets
from studies.paper import movies, movies_models
from studies.paper.cells import Cells
from studies.paper.movies_lstm import LSTM, Words
from studies.paper.movies_models import CODINGS, FIT, PREDICTIONS, WITHOUT, Movies
from studies.paper.movies_network import Rows, Settings, evaluate, loss_of, train
from studies.paper.record import Record

# --- the network ---------------------------------------------------------------------------------------------------


def with_padding(n: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (n, 7) with padding in front, in one row throughout, and two groups."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(1, 9, (n, 7))
    tokens[np.arange(7) < rng.integers(0, 8, (n, 1))] = 0
    tokens[0] = 0
    return torch.from_numpy(tokens), torch.from_numpy(rng.integers(0, 2, n))


@pytest.mark.parametrize("groups", [1, 2])
def test_with_tanh_it_is_the_lstm_of_torch_though_padding_is_shared(groups: int) -> None:
    torch.manual_seed(0)
    ours, theirs = LSTM(3, 4, "tanh").double(), torch.nn.LSTM(3, 4, batch_first=True).double()
    order = [0, 1, 3, 2]  # ours: input, forget, output, candidate; torch has the candidate third
    tokens, group = with_padding()
    group = group * (groups - 1)
    with torch.no_grad():
        ours.bias.uniform_()
        for name, own in (
            ("weight_ih_l0", ours.kernel.T),
            ("weight_hh_l0", ours.recurrent.T),
            ("bias_ih_l0", ours.bias),
        ):
            getattr(theirs, name).copy_(torch.cat([own.chunk(4)[k] for k in order]))
        theirs.bias_hh_l0.zero_()
        # What a padded word becomes depends on the group and the step, as behind a layer that projects.
        x, padding = torch.randn(40, 7, 3, dtype=torch.float64), torch.randn(2, 7, 3, dtype=torch.float64)
        x = torch.where((tokens == 0).cumprod(1).bool()[:, :, None], padding[group], x)
        words = Words.of(tokens, group)
        assert len(words.rows) < 0.8 * tokens.numel()
        found = ours(x[words.rows, words.steps], words)
        torch.testing.assert_close(found, theirs(x)[0][:, -1], rtol=1e-12, atol=1e-14)
        relu = LSTM(3, 4, "relu").double()
        relu.load_state_dict(ours.state_dict())
        assert not torch.allclose(
            relu(x[words.rows, words.steps], words), ours(x[words.rows, words.steps], words), atol=1e-3
        )


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_the_gradient_that_is_written_out_is_the_numerical_one(activation: str) -> None:
    torch.manual_seed(0)
    lstm = LSTM(3, 4, activation).double()  # type: ignore[arg-type]
    tokens, group = with_padding(12)
    words = Words.of(tokens, group)
    x = torch.randn(len(words.rows), 3, dtype=torch.float64, requires_grad=True)

    def state(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        names = [name for name, _ in lstm.named_parameters()]
        found: torch.Tensor = torch.func.functional_call(lstm, dict(zip(names, parameters, strict=True)), (x, words))
        return found

    assert torch.autograd.gradcheck(state, (x, *lstm.parameters()), atol=1e-7, rtol=1e-5)


def made_up(n: int = 300) -> Rows:
    """Short descriptions whose length and words tell the group, which tells the votes."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, n)
    tokens = rng.integers(1, 4, (n, 6)) + 2 * group[:, None]
    tokens[np.arange(6) < rng.integers(0, 5, (n, 1))] = 0
    votes = torch.from_numpy(rng.poisson(2.0 + 8.0 * group)).float()
    return Rows(torch.from_numpy(tokens), votes, torch.from_numpy(group[:, None]).float())


def test_a_training_that_was_stopped_goes_on(tmp_path: Path) -> None:
    rows, settings = made_up(), Settings("tanh", 1e-2, epochs=3, batch=64)
    for correction in ("without", "layer"):
        whole = train(correction, rows, settings)
        path = tmp_path / f"{correction}.pt"
        first = train(correction, rows, replace(settings, epochs=1), checkpoint=path)
        torch.manual_seed(99)  # whatever came in between
        second = train(correction, rows, settings, checkpoint=path)
        assert first.losses == whole.losses[:2] and second.losses == whole.losses and len(whole.losses) == 4
        for a, b in zip(whole.network.parameters(), second.network.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0.0, atol=0.0)


def test_the_layer_takes_the_group_out_of_the_embedding_but_not_out_of_the_predictions() -> None:
    rows = made_up(1000)
    group = rows.protected[:, 0]
    network = train("layer", rows, Settings("tanh", 1e-2, epochs=20, patience=20)).network
    with torch.no_grad():
        words = network.embedding(rows.tokens)
        parts = words, network.correction(words, rows.protected)
        gaps = [float((part[group == 1].mean(0) - part[group == 0].mean(0)).abs().max()) for part in parts]
    assert gaps[0] > 0.01 and gaps[1] < 1e-6
    assert np.corrcoef(evaluate(network, rows).eta.exp(), group)[0, 1] > 0.8  # were the LSTM linear, it would be 0


def test_the_relu_cell_diverges_and_the_best_network_before_is_kept() -> None:
    rows = made_up()
    rows = rows._replace(tokens=rows.tokens.repeat(1, 10), votes=100.0 * rows.votes)
    settings = Settings("relu", 1e-2, epochs=20, batch=32, patience=20)
    diverged = train("without", rows, settings)
    assert diverged.diverged is not None and np.isfinite([*diverged.losses, loss_of(diverged.network, rows)]).all()
    assert train("without", rows, replace(settings, activation="tanh", epochs=3)).diverged is None


# --- real data -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cells() -> Cells:
    return Cells()


@pytest.fixture(scope="module")
def record(cells: Cells) -> Record:
    if not datasets.available("movies"):
        pytest.skip("the data set movies is not on this machine: set SETSQUARE_DATA")
    return movies.run(quick=True, cells=cells, progress=Progress(disable=True))


@pytest.fixture(scope="module")
def real() -> Movies:
    if not datasets.available("movies"):
        pytest.skip("the data set movies is not on this machine: set SETSQUARE_DATA")
    return Movies.load()


@pytest.mark.parametrize("coding", CODINGS)
def test_the_text_model_is_orthogonal_and_costs_little(real: Movies, coding: str) -> None:
    found = {name: movies_models.text_model(real, name, coding) for name in (WITHOUT, FIT, PREDICTIONS)}
    assert found[WITHOUT]["correlation_fit"] > 0.1
    assert found[FIT]["correlation_fit"] < 1e-8 and found[PREDICTIONS]["correlation_fit"] < 1e-8
    assert found[FIT]["rmse"]["estimate"] < 1.02 * found[WITHOUT]["rmse"]["estimate"]
    for name in (FIT, PREDICTIONS):
        assert found[name]["correlation"] < 0.3 * found[WITHOUT]["correlation"]
        for effect in found[name]["effects"]:
            assert {"estimate", "ci_low", "ci_high"} <= effect.keys() and abs(effect["estimate"]) < 0.1
    largest = max(abs(effect["estimate"]) for effect in found[WITHOUT]["effects"])
    assert largest > 0.2


def test_the_estimators_say_the_same(real: Movies) -> None:
    Z, X = real.data.arrays["minilm"].astype(float), real.X["director"]
    old = real.train
    model = OrthogonalGLMRegressor("poisson").fit(Z[old], real.y[old], protected=X[old])
    np.testing.assert_allclose(model.predict(Z), movies_models.fit(real, Z, "director"), rtol=1e-6)
    plain = PoissonRegressor(alpha=0.0, solver="newton-cholesky", tol=1e-10)
    around = PredictionOrthogonalizer(plain, activation="exp", cv="training rows")
    around.fit(Z[old], real.y[old], protected=X[old])
    ours = movies_models.correct(real, movies_models.fit(real, Z), "director")
    np.testing.assert_allclose(around.predict(Z, protected=X), ours, rtol=1e-5)


@pytest.mark.slow
def test_a_quick_run(record: Record, cells: Cells, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert {one["model"] for one in record.data["found"]} == {
        movies.PAPER,
        movies.FASTER,
        movies.TRAINED,
        movies.TEXT,
    }
    assert record.reasons and all(np.isfinite(one["rmse"]["estimate"]) for one in record.data["found"])
    slow = next(one for one in record.data["trainings"] if one["model"] == movies.PAPER)
    assert abs(slow["losses"][-1] - slow["losses"][0]) < 0.1, "nothing moves at the paper's rate"
    monkeypatch.setattr(movies, "network_model", lambda *_, **__: pytest.fail("this cell is known"))
    assert movies.run(quick=True, cells=cells, progress=Progress(disable=True)) == record
    assert movies.draw(record, tmp_path / "movies.png").stat().st_size > 10_000
