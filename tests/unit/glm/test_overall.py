"""Sums that the last pass of a solver leaves to leave-one-out systems: the same as those of a pass of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import setsquare as sq
from setsquare.glm import left_out_shared, left_out_sums, objective
from setsquare.glm.kkt_inverse import invert
from setsquare.glm.new_rows_bound import NewRows
from setsquare.glm.overall import Ends, Overall, RowsAt, Unknown, unwrapped, wrapped
from setsquare.glm.preparation import prepare
from setsquare.rows.blocks import Block
from setsquare.rows.products import squares_and_products
from setsquare.rows.wide import Slab


def problem(family: str = "binomial", n: int = 500, q: int = 6, **options: Any) -> sq.Problem:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    Z = 0.5 * X @ rng.normal(size=(2, q)) + rng.normal(size=(n, q))
    eta = 0.3 * Z.sum(axis=1)
    y = (rng.logistic(size=n) < eta) if family == "binomial" else rng.poisson(np.exp(0.5 * eta))
    return sq.Problem(Z, y.astype(float), X, family, **options)


def numbers(found: NewRows) -> list[float]:
    measured = found.correlation, found.upper, found.loss, found.n_parameters, found.loss_error, *found.uppers.values()
    return [float(value) for value in measured if value is not None]


@pytest.fixture(autouse=True)
def one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows get further steps, which need what a pass keeps of each row; many rows do not."""
    monkeypatch.setattr(left_out_shared, "FEW_ROWS", 0)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weights": {"weight": np.random.default_rng(1).uniform(0.5, 2.0, 500)},
    "offset": {"offset": np.random.default_rng(2).normal(size=500)},
    "ridge": {"l2": 0.1},
}


