"""Given controls, the effects of X in a regression on X and C are zero; given the outcome, within each class."""

from __future__ import annotations

import numpy as np
import pytest

import setsquare as sq
from setsquare import tables
from setsquare.auditing.evaluations.gcm import evaluate_gcm
from setsquare.auditing.protected import Protected
from setsquare.glm import Problem, Settings, prepare, solve, solve_sqp
from setsquare.glm.given import outcome_basis
from setsquare.glm.leave_one_out import tally_rows

TIGHT = Settings(kkt=1e-11)


def load_or_skip(name):
    if not sq.datasets.available(name):
        pytest.skip(f"the data set {name} is not on this machine: set SETSQUARE_DATA")
    return getattr(sq.datasets, f"load_{name}")()


def draw(n=1500, q=12, seed=0):
    """Two protected columns, two controls that depend on them, and features that depend on both."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.random(n) < 0.4, rng.normal(size=n)]).astype(float)
    C = np.column_stack([X.sum(axis=1) + rng.normal(size=n), np.exp(0.5 * rng.normal(size=n))])
    Z = np.column_stack([C, X @ rng.normal(size=(2, q - 2)) + rng.normal(size=(n, q - 2))])
    return Z, X, C, 0.4 * Z[:, :5].sum(axis=1), rng


def outcome(name, eta, rng):
    return {
        "gaussian": lambda: eta + rng.normal(size=len(eta)),
        "binomial": lambda: (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float),
        "poisson": lambda: rng.poisson(np.exp(0.3 * eta)).astype(float),
        "multinomial": lambda: np.argmax(
            np.column_stack([-eta, 0 * eta, eta]) + rng.gumbel(size=(len(eta), 3)), axis=1
        ).astype(float),
    }[name]()


def effects(prediction, X, C, weight=None):
    """Coefficients of X in the weighted regression of predictions on [1, X, C], by plain least squares."""
    root = np.ones(len(X)) if weight is None else np.sqrt(weight)
    A = np.column_stack([np.ones(len(X)), X, C])
    return np.linalg.lstsq(root[:, None] * A, root * prediction, rcond=None)[0][1 : 1 + X.shape[1]]


def predictions(solution, Z, name):
    eta = Z @ solution.coef.T + solution.intercept
    return sq.families.family(name).activation(eta)


@pytest.mark.parametrize("name", ["gaussian", "binomial", "poisson", "multinomial"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("solver", ["sqp", "large"])
def test_effects_of_protected_columns_beside_controls_are_zero(name, weighted, solver):
    Z, X, C, eta, rng = draw()
    y = outcome(name, eta, rng)
    w = rng.uniform(0.3, 3.0, len(y)) if weighted else None
    corrected = predictions(solve(Problem(Z, y, X, name, w, given=C), solver), Z, name)
    plain = predictions(solve(Problem(Z, y, None, name, w)), Z, name)
    for after, before in zip(corrected.T, plain.T, strict=True):
        assert np.abs(effects(after, X, C, w)).max() < 1e-9 * before.std()
        assert np.abs(effects(before, X, C, w)).max() > 1e-2 * before.std()
        if name != "multinomial":  # X may act through the controls: without them there is an effect
            assert np.abs(effects(after, X, C[:, :0], w)).max() > 1e-2 * before.std()


@pytest.mark.parametrize("name", ["binomial", "multinomial"])
@pytest.mark.parametrize("solver", ["sqp", "large"])
def test_mean_scores_are_equal_within_each_class(name, solver):
    Z, X, _, eta, rng = draw()
    y, group = outcome(name, eta, rng), X[:, :1]
    corrected = predictions(solve(Problem(Z, y, group, name, given="outcome"), solver), Z, name)
    plain = predictions(solve(Problem(Z, y, None, name)), Z, name)
    marginal = predictions(solve(Problem(Z, y, group, name)), Z, name)
    for p, largest in ((corrected, 1e-9), (plain, np.inf), (marginal, np.inf)):
        gaps = [
            np.abs(np.subtract(*(p[(y == k) & (group[:, 0] == g)].mean(axis=0) for g in (0, 1)))).max()
            for k in np.unique(y)
        ]
        assert max(gaps) < largest
        assert largest < 1.0 or max(gaps) > 0.02


def test_given_a_numeric_outcome_no_effect_varies_with_it():
    Z, X, _, eta, rng = draw(q=14)
    y = outcome("gaussian", eta, rng)
    corrected = predictions(solve(Problem(Z, y, X, "gaussian", given="outcome")), Z, "gaussian")[:, 0]
    plain = predictions(solve(Problem(Z, y, None, "gaussian")), Z, "gaussian")[:, 0]
    knots = np.quantile(y, [0.0, 1 / 3, 2 / 3, 1.0])

    def largest(p, knots):
        hats = np.column_stack([np.interp(y, knots, unit) for unit in np.eye(len(knots))])
        moving = (X[:, :, None] * hats[:, None, :]).reshape(len(y), -1)
        return np.abs(effects(p, moving, hats[:, 1:])).max() / p.std()

    # Bins place the inner knots within a 4096th of the range of y.
    assert largest(corrected, knots) < 0.01 < 0.3 * largest(plain, knots)
    exact = outcome_basis(*(getattr(Problem(Z, y, X), part) for part in ("rows", "outcomes", "family")))
    shares = [np.mean(y <= knot) for knot in exact.knots]
    np.testing.assert_allclose(shares, [0.0, 1 / 3, 2 / 3, 1.0], atol=0.002)
    assert largest(corrected, exact.knots) < 1e-9


def test_counts_with_few_values_are_classes():
    Z, X, _, eta, rng = draw(q=14)
    y = np.minimum(outcome("poisson", eta, rng), 3.0)
    p = predictions(solve(Problem(Z, y, X[:, :1], "poisson", given="outcome")), Z, "poisson")[:, 0]
    gaps = [np.subtract(*(p[(y == k) & (X[:, 0] == g)].mean() for g in (0, 1))) for k in range(4)]
    assert np.abs(gaps).max() < 1e-9


@pytest.mark.parametrize("target", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_gaussian_leave_one_out_with_controls_is_exact(target, weighted):
    Z, X, C, eta, rng = draw(n=120)
    y = outcome("gaussian", eta, rng)
    w = rng.uniform(0.3, 3.0, len(y)) if weighted else None
    kappa = np.array([0.02, -0.01]) if target else None
    problem = Problem(Z, y, X, "gaussian", w, given=C)
    prepared = prepare(problem)
    objective = prepared.objective.aimed(kappa)
    left = tally_rows(objective, solve_sqp(objective, None, TIGHT))[1].eta[:, 0]
    for i in range(0, 120, 10):
        keep = np.arange(120) != i
        rest = prepare(Problem(Z[keep], y[keep], X[keep], "gaussian", None if w is None else w[keep], given=C[keep]))
        aim = None
        if kappa is not None:
            aim = kappa @ np.linalg.solve(prepared.basis.transform, rest.basis.transform)
        intercept, coef = rest.coefficients(solve_sqp(rest.objective.aimed(aim), None, TIGHT).theta)
        assert abs(Z[i] @ coef[0] + intercept[0] - left[i]) < 1e-10


def test_leave_one_out_given_the_outcome_agrees_with_refits():
    Z, X, _, eta, rng = draw(n=600)
    y = outcome("binomial", eta, rng)
    problem = Problem(Z, y, X[:, :1], "binomial", given="outcome")
    prepared = prepare(problem)
    left = tally_rows(prepared.objective, solve_sqp(prepared.objective, None, TIGHT))[1].eta[:, 0]
    errors = []
    for i in range(0, 600, 40):
        keep = np.arange(600) != i
        rest = solve(Problem(Z[keep], y[keep], X[keep, :1], "binomial", given="outcome"))
        errors.append(abs(float(Z[i] @ rest.coef[0] + rest.intercept[0]) - left[i]))
    assert np.median(errors) < 1e-3 and max(errors) < 1e-2


@pytest.mark.parametrize("given", ["outcome", "columns"])
def test_a_constraint_for_new_rows_holds_on_new_rows_given_controls(given):
    """With many features per row the exact constraint leaves a covariance on new rows that the other removes."""
    left = {"training rows": [], "new rows": []}
    for seed in range(12):
        rng = np.random.default_rng(seed)
        X = (rng.random(21_000) < 0.4).astype(float)[:, None]
        C = X + rng.normal(size=(21_000, 1))
        Z = np.hstack([C, rng.normal(size=(21_000, 79))])
        Z[:, 1:6] += X
        y = outcome("binomial", 0.4 * Z[:, :6].sum(axis=1), rng)
        train, new = slice(0, 1000), slice(1000, None)
        chosen = "outcome" if given == "outcome" else C[train]
        problem = Problem(Z[train], y[train], X[train], "binomial", given=chosen)
        D = (y if given == "outcome" else C)[new].reshape(20_000, -1)
        A = np.column_stack([np.ones(20_000), D])
        residual = X[new, 0] - A @ np.linalg.lstsq(A, X[new, 0], rcond=None)[0]
        for where, found in left.items():
            p = predictions(solve(problem, orthogonal_on=where), Z[new], "binomial")[:, 0]
            found.append(np.corrcoef(residual, p)[0, 1])
    mean, error = (
        {where: f(found) for where, found in left.items()} for f in (np.mean, lambda v: np.std(v) / len(v) ** 0.5)
    )
    assert abs(mean["new rows"]) < 3.0 * error["new rows"] + 0.005
    assert mean["training rows"] > 3.0 * error["training rows"] and mean["training rows"] > 2 * abs(mean["new rows"])


@pytest.mark.parametrize("name", ["adult", "bank", "compas", "health_retirement"])
@pytest.mark.parametrize("given", ["outcome", "columns"])
def test_the_four_sets_are_exact(name, given):
    """In a regression on X and C, by plain least squares, the effects of X are zero after and not before."""
    data = load_or_skip(name)
    Z, X = (tables.learn(table).apply(table) for table in (data.features_table(), data.protected_table()))
    Z, X, y = np.asarray(Z.values), np.asarray(X.values), np.asarray(data.y, dtype=float)
    varied = [j for j in np.argsort(-np.abs(np.corrcoef(Z.T, y)[-1, :-1])) if len(np.unique(Z[:, j])) > 1][:2]
    C = Z[:, varied]
    problem = Problem(Z, y, X, data.family, given=C if given == "columns" else "outcome")
    solution = solve(problem)
    after, before = (
        predictions(found, Z, data.family)[:, 0] for found in (solution, solve(Problem(Z, y, None, data.family)))
    )
    if given == "outcome":
        basis = outcome_basis(
            *(getattr(Problem(Z, y, X, data.family), part) for part in ("rows", "outcomes", "family"))
        )
        hats = basis(y[:, None])
        C, X = hats[:, 1:], (X[:, :, None] * hats[:, None, :]).reshape(len(y), -1)
    A = np.column_stack([np.ones(len(y)), C])
    residual = X - A @ np.linalg.lstsq(A, X, rcond=None)[0]
    residual = residual[:, residual.std(axis=0) > 1e-9]
    assert solution.certificate.is_orthogonal
    left, was = (
        np.abs(residual.T @ (p - p.mean())) / len(y) / (residual.std(axis=0) * p.std()) for p in (after, before)
    )
    assert left.max() < 1e-8 < 1e-3 < was.max()


@pytest.mark.parametrize("shape", ["square", "wave", pytest.param("two", marks=pytest.mark.slow), "product"])
def test_the_covariance_measure_has_its_size_and_finds_a_leak(shape):
    """Predictions and protected column follow the same curve of the controls: rejected in about 5 % of samples."""
    rejected, found = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        C = rng.normal(size=(600, 1 if shape in ("square", "wave") else 2))
        a, b = C[:, 0], C[:, -1]
        curve = {"square": a**2, "wave": np.sin(2 * a), "two": a**2 + np.exp(0.5 * b), "product": a * b}[shape]
        y, x = curve + 0.5 * rng.normal(size=600), (curve + rng.normal(size=600))[:, None]
        protected = Protected(x, ("x",), ("x",))
        for p, results in ((y, rejected), (y + 0.15 * x[:, 0], found)):
            if results is rejected or seed < 20:
                results.append(evaluate_gcm(p, x, C, protected, confidence=0.95, seed=0).joint.p_value < 0.05)
    assert np.mean(rejected) <= 0.15  # 0.05 and three standard errors of 40 samples
    assert np.mean(found) > 0.9
