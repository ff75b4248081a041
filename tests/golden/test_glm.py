"""Golden masters of constrained fits, with every number of their certificates and traces.

That fits are orthogonal and optimal is tested in tests/theorems, and that they agree with others in tests/reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse
from tests.conftest import GLMS, Data, draw_data

from setsquare.errors import SetsquareError
from setsquare.estimators import OrthogonalGLMClassifier
from setsquare.families import family
from setsquare.glm import Descent, Problem, Settings, Solution, choose_l2, prepare, searched_rates, solve
from setsquare.glm import problem as problems
from setsquare.glm.bootstrap import refit_resampled
from setsquare.glm.box import box_limit, solve_box
from setsquare.glm.certificate import Certificate, rests_on_few
from setsquare.glm.decisions import decision_family, solve_decisions
from setsquare.glm.deferred import Deferred
from setsquare.glm.products import choose_columns, curvature_of, fit_pilot, screen
from setsquare.glm.ridge import choose_ridge
from setsquare.glm.ridge_step import choose_penalty
from setsquare.glm.solver import choose, fit_path
from setsquare.tables.mixed_matrix import join

N = 160
VECTOR = family("multinomial")
EVERY = (*GLMS, VECTOR)


def data(glm: Any, n: int = N, q: int = 4, p: int = 2, seed: int = 0) -> Data:
    drawn = draw_data(glm, n, q, seed)
    return Data(drawn.Z, drawn.y, drawn.X[:, :p])


def weights(n: int = N) -> np.ndarray:
    w = np.random.default_rng(1).random(n) + 0.3
    w[5::11] = 0.0
    return w


def offset(glm: Any, n: int = N) -> np.ndarray:
    values = 0.2 * np.cos(np.arange(n))
    if glm.name == "multinomial":
        return np.column_stack([values, 0.5 * values, -values])
    return values - 0.3 if glm.activation.domain[1] < np.inf else values


def plain(values: dict[str, Any]) -> list[Any]:
    """The values in their order, without those that say nothing; names are left out to keep the file small."""
    flat: list[Any] = []
    for value in values.values():
        if isinstance(value, dict):
            flat += plain(value)
        elif (isinstance(value, str | list | tuple | np.ndarray) and len(value)) or isinstance(
            value, bool | int | float
        ):
            flat.append(value)
        else:
            flat.append(0)
    return ["", *flat]  # a list with a word is recorded number by number


def describe(found: Solution, path: bool = True) -> dict[str, Any]:
    """Everything about a solution; residuals that are rounding error only by whether they are."""
    state, c = found.certificate.state(), found.certificate
    residuals = [state.pop(name) for name in ("constraint_residual", "max_correlation", "kkt_residual")]
    new = state.pop("new_rows")
    said = [c.is_orthogonal, c.is_kept, c.is_optimal, c.rests_on_few_rows, c.cost, found.by_cluster]
    values = {
        "coef": [found.intercept, found.coef, found.multipliers, found.std_error],
        "end": [found.status.name, found.solver, *said, *(round(one, 9) if one > 1e-6 else 0.0 for one in residuals)],
        "certificate": plain(state),
        "new": None if new is None else plain(new),
    }
    if path:
        lengths = np.array([[step.length, step.corrected] for step in found.trace[:4]])
        values["path"] = [
            lengths,
            [step.loss for step in found.trace[:4]],
            [one for step in found.trace[:2] for one in (step.kkt, step.constraint)],
        ]
    return values


@pytest.mark.parametrize("glm", EVERY, ids=str)
@pytest.mark.parametrize("kind", ["plain", "offset", "ridge", "clusters", "new rows"])
def test_fits(golden, glm, kind):
    Z, y, X = data(glm)
    options: dict[str, Any] = {}
    if kind == "offset":
        options |= {"offset": offset(glm), "weight": weights()}
    if kind == "ridge":
        options["l2"] = 0.05
    if kind == "clusters":
        options |= {"cluster": np.arange(N) // 4, "weight": weights()}
    found = solve(Problem(Z, y, X, glm, **options), orthogonal_on="new rows" if kind == "new rows" else "training rows")
    golden(describe(found), relative=1e-5)


@pytest.mark.parametrize("name", ["gaussian", "binomial", "poisson", "multinomial"])
@pytest.mark.parametrize("kind", ["given", "outcome", "budget", "large", "all", "unconstrained", "sparse", "coded"])
def test_more_fits(golden, name, kind):
    glm = family(name)
    Z, y, X = data(glm, q=7 if kind == "outcome" else 4)
    options, how = {}, {}
    if kind == "given":
        options = {"given": np.column_stack([np.sin(np.arange(N)), Z[:, 0]]), "given_names": ("sine", "z")}
    if kind == "outcome":
        X, options = X[:, :1], {"given": "outcome"}
    if kind == "budget":
        how = {"budget": 0.4}
    if kind in ("large", "sparse"):
        how = {"solver": "large"}
    if kind == "all":
        options = {"offset": offset(glm), "l2": 0.01, "weight": weights()}
        how = {"orthogonal_on": "new rows", "confidence": 0.8}
    if kind == "unconstrained":
        X, options = None, {"weight": weights(), "offset": offset(glm)}
    if kind == "sparse":
        Z = sparse.csr_array(np.where(np.abs(Z) > 0.5, Z, 0.0))
    if kind == "coded":
        Z = join(Z[:, :2], [np.arange(N) * 5 % 7 % 4], [4], [False, True, False])
    found = solve(Problem(Z, y, X, glm, **options), **how)
    rough = how.get("solver") == "large"
    golden(describe(found, path=not rough), relative=1e-4 if rough else 1e-5)


@pytest.mark.parametrize("solver", ["mdmm", "bdmm"])
@pytest.mark.parametrize("schedule", ["given", "default"])
def test_multiplier_methods(golden, solver, schedule):
    Z, y, X = data(family("binomial"))
    rate = Descent(0.05, schedule=lambda step: 1.0 / (1.0 + 0.01 * step), damping=0.5) if schedule == "given" else None
    found = solve(Problem(Z, y, X, family("binomial")), solver, max_iter=60, descent=rate)
    golden([found.intercept, found.coef, found.multipliers, found.status.name, found.n_iter, found.trace[-1].loss])


def test_rates_of_multiplier_methods(golden):
    golden([list(searched_rates(4.0)), Descent()])


@pytest.mark.parametrize("name", ["binomial", "poisson", "gamma"])
def test_paths_of_budgets(golden, name):
    Z, y, X = data(family(name))
    path = fit_path(Problem(Z, y, X, family(name)), [0.0, 0.2, 0.5, 0.9, 1.0])
    points = [[p.end.theta, p.end.model.loss, p.end.status.name] for p in path.points]
    sizes = [[getattr(p, key) for key in ("share", "price", "budget") if hasattr(p, key)] for p in path.points]
    golden([[np.sort(np.abs(theta)) * 0.0, loss, status] for theta, loss, status in points] + sizes, relative=1e-4)


@pytest.mark.parametrize("name", ["gaussian", "binomial"])
def test_boxes(golden, name):
    Z, y, X = data(family(name), 120, 5)
    wide = np.column_stack([X, np.random.default_rng(4).normal(size=(120, 6)), np.full(120, 2.0)])
    names = [f"x{j}" for j in range(wide.shape[1])]
    w = weights(120)
    found = solve_box(Problem(Z, y, None, family(name), l2=1e-3, weight=w), wide, names, factor=0.7)
    half = solve_box(Problem(Z, y, None, family(name)), wide, names)
    state = found.certificate.state()
    rest = [found.coef, half.coef, half.certificate.box, half.certificate.n_at_limit, found.status.name]
    for key in ("kkt_residual", "constraint_residual"):
        state.pop(key)
    limits = [box_limit(100, p, f) for p, f in ((1, 1.0), (2, 1.0), (3, 1.0), (50, 0.7))]
    golden([state, rest, limits, str(found.certificate).splitlines()[0]], relative=1e-3)


@pytest.mark.parametrize("threshold", [0.5, 0.53])
def test_decisions(golden, threshold):
    Z, y, X = data(family("binomial"), 400)
    problem = Problem(Z, y, X, family("binomial"), weight=weights(400), offset=offset(family("binomial"), 400))
    found = solve_decisions(problem, threshold, solve)
    h = decision_family(0.3, 0.5)
    eta = np.linspace(-2.0, 2.0, 9)
    parts = [h.evaluate(np.arange(9) % 2.0, eta), str(h)]
    golden([found.width, found.correlation, found.rate, found.solution.coef, parts], relative=1e-4)


ESTIMATORS = {
    "threshold": {"threshold": 0.4},
    "box": {"relax": "box"},
    "auto": {"l2": "auto"},
    "new rows": {"orthogonal_on": "new rows"},
    "budget": {"budget": 0.3},
    "target": {"max_correlation": 0.2},
    "missing": {"missing": "model"},
    "drop": {"missing": "drop"},
    "expand": {"expand": "auto"},
}


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_options_of_estimators(golden, kind):
    Z, y, X = data(family("binomial"), 300)
    if kind in ("missing", "drop"):
        X[::7, 1] = np.nan
    if kind == "box":
        X = np.column_stack([X, np.random.default_rng(2).normal(size=(300, 12))])
    model = OrthogonalGLMClassifier(**ESTIMATORS[kind]).fit(Z, y, protected=X)
    values = describe(model.solution_, path=False)
    golden([values, model.l2_, model.n_iter_ < 50], relative=1e-3 if kind in ("box", "threshold") else 1e-4)


@pytest.mark.parametrize("glm", [family("gaussian"), family("binomial"), family("poisson"), VECTOR], ids=str)
@pytest.mark.parametrize("clusters", [False, True])
def test_chosen_ridges(golden, glm, clusters):
    Z, y, X = data(glm, 60, 5 if glm is VECTOR else 8)
    problem = Problem(Z, y, X, glm, cluster=np.arange(60) // 3 if clusters else None)
    found = choose_ridge(problem)
    golden(
        [choose_l2(problem), [getattr(found, name) for name in found._fields if name != "fitted"][:1]], relative=1e-4
    )


@pytest.mark.parametrize("name", ["gaussian", "binomial", "gamma", "multinomial"])
def test_pilots_and_candidates(golden, name):
    glm = family(name)
    Z, y, X = data(glm, 200, 5)
    options = {"weight": weights(200), "offset": offset(glm, 200)} if name != "gamma" else {}
    pilot = fit_pilot(Problem(Z, y, X, glm, **options), kkt=1e-8)
    rows = pilot.rows.Z
    pairs = np.array([[i, j] for i in range(5) for j in range(i)])
    columns = np.column_stack([rows[:, 0] * rows[:, 1], rows[:, 2] ** 2, rows[:, 3], np.cos(np.arange(len(rows)))])
    values = {
        "pilot": [pilot.effects, pilot.weight, pilot.steer, pilot.intercept, pilot.coef, pilot.eta],
        "n": [pilot.curvature, pilot.price, curvature_of(Problem(Z, y, X, glm))],
        "screen": screen(rows, rows, pairs, pilot, 4),
        "chosen": [choose_columns(rows, columns, pilot, 3), choose_columns(rows, columns, pilot, 3, 4.0)],
    }
    if name != "multinomial":
        values["ridge"] = choose_penalty(rows, pilot)
    golden(values, relative=1e-4)


@pytest.mark.parametrize("clusters", [False, True])
def test_resampled_fits(golden, clusters):
    Z, y, X = data(family("binomial"), 100)
    cluster = np.arange(100) // 5 if clusters else None
    problem = Problem(Z, y, X, family("binomial"), weight=weights(100), cluster=cluster)
    golden(refit_resampled(problem, solve, 6, np.random.default_rng(3)), relative=1e-5)


@pytest.mark.parametrize("name", ["binomial", "multinomial", "poisson"])
def test_prepared_problems(golden, name):
    glm = family(name)
    Z, y, X = data(glm)
    Z = np.column_stack([Z, Z[:, 0] - 2.0 * Z[:, 1], np.full(N, 3.0)])
    X = np.column_stack([X, X[:, 0] + X[:, 1]])
    problem = Problem(Z, y, X, glm, weight=weights(), offset=offset(glm), cluster=np.arange(N) % 9)
    prepared = prepare(problem)
    objective = prepared.objective
    theta = objective.start.theta
    model = objective.model(theta, np.zeros(objective.n_constraints))
    outcomes = [problem.n_rows, problem.n_units, problem.n_predictors, problem.has_offset, problem.outcomes.spread]
    sizes = [model.loss, model.spread, np.abs(model.c), np.linalg.norm(model.g), np.trace(model.H)]
    names = [prepared.aliased, prepared.rank_features, prepared.label_share, objective.n_parameters]
    golden([outcomes, sizes, names, prepared.mean, prepared.coefficients(theta), problem.order()], relative=1e-5)
    found = solve(problem)
    assert found.certificate.aliased_features == ("z4", "z5")
    assert found.certificate.collinear_protected == ("x2",)


def test_the_solver_that_is_chosen():
    def chosen(n: int, q: int, glm: str = "gaussian", **options: Any) -> str:
        return choose(Problem(np.eye(n, q), np.arange(n) % 3.0, None, family(glm), **options))

    assert [chosen(1000, q) for q in (250, 300, 340, 400, 600)] == ["sqp", "sqp", "large", "large", "large"]
    assert chosen(1000, 600, cluster=np.arange(1000) // 2) == "sqp"
    assert [chosen(1000, q, "multinomial") for q in (100, 150, 250)] == ["sqp", "sqp", "large"]


def certificate(**values: Any) -> Certificate:
    whole = {
        "constraint_residual": 1e-12, "max_correlation": 1e-11, "kkt_residual": 1e-9, "min_curvature": 0.5, "loss": 0.6,
        "unconstrained": Deferred(0.5), "loss_null": 0.7, "rank_protected": 2, "rank_features": 4, "n_protected": 3,
        "n_features": 5, "n_rows": 100,
    }  # fmt: skip
    return Certificate(**(whole | values))


def test_what_certificates_say_at_their_limits():
    def says(**values: Any) -> list[bool]:
        c = certificate(**values)
        return [c.is_orthogonal, c.is_kept, c.is_optimal, c.rests_on_few_rows]

    assert says() == [True, True, True, False]
    assert says(max_correlation=1e-8) == [True, True, True, False]
    assert says(max_correlation=1.01e-8) == [False, False, False, False]
    assert says(kkt_residual=1e-6)[2] and not says(kkt_residual=1.01e-6)[2]
    assert says(min_curvature=-1e-8)[2] and not says(min_curvature=-1.01e-8)[2]
    assert says(threshold=0.5) == [False, True, True, False]
    assert says(box=0.1, max_correlation=0.1)[1] and not says(box=0.1, max_correlation=0.1001)[1]
    assert says(budget=0.2, covariance_share=0.2)[1] and not says(budget=0.2, covariance_share=0.21)[1]
    assert not says(budget=0.2)[1]
    assert says(budget=0.2, covariance_share=0.2 + 0.9e-6)[1] and not says(budget=0.2, covariance_share=0.2 + 1.1e-6)[1]
    assert says(orthogonal_on="new rows") == [False, False, False, False]
    assert says(orthogonal_on="new rows", n_protected=0)[0]
    assert says(reach=5.0)[3] is False and says(reach=5.01)[3] is True
    assert [rests_on_few(c, 1000) for c in (None, 0.1, 0.101)] == [False, False, True]
    assert [rests_on_few(c, 100) for c in (0.15, 0.2, 0.201)] == [False, False, True]
    assert rests_on_few(19.9, 0) is False and rests_on_few(20.1, 0) is True
    assert certificate().cost == pytest.approx(0.5)
    assert certificate(loss_null=0.5).cost == 0.0 and certificate(loss_null=0.4).cost == 0.0
    assert np.isnan(certificate(unconstrained=Deferred(float("nan"))).cost)


CERTIFICATES: dict[str, dict[str, Any]] = {
    "plain": {},
    "few": {"correlation_without": 0.4, "n_left_out": 3, "reach": 9.0},
    "unknown": {"unconstrained": Deferred(float("nan")), "orthogonal_on": "new rows"},
    "names": {
        "constant_protected": ("a",), "collinear_protected": ("b", "c"), "determined_protected": ("d",),
        "aliased_features": ("e",), "flat_features": ("f", "g"), "given": ("h",),
    },
    "budget": {"budget": 0.3, "covariance_share": 0.25, "correlation": 0.1},
    "threshold": {"threshold": 0.4, "decision_correlation": 0.01, "selection_rate": 0.3},
    "missing": {"missing_protected": ("a", "b"), "missing_shares": (0.1, 0.25), "missing_given": ("c", "d")},
    "box": {"box": 0.2, "n_at_limit": 2, "max_correlation": 0.2},
    "large": {"min_curvature_low": 0.1, "rank_features": None, "rank_features_low": 3, "n_protected": 0},
    "large, few rows": {"min_curvature_low": 0.5, "rank_features": None, "rank_features_low": 9, "n_rows": 4},
    "rank": {"rank_features": None},
}  # fmt: skip


@pytest.mark.parametrize("name", CERTIFICATES)
def test_tables_of_certificates(golden, name):
    one, usual = certificate(**CERTIFICATES[name]), [] if name == "plain" else str(certificate()).splitlines()
    again = Certificate.of_state(one.state())
    lines = [" ".join(line.split()) for line in str(one).splitlines() if line not in usual]
    golden([lines, len(str(one).splitlines()), plain(one.to_dict()), str(again) == str(one)])


MISTAKES = {
    "empty": lambda Z, y, X: Problem(Z[:, :0], y, X),
    "three axes": lambda Z, y, X: Problem(Z[None], y, X),
    "text": lambda Z, y, X: Problem(Z, ["a"] * len(y), X),
    "names": lambda Z, y, X: Problem(Z, y, X, feature_names=["a"]),
    "protected names": lambda Z, y, X: Problem(Z, y, X, protected_names=["a"]),
    "rows": lambda Z, y, X: Problem(Z, y[:9], X),
    "rows of protected": lambda Z, y, X: Problem(Z, y, X[:9]),
    "rows of weights": lambda Z, y, X: Problem(Z, y, X, weight=np.ones(3)),
    "missing": lambda Z, y, X: Problem(np.where(Z > 2.0, np.nan, Z), y, X),
    "missing outcome": lambda Z, y, X: Problem(Z, np.where(y > 0.0, np.inf, y), X),
    "missing protected": lambda Z, y, X: Problem(Z, y, np.where(X > 40.0, np.nan, X)),
    "protected shape": lambda Z, y, X: Problem(Z, y, X[:, :, None]),
    "no protected": lambda Z, y, X: Problem(Z, y, X[:, :0]),
    "few rows": lambda Z, y, X: Problem(Z[:2], y[:2], X[:2]),
    "negative weight": lambda Z, y, X: Problem(Z, y, X, weight=-np.ones(N)),
    "one weight": lambda Z, y, X: Problem(Z, y, X, weight=np.where(np.arange(N) == 3, 1e15, 1.0)),
    "offset": lambda Z, y, X: Problem(Z, y, X, offset=np.ones((N, 2))),
    "l2": lambda Z, y, X: Problem(Z, y, X, l2=-1.0),
    "constant outcome": lambda Z, y, X: Problem(Z, 0.0 * y + 2.0, X),
    "huge outcome": lambda Z, y, X: Problem(Z, 1e200 * y, X),
    "given without": lambda Z, y, X: Problem(Z, y, None, given=Z[:, :1]),
    "given word": lambda Z, y, X: Problem(Z, y, X, given="age"),
    "given shape": lambda Z, y, X: Problem(Z, y, X, given=Z[:, :0]),
    "given rows": lambda Z, y, X: Problem(Z, y, X, given=Z[:9]),
    "given missing": lambda Z, y, X: Problem(Z, y, X, given=np.where(Z > 2.0, np.nan, Z)),
    "classes": lambda Z, y, X: Problem(Z, np.arange(N) % 2 * 2.0, X, VECTOR),
    "one class": lambda Z, y, X: Problem(Z, np.zeros(N), X, VECTOR),
    "half classes": lambda Z, y, X: Problem(Z, np.arange(N) % 3 / 2.0, X, VECTOR),
    "negative class": lambda Z, y, X: Problem(Z, np.arange(N) % 3 - 1.0, X, VECTOR),
    "class without weight": lambda Z, y, X: Problem(
        Z, np.arange(N) % 3.0, X, VECTOR, np.where(np.arange(N) % 3, 1.0, 0.0)
    ),
    "shares": lambda Z, y, X: Problem(Z, np.ones((N, 2)), X, VECTOR),
    "one share": lambda Z, y, X: Problem(Z, np.ones((N, 1)), X, VECTOR),
    "negative shares": lambda Z, y, X: Problem(Z, np.column_stack([y, 1.0 - y]) * 3.0 - 1.0, X, VECTOR),
    "empty share": lambda Z, y, X: Problem(Z, np.column_stack([np.ones(N), np.zeros(N)]), X, VECTOR),
    "equal shares": lambda Z, y, X: Problem(Z, np.full((N, 2), 0.5), X, VECTOR),
    "offset of classes": lambda Z, y, X: Problem(Z, np.arange(N) % 3.0, X, VECTOR, offset=np.ones((N, 2))),
    "solver": lambda Z, y, X: solve(Problem(Z, y, X), "newton"),
    "max_iter": lambda Z, y, X: solve(Problem(Z, y, X), max_iter=-1),
    "max_iter float": lambda Z, y, X: solve(Problem(Z, y, X), max_iter=1.5),
    "tol": lambda Z, y, X: solve(Problem(Z, y, X), tol=-1e-9),
    "tol nan": lambda Z, y, X: solve(Problem(Z, y, X), tol=np.nan),
    "orthogonal_on": lambda Z, y, X: solve(Problem(Z, y, X), orthogonal_on="all"),
    "confidence 0": lambda Z, y, X: solve(Problem(Z, y, X), confidence=0.0),
    "confidence 1": lambda Z, y, X: solve(Problem(Z, y, X), confidence=1.0),
    "clusters large": lambda Z, y, X: solve(Problem(Z, y, X, cluster=np.arange(N) // 2), "large"),
    "mdmm new": lambda Z, y, X: solve(Problem(Z, y, X), "mdmm", orthogonal_on="new rows"),
    "budget": lambda Z, y, X: solve(Problem(Z, y, X), budget=1.5),
    "budget nan": lambda Z, y, X: solve(Problem(Z, y, X), budget=np.nan),
    "budget negative": lambda Z, y, X: solve(Problem(Z, y, X), budget=-0.1),
    "budget new": lambda Z, y, X: solve(Problem(Z, y, X), budget=0.5, orthogonal_on="new rows"),
    "budget mdmm": lambda Z, y, X: solve(Problem(Z, y, X), "mdmm", budget=0.5),
    "given clusters": lambda Z, y, X: solve(
        Problem(Z, y, X, given=Z[:, :1], cluster=np.arange(N) // 2), orthogonal_on="new rows"
    ),
    "no freedom": lambda Z, y, X: solve(Problem(X, y, X)),
    "box factor": lambda Z, y, X: solve_box(Problem(Z, y), X, ("a", "b"), factor=0.0),
    "box rows": lambda Z, y, X: solve_box(Problem(Z, y), X[:9], ("a", "b")),
    "box classes": lambda Z, y, X: solve_box(Problem(Z, np.arange(N) % 3.0, None, VECTOR), X, ("a", "b")),
    "box constant": lambda Z, y, X: solve_box(Problem(Z, y), 0.0 * X, ("a", "b")),
    "threshold": lambda Z, y, X: OrthogonalGLMClassifier(threshold=1.0).fit(Z, y > 0, protected=X),
    "threshold nobody": lambda Z, y, X: OrthogonalGLMClassifier(threshold=0.9999).fit(Z, y > 0, protected=X),
    "threshold everybody": lambda Z, y, X: OrthogonalGLMClassifier(threshold=0.0001).fit(Z, y > 0, protected=X),
    "threshold budget": lambda Z, y, X: OrthogonalGLMClassifier(threshold=0.5, budget=0.1).fit(Z, y > 0, protected=X),
    "threshold classes": lambda Z, y, X: OrthogonalGLMClassifier(threshold=0.5).fit(Z, np.arange(N) % 3, protected=X),
    "threshold alone": lambda Z, y, X: OrthogonalGLMClassifier(threshold=0.5).fit(Z, y > 0),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(golden, name):
    Z, y, X = data(family("gaussian"))
    with pytest.raises((SetsquareError, TypeError, ValueError)) as caught:
        MISTAKES[name](Z, y, X)
    golden([type(caught.value).__name__, str(caught.value)])


def test_what_problems_accept_at_their_limits():
    Z, y, X = data(family("gaussian"))
    Problem(Z, y * (0.9 * problems.LARGEST / np.abs(y).max()), X)
    Problem(Z[:3], y[:3], X[:3])
    Problem(Z, y, X, weight=np.where(np.arange(N) == 3, 1e11, 1.0))
    Problem(Z, np.column_stack([np.arange(N) % 2 + 5e-7, 1 - np.arange(N) % 2]), X, VECTOR)
    Problem(Z, y, X, family("poisson"), quasi=True)
    assert solve(Problem(Z, y, X), max_iter=0).n_iter == 0
    assert Problem(Z, y, X[:, 0]).protected.shape == (N, 1)
    assert Problem(Z, y, X).with_l2(0.5).l2 == 0.5
    assert Settings() == Settings(kkt=Settings().kkt)
