"""Golden masters of parts of audits: ReLU models, lone rows, sums over cells, p-values, predictions as they are read.

That ReLU models are optimal, and that cells have the sums of their rows, is tested in tests/theorems and tests/unit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from tests.golden.outcomes import outcome, plain
from tests.golden.recorder import About

import setsquare as sq
from setsquare.auditing import bounds, fold_dependence, held_out
from setsquare.auditing.cells import Cells
from setsquare.auditing.comparison import predicted_rows
from setsquare.auditing.evaluations import gcm, relu, relu_cells, relu_descent, unit_glms
from setsquare.auditing.groups.audited import read_decisions
from setsquare.auditing.groups.partitions import Partition
from setsquare.auditing.groups.rates import Rows, auc_number
from setsquare.auditing.monitoring import betting
from setsquare.auditing.partly_missing import _dummies
from setsquare.auditing.protected import Protected
from setsquare.families import family
from setsquare.projection import protected_basis
from setsquare.projection.moments import Ranges
from setsquare.rows.blocks import ArrayRows, Block


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def relu_data(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and two protected columns: few cells, some with negative means, or many rows that differ."""
    draws = rng(4)
    X = draws.integers(0, 4, (80, 2)).astype(float) if kind != "many" else draws.normal(size=(40, 2))
    signal = np.maximum(X[:, 0] - X[:, 1] - 0.5, 0.0) + 0.3 * draws.normal(size=len(X))
    return signal + (0.0 if kind == "negative" else 1.0), X


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("kind", ["few", "negative", "many"])
def test_relu_fits(golden, kind, intercept, monkeypatch):
    monkeypatch.setattr(relu, "MAX_CELLS", 20)
    y, X = relu_data(kind)
    found = relu.fit_relu(y, X, intercept=intercept, rng=rng(1), n_starts=3)
    weighted = relu.fit_relu(y, X, intercept=intercept, weight=np.arange(len(y)) % 3 * 0.5, rng=rng(1), n_starts=3)
    values = [
        [f.intercept, f.coef, f.loss, f.loss_null, f.loss_bound, f.exact, f.method, f.n_starts, f.gain, f.gain_bound]
        for f in (found, weighted)
    ]
    golden([values, About(found.n_patterns), About(weighted.n_patterns)], relative=1e-5)


def cells(y: Any, seed: int = 0) -> relu_descent.Cells:
    """Cells with an orthonormal design of an intercept and two columns."""
    y = np.asarray(y, dtype=float)
    Q = np.linalg.qr(np.column_stack([np.ones(len(y)), rng(seed).normal(size=(len(y), 2))]))[0]
    D = Q * np.sign(Q[0]) * np.sqrt(len(y))
    return relu_descent.Cells(D, y, np.full(len(y), 1.0 / len(y)), np.eye(2), True)


MEANS = {"positive": [0.1, 0.0, 2.0, 1.0, 0.3, 3.0, 0.2, 0.1], "mixed": [-0.5, 0.0, 2.0, 1.0, -1.3, 3.0, 0.2, -0.1]}


@pytest.mark.parametrize("kind", MEANS)
def test_branches_and_bounds(golden, kind):
    some = cells(MEANS[kind])
    runs = [relu_cells.branch_and_bound(some, np.zeros(3), most) for most in (0, 1, 2, 3, 7, 4000)]
    relaxed = relu_cells._Relaxation.of(some)
    sides = [np.where(some.y > 0.0, 0, -1), np.where(some.y > 1.0, 1, np.where(some.y > 0.0, 0, -1)), np.ones(8, int)]
    nodes = [relaxed.solve(side) for side in sides]
    values = [[some.loss(run.theta), run.bound, run.exact, About(run.n_nodes)] for run in runs]
    golden([values, nodes, relaxed.kink, relaxed.back, relaxed.C.T @ relaxed.C], relative=1e-4)


def test_nonnegative_least_squares(golden):
    A, b = rng(2).normal(size=(7, 5)), rng(3).normal(size=7)
    flat = np.column_stack([A, A[:, 0], np.zeros(7)])
    fast = [relu_cells._nonnegative(one, b) for one in (A, flat, A[:, :0], -np.abs(A))]
    unit = flat[:, :6] / np.linalg.norm(flat[:, :6], axis=0)
    slow = [relu_cells._lawson_hanson(unit, sign * b, float(np.linalg.norm(b))) for sign in (1.0, -1.0)]
    golden([[value for _, value in fast], fast[0][0], [value for _, value in slow], unit @ slow[0][0]])


