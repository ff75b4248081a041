"""Parts of the torch layers against brute force in numpy, and their limits just inside and just outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import setsquare.nn as sqnn  # noqa: E402
from setsquare.errors import InputError, NotOrthogonalError  # noqa: E402
from setsquare.families import activation as core_activation  # noqa: E402
from setsquare.nn.activations import ACTIVATIONS  # noqa: E402
from setsquare.nn.batches import JoinedBatches, refuse_shuffled, split_batch  # noqa: E402
from setsquare.nn.constraint import OrthogonalityConstraint  # noqa: E402
from setsquare.nn.functional import (  # noqa: E402
    check_maps,
    check_n_given,
    flatten,
    generalized_project_out,
    project_out,
    read_protected,
    refuse_ids,
)
from setsquare.nn.generalized_solver import products, solve_units, unpack  # noqa: E402
from setsquare.nn.head import _family  # noqa: E402
from setsquare.nn.layer import Orthogonalize  # noqa: E402
from setsquare.nn.moments import RunningMoments, effects_of  # noqa: E402

RNG = np.random.default_rng


def tensor(*shape: int, seed: int = 0) -> Any:
    return torch.as_tensor(RNG(seed).normal(size=shape))


# ------------------------------------------------------------------------------------------------------- activations
@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name != "gelu"])
def test_activations_are_those_of_the_core(name: str) -> None:
    u = torch.linspace(-6.0, 5.0, 41, dtype=torch.float64)[:, None]
    H, h, slope, _ = core_activation(name).evaluate(u.numpy())
    torch_h = ACTIVATIONS[name]
    for ours, theirs in ((torch_h.h(u), h), (torch_h.slope(u), slope)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)
    gap = torch_h.H(u).numpy() - H
    np.testing.assert_allclose(gap - gap[0], 0.0, atol=1e-10)  # up to a constant
    total, square, out, weight = torch_h.terms(u.clone(), torch.empty_like(u))
    np.testing.assert_allclose(total, torch_h.H(u).sum(0))
    np.testing.assert_allclose(square, (h**2).sum(0), rtol=1e-12)
    np.testing.assert_allclose(out, h, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(weight, slope, rtol=1e-12, atol=1e-14)
    g = tensor(41, 1)
    np.testing.assert_allclose(torch_h.times_slope(g, u, out=torch.empty_like(u)), g.numpy() * slope, rtol=1e-12)


# ------------------------------------------------------------------------------------------------------------ solver
def test_products_are_the_upper_triangles_of_outer_products() -> None:
    D = tensor(5, 3)
    whole = unpack(products(D).T.contiguous())  # (3, 3, 5)
    np.testing.assert_array_equal(whole.numpy(), np.einsum("ni,nj->ijn", D, D))


def test_systems_are_solved_and_flat_directions_get_zero() -> None:
    A = tensor(4, 3, 6)
    S = torch.einsum("aid,bid->abd", A, A) + torch.eye(4, dtype=A.dtype)[:, :, None]
    b = tensor(4, 6, seed=1)
    wanted = np.stack([np.linalg.solve(S[:, :, k], b[:, k]) for k in range(6)], axis=1)
    np.testing.assert_allclose(solve_units(S, b), wanted, rtol=1e-9)
    flat = torch.diag(torch.tensor([2.0, 0.0, 1e-13, 4.0], dtype=torch.float64))[:, :, None]
    np.testing.assert_allclose(solve_units(flat, torch.ones(4, 1, dtype=torch.float64), drop=1.5)[:, 0], 0.0)
    some = solve_units(flat, torch.ones(4, 1, dtype=torch.float64))
    np.testing.assert_allclose(some[:, 0], [0.5, 0.0, 1e13, 0.25])


def test_effects_by_least_squares() -> None:
    X, Y = RNG(0).normal(size=(50, 2)) + 1.0, RNG(1).normal(size=(50, 3))
    X = np.column_stack([X, X[:, 0] - X[:, 1], np.full(50, 2.0)])  # collinear, constant
    D = np.column_stack([np.ones(50), X])
    M = effects_of(torch.as_tensor(D.T @ D / 50)).numpy()
    fitted = D @ (M @ (D.T @ Y / 50))
    Xc = X[:, :2] - X[:, :2].mean(0)
    np.testing.assert_allclose(fitted, Xc @ np.linalg.lstsq(Xc, Y, rcond=None)[0], atol=1e-8)


# -------------------------------------------------------------------------------------------------- running moments
def test_two_batches_are_remembered_with_their_momentum() -> None:
    first, second = tensor(40, 2), tensor(40, 2, seed=1)
    X = [torch.as_tensor(RNG(k).normal(size=(40, 1))) for k in (2, 3)]
    for momentum in (None, 0.25, 1.0):
        layer = RunningMoments(momentum)
        layer.learn(first, X[0])
        D = [torch.cat([torch.ones(40, 1), (x - layer.anchor) / layer.scale], 1).double() for x in X]
        gram, response = D[0].T @ D[0] / 40, D[0].T @ first / 40
        np.testing.assert_allclose(layer.gram, gram, atol=1e-14)
        np.testing.assert_allclose(layer.response, response, atol=1e-14)
        assert float(layer.rows) == 40.0
        layer.learn(second, X[1])
        rows = 40.0 + (40.0 if momentum is None else (1.0 - momentum) * 40.0)
        share = 40.0 / rows
        np.testing.assert_allclose(layer.gram, (1 - share) * gram + share * D[1].T @ D[1] / 40, atol=1e-14)
        np.testing.assert_allclose(layer.response, (1 - share) * response + share * D[1].T @ second / 40, atol=1e-14)
        assert float(layer.rows) == pytest.approx(rows) and float(layer.skipped) == 0.0


@pytest.mark.parametrize(("n", "share"), [(20, 1.0), (19, 19 / 20), (5, 5 / 20)])
def test_small_batches_are_filled_up_by_the_rows_before(n: int, share: float) -> None:
    layer = RunningMoments(None)
    layer.learn(tensor(400, 1), tensor(400, 1, seed=1))
    assert float(layer._share(float(n))) == pytest.approx(share)  # ten rows for each of two coefficients
    automatic = RunningMoments("auto")
    automatic.learn(tensor(400, 1), tensor(400, 1, seed=1))
    for rows in (20.0, 40.0, 100.0):  # at least 10 batches, and 200 rows for each coefficient
        assert float(automatic._past(rows)) == pytest.approx((1.0 - min(rows / 400.0, 0.1)) * 400.0)


def test_a_layer_is_allocated_once_and_forgets() -> None:
    layer = RunningMoments(None)
    assert layer.is_empty
    layer.allocate(2, 3)
    assert layer.is_empty and layer.response.shape == (3, 3) and layer.scale.tolist() == [1.0, 1.0]
    layer.learn(tensor(40, 3), tensor(40, 2, seed=1))
    assert not layer.is_empty
    layer.allocate(5, 5)
    assert layer.response.shape == (3, 3)
    for units, columns in ((2, 2), (3, 1)):
        with pytest.raises(
            InputError, match=f"has {columns} protected column.s. and {units} units, earlier .* 2 and 3"
        ):
            layer.correct(tensor(4, units), tensor(4, columns))
    layer.reset()
    assert layer.is_empty and layer.rows.shape == (1,)


# ---------------------------------------------------------------------------------------------------------- function
def test_a_batch_is_projected_like_least_squares() -> None:
    y, X, w = tensor(30, 2, 2), tensor(30, 2, seed=1), torch.as_tensor(RNG(2).uniform(0.1, 2.0, 30))
    share = (w / w.sum()).numpy()
    Xc = X.numpy() - share @ X.numpy()
    root = np.sqrt(share)[:, None]
    flat = y.reshape(30, 4).numpy()
    B = np.linalg.lstsq(root * Xc, root * (flat - share @ flat), rcond=None)[0]
    np.testing.assert_allclose(project_out(y, X, w).reshape(30, 4), flat - Xc @ B, atol=1e-12)
    for bad in (w[:-1], -w, torch.zeros(30), w * torch.inf):
        with pytest.raises(InputError, match="Weights must be one finite"):
            project_out(y, X, bad)
    project_out(y, X, torch.cat([torch.zeros(1), torch.ones(29)]))


def test_too_few_steps_are_an_error_or_allowed() -> None:
    pre, X = 3.0 * tensor(60, 3), tensor(60, 1, seed=1)
    with pytest.raises(NotOrthogonalError, match=r"3 of 3 units could not be made orthogonal \(remaining"):
        generalized_project_out(pre + 3.0 * X, X, "exp", max_iter=1)
    loose = generalized_project_out(pre + 3.0 * X, X, "exp", max_iter=1, strict=False)
    tight = generalized_project_out(pre + 3.0 * X, X, "exp")
    leak = [np.abs(np.corrcoef(one.exp().T, X.T)[:3, 3]).max() for one in (loose, tight)]
    assert leak[0] > 1e-4 > 1e-9 > leak[1]
    with pytest.raises(InputError, match="No generalised projection for the activation 'sine'"):
        generalized_project_out(pre, X, "sine")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((-1, 2, False), "n_given must be 0 or a positive"),
        ((1.5, 2, False), "n_given must be 0 or a positive"),
        ((1, None, False), "n_given needs n_protected"),
        ((1, 2, True), "n_given is for linear corrections"),
        ((0, None, True), ""),
        ((1, 1, False), ""),
    ],
)
def test_numbers_of_controls(arguments: tuple[Any, ...], what: str) -> None:
    if not what:
        check_n_given(*arguments)
    else:
        with pytest.raises(InputError, match=what):
            check_n_given(*arguments)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((1, 0, 0, "post", "protected"), ""),
        ((1, 0, 3, "generalized", "protected"), ""),
        ((1, 2, 0, "post", "features"), ""),
        ((2, 0, 0, "pre", "protected"), ""),
        ((2, 0, 0, "post", "features"), ""),
        ((3, 0, 0, "post", "protected"), "moments must be 1"),
        ((1, -1, 0, "post", "features"), "n_preserved must be 0"),
        ((1, 1, 0, "post", "protected"), "n_preserved must be 0"),
        ((2, 0, 0, "generalized", "protected"), "linear corrections"),
        ((1, 0, 0, "generalized", "features"), "linear corrections"),
        ((2, 0, 1, "post", "protected"), "n_given cannot be combined"),
        ((1, 0, 1, "post", "features"), "n_given cannot be combined"),
        ((2, 0, 0, "post", "marginal"), "moments=2 needs inference="),
        ((2, 0, 0, "post", "off"), "moments=2 needs inference="),
    ],
)
def test_options_of_maps(arguments: tuple[Any, ...], what: str) -> None:
    if not what:
        check_maps(*arguments)
    else:
        with pytest.raises(InputError, match=what):
            check_maps(*arguments)


def test_protected_columns_are_read_in_double_precision() -> None:
    y = torch.zeros(3, 2)
    assert (
        read_protected([1.0, 2.0, 3.0], y).shape == (3, 1) and read_protected(np.ones((3, 2)), y).dtype == torch.float64
    )
    assert not read_protected(torch.ones(3, requires_grad=True), y).requires_grad
    for protected, tensor_, columns, what in (
        (None, y, None, "protected columns of the batch are missing"),
        (torch.ones(2), y, None, r"shape \(2, 1\) and the tensor to correct has \(3, 2\)"),
        (torch.ones(3, 1, 1), y, None, "pass columns of shape"),
        (torch.ones(3, 2), y, 1, r"Expected 1 protected column\(s\), got 2"),
        (torch.ones(0, 1), torch.zeros(0, 2), None, "The batch has no rows"),
        (torch.tensor([1.0, torch.nan, 0.0]), y, None, "The protected columns have missing"),
        (["a", "b", "c"], y, None, "are not all numbers"),
        (torch.tensor([0, 1, 2]), y, None, "may be group ids"),
    ):
        with pytest.raises(InputError, match=what):
            read_protected(protected, tensor_, columns)
    for fine in (torch.tensor([0, 1]), torch.tensor([True, False]), torch.tensor([0.0, 5.0])):
        refuse_ids(fine)
    assert (
        flatten(torch.zeros(2, 3, 4)).shape == (2, 12)
        and flatten(torch.zeros(2, dtype=torch.float16)).dtype == torch.float32
    )
    for bad in (torch.zeros(2, dtype=torch.int64), torch.tensor(1.0), [1.0]):
        with pytest.raises(InputError, match="Only floating-point tensors"):
            flatten(bad)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------- layer
@pytest.mark.parametrize("momentum", [0.0, 1.5, -0.1, "often", True * 2])
def test_momentum_is_a_share(momentum: Any) -> None:
    with pytest.raises(InputError, match="momentum must be above 0 and at most 1"):
        Orthogonalize(1, momentum=momentum)


def test_settings_of_a_layer() -> None:
    for momentum in (1.0, 1, 0.001, None, "auto"):
        Orthogonalize(1, momentum=momentum)  # type: ignore[arg-type]
    assert Orthogonalize(1).where == "post" and Orthogonalize(1, activation="relu").where == "generalized"
    assert (
        repr(Orthogonalize(2))
        == "Orthogonalize(\n  2, where='post', inference='protected', rows='samples'\n  (moments): RunningMoments()\n)"
    )
    assert "activation='relu'" in repr(Orthogonalize(1, activation="relu")) and "moments=2" in repr(
        Orthogonalize(1, moments=2)
    )
    for options, what in (
        ({"n_protected": 0}, "at least 1, not 0"),
        ({"where": "before"}, "where='before' is not one of"),
        ({"inference": "none"}, "inference='none' is not one of"),
        ({"where": "generalized"}, "No generalised projection for the activation None"),
    ):
        with pytest.raises(InputError, match=what):
            Orthogonalize(**options)


def test_a_layer_corrects_by_rule_at_test_time() -> None:
    y, X = tensor(200, 3), tensor(200, 2, seed=1)
    y = y + X[:, :1]
    for inference in ("protected", "marginal", "off"):
        layer = Orthogonalize(2, momentum=None, inference=inference)  # type: ignore[arg-type]
        trained = layer(y, X)
        np.testing.assert_allclose(trained, project_out(y, X), atol=1e-10)
        layer.eval()
        assert not layer.moments.is_empty and layer(y[:0], X[:0]).shape == (0, 3)
        if inference == "protected":
            np.testing.assert_allclose(layer(y, X), trained, atol=1e-10)
        elif inference == "off":
            assert layer(y) is y
        else:
            np.testing.assert_allclose(layer(y), y, atol=1e-10)  # effects average to zero in the population
    with pytest.raises(InputError, match="The layer has not seen a batch"):
        Orthogonalize(2).eval()(y, X)


# ----------------------------------------------------------------------------------------------------------- batches
def test_batches_are_split_into_inputs_and_columns() -> None:
    x, p = torch.zeros(4, 2), torch.ones(4, 1)
    assert split_batch((x, p)) == (x, p) and split_batch([x, "outcome", p[:, 0]])[1].shape == (4,)
    inputs, protected = split_batch({"ids": x, "protected": p})
    assert list(inputs) == ["ids"] and protected is p
    assert split_batch((x, ["a", "b", "a", "b"]))[1] == ["a", "b", "a", "b"]
    for batch, what in (
        ((x,), "A batch must be"),
        (x, "A batch must be"),
        ({"ids": x}, "A batch must be"),
        ((x, p[:, 0]), r"shape \(4,\)"),
    ):
        with pytest.raises(InputError, match=what):
            split_batch(batch)
    joined = list(JoinedBatches([x, (x, "y")], torch.arange(8.0)))
    assert [columns.tolist() for _, _, columns in joined] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert next(iter(JoinedBatches([{"ids": x}], torch.zeros(4))))[0]["ids"] is x
    for n in (7, 9):
        with pytest.raises(InputError, match=f"gave 8 rows and protected has {n}"):
            list(JoinedBatches([x, x], torch.zeros(n)))
    data = torch.utils.data.TensorDataset(x)
    refuse_shuffled(torch.utils.data.DataLoader(data))
    with pytest.raises(InputError, match="The loader shuffles its rows"):
        refuse_shuffled(torch.utils.data.DataLoader(data, shuffle=True))


# -------------------------------------------------------------------------------------------------------- constraint
def test_a_penalty_by_hand() -> None:
    A, X = tensor(50, 2), tensor(50, 1, seed=1)
    constraint = OrthogonalityConstraint(1, penalty=4.0, rate=0.5, scale=2.0)
    value = constraint(A, X)
    Xc, Ac = X - X.mean(0), A - A.mean(0)
    c = (Xc.T @ Ac / 50) / X.std(0, correction=0) / 2.0
    assert float(value) == pytest.approx(0.5 * 4.0 * float((c**2).sum()), rel=1e-10)
    np.testing.assert_allclose(constraint.multipliers, 0.5 * c, rtol=1e-10)
    again = constraint.eval()(A, X)
    assert float(again) == pytest.approx(float((0.5 * c * c).sum() + 2.0 * (c**2).sum()), rel=1e-10)
    correlation = np.corrcoef(A.T, X.T)[:2, 2]
    np.testing.assert_allclose(constraint.correlation[0], correlation, rtol=1e-10)
    assert constraint.residual == pytest.approx(np.abs(correlation).max(), rel=1e-10)
    constraint.step()
    np.testing.assert_allclose(constraint.multipliers, 4.5 * c, rtol=1e-10)
    shared = OrthogonalityConstraint(1, scale="shared").eval()
    with pytest.raises(InputError, match="has not seen a batch"):
        shared(A, X)
    mdmm = OrthogonalityConstraint(1, "mdmm", penalty=4.0, scale=2.0)
    squares = float((c**2).sum())
    assert float(mdmm(A, X)) == pytest.approx(2.0 * squares**2, rel=1e-10)
    assert float(mdmm.multipliers) == pytest.approx(50.0 * squares, rel=1e-10)
    with pytest.raises(InputError, match="The activations have 3 units, not 2 as before"):
        constraint(tensor(50, 3), X)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"scale": 0.0}, "scale must be a positive number"),
        ({"scale": float("inf")}, "scale must be a positive number"),
        ({"scale": "units"}, "scale must be a positive number"),
        ({"momentum": 0.0}, "momentum must be above 0"),
        ({"momentum": 1.1}, "momentum must be above 0"),
        ({"penalty": -1.0}, "penalty and rate must be 0 or more"),
        ({"rate": -1.0}, "penalty and rate must be 0 or more"),
        ({"n_protected": 0}, "at least 1"),
        ({"method": "sgd"}, "method='sgd' is not one of"),
    ],
)
def test_settings_of_a_constraint(options: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        OrthogonalityConstraint(**{"n_protected": 1} | options)
    OrthogonalityConstraint(1, scale="unit", momentum=1.0, penalty=0.0, rate=0.0)


def test_running_moments_of_a_constraint() -> None:
    batches = [(tensor(20, 2, seed=k), tensor(20, 1, seed=10 + k)) for k in range(3)]
    constraint = OrthogonalityConstraint(1, momentum=0.4)
    mean, share = None, 0.0
    for k, (A, X) in enumerate(batches):
        constraint(A, X)
        share = max(1.0 / (1 + k), 0.4)
        mean = A.mean(0) if mean is None else (1 - share) * mean + share * A.mean(0)
        np.testing.assert_allclose(constraint.mean, mean, rtol=1e-10)
    everything = torch.cat([X for _, X in batches])
    np.testing.assert_allclose(constraint.protected_mean, everything.mean(0), rtol=1e-10)
    np.testing.assert_allclose(constraint.protected_scatter[0, 0], 60 * everything.var(correction=0), rtol=1e-10)
    assert float(constraint.n_rows) == 60.0 and float(constraint.n_calls) == 3.0
    constraint.reset()
    assert float(constraint.n_rows) == 0.0 and len(constraint.mean) == 0 and np.isnan(constraint.residual)
    flat = OrthogonalityConstraint(1, scale=1.0)
    flat(torch.cat([0.0099 * tensor(50, 1), 0.02 * tensor(50, 1)], 1), tensor(50, 1, seed=3))
    spread = flat.variance.sqrt()
    assert flat.constant.tolist() == (spread <= 0.01).tolist()


def test_layers_of_a_network_are_named() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    with pytest.raises(InputError, match="n_components=0 must be at least 1"):
        sqnn.audit_layer(model, [], "0", n_components=0)
    with pytest.raises(InputError, match="evaluation='magic' is not one of"):
        sqnn.audit_layer(model, [], "0", evaluation="magic")
    with pytest.raises(InputError, match='pool=1 has no axes to average over with rows="tokens"'):
        sqnn.audit_layer(model, [], "0", pool=1, rows="tokens")


def test_families_of_heads() -> None:
    assert (
        _family(None, np.array([0, 1, 1]), 1).name == "binomial"
        and _family(None, np.array([0, 3]), 1).name == "gaussian"
    )
    assert (
        _family(None, np.eye(4)[[0, 1, 2, 3, 0]], 4).name == _family(None, np.array([0, 3, 2]), 4).name == "multinomial"
    )
    for given, y, n, what in (
        ("binomial", np.array([0, 1]), 2, r"2 output\(s\), which does not fit the binomial family: it takes one"),
        ("multinomial", np.array([0, 1]), 1, "it takes two or more"),
        (None, np.array([0, 1, 2]), 4, "has 4 outputs but the outcome has 3 classes"),
        (None, np.eye(3)[[0, 1, 2, 0]], 4, "has 4 outputs but the outcome has 3 classes"),
    ):
        with pytest.raises(InputError, match=what):
            _family(given, y, n)
