"""Blind layers, fit them and refit the head, in one call."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from setsquare.errors import InputError, SolverWarning
from setsquare.glm import solve
from setsquare.nn import blind, blind_and_refit, fit_layer


def draw() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    group = (torch.rand(1000, 1) < 0.5).double()
    x = torch.randn(1000, 4).double() * (1.0 + group) + group
    y = (x[:, 0] + x[:, 1].abs() + torch.randn(1000) > 1.0).double()
    return x, y, group


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def correlation(model: nn.Module, x: Tensor, group: Tensor) -> float:
    with torch.no_grad():
        p = torch.sigmoid(model.eval()(x, protected=group)[:, 0])
    return abs(float(torch.corrcoef(torch.stack([p, group[:, 0]]))[0, 1]))


def test_the_output_leaks_behind_a_blinded_layer_and_not_behind_the_refitted_head() -> None:
    x, y, group = draw()
    batches = list(zip(x.split(200), y.split(200), group.split(200), strict=True))
    layer_only = blind(network(), ["1"])
    fit_layer(layer_only, batches)
    assert correlation(layer_only, x, group) > 0.02
    fit = blind_and_refit(network(), batches, ["1"], "4", family="binomial")
    assert correlation(fit.model, x, group) < 1e-8
    assert fit.head.certificate.is_orthogonal and fit.layers["corrections.1"].residual < 1e-6
    assert not fit.model.corrections["1"].is_stale  # the head is behind the layer


def test_a_head_behind_a_layer_blinded_in_single_precision_is_optimal() -> None:
    """Rounding leaves a covariance at the start, and multipliers of its size must not stop the solver."""
    x, y, group = draw()
    batches = list(zip(x.float().split(200), y.split(200), group.split(200), strict=True))
    fit = blind_and_refit(network().float(), batches, ["3"], "4", blind_options={"where": "post"})
    seen: list[Tensor] = []
    fit.model.model[4].register_forward_hook(lambda _m, inputs, _o: seen.append(inputs[0].double()))
    with torch.no_grad():
        fit.model.eval()(x.float(), protected=group)
    left = torch.corrcoef(torch.cat([seen[0], group], dim=1).T)[-1, :-1].abs().max()
    assert 1e-11 < left < 1e-6  # neither zero nor anything to follow
    assert fit.head.certificate.is_optimal and fit.head.n_iter < 20
    assert fit.head.certificate.cost < 0.2 and fit.head.certificate.max_correlation < 1e-8


def test_a_head_that_is_not_optimal_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, group = draw()
    monkeypatch.setattr("setsquare.nn.head.solve", partial(solve, max_iter=1))
    with pytest.warns(SolverWarning, match="may not be the lowest possible"):
        blind_and_refit(network(), [(x, y, group)], ["1"], "4")


def test_what_it_refuses() -> None:
    x, y, group = draw()
    with pytest.raises(InputError, match="is the head"):
        blind_and_refit(network(), [(x, y, group)], ["4"], "4")
    with pytest.raises(InputError, match="iterator"):
        blind_and_refit(network(), iter([(x, y, group)]), ["1"], "4")
