"""Corollary 4 by constrained training: the covariance goes to zero at the exact optimum's loss, and did not before."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from setsquare.families import family
from setsquare.glm.problem import Problem
from setsquare.glm.solver import Certificate, solve

torch = pytest.importorskip("torch")
sqnn = pytest.importorskip("setsquare.nn")


class Data(NamedTuple):
    Z: torch.Tensor
    y: torch.Tensor
    X: torch.Tensor
    exact: Certificate


@pytest.fixture(scope="module")
def data() -> Data:
    """2000 rows, 6 features that know a group and an age, and the exact constrained logistic fit."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.random(2000) < 0.3, rng.normal(40.0, 12.0, 2000)]).astype(float)
    unit = (X - X.mean(0)) / X.std(0)
    Z = 0.5 * unit @ rng.normal(size=(2, 6)) + rng.normal(size=(2000, 6))
    chance = 1.0 / (1.0 + np.exp(-0.7 * Z @ rng.normal(size=6) - 0.5 * unit[:, 0]))
    y = (rng.random(2000) < chance).astype(float)
    return Data(*map(torch.tensor, (Z, y, X)), solve(Problem(Z, y, X, family("binomial"))).certificate)


def train(data: Data, constraint: sqnn.OrthogonalityConstraint | None, epochs: int, batch: int) -> tuple[float, float]:
    """Loss of a trained logistic model, and its largest correlation with a protected column."""
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 1, dtype=torch.float64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for rows in torch.randperm(len(data.y)).split(batch):
            eta = model(data.Z[rows])[:, 0]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(eta, data.y[rows])
            if constraint is not None:
                loss = loss + constraint(eta.sigmoid(), data.X[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    with torch.no_grad():
        eta = model(data.Z)[:, 0]
    together = torch.column_stack([eta.sigmoid(), data.X]).T.corrcoef()
    return float(torch.nn.functional.binary_cross_entropy_with_logits(eta, data.y)), float(together[0, 1:].abs().max())


def test_the_exact_constrained_optimum_is_reached_on_the_whole_data(data: Data) -> None:
    loss, correlation = train(data, None, 400, 2000)
    assert correlation > 0.1 and loss == pytest.approx(data.exact.loss_unconstrained, rel=1e-3)
    constraint = sqnn.OrthogonalityConstraint(2, rate=0.5, momentum=1.0)
    loss, correlation = train(data, constraint, 400, 2000)
    assert correlation < 1e-4 and loss == pytest.approx(data.exact.loss, rel=1e-6)
    assert constraint.residual == pytest.approx(correlation, abs=1e-4)


def test_minibatches_come_close(data: Data) -> None:
    loss, correlation = train(data, sqnn.OrthogonalityConstraint(2), 30, 128)
    assert correlation < 0.01 and loss == pytest.approx(data.exact.loss, rel=0.005)


def test_mdmm_comes_near_and_stalls(data: Data) -> None:
    constraint = sqnn.OrthogonalityConstraint(2, "mdmm", rate=200.0, momentum=1.0)
    loss, correlation = train(data, constraint, 400, 2000)
    assert 5e-3 < correlation < 0.03 and loss == pytest.approx(data.exact.loss, rel=0.02)
    assert constraint.multipliers.shape == (1, 1)
