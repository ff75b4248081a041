"""Refitting the head: the network's own predictions are orthogonal afterwards, and were not before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from setsquare.errors import InputError, NotOrthogonalError
from setsquare.families import family
from setsquare.nn.head import refit_head
from setsquare.problem import Problem
from setsquare.solvers import solve

torch.set_num_threads(1)


class Net(nn.Module):
    """A small network with dropout and batch statistics, which must be off while the head is refitted."""

    def __init__(self, n_outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3))
        self.fc = nn.Linear(12, n_outputs, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x))


def draw(n: int = 600) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, a signal and protected columns that are in both."""
    generator = torch.Generator().manual_seed(0)
    X = torch.column_stack([torch.rand(n, generator=generator) < 0.3, torch.randn(n, generator=generator)])
    x = torch.randn(n, 4, generator=generator) + X.sum(1, keepdim=True)
    return x, x[:, 0] - x[:, 1] * x[:, 2] / 3 + X[:, 0] + torch.randn(n, generator=generator), X


def outcome(kind: str, signal: Tensor) -> Tensor:
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


def correlation(predictions: Tensor, X: Tensor) -> float:
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
    loader = DataLoader(TensorDataset(x.to(dtype), y, X), batch_size=100, shuffle=True)
    before = correlation(h(model.eval()(x.to(dtype))).detach(), X)
    model.train()
    model.body[3].eval()
    solution = refit_head(model, loader, family=glm)
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
    refit_head(model, [(x.double(), y[:, None], X)])
    np.testing.assert_allclose(model.fc.weight.detach().numpy(), exact.coef, rtol=0.0, atol=1e-6)


def test_inputs_of_several_parts_and_one_protected_column() -> None:
    class Two(Net):
        def forward(self, x: Tensor, shift: Tensor) -> Tensor:
            return super().forward(x) + 0.0 * shift

    x, signal, X = draw()
    torch.manual_seed(0)
    model = Two(1).double().eval()
    shift = torch.zeros(len(x), 1)
    x = x.double()
    first = refit_head(model, [((x, shift), signal, X[:, 0])])
    second = refit_head(model, [({"x": x, "shift": shift}, signal, X[:, :1])])
    np.testing.assert_allclose(first.coef, second.coef, rtol=1e-9)
    assert correlation(model(x, shift).detach(), X[:, :1]) < 1e-8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head": "fcc"}, "take fc"),
        ({"head": "body.1"}, "no linear layer"),
        ({"head": "body.0"}, "12 outputs but the outcome 2 classes"),
        ({"model": Net(3)}, "3 outputs but the outcome 2 classes"),
        ({"model": Net(1, bias=False)}, "bias=True"),
        ({"family": "multinomial"}, "does not fit"),
        ({"loader": []}, "no batch"),
        ({"loader": [(torch.zeros(3, 4), torch.zeros(3))]}, "batches of three"),
        ({"loader": [(torch.zeros(3, 4), torch.zeros(3), torch.zeros(2, 1))]}, "3 outcomes and 2 protected"),
        ({"loader": [(torch.zeros(3, 4), torch.zeros(2), torch.zeros(2, 1))]}, "for each of the 2 outcomes"),
        ({"loader": [(torch.zeros(3, 4, 4), torch.zeros(3), torch.zeros(3, 1))], "head": "0"}, "once a batch"),
    ],
)
def test_bad_input(options: dict[str, object], message: str) -> None:
    x, signal, X = draw(100)
    sequence = options.get("head") == "0"
    arguments = {"model": nn.Sequential(nn.Linear(4, 1)) if sequence else Net(1), "loader": [(x, signal > 0.0, X)]}
    with pytest.raises(InputError, match=message):
        refit_head(**(arguments | options))


def test_a_head_that_cannot_be_made_orthogonal_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    x, signal, X = draw(100)
    model = Net(1)
    before = model.fc.weight.clone()
    monkeypatch.setattr("setsquare.nn.head.solve", lambda problem: solve(problem, "mdmm", max_iter=3))
    with pytest.raises(NotOrthogonalError, match="could not be made orthogonal"):
        refit_head(model, [(x, signal > 0.0, X)])
    assert torch.equal(before, model.fc.weight)
