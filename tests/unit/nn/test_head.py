"""Refitting the head: what it can be called with, and what is refused (its theorem has tests of its own)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from setsquare.errors import InputError, NotOrthogonalError
from setsquare.glm.problem import Problem
from setsquare.glm.solver import solve
from setsquare.nn import blind, fit_layer, refit_head


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


def correlation(predictions: Tensor, X: Tensor) -> float:
    together = torch.column_stack([predictions, X]).double().T.corrcoef()
    return float(together[: -X.shape[1], -X.shape[1] :].abs().max())


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
        ({"head": "fcc"}, "did you mean 'fc'"),
        ({"head": "body.1"}, "no linear layer"),
        ({"head": "body.0"}, "transforms the output of the head further"),
        ({"model": Net(3)}, "3 outputs but the outcome has 2 classes"),
        ({"model": Net(1, bias=False)}, "bias=True"),
        ({"family": "multinomial"}, "does not fit"),
        ({"loader": []}, "no batch"),
        ({"loader": [(torch.zeros(3, 4), torch.zeros(3))]}, "must be \\(inputs, outcome, protected"),
        (
            {"loader": [(torch.zeros(3, 4), torch.zeros(3), torch.zeros(2, 1))]},
            "outcome of a batch has 3 rows but its protected columns have 2",
        ),
        ({"loader": [(torch.zeros(3, 4), torch.zeros(2), torch.zeros(2, 1))]}, "for each of the 2 outcomes"),
        ({"loader": [(torch.zeros(3, 4, 4), torch.zeros(3), torch.zeros(3, 1))], "head": "0"}, "once per batch"),
    ],
)
def test_bad_input(options: dict[str, object], message: str) -> None:
    x, signal, X = draw(100)
    sequence = options.get("head") == "0"
    arguments = {"model": nn.Sequential(nn.Linear(4, 1)) if sequence else Net(1), "loader": [(x, signal > 0.0, X)]}
    with pytest.raises(InputError, match=message):
        refit_head(**(arguments | options))


@pytest.mark.parametrize("case", ["weight_norm", "tied", "bfloat16", "missing outcome", "ids"])
def test_heads_and_rows_that_would_leave_a_leak(case: str) -> None:
    x, signal, X = draw(100)
    model: nn.Module = Net(1)
    y, message = (signal > 0.0).float(), "weight of layer fc is shared with another layer or computed from"
    if case == "weight_norm":
        nn.utils.parametrizations.weight_norm(model.fc)
    elif case == "tied":
        model.other = nn.Linear(12, 1)
        model.other.weight = model.fc.weight
    elif case == "bfloat16":
        model, x, message = model.bfloat16(), x.bfloat16(), "whose rounding would undo the fit"
    elif case == "missing outcome":
        model, message = Net(2), "outcome has missing"
        y[0] = torch.nan
    else:
        X, message = torch.arange(100) % 3, "one_hot"
    before = model.fc.weight.clone()
    with pytest.raises(InputError, match=message):
        refit_head(model, [(x, y, X)])
    assert torch.equal(before, model.fc.weight)


def test_a_blinded_network_gets_its_protected_columns() -> None:
    x, signal, X = draw()
    torch.manual_seed(0)
    blinded = blind(Net(1).double(), ["body.2"])
    x, X = x.double(), X.double()
    fit_layer(blinded, [(x, X)])
    refit_head(blinded, [(x, signal, X), (x[:0], signal[:0], X[:0])], "model.fc")  # a batch without rows adds none
    assert correlation(blinded.eval()(x, protected=X).detach(), X) < 1e-8


def test_a_head_that_cannot_be_made_orthogonal_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    x, signal, X = draw(100)
    model = Net(1)
    before = model.fc.weight.clone()
    monkeypatch.setattr("setsquare.nn.head.solve", lambda problem, **_: solve(problem, "mdmm", max_iter=3))
    with pytest.raises(NotOrthogonalError, match="could not be made orthogonal"):
        refit_head(model, [(x, signal > 0.0, X)])
    assert torch.equal(before, model.fc.weight)


def test_a_layer_that_something_follows_is_refused_and_left_alone() -> None:
    torch.manual_seed(0)
    sex = (torch.arange(200.0) % 2)[:, None]
    x = torch.randn(200, 3) + sex
    y = (x[:, 0] > 0.5).long()
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2), nn.Softmax(1))
    before = model[0].weight.clone()
    with pytest.raises(InputError, match="transforms the output of the head further"):
        refit_head(model, [(x, y, sex)], head="0")
    assert torch.equal(model[0].weight, before)
    assert refit_head(model, [(x, y, sex)], head="2").certificate.is_orthogonal


def test_whole_clusters_are_left_out() -> None:
    """Ten rows of a patient are nearly the same: leaving out one of them says little about new patients."""
    torch.manual_seed(0)
    patient = torch.arange(400) // 10
    age = torch.randn(40, 1).double()[patient]
    x = 0.5 * age + torch.randn(40, 6).double()[patient] + 0.1 * torch.randn(400, 6).double()
    y = (x[:, 0] + torch.randn(400) > 0.0).double()
    batches = list(zip(x.split(100), y.split(100), age.split(100), strict=True))
    left = {}
    for name, cluster in (("rows", None), ("patients", patient.numpy())):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Identity(), nn.Linear(6, 1)).double()
        solution = refit_head(model, batches, "1", l2=0.01, orthogonal_on="new rows", cluster=cluster)
        same = solve(
            Problem(x.numpy(), y.numpy(), age.numpy(), "binomial", cluster=cluster).with_l2(0.01),
            orthogonal_on="new rows",
        )
        np.testing.assert_allclose(solution.coef, same.coef, rtol=0.0, atol=1e-8)
        left[name] = solution.coef
    assert np.abs(left["rows"] - left["patients"]).max() > 0.01
    with pytest.raises(InputError, match="clusters are not independent rows"):
        refit_head(model, batches, "1", cluster=patient.numpy(), held_out=batches)
    shuffled = DataLoader(TensorDataset(x, y, age), 100, shuffle=True)
    with pytest.raises(InputError, match="cannot be matched with cluster: use shuffle=False"):
        refit_head(model, shuffled, "1", cluster=patient.numpy())
