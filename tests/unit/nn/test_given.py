"""Layers and constraints given controls."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from setsquare.errors import InputError
from setsquare.nn import OrthogonalityConstraint, Orthogonalize, blind, fit_layer, within_classes


def draw(n=400, seed=0):
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 2, n)
    x = group + rng.normal(size=n)
    y = np.column_stack([x + 2.0 * group + rng.normal(size=n), x * rng.normal(size=n) - group])
    return (torch.from_numpy(part) for part in (y, x[:, None], group[:, None].astype(float)))


def effects(y, x, g):
    A = torch.cat([torch.ones_like(x), x, g], 1)
    return torch.linalg.lstsq(A, y).solution


def test_the_effect_given_the_control_is_zero_and_that_of_the_control_is_kept():
    y, x, g = draw()
    layer = Orthogonalize(1, n_given=1)
    before, after = effects(y, x, g), effects(layer(y, torch.cat([x, g], 1)), x, g)
    assert before[1].abs().max() > 0.5 and after[1].abs().max() < 1e-12
    torch.testing.assert_close(after[2], before[2])
    torch.testing.assert_close(layer(y, torch.cat([x, g], 1)).mean(0), y.mean(0))


def test_new_rows_need_no_control():
    y, x, g = draw()
    layer = Orthogonalize(1, n_given=1, momentum=None)
    layer(y, torch.cat([x, g], 1))
    layer.eval()
    torch.testing.assert_close(layer(y, x), layer(y, torch.cat([x, g], 1)))
    with pytest.raises(InputError, match="Expected 2 protected column"):
        layer(y, torch.cat([x, g, g], 1))


def test_gradients_agree_with_numerical_ones():
    y, x, g = (part[:30] for part in draw())
    layer, D = Orthogonalize(1, n_given=1), torch.cat([x, g], 1)
    layer(y, D)

    def corrected(units):
        layer.moments.reset()
        return layer(units, D)

    assert torch.autograd.gradcheck(corrected, y.clone().requires_grad_())


def test_a_blinded_network_is_fitted_given_a_control():
    y, x, g = draw()
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1)).double()
    blinded = blind(model, ["0"], n_protected=1, n_given=1)
    D = torch.cat([x, g], 1)
    fit_layer(blinded, [(y, D)])
    blinded.eval()
    with torch.no_grad():
        before, seen = model[0](y), []
        handle = model[1].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        blinded(y, protected=x)
        handle.remove()
    assert effects(before, x, g)[1].abs().max() > 0.1 and effects(seen[0], x, g)[1].abs().max() < 1e-9


def test_the_constraint_measures_partial_correlations():
    y, x, g = draw()
    constraint = OrthogonalityConstraint(1, n_given=1, rate=0.0, scale="unit")
    A = torch.cat([torch.ones_like(x), g], 1)
    residual = x - A @ torch.linalg.lstsq(A, x).solution
    expected = [float(np.corrcoef(residual[:, 0], y[:, j])[0, 1]) for j in range(2)]
    constraint(y, torch.cat([x, g], 1))
    np.testing.assert_allclose(constraint.correlation[0].numpy(), expected, atol=1e-12)
    constraint.reset()
    clean = y - residual @ torch.linalg.lstsq(residual, y).solution
    assert float(constraint(clean, torch.cat([x, g], 1))) < 1e-20


def test_the_constraint_within_classes_is_zero_only_if_it_is_in_each():
    y, x, g = draw()
    D = within_classes(x, g[:, 0], 2)
    constraint = OrthogonalityConstraint(2, n_given=1, rate=0.0)
    slopes = torch.where(g == 1, 1.0, -1.0) * (x - torch.where(g == 1, x[g == 1].mean(), x[g == 0].mean()))
    assert float(constraint(slopes, D)) > 0.1
    constraint.reset()
    members = [g[:, 0] == k for k in (0, 1)]
    clean = y.clone()
    for rows in members:
        A = torch.cat([torch.ones_like(x[rows]), x[rows]], 1)
        clean[rows] = y[rows] - A[:, 1:] @ torch.linalg.lstsq(A, y[rows]).solution[1:]
    assert float(constraint(clean, D)) < 1e-20


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Orthogonalize(n_given=1), "needs n_protected"),
        (lambda: Orthogonalize(1, activation="relu", n_given=1), "linear corrections"),
        (lambda: OrthogonalityConstraint(1, n_given=-1), "n_given must be 0"),
        (lambda: within_classes(torch.ones(3), torch.tensor([0, 1, 2]), 2), "numbers from 0 to 1"),
        (lambda: within_classes(torch.ones(3), torch.tensor([0, 1]), 2), "one class per row"),
    ],
)
def test_bad_controls_are_refused(make, match):
    with pytest.raises(InputError, match=match):
        make()
