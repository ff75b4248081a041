"""Layers whose correction is a map fitted to all rows: erasure without protected columns, and second moments."""

from __future__ import annotations

import copy
import io
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import setsquare as sq
from setsquare.errors import InputError, NotOrthogonalError, SecondMomentsWarning, StaleCorrectionWarning
from setsquare.nn.moment_maps import without_rounding


def draw(n: int = 800) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs whose spread depends on a group, the group, and an outcome."""
    torch.manual_seed(0)
    group = (torch.arange(n) % 2).float()[:, None]
    spread = torch.tensor([2.0, 0.5, 1.0, 1.5, 0.7, 1.0])
    x = torch.randn(n, 6) * torch.where(group == 1.0, spread, 1.0) + 0.5 * group
    return x, group, x[:, :1] + 0.3 * torch.randn(n, 1)


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def moments_of(out: Tensor, group: Tensor) -> tuple[float, float]:
    """Largest difference of means, and of covariances, between the two groups; relative to the spread."""
    out = (out.double() - out.double().mean(0)) / out.double().std(0).clamp_min(1e-9)
    a, b = (out[group[:, 0] == g] for g in (0.0, 1.0))
    return float((a.mean(0) - b.mean(0)).abs().max()), float((torch.cov(a.T) - torch.cov(b.T)).abs().max())


def layer_output(blinded: nn.Module, x: Tensor, layer: str = "1", **named: Tensor) -> Tensor:
    seen: list[Tensor] = []
    handle = blinded.model.get_submodule(layer).register_forward_hook(lambda _m, _i, out: seen.append(out))
    with torch.no_grad():
        blinded(x, **named)
    handle.remove()
    return seen[0]


def test_transport_equals_means_and_covariances_of_the_layer_and_the_linear_correction_does_not():
    x, group, _ = draw()
    model = network().eval()
    batches = list(zip(x.split(100), group.split(100), strict=True))
    found = {}
    for moments in (1, 2):
        blinded = sq.nn.blind(model, ["1"], moments=moments, where="post")
        sq.nn.fit_layer(blinded, batches)
        found[moments] = moments_of(layer_output(blinded.eval(), x, protected=group), group)
    assert found[1][0] < 1e-5 and found[1][1] > 0.3
    assert found[2][0] < 1e-5 and found[2][1] < 0.05  # the covariances of the cells are shrunk by 8 / 408


@pytest.mark.parametrize("moments", [1, 2])
def test_erasure_needs_no_protected_columns_to_predict(moments: int):
    x, group, y = draw()
    model = network().eval()
    blinded = sq.nn.blind(model, ["1"], moments=moments, inference="features", n_preserved=1, n_protected=1)
    both = torch.cat([group, y], dim=1)
    sq.nn.fit_layer(blinded, list(zip(x.split(100), both.split(100), strict=True)))
    with torch.no_grad():
        before = moments_of(model[:2](x), group)
    out = layer_output(blinded.eval(), x)
    after = moments_of(out, group)
    assert min(before) > 0.2 and after[0] < 1e-4
    if moments == 2:
        assert after[1] < 0.02  # covariances themselves, divided by n - 1 in each group
        assert float(blinded.corrections["1"].moments.squares) < 1e-6
    cov = lambda a: (a - a.mean(0)).T @ (y - y.mean(0)) / len(y)  # noqa: E731
    with torch.no_grad():
        torch.testing.assert_close(cov(out), cov(model[:2](x)), rtol=1e-3, atol=1e-5)


def test_channel_maps_of_inked_pixels():
    """Two channels carry a colour; on inked pixels its mean and square say nothing of the group afterwards."""
    torch.manual_seed(0)
    group = (torch.arange(60) % 2).float()[:, None]
    ink = (torch.rand(60, 1, 6, 6) < 0.5).float() * torch.rand(60, 1, 6, 6)
    red = torch.where(group[:, :, None, None] == 1.0, ink, 0.0)
    images = torch.cat([red, ink - red, torch.rand(60, 1, 6, 6)], dim=1)
    layer = sq.nn.Orthogonalize(1, inference="features", rows="pixels", moments=2)
    batches = [(images[k : k + 20], group[k : k + 20], ink[k : k + 20, 0] > 0.0) for k in range(0, 60, 20)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecondMomentsWarning)
        sq.nn.fit_layer(nn.Sequential(layer), batches, layer, forward=lambda m, b: m[0](b[0], b[1], b[2]))
    out = layer.eval()(images)
    assert out.shape == images.shape
    inked = (ink[:, 0] > 0.0)[:, None].expand_as(out)
    pixels = torch.where(inked, out, torch.nan).movedim(1, -1).reshape(60, 36, 3)
    means = [pixels[group[:, 0] == g].reshape(-1, 3).nanmean(0) for g in (0.0, 1.0)]
    assert (means[0] - means[1]).abs().max() < 1e-5


def test_it_learns_nothing_in_training_and_says_so():
    x, group, _ = draw()
    for options in ({"moments": 2}, {"inference": "features"}):
        layer = sq.nn.Orthogonalize(1, **options)
        with pytest.raises(InputError, match=r"call setsquare\.nn\.fit_layer first"):
            layer.train()(x, group)


def test_training_goes_through_the_map_and_warns_when_it_is_stale():
    x, group, _ = draw()
    blinded = sq.nn.blind(network(), ["1"], moments=2)
    sq.nn.fit_layer(blinded, [(x, group)])
    blinded.train()
    blinded(x, protected=group).square().mean().backward()
    assert blinded.model[0].weight.grad.abs().max() > 0.0
    with torch.no_grad():
        blinded.model[0].weight.add_(0.1)
    with pytest.warns(StaleCorrectionWarning, match="it may not hold"):
        blinded(x, protected=group)


@pytest.mark.parametrize("options", [{"moments": 2}, {"moments": 2, "inference": "features"}])
def test_states_are_saved_copied_and_loaded(options: dict):
    x, group, _ = draw()
    blinded = sq.nn.blind(network(), ["1"], **options).eval()
    sq.nn.fit_layer(blinded, [(x, group)])
    buffer = io.BytesIO()
    torch.save(blinded.state_dict(), buffer)
    buffer.seek(0)
    fresh = sq.nn.blind(network(), ["1"], **options).eval()
    fresh.load_state_dict(torch.load(buffer))
    expected = blinded(x, protected=group)
    torch.testing.assert_close(fresh(x, protected=group), expected)
    torch.testing.assert_close(copy.deepcopy(blinded)(x, protected=group), expected)
    assert blinded.half().corrections["1"].moments.rows.dtype == torch.float64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"moments": 3}, "moments must be 1"),
        ({"moments": 2, "where": "generalized", "activation": "relu"}, "linear corrections"),
        ({"moments": 2, "inference": "off"}, "moments=2 needs inference"),
        ({"moments": 2, "n_given": 1, "n_protected": 1}, "n_given cannot be combined"),
        ({"n_preserved": 1}, "n_preserved must be 0"),
    ],
)
def test_options_that_do_not_go_together(options: dict, message: str):
    with pytest.raises(InputError, match=message):
        sq.nn.Orthogonalize(**options)


def test_bad_rows_are_refused():
    x, group, _ = draw()
    blinded = sq.nn.blind(network(), ["1"], moments=2)
    with pytest.raises(InputError, match="take more than 0 MB"):
        sq.nn.fit_layer(blinded, [(x, group)], max_bytes=100)
    sq.nn.fit_layer(blinded, [(x, group)])
    layer = blinded.corrections["1"]
    with pytest.raises(InputError, match="fitted to 8 units, and the batch has 5"):
        layer.eval()(torch.zeros(3, 5), group[:3])
    few = sq.nn.blind(network(), ["1"], inference="features")
    with pytest.raises(
        InputError, match=r'Too few rows \(8\) to erase .* from 8 units .*, or inference="protected"\.$'
    ):
        sq.nn.fit_layer(few, [(x[:8], group[:8])])
    wide = torch.randn(400, 4) * (1.0 + 2.0 * group[:400])
    only = sq.nn.Orthogonalize(1, moments=2, inference="features")
    with pytest.raises(NotOrthogonalError, match="varies more in every direction"):
        sq.nn.fit_layer(nn.Sequential(only), [(wide, group[:400])], only, forward=lambda m, b: m[0](*b))


def test_transport_by_combinations_of_two_columns_is_that_of_numpy():
    torch.manual_seed(0)
    X = torch.randint(0, 2, (400, 2)).float()
    units = torch.randn(400, 3) * (1.0 + X[:, :1] + 2.0 * X[:, 1:]) + X.sum(1, keepdim=True)
    blinded = sq.nn.blind(nn.Sequential(nn.Identity()), ["0"], moments=2, where="post")
    sq.nn.fit_layer(blinded, [(units, X)])
    with torch.no_grad():
        found = blinded.eval()(units, protected=X).double().numpy()
    expected = sq.LinearOrthogonalizer(moments=2).fit_transform(units.double().numpy(), protected=X.double().numpy())
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_map_that_was_not_fitted_has_counts_of_one_number():
    moments = sq.nn.blind(network(), ["1"], moments=2, n_protected=1).corrections["1"].moments
    assert moments.is_empty and moments.rows.tolist() == moments.skipped.tolist() == [0.0]


@pytest.mark.parametrize("moments", [1, 2])
@pytest.mark.parametrize(("n_inputs", "n_units", "offset"), [(6, 32, 0.0), (40, 64, 0.0), (6, 32, 10.0)])
def test_a_layer_with_more_units_than_inputs_is_erased_in_single_precision(
    n_inputs: int, n_units: int, offset: float, moments: int
):
    """Its units vary by rounding alone in some directions, and a map that used these would undo itself by rounding."""
    torch.manual_seed(0)
    group = (torch.arange(1000) % 2).float()[:, None]
    x, model = torch.randn(1000, n_inputs) + 0.5 * group, nn.Sequential(nn.Linear(n_inputs, n_units)).eval()
    with torch.no_grad():
        model[0].bias.add_(offset)
    blinded = sq.nn.blind(model, ["0"], inference="features", moments=moments)
    sq.nn.fit_layer(blinded, list(zip(x.split(100), group.split(100), strict=True)))
    assert moments_of(model(x).detach(), group)[0] > 0.2
    for size in (1, 100, 1000):  # products are rounded in another order
        out = torch.cat([layer_output(blinded.eval(), part, "0") for part in x.split(size)])
        # With second moments few directions are left, whose spread is smaller in comparison with the rounding.
        assert moments_of(out, group)[0] < (1e-6 if moments == 1 else 1e-4)
    assert float(blinded.corrections["0"].moments.matrix.abs().max()) < 100.0


def test_a_unit_that_is_zero_everywhere_stays_zero() -> None:
    Z = np.column_stack([np.zeros(20), np.random.default_rng(0).normal(size=(20, 2))])
    np.testing.assert_allclose(without_rounding(Z, 1e-7), Z, atol=1e-12)