def test_descents(golden):
    found = []
    for kind in MEANS:
        some = cells(MEANS[kind], 5)
        ends = [relu_descent.descend(some, start) for start in np.vstack([np.eye(3), -np.eye(3), np.ones((1, 3))])]
        best, count = relu_descent.multi_start(some, np.zeros(3), rng(0), 4)
        found.append([[some.loss(end) for end in ends], ends[-1], some.loss(best), count])
    D, w = cells(MEANS["mixed"]).D, np.linspace(0.1, 1.0, 8)
    steps = [relu_descent._newton_step(D, w, D.T @ w, D[fixed]) for fixed in ([], [2], [2, 5])]
    gradient, limit = np.array([0.3, -0.2, 0.5]), np.array([0.1, 0.2])
    released = [relu_descent._release(s * D[[2, 5]], gradient, t * limit, [2, 5]) for s in (1, -1) for t in (1.0, 99.0)]
    golden([found, steps, released], relative=1e-5)


def test_searches_along_a_line(golden):
    draws = rng(7)
    found = []
    for _ in range(12):
        u, v, y = draws.normal(size=(3, 6)).round(1)
        found.append(relu_descent.line_search(u, v, y, np.linspace(0.5, 1.5, 6)))
        found.append(relu_descent._best_length(u, v, y, np.ones(6), u > 0.0))
    hinged = relu_descent.line_search(np.array([0.0, 0.0, 1.0]), np.array([1.0, -1.0, 0.0]), np.ones(3), np.ones(3))
    far = relu_descent.line_search(np.array([1.0, -1.0]), np.array([1e-6, 0.0]), np.array([9.0, 1.0]), np.ones(2))
    x = np.array([0.0, 1.0, 1.0 + 1e-14, -3.0, 1e-15, 2.0, 2.0 + 1e-9])
    columns = [relu_descent.one_column(x, draws.normal(size=7), np.ones(7), i) for i in (True, False) for _ in range(3)]
    golden([found, hinged, far, relu_descent._snap(x), relu_descent._snap(x)[2] == 1.0, columns])


def test_predictions_that_a_relu_takes(golden):
    X = np.column_stack([np.arange(6.0), np.zeros(6)])
    asked = [(np.ones((6, 1)), X), (np.ones(5), X), (np.ones(6), X[:, 0]), (np.full(6, np.nan), X), (np.ones(6), 0 * X)]
    golden([outcome(lambda a=a: relu.fit_relu(*a, intercept=False, rng=rng()).coef) for a in asked])


