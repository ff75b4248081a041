"""The constraint of a training: its value, gradient, state and precision; bad input."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor

from setsquare.errors import InputError, MissingValuesError
from setsquare.nn.constraint import OrthogonalityConstraint, Scale


def test_step_is_the_classical_update() -> None:
    constraint = OrthogonalityConstraint(2, rate=0.0, penalty=3.0, scale="unit")
    constraint(GOOD[:, :1], GOOD)
    assert not constraint.multipliers.any()
    constraint.step()
    torch.testing.assert_close(constraint.multipliers, 3.0 * constraint.correlation)


@pytest.mark.parametrize("shape", [(500,), (500, 3), (500, 2, 2, 2)])
@pytest.mark.parametrize("scale", [0.5, "unit", "shared"])
def test_value_and_residual_are_those_of_orthonormal_columns(shape: tuple[int, ...], scale: Scale) -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(500, 2)) @ [[1.0, 30.0], [0.0, 10.0]] + [2000.0, 0.0]
    A = rng.normal(size=shape) + X[:, 0].reshape(-1, *[1] * (len(shape) - 1))
    covariance = np.linalg.qr(X - X.mean(0))[0].T @ (A - A.mean(0)).reshape(500, -1) / np.sqrt(500.0)
    variance = A.reshape(500, -1).var(0)
    spread = scale if isinstance(scale, float) else np.sqrt(variance if scale == "unit" else variance.sum())
    squares = float(np.sum((covariance / spread) ** 2))
    constraint = OrthogonalityConstraint(2, penalty=4.0, scale=scale)
    assert float(constraint(torch.tensor(A), torch.tensor(X))) == pytest.approx(2.0 * squares, rel=1e-9)
    correlation = np.abs(covariance / np.sqrt(variance))
    np.testing.assert_allclose(constraint.correlation.abs().square().sum(0), (correlation**2).sum(0), rtol=1e-9)
    # another scale of activations and columns, and a copy of a column, change nothing
    scaled = OrthogonalityConstraint(3, penalty=4.0, scale=1e3 * scale if isinstance(scale, float) else scale)
    columns = torch.tensor(np.column_stack([1e-3 * X, X[:, 0] - X[:, 1]]))
    assert float(scaled(torch.tensor(1e3 * A), columns)) == pytest.approx(2.0 * squares, rel=1e-6)


@pytest.mark.parametrize("scale", [0.5, "unit", "shared"])
def test_the_gradient_is_that_of_the_penalty(scale: Scale) -> None:
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(40, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    X = torch.randn(40, 2, dtype=torch.float64, generator=generator)
    for method in ("augmented_lagrangian", "mdmm"):
        constraint = OrthogonalityConstraint(2, method, momentum=1.0, scale=scale)
        constraint(A, X)  # so that the multipliers are not zero

        def penalty(A: Tensor, constraint: OrthogonalityConstraint = constraint) -> Tensor:
            return copy.deepcopy(constraint)(A, X)

        assert torch.autograd.gradcheck(penalty, (A,))


def test_gradients_are_bounded_where_the_output_hardly_varies() -> None:
    """Relative to its own spread they are not: there the penalty outweighs any loss."""
    X = torch.randn(64, 1, generator=torch.Generator().manual_seed(0))
    largest: dict[Scale, list[float]] = {0.5: [], "unit": []}
    for scale, found in largest.items():
        for spread in (0.1, 1e-4):
            A = (0.5 + spread * X.sin()).double().requires_grad_()
            constraint = OrthogonalityConstraint(1, scale=scale)
            for _ in range(3):  # with multipliers
                gradient = torch.autograd.grad(constraint(A, X), A)[0]
            found.append(float(gradient.abs().max()))
    assert largest[0.5][1] < largest[0.5][0] < 1.0
    assert largest["unit"][1] > 500.0 * largest["unit"][0]


def test_the_death_of_a_unit_lowers_the_penalty_unless_the_scale_is_shared() -> None:
    X = torch.randn(64, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    alive = (X + X.roll(1, 0)).expand(64, 4).relu()
    some_dead = alive * torch.tensor([1.0, 1.0, 1.0, 0.0])
    values = {
        scale: [float(OrthogonalityConstraint(1, scale=scale)(A, X)) for A in (alive, some_dead)]
        for scale in ("unit", "shared")
    }
    assert values["unit"][0] > 0.1 and values["unit"][1] == pytest.approx(0.75 * values["unit"][0], rel=1e-12)
    assert values["shared"][0] > 0.1 and values["shared"][1] == pytest.approx(values["shared"][0], rel=1e-12)


@pytest.mark.parametrize("scale", [0.5, "unit", "shared"])
def test_a_unit_that_has_lost_its_spread_is_told(scale: Scale) -> None:
    X = torch.randn(64, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    units = torch.cat([X.sigmoid(), X.roll(1, 0).sigmoid()], 1)
    constraint = OrthogonalityConstraint(1, momentum=1.0, scale=scale)
    constraint(units, X)
    assert constraint.residual > 0.9 and constraint.constant.tolist() == [False, False]
    constraint(0.5 + torch.tensor([1e-3, 1.0]) * (units - 0.5), X)  # the first is nearly constant, and follows X
    assert constraint.residual < 0.3 and constraint.constant.tolist() == [True, False]
    constraint(0.5 + 1e-3 * (units - 0.5), X)
    assert np.isnan(constraint.residual) and constraint.constant.all()


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


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch itself does it
def test_compiled_in_one_graph_it_is_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    eager, constraint = OrthogonalityConstraint(2), OrthogonalityConstraint(2)
    compiled = torch.compile(constraint, backend="aot_eager", fullgraph=True)
    for _ in range(3):
        A, X = torch.randn(16, 3, generator=generator), torch.randn(16, 2, generator=generator)
        gradients = []
        for module in (eager, compiled):
            a = A.clone().requires_grad_()
            gradients.append(torch.autograd.grad(module(a, X), a)[0])
        torch.testing.assert_close(*gradients)
    torch.testing.assert_close(dict(constraint.state_dict()), dict(eager.state_dict()))
    assert float(constraint.n_calls) == 3.0 and float(constraint.n_rows) == 48.0


def test_a_network_in_half_precision_does_not_round_the_moments() -> None:
    constraint = OrthogonalityConstraint(2)
    constraint(GOOD, GOOD)
    before = constraint.residual
    constraint.half()
    assert constraint.covariance.dtype == torch.float64 and constraint.residual == before
    assert torch.isfinite(constraint(GOOD.half(), GOOD))


def test_a_state_of_another_method_is_refused() -> None:
    constraint = OrthogonalityConstraint(2)
    constraint(GOOD, GOOD)
    with pytest.raises(RuntimeError, match="size mismatch for multipliers"):
        OrthogonalityConstraint(2, "mdmm").load_state_dict(constraint.state_dict())


GOOD = torch.randn(8, 2)


@pytest.mark.parametrize(
    ("protected", "message"),
    [
        (GOOD[:7], "same n rows"),
        (GOOD[:, :1], "2 protected"),
        (torch.arange(16).reshape(8, 2), "one_hot"),
        (torch.full((8, 2), torch.nan), "missing .* or infinite"),
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
    with pytest.raises(MissingValuesError, match="diverged"):
        constraint(torch.full((8, 5), torch.nan), GOOD)
    with pytest.raises(InputError, match="no rows"):
        constraint(GOOD[:0], GOOD[:0])
    assert np.isnan(constraint.residual)
    constraint(GOOD, GOOD)
    with pytest.raises(InputError, match="one constraint per layer"):
        constraint(GOOD[:, :1], GOOD)
    with pytest.raises(MissingValuesError, match="diverged"):
        constraint(torch.full((8, 2), torch.inf), GOOD)
    assert np.isfinite(constraint.residual)
    for options, message in (
        ({"method": "newton"}, "is not one of"),
        ({"n_protected": 0}, "at least 1"),
        ({"momentum": 0.0}, "momentum"),
        ({"penalty": -1.0}, "0 or more"),
        ({"scale": 0.0}, "positive number"),
        ({"scale": "layer"}, "positive number"),
    ):
        with pytest.raises(InputError, match=message):
            OrthogonalityConstraint(**{"n_protected": 1, **options})