@pytest.mark.parametrize("family", ["binomial", "poisson"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("target", ["training rows", "new rows"])
def test_many_rows_need_no_pass_of_their_own(
    monkeypatch: pytest.MonkeyPatch, family: str, options: dict[str, Any], target: str
) -> None:
    given = problem(family, **options)
    usual = sq.solve(given, orthogonal_on=target).certificate.new_rows
    monkeypatch.setattr(objective, "MANY_ROWS", 100)
    monkeypatch.setattr(left_out_shared, "_gather", lambda *_: pytest.fail("a pass over the rows"))
    found = sq.solve(given, orthogonal_on=target).certificate.new_rows
    assert usual is not None and found is not None
    np.testing.assert_allclose(numbers(found), numbers(usual), rtol=1e-9, atol=1e-9)  # a last step of up to 1e-8


@pytest.mark.parametrize("family", ["binomial", "poisson"])
@pytest.mark.parametrize("kind", [*OPTIONS, "controls", "clusters", "pieces"])
@pytest.mark.parametrize("target", ["training rows", "new rows"])
def test_few_rows_that_were_kept_are_those_of_a_pass(
    monkeypatch: pytest.MonkeyPatch, family: str, kind: str, target: str
) -> None:
    options: dict[str, Any] = dict(OPTIONS.get(kind, {}))
    if kind == "controls":
        options["given"] = np.random.default_rng(4).normal(size=(500, 1))
    if kind == "clusters":
        options["cluster"] = np.arange(500) // 5
    if kind == "pieces":  # rows are left out some at a time, but were kept all together
        monkeypatch.setattr(left_out_shared, "ROW_BYTES", 8 * 100 * 10)
    given = problem(family, **options)
    found = sq.solve(given, orthogonal_on=target).certificate.new_rows
    evaluated = []
    monkeypatch.setattr(RowsAt, "are_current", lambda rows: evaluated.append(rows) is not None)
    again = sq.solve(given, orthogonal_on=target).certificate.new_rows
    assert evaluated and found is not None and again is not None
    np.testing.assert_allclose(numbers(found), numbers(again), rtol=1e-9, atol=1e-9)  # a last step of up to 1e-8


@pytest.mark.parametrize("many", [100, 2**16])
def test_rows_that_were_overwritten_after_the_fit_are_noticed(monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    monkeypatch.setattr(objective, "MANY_ROWS", many)
    rng = np.random.default_rng(6)
    X, Z = rng.normal(size=(500, 1)), rng.normal(size=(500, 4))
    y = (rng.logistic(size=500) < Z[:, 0]).astype(float)
    kept, changed = (sq.solve(sq.Problem(Z, part, X, "binomial")) for part in (y.copy(), y))
    y[:] = y[::-1].copy()
    assert kept.certificate.new_rows is not None and changed.certificate.new_rows is None


@pytest.mark.parametrize("kind", ["controls", "classes", "sparse"])
def test_other_rows_make_the_pass(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    rng = np.random.default_rng(3)
    X, Z = rng.normal(size=(400, 1)), rng.normal(size=(400, 5))
    y = (rng.random(400) < 0.5).astype(float) if kind != "classes" else rng.integers(0, 3, 400).astype(float)
    options: dict[str, Any] = {"given": rng.normal(size=(400, 1))} if kind == "controls" else {}
    if kind == "sparse":
        from scipy import sparse

        Z = sparse.csr_array(np.where(np.abs(Z) < 0.5, 0.0, Z))
    given = sq.Problem(Z, y, X, "multinomial" if kind == "classes" else "binomial", **options)
    usual = sq.solve(given, "sqp").certificate.new_rows
    monkeypatch.setattr(objective, "MANY_ROWS", 100)
    monkeypatch.setattr(left_out_shared, "MANY_ROWS", 100)
    found = sq.solve(given, "sqp").certificate.new_rows
    assert usual is not None and found is not None
    np.testing.assert_allclose(numbers(found), numbers(usual), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("target", ["training rows", "new rows"])
def test_batches_of_a_stream_leave_the_same_sums(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    rng = np.random.default_rng(10)
    table = pd.DataFrame(rng.normal(size=(900, 6)), columns=list("abcdef"))
    table["x"] = rng.normal(size=900) + 0.5 * table["a"]
    table["y"] = np.where(rng.logistic(size=900) < table["a"] + table["b"], "yes", "no")
    model = sq.OrthogonalGLMClassifier(protected="x", orthogonal_on=target)
    usual = model.fit(table.drop(columns="y"), table["y"]).solution_.certificate.new_rows
    monkeypatch.setattr(objective, "MANY_ROWS", 100)
    monkeypatch.setattr(left_out_shared, "_gather", lambda *_: pytest.fail("a pass over the rows"))
    batches = sq.Stream([table[:300], table[300:650], table[650:]])
    found = model.fit(batches, "y").solution_.certificate.new_rows
    assert usual is not None and found is not None
    np.testing.assert_allclose(numbers(found), numbers(usual), rtol=1e-6, atol=1e-9)


def test_sums_add_up_unless_one_is_unknown() -> None:
    rng = np.random.default_rng(4)
    eta, w = rng.normal(size=40), rng.random(40)
    whole, parts = Ends.of(eta, w), Ends.of(eta[:15], w[:15]) + Ends.of(eta[15:], w[15:])
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other)
    for one, other in zip(whole, Ends.of(eta[:, None], w), strict=True):
        np.testing.assert_allclose(one, other)
    for one, other in zip(Ends.of(eta, None).scaled(0.1), Ends.of(eta, np.full(40, 0.1)), strict=True):
        np.testing.assert_allclose(one, other)
    assert whole.scaled(None) is whole
    empty = Ends.of(eta[:0], None) + Ends.of(eta, None)
    assert empty.low == eta.min() and empty.high == eta.max()
    found = Overall(np.ones((1, 1)), np.ones((3, 1)), whole)
    both = unwrapped(wrapped(found) + wrapped(found))
    assert both is not None and both.gap[0, 0] == 2.0 and (both.slopes == 2.0).all()
    for mixed in (wrapped(None) + wrapped(found), wrapped(found) + wrapped(None), wrapped(None) + wrapped(None)):
        assert unwrapped(mixed) is None and isinstance(mixed[0], Unknown)
    rows = RowsAt(Block(np.ones((40, 1)), eta[:, None], np.ones((40, 1)), w), *(eta,) * 5)
    assert unwrapped(wrapped(rows)) is rows
    assert unwrapped(wrapped(rows) + wrapped(rows)) is None  # two blocks are evaluated again


@pytest.mark.parametrize("given", ["outcome", "controls", ""])
@pytest.mark.parametrize("pieces", [False, True])
def test_sums_of_equal_weights_follow_from_the_basis(monkeypatch: pytest.MonkeyPatch, given: str, pieces: bool) -> None:
    controls = np.random.default_rng(4).normal(size=(500, 1))
    asked = problem(**{"given": controls if given == "controls" else given} if given else {})
    if pieces:
        monkeypatch.setattr(left_out_shared, "ROW_BYTES", 8 * 100 * 10)
    usual = sq.solve(asked).certificate.new_rows
    monkeypatch.setattr(left_out_sums, "equal_weight", lambda _: None)
    found = sq.solve(asked).certificate.new_rows
    assert usual is not None and found is not None and usual.correlation > 0.0
    np.testing.assert_allclose(numbers(found), numbers(usual), rtol=1e-10)


def test_loadings_are_covariances_of_the_basis_with_the_columns() -> None:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(300, 3)) + 40.0
    X = np.column_stack([X, X[:, 0] - 2.0 * X[:, 1], np.full(300, 1e3 / 3.0)])  # collinear, and constant
    weight, Z = rng.uniform(0.5, 2.0, 300), rng.normal(size=(300, 7))
    prepared = prepare(sq.Problem(Z, (Z[:, 0] > 0.0).astype(float), X, "binomial", weight))
    assert prepared.basis is not None and prepared.basis.rank == 3
    w = weight / weight.sum()
    expected = (w[:, None] * prepared.basis.apply(X)).T @ (X - w @ X)
    np.testing.assert_allclose(prepared.loadings[:, :4], expected[:, :4], atol=1e-11)
    assert (prepared.loadings[:, 4] == 0.0).all()


@pytest.mark.parametrize("n_squared", [5, 30, 60, 110])
@pytest.mark.parametrize("kind", ["array", "slab", "shifted"])
@pytest.mark.parametrize("triangular", [True, False])
def test_squares_by_steps_of_a_triangular_factor(n_squared: int, kind: str, triangular: bool) -> None:
    rng = np.random.default_rng(5)
    Z = rng.normal(size=(1500, n_squared))
    ones = np.hstack([np.ones((1500, 1)), Z])
    A = ones if kind == "array" else Slab(Z) if kind == "slab" else Slab.shifted(Z + 3.0, np.full(n_squared, 3.0))
    B = rng.normal(size=(1 + n_squared, n_squared + 3))
    if triangular:
        B[:, :n_squared] = np.tril(B[:, :n_squared])
    squares, others = squares_and_products(A, B, n_squared)
    np.testing.assert_allclose(squares, np.square(ones @ B[:, :n_squared]).sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(others, (ones @ B[:, n_squared:]).T, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["array", "slab", "shifted"])
def test_products_in_single_precision(kind: str) -> None:
    rng = np.random.default_rng(7)
    Z = rng.normal(size=(12_000, 30))
    ones = np.hstack([np.ones((12_000, 1)), Z])
    A = ones if kind == "array" else Slab(Z) if kind == "slab" else Slab.shifted(Z + 3.0, np.full(30, 3.0))
    B = rng.normal(size=(31, 33))
    B[0, 5:30] = 0.0
    (exact, others), (squares, fast) = (squares_and_products(A, B, 30, single=single) for single in (False, True))
    np.testing.assert_allclose(squares, exact, rtol=1e-5)
    np.testing.assert_allclose(fast[:-1], others[:-1], atol=1e-4)
    np.testing.assert_allclose(fast[-1], others[-1], rtol=1e-12, atol=1e-12)
    assert (squares != exact).any() == (kind != "shifted"), "shifted features stay in float64"


@pytest.mark.parametrize("target", ["training rows", "new rows"])
def test_single_precision_changes_nothing_that_is_seen(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    rng = np.random.default_rng(8)
    X, Z = rng.normal(size=(3000, 1)), rng.normal(size=(3000, 30))
    Z[:, :3] += X
    Z[:, 28], Z[:, 29] = 0.0, 0.0
    Z[7, 28], Z[:2, 29] = 1.0, 1.0  # one row that decides its own prediction, two that share one
    y = (rng.logistic(size=3000) < Z[:, :6].sum(axis=1)).astype(float)
    given = sq.Problem(Z, y, X, "binomial", l2=1e-6)
    monkeypatch.setattr(objective, "MANY_ROWS", 100)
    exact = sq.solve(given, orthogonal_on=target).certificate.new_rows
    monkeypatch.setattr(left_out_shared, "MANY_ROWS", 100)
    found = sq.solve(given, orthogonal_on=target).certificate.new_rows
    assert exact is not None and found is not None
    np.testing.assert_allclose(numbers(found), numbers(exact), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("collinear", [False, True])
def test_single_precision_is_not_for_collinear_features(monkeypatch: pytest.MonkeyPatch, collinear: bool) -> None:
    monkeypatch.setattr(left_out_shared, "MANY_ROWS", 100)
    rng = np.random.default_rng(9)
    X, Z = rng.normal(size=(800, 1)), rng.normal(size=(800, 5))
    if collinear:
        Z[:, 4] = Z[:, 0] + 3e-3 * Z[:, 4]
    y = (rng.logistic(size=800) < Z[:, 0]).astype(float)
    prepared = sq.glm.prepare(sq.Problem(Z, y, X, "binomial"))
    end = sq.glm.solve_sqp(prepared.objective, None, sq.glm.Settings())
    shared = left_out_shared.share(prepared.objective, end, invert(prepared.objective, end.model))
    assert shared.single != collinear


def test_products_are_triangular() -> None:
    given = problem(q=60)
    prepared = sq.glm.prepare(given)
    end = sq.glm.solve_sqp(prepared.objective, None, sq.glm.Settings())
    shared = left_out_shared.share(prepared.objective, end, invert(prepared.objective, end.model))
    root = shared.project[:, :59]
    assert not np.triu(root, 1).any() and shared.project.shape[1] == 59 + 2 + 1 + 1
