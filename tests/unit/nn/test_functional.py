"""Projections of tensors: differentiable, precise, safe on small batches (the theorems have tests of their own)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from setsquare import projection
from setsquare.errors import InputError, MissingValuesError, NotOrthogonalError
from setsquare.nn.functional import _basis, generalized_project_out, project_out

ACTIVATIONS = ("identity", "relu", "sigmoid", "tanh", "exp")
each_activation = pytest.mark.parametrize("name", ACTIVATIONS)


def draw(shape: tuple[int, ...] = (4,), n: int = 80, p: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Units (n, ...) that depend on protected columns of different means and scales."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.random(n) < 0.3, rng.normal(size=(n, p - 1)) * 10.0 ** np.arange(p - 1) + 40.0])
    d = int(np.prod(shape, dtype=int))
    Y = 0.5 * (X - X.mean(0)) / X.std(0) @ rng.normal(size=(p, d)) + rng.normal(size=(n, d))
    return Y.reshape(n, *shape), X.astype(float)


def largest_correlation(Y: Tensor, X: Tensor) -> float:
    Y, X = Y.detach().double().flatten(1), X.double()
    Y, X = Y - Y.mean(0), X - X.mean(0)
    return float(((X / X.norm(dim=0)).T @ (Y / Y.norm(dim=0))).abs().max())


@pytest.mark.parametrize(("dtype", "digits"), [(torch.bfloat16, 0.05), (torch.float16, 0.006)], ids=str)
def test_half_precision_is_computed_in_single(dtype: torch.dtype, digits: float) -> None:
    Y, X = draw(n=4000)
    Y = Y + 3.0
    low = torch.tensor(Y).to(dtype)
    out = project_out(low, torch.tensor(X))
    assert out.dtype == dtype
    np.testing.assert_allclose(out.double(), projection.project_out(low.double().numpy(), X), atol=digits)
    # 4000 rows summed in half precision would leave far more than the rounding of single values.
    assert largest_correlation(low, torch.tensor(X)) > 0.3
    assert largest_correlation(out, torch.tensor(X)) < 2e-3
    pre = generalized_project_out(low, torch.tensor(X), "relu")
    assert pre.dtype == dtype and largest_correlation(torch.relu(pre), torch.tensor(X)) < 2e-3


def test_autocast_does_not_lower_the_precision() -> None:
    Y, X = (torch.tensor(part) for part in draw())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = project_out(Y.float(), X), generalized_project_out(Y.float(), X, "relu")
    torch.testing.assert_close(out[0], project_out(Y.float(), X))
    torch.testing.assert_close(out[1], generalized_project_out(Y.float(), X, "relu"))


# ------------------------------------------------------------------------------------------------ gradients
@pytest.mark.parametrize("name", ["linear", *ACTIVATIONS])
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    torch.manual_seed(0)
    X, Y = torch.randn(12, 2).double(), torch.randn(12, 3).double().requires_grad_()

    def correct(y: Tensor) -> Tensor:
        return project_out(y, X) if name == "linear" else generalized_project_out(y, X, name)

    assert torch.autograd.gradcheck(correct, Y)
    assert torch.autograd.gradgradcheck(correct, Y, fast_mode=True)
    # ... and not those of a network in which the correction is a constant.
    target = torch.randn(12, 3).double()
    whole = torch.autograd.grad((correct(Y) * target).sum(), Y)[0]
    assert float((whole - target).abs().max()) > 0.01


@each_activation
def test_a_batch_smaller_than_the_columns_is_finite(name: str) -> None:
    torch.manual_seed(0)
    Y, X = torch.randn(4, 6, requires_grad=True), torch.randn(4, 10)
    for out in (project_out(Y, X), generalized_project_out(Y, X, name, strict=False)):
        (gradient,) = torch.autograd.grad(out.square().sum(), Y)
        assert torch.isfinite(out).all() and torch.isfinite(gradient).all()
    out = project_out(Y, X).detach()
    torch.testing.assert_close(out, Y.mean(0).expand(4, 6).detach())  # nothing but the means is orthogonal


def test_constant_and_collinear_columns_change_nothing() -> None:
    Y, X = (torch.tensor(part) for part in draw())
    more = torch.cat([X, X[:, :1] * 3.0 - X[:, 1:2], torch.full((80, 1), 1e6).double()], 1)
    torch.testing.assert_close(project_out(Y, more), project_out(Y, X), rtol=0.0, atol=1e-10)
    torch.testing.assert_close(project_out(Y, torch.full((80, 2), 0.1)), Y)
    out = generalized_project_out(Y, more, "relu")
    torch.testing.assert_close(out, generalized_project_out(Y, X, "relu"), rtol=0.0, atol=1e-10)
    torch.testing.assert_close(project_out(Y[:1], X[:1]), Y[:1])


def test_memory_grows_with_the_rows_and_not_with_their_square() -> None:
    n = 60_000  # n x n would be 29 GB
    X = torch.randn(n, 2)
    out = project_out(torch.randn(n, 3) + X[:, :1], X)
    assert largest_correlation(out, X) < 1e-5


# ------------------------------------------------------------------------------------------------ bad input
@pytest.mark.parametrize(
    ("protected", "message"),
    [
        (torch.zeros(7, 2), "shape"),
        (torch.zeros(8, 2, 2), "shape"),
        (torch.tensor([0.0, 1.0, torch.nan, 1.0, 0.0, 1.0, 0.0, 1.0]), "missing .* or infinite"),
        (torch.arange(8), "one_hot"),
        (None, "missing: pass them"),
    ],
    ids=["length", "axes", "nan", "ids", "none"],
)
def test_protected_columns_that_cannot_be_used(protected: Tensor | None, message: str) -> None:
    Y = torch.randn(8, 3)
    with pytest.raises(InputError, match=message):
        project_out(Y, protected)
    with pytest.raises(InputError, match=message):
        generalized_project_out(Y, protected, "relu")


def test_other_input_that_cannot_be_used() -> None:
    X = torch.randn(8, 1)
    Y = torch.randn(8, 2)
    Y[3, 1] = torch.nan
    for correct in (project_out, lambda y, x: generalized_project_out(y, x, "relu")):
        with pytest.raises(MissingValuesError, match=r"missing .* or infinite"):
            correct(Y, X)
        with pytest.raises(InputError, match="floating-point"):
            correct(torch.ones(8, 2, dtype=torch.long), X)
    with pytest.raises(InputError, match="choose one of identity, relu"):
        generalized_project_out(torch.randn(8, 2), X, "mish")
    with pytest.raises(InputError, match="Weights"):
        project_out(torch.randn(8, 2), X, torch.full((8,), -1.0))
    with pytest.raises(InputError, match="no rows"):
        project_out(torch.zeros(0, 2), torch.zeros(0, 1))


def test_what_was_not_solved_is_not_returned_in_silence() -> None:
    Y, X = (torch.tensor(part) for part in draw())
    with pytest.raises(NotOrthogonalError, match="of 4 units could not be made orthogonal"):
        generalized_project_out(Y, X, "sigmoid", max_iter=1)
    out = generalized_project_out(Y, X, "sigmoid", max_iter=1, strict=False)
    assert torch.isfinite(out).all()


def test_dummies_may_be_whole_numbers_or_booleans() -> None:
    Y, _ = draw()
    levels = torch.nn.functional.one_hot(torch.arange(80) % 4)
    expected = project_out(torch.tensor(Y), levels.double())
    torch.testing.assert_close(project_out(torch.tensor(Y), levels), expected)
    torch.testing.assert_close(project_out(torch.tensor(Y), levels.bool()), expected)


@pytest.mark.parametrize("shift", [0.0, 40.0, 1e7], ids=str)
def test_the_basis_is_centred_and_orthonormal_in_the_weights(shift: float) -> None:
    _, X = draw(n=60)
    X = torch.tensor(X + shift)
    w = torch.rand(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    w = w / w.sum()
    Q = _basis(X, w)
    assert (w @ Q).abs().max() < 1e-12
    torch.testing.assert_close(Q.T @ (w[:, None] * Q), torch.eye(3, dtype=torch.float64), atol=1e-9, rtol=0.0)
    twice = _basis(torch.column_stack([X, 2.0 * X[:, :1] - 5.0, torch.full((60,), 3.0)]), w)
    assert twice.shape == (60, 5) and int((twice.abs().max(0).values > 0.0).sum()) == 3  # a copy and a constant


def test_a_weighted_projection_is_that_of_repeated_rows() -> None:
    Y, X = (torch.tensor(part) for part in draw(n=40))
    counts = torch.arange(40) % 3
    rows = torch.repeat_interleave(torch.arange(40), counts)
    weighted = project_out(Y, X, weight=counts.double())[counts > 0]
    repeated = project_out(Y[rows], X[rows])
    first = torch.cat([torch.tensor([True]), rows[1:] != rows[:-1]])
    torch.testing.assert_close(weighted, repeated[first])


def test_protected_columns_of_text_are_refused_with_an_example() -> None:
    with pytest.raises(InputError, match=r"not all numbers: pass a tensor .*get_dummies") as told:
        project_out(torch.zeros(2, 3), np.array(["GE", "Siemens"]))
    assert "numpy.str_" not in str(told.value)
