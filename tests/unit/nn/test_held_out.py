"""Corrections of networks on held-out rows: warnings for training rows of an overfitted network."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import setsquare as sq  # noqa: E402
from setsquare.errors import InputError, TrainingRowsWarning  # noqa: E402


def make(n: int, seed: int, shift: float = 0.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    sex = rng.integers(2, size=n).astype(float)
    x = rng.normal(size=(n, 40))
    x[:, :8] += shift * sex[:, None]
    y = (rng.random(n) < 0.15 + 0.7 * sex).astype(float)  # unrelated to the features, and learned by heart
    return torch.tensor(x), torch.tensor(y), torch.tensor(sex[:, None])


def batches(x: torch.Tensor, y: torch.Tensor, sex: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    return list(zip(x.split(100), y.split(100), sex.split(100), strict=True))


def train(shift: float) -> torch.nn.Module:
    torch.manual_seed(0)
    x, y, _ = make(300, 0, shift)
    parts = torch.nn.Linear(40, 60), torch.nn.Tanh(), torch.nn.Linear(60, 10), torch.nn.Tanh(), torch.nn.Linear(10, 1)
    network = torch.nn.Sequential(*parts).double()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(200):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(network(x)[:, 0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network


@pytest.fixture(scope="module")
def overfitted() -> torch.nn.Module:
    return train(0.0)


@pytest.mark.parametrize("where", ["generalized", "post"])
def test_a_layer_fitted_on_training_rows_of_an_overfitted_network_gets_a_warning(overfitted, where):
    seen, fresh, held_out = batches(*make(300, 0)), batches(*make(1000, 1)), batches(*make(2000, 2))
    blinded = sq.nn.blind(overfitted, layers=["3"], where=where)
    with pytest.warns(TrainingRowsWarning, match=r"On 2000 held-out rows layer .* fit the layer on rows"):
        before = sq.nn.fit_layer(blinded, seen, held_out=held_out)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after = sq.nn.fit_layer(blinded, fresh, held_out=held_out)
    (name,) = after
    assert after[name].held_out < 0.5 * before[name].held_out
    audited = sq.nn.audit_layer(blinded, held_out, "3")
    assert audited.certificate.correlation_sample >= after[name].held_out - 1e-6
    assert np.isnan(sq.nn.fit_layer(blinded, fresh)[name].held_out)


def test_a_head_refitted_on_training_rows_of_an_overfitted_network_gets_a_warning(overfitted):
    with pytest.warns(TrainingRowsWarning, match="look like the rows that the network was trained on"):
        sq.nn.refit_head(copy.deepcopy(overfitted), batches(*make(300, 0)), "4", l2=1e-3)


@pytest.mark.filterwarnings("ignore::setsquare.errors.WorseThanConstantWarning")  # little is left beside the group
def test_the_output_of_a_refitted_head_is_compared_with_chance_on_held_out_rows():
    network = train(1.0)
    fresh, (x, y, sex) = batches(*make(2000, 1, 1.0)), make(2000, 2, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingRowsWarning)
        sq.nn.refit_head(network, fresh, "4", orthogonal_on="new rows", held_out=batches(x, y, sex))
    output = network(x).detach()
    other = (output > output.median()).double()  # a protected column of rows that are unlike those of the fit
    with pytest.warns(TrainingRowsWarning, match="On 2000 held-out rows the output has a correlation of up to"):
        sq.nn.refit_head(network, fresh, "4", orthogonal_on="new rows", held_out=batches(x, y, other))


def test_a_held_out_loader_without_rows_is_refused(overfitted):
    blinded = sq.nn.blind(overfitted, layers=["3"])
    with pytest.raises(InputError, match="The held-out loader gave no rows"):
        sq.nn.fit_layer(blinded, batches(*make(300, 1)), held_out=[])
