"""Two processes that see half of each batch have the moments, outputs and gradients of one that sees all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.unit.nn import two_processes
from torch import Tensor, nn

from setsquare.nn import OrthogonalityConstraint, Orthogonalize
from setsquare.nn.functional import generalized_project_out

METHODS = ("augmented_lagrangian", "mdmm")
SETTINGS = ({"where": "post"}, {"activation": "relu"}, {"activation": "sigmoid"})


def draw() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    X = torch.randn(160, 2).double()
    return torch.randn(160, 5).double() + X[:, :1], X


def train(Y: Tensor, X: Tensor, settings: dict[str, str], batch: int) -> dict[str, Tensor]:
    layer, result = Orthogonalize(2, **settings), {}
    for step, (y, x) in enumerate(zip(Y.split(batch), X.split(batch), strict=True)):
        y = y.clone().requires_grad_()
        out = layer(y, x)
        result[f"out{step}"], result[f"gradient{step}"] = out.detach(), torch.autograd.grad(out.pow(3).sum(), y)[0]
    return result | dict(layer.state_dict())


def rows_of(rank: int) -> Tensor:
    """Of each batch of 40 rows one process has 24 and the other 16."""
    first, last = ((0, 24), (24, 40))[rank]
    return torch.cat([torch.arange(40 * k + first, 40 * k + last) for k in range(4)])


def work(rank: int, folder: str) -> None:
    Y, X = draw()
    mine = rows_of(rank)
    for number, settings in enumerate(SETTINGS):
        torch.save(train(Y[mine], X[mine], settings, len(mine) // 4), f"{folder}/{number}-{rank}.pt")
    torch.save(local(Y[mine], X[mine]), f"{folder}/local-{rank}.pt")
    for method in METHODS:
        torch.save(constrain(Y[mine], X[mine], method, len(mine) // 4), f"{folder}/{method}-{rank}.pt")
    network = nn.parallel.DistributedDataParallel(Network())
    network(Y.float()[mine], X[mine]).square().sum().backward()
    torch.save(dict(network.module.state_dict()), f"{folder}/network-{rank}.pt")


def constrain(Y: Tensor, X: Tensor, method: str, batch: int) -> dict[str, Tensor]:
    """States of a constraint, and the gradients of a network that was trained with it."""
    torch.manual_seed(2)
    constraint, network, result = OrthogonalityConstraint(2, method), nn.Linear(5, 3).double(), {}
    model = nn.parallel.DistributedDataParallel(network) if dist.is_initialized() else network
    for step, (y, x) in enumerate(zip(Y.split(batch), X.split(batch), strict=True)):
        network.zero_grad()
        value = constraint(model(y).tanh(), x)
        value.backward()
        result[f"value{step}"], result[f"gradient{step}"] = value.detach(), network.weight.grad.clone()
    return result | dict(constraint.state_dict())


def local(Y: Tensor, X: Tensor) -> Tensor:
    y = Y.clone().requires_grad_()
    return torch.autograd.grad(generalized_project_out(y, X, "relu").pow(3).sum(), y)[0]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.layer = nn.Linear(5, 3), Orthogonalize(2, activation="relu")

    def forward(self, y: Tensor, protected: Tensor) -> Tensor:
        return torch.relu(self.layer(self.first(y), protected))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("processes")
    two_processes.run(work, path)
    return path


@pytest.mark.parametrize("number", range(len(SETTINGS)), ids=lambda number: str(SETTINGS[number]))
def test_two_processes_equal_one(folder: Path, number: int) -> None:
    torch.set_num_threads(1)
    parts = [torch.load(folder / f"{number}-{rank}.pt") for rank in (0, 1)]
    whole = train(*draw(), SETTINGS[number], 40)
    alone = train(*(part[:96] for part in draw()), SETTINGS[number], 24)
    for name, value in whole.items():
        if name.startswith(("out", "gradient")):
            both = torch.cat([part[name] for part in parts])
        else:
            torch.testing.assert_close(parts[0][name], parts[1][name], rtol=0.0, atol=0.0)
            both = parts[0][name]
        torch.testing.assert_close(both, value, rtol=0.0, atol=1e-10)
    assert float((alone["moments.gram"] - whole["moments.gram"]).abs().max()) > 0.01  # not so if each kept to its own


@pytest.mark.parametrize("method", METHODS)
def test_a_constraint_of_two_processes_is_that_of_one(folder: Path, method: str) -> None:
    """Moments, multipliers and, averaged, gradients; also where the processes have different numbers of rows."""
    first, second = (torch.load(folder / f"{method}-{rank}.pt") for rank in (0, 1))
    whole = constrain(*draw(), method, 40)
    alone = constrain(*(part[rows_of(0)] for part in draw()), method, 24)
    for name, value in whole.items():
        torch.testing.assert_close(first[name], second[name], rtol=0.0, atol=1e-15)
        torch.testing.assert_close(first[name], value, rtol=0.0, atol=1e-10)
    assert float(whole["multipliers"].abs().max()) > 0.01
    for name in ("covariance", "protected_scatter", "gradient1"):  # not so if each kept to its own
        assert float((alone[name] - whole[name]).abs().max()) > 0.01


def test_a_distributed_network_has_the_same_moments_everywhere(folder: Path) -> None:
    first, second = (torch.load(folder / f"network-{rank}.pt") for rank in (0, 1))
    assert float(first["layer.moments.rows"]) == 160.0
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=0.0, atol=0.0)


def test_functions_keep_to_the_rows_of_their_process(folder: Path) -> None:
    Y, X = draw()
    for rank in (0, 1):
        mine = rows_of(rank)
        torch.testing.assert_close(
            torch.load(folder / f"local-{rank}.pt"), local(Y[mine], X[mine]), rtol=0.0, atol=1e-12
        )