@pytest.mark.parametrize("more", ["plain", "weights", "clusters"])
def test_rows_that_determine_an_effect_alone(golden, more):
    levels = np.array(["a"] * 20 + ["b"] * 19 + ["c"])
    y = np.linspace(0.0, 1.0, 40) ** 2
    options: dict[str, Any] = {
        "weights": {"sample_weight": np.arange(40) % 3 + 0.5},
        "clusters": {"cluster": np.arange(40) // 3},
    }.get(more, {})
    found = sq.audit(y, pd.DataFrame({"kind": levels}), **options).to_dict()
    values = np.column_stack([np.arange(40) == 39, np.arange(40) == 38, np.arange(40) % 2]).astype(float)
    cluster = np.arange(40) if more == "clusters" else None
    own = Protected(values, ("a", "b", "c"), ("a", "b", "c"), options.get("sample_weight"), cluster)
    left = own.tested
    parts = [left.n_rows, left.taken, left.cluster, left.weight, left.varies, left.notes[0].fields, left.max_leverage]
    golden([found, [str(one) for one in left.notes], parts[:5], parts[6], own.group_sizes, own.spreads, own.reach])


def test_sums_over_cells_are_those_of_the_rows():
    draws = rng(3)
    X = np.column_stack([draws.integers(0, 3, 400), draws.integers(0, 2, 400)]).astype(float)
    y = X @ [0.3, -0.5] + draws.normal(size=400) ** 3
    basis, w = protected_basis(X), np.full(400, 1.0 / 400)
    mean, size = float(y.mean()), float(y.std())
    codes = (2 * X[:, 0] + X[:, 1]).astype(int)
    some = Cells(codes, np.array([[a, b] for a in range(3) for b in range(2)], float), np.bincount(codes).astype(float))
    gap = X - basis.mean
    own, inverse = (y - mean) @ gap / 400 / X.std(axis=0) / size, 1.0 / X.std(axis=0)
    c = basis.apply(X).T @ (y - mean) / 400 / size
    parts = bounds._Parts(basis, inverse, c, own, mean, size)
    of_rows = parts.sums(Block(X, y[:, None], X[:, :0], w))
    of_cells = parts.cell_sums(some.values, some.powers((y - mean) / size), 1.0 / 400)
    for one, other in zip(of_rows, of_cells, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    pairs = some.pairs(y)
    assert pairs.weight.sum() == pytest.approx(1.0) and pairs.varies_within
    for power in (1, 2):
        np.testing.assert_allclose(pairs.weight @ pairs.y[:, 0] ** power, (y**power).mean())
    assert not some.pairs(X @ [1.0, 2.0] + 1e-5 * draws.normal(size=400)).varies_within
    assert Cells.of(X, ArrayRows(X, X[:, :0], X[:, :0], w).reduce(Ranges.of, Ranges.merge)) is None


def test_bounds_of_lengths(golden):
    V = np.diag([1.0, 2.0, 4.0]) / 1000.0
    sizes, rows = (0.0, 0.01, 0.03, 0.5, 0.999), (10.0, 149.0, 150.0, 1e9)
    cases = [(R2, df, c) for R2 in sizes for df in rows for c in (0.8, 0.95)]
    usual = [bounds.bound_length(R2, V, 1e-3, df, c) for R2, df, c in cases]
    options = [(f, p, t) for f in (0.0, 0.02) for p in (0.0, 0.01) for t in (-1e-3, 1e-3)]
    pulled = [bounds.bound_length(0.5, V, f, 200.0, 0.9, pull=p, third=t) for f, p, t in options]
    none = [bounds.bound_length(R2, 0.0 * V, 0.0, 50.0, 0.9) for R2 in (0.0, 0.04)]
    few = bounds._bound(0.3, V, np.array([1e-3, 1e-5]), bounds._Sample(4, 0.25), 0.95)
    more = [bounds._bound(0.3, V, np.array([1e-3, 1e-5]), bounds._Sample(n, 1.0 / n), 0.95) for n in (5, 60, 5000)]
    golden([usual, pulled, none, few, more])


def test_corrected_p_values(golden):
    singular = [np.array(s) for s in ([0.8], [0.8, 0.5], [0.0], [1e-7], [1.0, 1.0, 0.3])]
    asked = [(p, df, s) for p in (1e-12, 0.01, 0.4, 0.97) for df in (np.nan, 1.0, 2.0, 5.0) for s in singular]
    edges = [fold_dependence.corrected_p(p, 3.0, singular[0]) for p in (np.nan, 0.0, 1.0)]
    ones = [fold_dependence._log_tail(q, np.ones(4)) for q in (0.5, 3.99, 4.0, 4.001, 4.5, 90.0)]
    mixed = [fold_dependence._log_tail(q, np.array([1.6, 1.0, 0.4])) for q in (0.5, 3.0, 3.002, 40.0)]
    spread = [fold_dependence.variances(s, 4) for s in singular]
    golden([[fold_dependence.corrected_p(*one) for one in asked], edges, ones, mixed, spread], relative=1e-5)


def test_features_that_determine_a_protected_column():
    draws = rng(6)
    X, Z = draws.normal(size=(90, 2)), draws.normal(size=(90, 5))
    found = held_out.determines
    for factor in (1.0, -3.0):
        same = np.column_stack([Z, factor * X[:, 1] + 7.0])
        assert found(same, X, rng()) and found(scipy.sparse.csr_matrix(same), X, rng())
        assert held_out._resembles(same, (X - X.mean(0)) / np.linalg.norm(X - X.mean(0), axis=0))
    near = np.column_stack([Z, X[:, 1] + 1e-3 * Z[:, 0]])
    assert found(near, X, rng())  # a linear combination of two features
    assert not found(Z, X, rng()) and not found(scipy.sparse.csr_matrix(Z), X, rng())
    assert not found(scipy.sparse.csr_matrix(near), X, rng())
    assert not found(scipy.sparse.csr_matrix(np.ones((90, 3))), X, rng())
    group = (X[:, :1] > 0.0).astype(float)
    names = pd.DataFrame({"a": np.where(group[:, 0] > 0, "x", "y"), "b": Z[:, 0]})
    assert found(names, group, rng()) and not found(names[["b"]], group, rng())
    assert not found(pd.DataFrame({"a": ["x", "y", "z"] * 30}), group, rng())
    wide = np.column_stack([draws.normal(size=(90, 1001)), 2.0 * X[:, 0]])
    assert found(wide, X, rng()) and not found(wide[:, :-1], X, rng())
    assert held_out._matrix(pd.DataFrame({"a": ["x"] * 3})).shape == (3, 0)
    assert held_out._matrix(np.array([[1.0, np.inf], [2.0, 3.0]])).tolist() == [[1.0], [2.0]]
    codes = np.array([0, 0, 1, 1])
    assert held_out._is_function(codes, np.array([[1.0, 0.0], [1.0, 5.0], [2.0, 1.0], [2.0, 1.0]]))
    assert not held_out._is_function(codes, np.array([[1.0], [1.0], [2.0], [3.0]]))


@pytest.mark.parametrize("more", ["plain", "weights", "clusters"])
def test_areas_under_curves(golden, more):
    draws = rng(12)
    y = (np.arange(60) % 3 == 0).astype(float)
    groups = Partition("g", ("a", "b", "c"), np.arange(60) % 4 - 1, np.ones(3, bool), 0)
    weight = draws.random(60) if more == "weights" else None
    rows = Rows(draws.random(60).round(1), None, y, weight, np.arange(60) // 2 if more == "clusters" else None)
    golden(plain(auc_number(rows, y, [groups]).estimates))


def test_units_without_an_optimum_are_told_apart(golden, monkeypatch):
    draws = rng(13)
    Q, Y = draws.normal(size=(50, 2)), draws.random((50, 3))
    Y[:, 2] = (Q[:, 0] > 0.0).astype(float)
    w = np.full(50, 1.0 / 50)
    found = unit_glms._fit(Y, Q, w, family("binomial"))
    starts = unit_glms._newton

    def stop_early(theta: Any, *others: Any) -> Any:
        theta = starts(theta, *others)
        theta[0, 1] += 1e-3  # one unit of which the slope of one coefficient is not zero
        return theta

    monkeypatch.setattr(unit_glms, "_newton", stop_early)
    golden([found, unit_glms._fit(Y, Q, w, family("binomial")).is_finite], relative=1e-5)


def test_one_prediction_that_is_explained_is_not_all_of_them():
    draws = rng(14)
    C, x = draws.normal(size=(60, 1)), draws.normal(size=60)
    y = 0.3 * C[:, 0] + x
    y -= y.mean()
    basis = protected_basis(C).apply(C)[:, 0]
    y[0] = 0.0
    for _ in range(200):  # until the first residual is zero to the last digits
        y[0] -= (y - y.mean() - basis * (basis @ y) / 60)[0]
    assert sq.audit(y + 5.0, x, given=pd.DataFrame({"c": C[:, 0]})).is_leak


def test_pooled_tests_of_several_predictions(golden):
    raw = np.exp(rng(15).normal(size=(80, 3)) + 0.4 * (np.arange(80) % 2)[:, None] * [1.0, 0.0, -1.0])
    shares, x = raw / raw.sum(axis=1, keepdims=True), np.arange(80) % 2.0
    golden([sq.audit(shares, x, vcov=v).to_dict()["evaluations"] for v in ("model", "HC3")])


def test_tests_of_one_product(golden):
    golden([plain(gcm._single("x", value, error, 60.0)) for value, error in ((0.3, 0.2), (-2.0, 0.9), (0.3, 0.0))])


@pytest.mark.parametrize("low", [0.0, 1.0, 0.5])
def test_scores_of_zeros_and_ones_are_decisions(low):
    found = read_decisions(np.array([low, 1.0, low]), None, None, None)
    assert (found is None) == (low == 0.5)


def test_wealth_and_dummies(golden):
    path = betting.wealth_path(np.array([0.2, -0.1, 0.5, 0.5, 0.4, -0.3]))
    labels = np.array(["b", "a", "c", "a"])
    golden([path, _dummies(labels), _dummies(np.arange(300)).shape])


def read(predictions: Any, y: Any = None, name: str = "binomial", **options: Any) -> Any:
    protected = options.pop("protected", np.arange(4.0))
    rows = predicted_rows.read_rows(predictions, protected, y, family=family(name), confidence=0.9, **options)
    return {"values": rows.values, "classes": rows.classes, "y": rows.outcome, "keep": rows.keep, "n": rows.n_dropped}


P = np.array([0.1, 0.4, 0.8, 0.9])
TABLE = pd.DataFrame({"p_yes": P, "p_no": 1.0 - P})
READ: dict[str, Any] = {
    "plain": lambda: read({"a": P, "b": 1.0 - P}, [0, 1, 1, 0]),
    "labels": lambda: read({"a": P}, ["no", "yes", "yes", "no"]),
    "positive": lambda: read({"a": P}, ["no", "yes", "yes", "no"], positive="no"),
    "no outcome": lambda: read({"a": P}),
    "missing prediction": lambda: read({"a": np.array([np.nan, 0.4, 0.8, 0.9]), "b": P}, [0, 1, 1, 0]),
    "missing outcome": lambda: read({"a": P}, [0, None, 1, 0]),
    "no weight": lambda: read({"a": P}, [0, 1, 1, 0], sample_weight=[0.0, 1.0, 2.0, 1.0], cluster=[0, 0, 1, 1]),
    "nothing": lambda: read({"a": P * np.nan}, [0, 1, 1, 0]),
    "lengths": lambda: read({"a": P, "b": P[:3]}, [0, 1, 1, 0]),
    "length of the outcome": lambda: read({"a": P}, [0, 1, 1]),
    "length of the protected": lambda: read({"a": P}, [0, 1, 1, 0], protected=np.arange(3.0)),
    "no protected": lambda: read({"a": P}, [0, 1, 1, 0], protected=None),
    "columns": lambda: read({"a": TABLE}, ["no", "yes", "yes", "no"]),
    "order": lambda: read({"a": TABLE[["p_no", "p_yes"]]}, ["no", "yes", "yes", "no"]),
    "other columns": lambda: read({"a": TABLE.rename(columns={"p_yes": "u", "p_no": "v"})}, ["no", "yes", "yes", "no"]),
    "array": lambda: read({"a": TABLE.to_numpy()}, ["no", "yes", "yes", "no"]),
    "numbers": lambda: read({"a": TABLE.to_numpy()}, [10, 9, 9, 10]),
    "classes": lambda: read({"a": np.eye(4)[:, :3] * 0.7 + 0.1}, ["u", "v", "w", "u"], "multinomial"),
    "units": lambda: read({"a": np.arange(24.0).reshape(4, 3, 2)}, None, "gaussian"),
    "amounts": lambda: read({"a": 3.0 * P}, [1.0, 2.0, 3.0, 4.0], "gaussian"),
    "strange labels": lambda: read({"a": np.array(["no", "yes", "maybe", "no"])}, ["no", "yes", "yes", "no"]),
    "labels of one class": lambda: read({"a": P}, ["no"] * 4),
    "one number": lambda: read({"a": P}, [0, 0, 0, 0]),
    "widths": lambda: read({"a": np.eye(4)[:, :3], "b": np.eye(4)}, ["u", "v", "w", "u"], "multinomial"),
    "width": lambda: read({"a": np.eye(4)}, ["u", "v", "w", "u"], "multinomial"),
    "three numbers": lambda: read({"a": P}, [0, 1, 2, 0]),
    "shares": lambda: read({"a": P}, [0.0, 0.5, 0.7, 1.0]),
    "text for amounts": lambda: read({"a": P}, ["u", "v", "w", "u"], "gaussian"),
    "codes with a gap": lambda: read({"a": np.array([0, 2, 3, 0])}, [0, 1, 3, 0], "multinomial"),
    "many codes": lambda: read({"a": np.array([0, 2, 10**6, 0])}, [0, 1, 10**6, 0], "multinomial"),
    "positive of three": lambda: read({"a": np.eye(4)[:, :3]}, ["u", "v", "w", "u"], "multinomial", positive="u"),
}


@pytest.mark.parametrize("name", READ)
def test_predictions_that_are_compared(golden, name):
    golden(outcome(READ[name]))
