"""Corollary 4 for any network: with its head refitted its own predictions are orthogonal, and were not before."""

from __future__ import annotations

import numpy as np
import pytest

from setsquare.families import family
from setsquare.glm.problem import Problem
from setsquare.glm.solver import solve

torch = pytest.importorskip("torch")
sqnn = pytest.importorskip("setsquare.nn")


class Net(torch.nn.Module):
    """A small network with dropout and batch statistics, which must be off while the head is refitted."""

    def __init__(self, n_outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(4, 12), torch.nn.BatchNorm1d(12), torch.nn.ReLU(), torch.nn.Dropout(0.3)
        )
        self.fc = torch.nn.Linear(12, n_outputs, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(x))


def draw(n: int = 600) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, a signal and protected columns that are in both."""
    generator = torch.Generator().manual_seed(0)
    X = torch.column_stack([torch.rand(n, generator=generator) < 0.3, torch.randn(n, generator=generator)])
    x = torch.randn(n, 4, generator=generator) + X.sum(1, keepdim=True)
    return x, x[:, 0] - x[:, 1] * x[:, 2] / 3 + X[:, 0] + torch.randn(n, generator=generator), X


def outcome(kind: str, signal: torch.Tensor) -> torch.Tensor:
    if kind in ("binary", "two"):
        return (signal > 1.0).to(torch.int64 if kind == "two" else torch.float32)
    if kind == "classes":
        return torch.bucketize(signal, torch.tensor([0.0, 1.0]))
    return signal if kind == "regression" else torch.exp(signal / 4).round()


#: outputs of the head, the family that is asked for, and what follows the head
KINDS = {
    "binary": (1, None, torch.sigmoid),
    "two": (2, None, lambda eta: eta.softmax(1)),
    "classes": (3, None, lambda eta: eta.softmax(1)),
    "regression": (1, None, lambda eta: eta),
    "counts": (1, "poisson", torch.exp),
}


def correlation(predictions: torch.Tensor, X: torch.Tensor) -> float:
    together = torch.column_stack([predictions, X]).double().T.corrcoef()
    return float(together[: -X.shape[1], -X.shape[1] :].abs().max())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_orthogonal_afterwards(kind: str, dtype: torch.dtype) -> None:
    n_outputs, glm, h = KINDS[kind]
    x, signal, X = draw()
    y = outcome(kind, signal)
    torch.manual_seed(0)
    model = Net(n_outputs).to(dtype)
    model(x.to(dtype))  # so that the batch statistics are not those of the first day
    body = [parameter.clone() for parameter in model.body.parameters()]
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x.to(dtype), y, X), batch_size=100, shuffle=True
    )
    before = correlation(h(model.eval()(x.to(dtype))).detach(), X)
    model.train()
    model.body[3].eval()
    solution = sqnn.refit_head(model, loader, family=glm)
    assert model.training and model.body[0].training and not model.body[3].training, "each module keeps its mode"
    after = correlation(h(model.eval()(x.to(dtype))).detach(), X)
    assert before > 0.1 and after < (1e-8 if dtype == torch.float64 else 2e-6)
    assert solution.certificate.is_orthogonal and solution.certificate.is_optimal
    assert solution.certificate.loss < solution.certificate.loss_null
    for old, new in zip(body, model.body.parameters(), strict=True):
        assert torch.equal(old, new), "only the head is refitted"


def test_the_head_is_that_of_the_core_solver() -> None:
    x, signal, X = draw()
    y = outcome("binary", signal)
    torch.manual_seed(0)
    model = Net(1).double().eval()
    Z = model.body(x.double()).detach().numpy()
    exact = solve(Problem(Z, y.numpy(), X.numpy(), family("binomial")))
    sqnn.refit_head(model, [(x.double(), y[:, None], X)])
    np.testing.assert_allclose(model.fc.weight.detach().numpy(), exact.coef, rtol=0.0, atol=1e-6)


def fitted(y: torch.Tensor, X: torch.Tensor, x: torch.Tensor, **options: object) -> tuple[torch.Tensor, object]:
    """Predicted probabilities of a refitted network, and its solution."""
    torch.manual_seed(0)
    model = Net(1).double().eval()
    solution = sqnn.refit_head(model, [(x.double(), y, X)], **options)
    return torch.sigmoid(model(x.double())).detach()[:, 0], solution


def test_given_the_outcome_each_class_has_uncorrelated_predictions() -> None:
    x, signal, X = draw()
    y = outcome("binary", signal)
    plain, _ = fitted(y, X, x)
    equal, _ = fitted(y, X, x, given="outcome")
    for k in (0.0, 1.0):
        assert correlation(equal[y == k], X[y == k]) < 1e-7 < 0.02 < correlation(plain[y == k], X[y == k])


def test_given_a_control_only_what_it_does_not_explain_is_removed() -> None:
    x, signal, X = draw()
    y = outcome("binary", signal)
    p, _ = fitted(y, X, x, given=[1])
    design = torch.column_stack([torch.ones(len(p)), X]).double()
    effects = torch.linalg.lstsq(design, p[:, None]).solution[:, 0]
    assert abs(effects[1]) < 1e-7 and abs(effects[2]) > 1e-3


def test_a_basis_removes_the_curve_too() -> None:
    x, signal, X = draw()
    y = outcome("binary", signal + X[:, 1] ** 2)
    x[:, 3] = X[:, 1] ** 2 + 0.1 * x[:, 3]
    curve = torch.column_stack([X[:, 1], X[:, 1] ** 2])
    p, _ = fitted(y, X[:, 1:], x)
    q, _ = fitted(y, X[:, 1:], x, basis="spline", l2=1e-6)
    assert correlation(q, curve) < 0.02 < 0.1 < correlation(p, curve)


def test_a_budget_keeps_its_share_and_a_promise_is_kept_or_refused() -> None:
    from setsquare.errors import BrokenPromiseError, InputError

    x, signal, X = draw()
    y = outcome("binary", signal)
    _, half = fitted(y, X, x, budget=0.5)
    assert half.certificate.covariance_share == pytest.approx(0.5, abs=1e-6)
    _, auto = fitted(y, X, x, l2="auto", orthogonal_on="new rows", max_correlation=0.3, confidence=0.9)
    assert auto.certificate.new_rows.upper < 0.3 and auto.certificate.new_rows.confidence == 0.9
    torch.manual_seed(0)
    model = Net(1).double().eval()
    before = model.fc.weight.clone()
    with pytest.raises(BrokenPromiseError, match=r"max_correlation=0\.001"):
        sqnn.refit_head(model, [(x.double(), y, X)], max_correlation=0.001)
    for options, words in (
        ({"expand": "auto"}, "cannot be expanded"),
        ({"given": [2]}, "which has 2"),
        ({"given": "age"}, "which has 2"),
        ({"given": [0, 1]}, "none is left to protect"),
        ({"budget": 2.0}, "budget"),
        ({"budget": 0.5, "held_out": []}, "allow a correlation"),
    ):
        with pytest.raises(InputError, match=words):
            sqnn.refit_head(model, [(x.double(), y, X)], **options)
    assert torch.equal(before, model.fc.weight), "the head is not changed"
