"""Constrained training: the covariance goes to zero, at the exact optimum's loss, and did not before."""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from setsquare.errors import InputError, MissingValuesError
from setsquare.families import family
from setsquare.nn.constraint import OrthogonalityConstraint
from setsquare.problem import Problem
from setsquare.solvers import Certificate, solve

torch.set_num_threads(1)


class Data(NamedTuple):
    Z: Tensor
    y: Tensor
    X: Tensor
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


def train(data: Data, constraint: OrthogonalityConstraint | None, epochs: int, batch: int) -> tuple[float, float]:
    """Loss of a trained logistic model, and its largest correlation with a protected column."""
    torch.manual_seed(0)
    model = nn.Linear(6, 1, dtype=torch.float64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for rows in torch.randperm(len(data.y)).split(batch):
            eta = model(data.Z[rows])[:, 0]
            loss = cross_entropy(eta, data.y[rows])
            if constraint is not None:
                loss = loss + constraint(eta.sigmoid(), data.X[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    with torch.no_grad():
        eta = model(data.Z)[:, 0]
    together = torch.column_stack([eta.sigmoid(), data.X]).T.corrcoef()
    return float(cross_entropy(eta, data.y)), float(together[0, 1:].abs().max())


def test_the_exact_constrained_optimum_is_reached_on_the_whole_data(data: Data) -> None:
    loss, correlation = train(data, None, 400, 2000)
    assert correlation > 0.1 and loss == pytest.approx(data.exact.loss_unconstrained, rel=1e-3)
    constraint = OrthogonalityConstraint(2, rate=0.1, momentum=1.0)
    loss, correlation = train(data, constraint, 400, 2000)
    assert correlation < 2e-3 and loss == pytest.approx(data.exact.loss, rel=1e-4)
    assert constraint.residual == pytest.approx(correlation, abs=2e-3)


def test_minibatches_come_close(data: Data) -> None:
    loss, correlation = train(data, OrthogonalityConstraint(2), 30, 128)
    assert correlation < 0.01 and loss == pytest.approx(data.exact.loss, rel=0.01)


def test_mdmm_comes_near_and_stalls(data: Data) -> None:
    constraint = OrthogonalityConstraint(2, "mdmm", rate=10.0, momentum=1.0)
    loss, correlation = train(data, constraint, 400, 2000)
    assert 5e-3 < correlation < 0.03 and loss == pytest.approx(data.exact.loss, rel=0.02)
    assert constraint.multipliers.shape == (1, 1)


def test_step_is_the_classical_update(data: Data) -> None:
    constraint = OrthogonalityConstraint(2, rate=0.0, penalty=3.0)
    constraint(data.Z[:, :1], data.X)
    assert not constraint.multipliers.any()
    constraint.step()
    torch.testing.assert_close(constraint.multipliers, 3.0 * constraint.correlation)


@pytest.mark.parametrize("shape", [(500,), (500, 3), (500, 2, 2, 2)])
def test_value_and_residual_are_those_of_orthonormal_columns(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(500, 2)) @ [[1.0, 30.0], [0.0, 10.0]] + [2000.0, 0.0]
    A = rng.normal(size=shape) + X[:, 0].reshape(-1, *[1] * (len(shape) - 1))
    Q = np.linalg.qr(X - X.mean(0))[0]
    units = A.reshape(500, -1) - A.reshape(500, -1).mean(0)
    squares = float(np.sum((Q.T @ units / np.linalg.norm(units, axis=0)) ** 2))
    constraint = OrthogonalityConstraint(2, penalty=4.0)
    assert float(constraint(torch.tensor(A), torch.tensor(X))) == pytest.approx(2.0 * squares, rel=1e-9)
    assert float(constraint.correlation.square().sum()) == pytest.approx(squares, rel=1e-9)
    # another scale of activations and columns, and a copy of a column, change nothing
    scaled = OrthogonalityConstraint(3, penalty=4.0)
    columns = torch.tensor(np.column_stack([1e-3 * X, X[:, 0] - X[:, 1]]))
    assert float(scaled(torch.tensor(1e3 * A), columns)) == pytest.approx(2.0 * squares, rel=1e-6)


def test_the_gradient_is_that_of_the_penalty() -> None:
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(40, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    X = torch.randn(40, 2, dtype=torch.float64, generator=generator)
    for method in ("augmented_lagrangian", "mdmm"):
        constraint = OrthogonalityConstraint(2, method, momentum=1.0)
        constraint(A, X)  # so that the multipliers are not zero

        def penalty(A: Tensor, constraint: OrthogonalityConstraint = constraint) -> Tensor:
            return copy.deepcopy(constraint)(A, X)

        assert torch.autograd.gradcheck(penalty, (A,))


def test_tiny_batches_give_the_covariance_of_the_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(6000, 10, generator=generator)
    A = X[:, :2] + torch.randn(6000, 2, generator=generator)
    whole, tiny = OrthogonalityConstraint(10, momentum=1.0), OrthogonalityConstraint(10, momentum=1e-3)
    whole(A, X)
    for rows in torch.arange(6000).split(4):
        assert torch.isfinite(tiny(A[rows], X[rows]))
    torch.testing.assert_close(tiny.correlation, whole.correlation, rtol=0.0, atol=0.05)
    assert whole.residual > 0.6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    X = 2000.0 + torch.randn(256, 1, dtype=torch.float64, generator=generator)
    A = (X - 2000.0 + torch.randn(256, 1, generator=generator)).to(dtype)
    low, high = OrthogonalityConstraint(1), OrthogonalityConstraint(1)
    A.requires_grad_()
    low(A, X).backward()
    high(A.detach().double(), X)
    assert A.grad is not None and torch.isfinite(A.grad).all() and A.grad.abs().max() > 0
    assert low.residual == pytest.approx(high.residual, abs=1e-6)


def test_dead_units_and_absent_levels_are_harmless() -> None:
    A = torch.cat([torch.zeros(8, 1), torch.arange(8.0)[:, None]], 1).requires_grad_()
    X = torch.zeros(8, 2)
    X[4:, 0] = 1.0  # the second level is in no row
    constraint = OrthogonalityConstraint(2)
    constraint(A, X).backward()
    assert torch.isfinite(A.grad).all()
    assert not constraint.correlation[:, 0].any() and not constraint.correlation[1].any()
    assert constraint.residual > 0.8


def test_evaluation_changes_nothing_and_states_can_be_saved() -> None:
    generator = torch.Generator().manual_seed(0)
    batches = [(torch.randn(16, 3, generator=generator), torch.randn(16, 2, generator=generator)) for _ in range(6)]
    constraint = OrthogonalityConstraint(2)
    for A, X in batches[:3]:
        constraint(A, X)
    other = OrthogonalityConstraint(2)
    other.load_state_dict(copy.deepcopy(constraint.state_dict()))
    before = copy.deepcopy(constraint.state_dict())
    constraint.eval()(*batches[3])
    torch.testing.assert_close(dict(constraint.state_dict()), dict(before), rtol=0.0, atol=0.0)
    constraint.train()
    for A, X in batches[3:]:
        assert float(constraint(A, X)) == float(other(A, X))
    constraint.reset()
    assert np.isnan(constraint.residual) and constraint(batches[0][1], batches[0][1]) > 0.0
    with pytest.raises(InputError, match="has not seen a batch"):
        OrthogonalityConstraint(2).eval()(*batches[0])


GOOD = torch.randn(8, 2)


@pytest.mark.parametrize(
    ("protected", "message"),
    [
        (GOOD[:7], "same n rows"),
        (GOOD[:, :1], "2 protected"),
        (torch.arange(16).reshape(8, 2), "one_hot"),
        (torch.full((8, 2), torch.nan), "missing or infinite"),
    ],
)
def test_bad_protected_columns(protected: Tensor, message: str) -> None:
    constraint = OrthogonalityConstraint(2)
    with pytest.raises(InputError, match=message):
        constraint(GOOD, protected)
    assert constraint(GOOD, GOOD) > 0.0, "a refused batch leaves no trace"
    assert constraint.n_rows == 8


def test_bad_activations_and_settings() -> None:
    constraint = OrthogonalityConstraint(2)
    constraint(GOOD, GOOD)
    with pytest.raises(InputError, match="one constraint a layer"):
        constraint(GOOD[:, :1], GOOD)
    with pytest.raises(MissingValuesError, match="diverged"):
        constraint(torch.full((8, 2), torch.inf), GOOD)
    assert np.isfinite(constraint.residual)
    for options, message in (
        ({"method": "newton"}, "choose one of"),
        ({"n_protected": 0}, "at least 1"),
        ({"momentum": 0.0}, "momentum"),
        ({"penalty": -1.0}, "0 or more"),
    ):
        with pytest.raises(InputError, match=message):
            OrthogonalityConstraint(**{"n_protected": 1, **options})
