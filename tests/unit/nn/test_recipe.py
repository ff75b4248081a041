"""Blind layers, fit them and refit the head, in one call."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from setsquare.errors import InputError
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


def test_what_it_refuses() -> None:
    x, y, group = draw()
    with pytest.raises(InputError, match="is the head"):
        blind_and_refit(network(), [(x, y, group)], ["4"], "4")
    with pytest.raises(InputError, match="iterator"):
        blind_and_refit(network(), iter([(x, y, group)]), ["1"], "4")
