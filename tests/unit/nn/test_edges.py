"""Rare branches of networks: what is left behind after a fit, and weights of another number."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from setsquare.nn import Orthogonalize, refit_head, weight_watch  # noqa: E402


def test_a_refit_leaves_no_hook() -> None:
    x = torch.cos(torch.arange(180.0)).reshape(60, 3).double()
    sex = (torch.arange(60.0) % 2)[:, None]
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    refit_head(model, [(x, (x[:, 0] > 0.2).double(), sex)], "2", l2=0.1)
    assert not model[2]._forward_pre_hooks and not model[2]._forward_hooks


def test_one_tensor_of_another_size_is_another_network() -> None:
    base = torch.tensor([[1.0, 2.0, 5.0, 1e-16], [3.0, 4.0, 6.0, 1e-16]]).double()
    other = base.clone()
    other[1, 2] = 7.0
    assert weight_watch._same(base, base) and not weight_watch._same(base, other)
    wide = base.clone()
    wide[:, 3] = 1e-3  # converted to another type: each weight is rounded by up to twice its precision
    moved = wide.clone()
    moved[:, 0] += 1.9e-3 * (base[:, 1] * base[:, 2].sqrt())
    assert weight_watch._same(moved, base)
    moved[:, 0] += 1.0e-3 * (base[:, 1] * base[:, 2].sqrt())
    assert not weight_watch._same(moved, base)


def test_a_loaded_layer_knows_its_coefficients() -> None:
    layer = Orthogonalize(1)
    layer(torch.arange(40.0).reshape(20, 2) ** 1.5, (torch.arange(20.0) % 2)[:, None])
    again = Orthogonalize(1)
    again.load_state_dict(layer.state_dict())
    assert again.moments._known is not None
    assert torch.equal(again.moments._known[1], layer.moments.coefficients())
