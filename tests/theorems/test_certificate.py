"""THEORY §2: what the certificate says is so: orthogonal relative to the predictions' own spread, not through a row."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax

from setsquare import OrthogonalGLMRegressor, Stream
from setsquare.errors import FewRowsWarning, NotOrthogonalError
from setsquare.families import contrasts, family
from setsquare.glm.certificate import rests_on_few
from setsquare.glm.certify import AT_THE_EDGE, level_of
from setsquare.glm.influence import Floor, Tally
from setsquare.glm.preparation import prepare
from setsquare.glm.problem import Problem
from setsquare.glm.solver import Status, solve
from setsquare.projection import GeneralizedProjector

EXPOSED = ("poisson", "negative_binomial", "gamma", "tweedie", "binomial", "gaussian")
SOLVERS = ("sqp", "large")


def draw(name: str, mu: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    n = len(mu)
    y = {
        "poisson": lambda: rng.poisson(mu),
        "negative_binomial": lambda: rng.negative_binomial(1, 1.0 / (1.0 + mu)),
        "gamma": lambda: rng.gamma(2.0, mu / 2.0) + 1e-9,
        "tweedie": lambda: rng.gamma(1.0, mu) * (rng.random(n) < 0.7),
        "binomial": lambda: rng.random(n) < mu,
        "gaussian": lambda: mu + rng.normal(size=n),
    }[name]()
    return np.asarray(y, dtype=float)


def unequal_exposure(name: str, ratio: float) -> Problem:
    """Features that know nothing of the group, and an exposure that does: no rates make the counts equal."""
    g, a = np.tile([0.0, 1.0], 400), np.tile([0.0, 0.0, 1.0, 1.0], 200)
    b = np.tile(np.repeat([0.0, 1.0], 4), 100)
    offset = np.log(1.0 + (ratio - 1.0) * g)
    eta = offset + 0.3 * a - 0.2 * b - (1.0 if name == "binomial" else 0.0)
    y = draw(name, family(name).activation(eta), np.random.default_rng(0))
    return Problem(np.column_stack([a, b]), y, g, name, offset=offset)


def correlations(mu: np.ndarray, X: np.ndarray) -> np.ndarray:
    return np.abs([np.corrcoef(mu, x)[0, 1] for x in X.T])


def predict(problem: Problem, solution) -> np.ndarray:
    offset = 0.0 if problem.offset is None else problem.offset
    return problem.family.activation(solution.intercept[0] + problem.features @ solution.coef[0] + offset)


@pytest.mark.parametrize(("ratio", "solver"), [(1.5, "sqp"), (2.0, "sqp"), (2.0, "large")])
@pytest.mark.parametrize("name", EXPOSED)
def test_an_offset_that_leaves_no_orthogonal_prediction_is_found_out(name: str, ratio: float, solver: str) -> None:
    problem = unequal_exposure(name, ratio)
    found = solve(problem, solver)
    assert found.status is Status.INFEASIBLE and not found.certificate.is_optimal
    plain = solve(Problem(problem.features, problem.outcome, None, name, offset=problem.offset)).certificate.loss
    assert found.certificate.loss_unconstrained == pytest.approx(plain, rel=1e-5)  # not where the solution drifted to
    truth = correlations(predict(problem, found), problem.protected).max()
    if name == "binomial":  # saturated probabilities have no digits beside 1
        return
    assert not found.certificate.is_orthogonal and truth > 0.1
    assert found.certificate.max_correlation == pytest.approx(truth, rel=1e-3)


@pytest.mark.parametrize("name", EXPOSED)
def test_the_estimator_raises_and_says_what_to_do(name: str) -> None:
    if name == "binomial":
        pytest.skip("the regressor takes no classes")
    problem = unequal_exposure(name, 2.0)
    model = OrthogonalGLMRegressor(name)
    with pytest.raises(NotOrthogonalError, match=r"With this offset no coefficients.*sample_weight=exposure"):
        model.fit(problem.features, problem.outcome, protected=problem.protected, offset=problem.offset)
    assert not hasattr(model, "solution_")


def test_a_stream_is_refused_like_rows_in_memory_and_the_advice_works() -> None:
    problem = unequal_exposure("poisson", 2.0)
    exposure = np.exp(problem.offset)
    table = pd.DataFrame(problem.features, columns=["a", "b"]).assign(
        y=problem.outcome, rate=problem.outcome / exposure, g=problem.protected, log=problem.offset, exposure=exposure
    )
    parts = [table.iloc[:500], table.iloc[500:]]
    model = OrthogonalGLMRegressor("poisson", protected="g")
    with pytest.raises(NotOrthogonalError, match="With this offset"):
        model.fit(Stream(parts, columns=["a", "b", "g", "y", "log"]), y="y", offset="log")
    model.fit(table[["a", "b", "g"]], table.rate, sample_weight=table.exposure)
    assert model.solution_.certificate.is_orthogonal and model.solution_.certificate.is_optimal


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", EXPOSED)
def test_an_offset_that_leaves_orthogonal_predictions_is_no_obstacle(name: str, solver: str) -> None:
    """Offsets that follow the protected columns, moved by the generalised projection so that a solution exists."""
    for seed in (0, 3, 8, 13):
        rng = np.random.default_rng(seed)
        n, q, p = int(rng.integers(100, 800)), int(rng.integers(4, 12)), int(rng.integers(1, 4))
        X = rng.normal(size=(n, p)) if seed % 2 else (rng.random((n, p)) < 0.3).astype(float)
        Z = rng.normal(size=(n, q)) + X @ rng.normal(size=(p, q))
        gamma, glm = 0.3 * rng.normal(size=q), family(name)
        eta = Z @ gamma + rng.normal(size=n) + X @ rng.normal(size=p)
        offset = GeneralizedProjector.fit(eta, X, glm.activation).apply(eta, X) - Z @ gamma
        problem = Problem(Z, draw(name, glm.activation(eta), rng), X, glm, offset=offset)
        found = solve(problem, solver)
        assert found.certificate.is_orthogonal and found.status is not Status.INFEASIBLE
        assert correlations(predict(problem, found), X).max() < 1e-8


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", ["gaussian", "binomial", "poisson", "gamma"])
def test_a_constant_prediction_is_orthogonal(name: str, solver: str) -> None:
    """Features without any effect: the intercept alone is the optimum, and its spread is rounding."""
    a, b, g = (x.ravel() for x in np.meshgrid([0.0, 1.0], [0.0, 1.0, 2.0], np.tile([0.0, 1.0], 10)))
    Z = np.column_stack([a + g, b, a * b])
    found = solve(Problem(Z, _balanced(Z, g) + (0.5 if name == "gamma" else 0.0), g, name), solver)
    assert found.certificate.is_orthogonal and found.certificate.is_optimal


def _balanced(Z: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Zeros and ones, as many of each for every combination of features and group."""
    _, cell = np.unique(np.column_stack([Z, g]), axis=0, return_inverse=True)
    y = np.zeros(len(Z))
    for c in np.unique(cell):
        rows = np.flatnonzero(cell.ravel() == c)
        y[rows[: len(rows) // 2]] = 1.0
    return y


def test_an_offset_in_the_span_of_the_features_can_be_undone() -> None:
    rng = np.random.default_rng(5)
    X, Z = rng.normal(size=(300, 1)), rng.normal(size=(300, 3))
    offset = 2.0 * Z[:, 0] + X[:, 0]
    Z = np.column_stack([Z, X[:, 0] + 1e-3 * rng.normal(size=300)])
    found = solve(Problem(Z, offset + rng.normal(size=300), X, offset=offset))
    assert found.certificate.is_orthogonal and found.certificate.is_optimal


def negative_log_likelihood(name: str, link: str | None, y: np.ndarray, eta: np.ndarray) -> float:
    """Written down once more, without the families of the library."""
    mu = 1.0 / (1.0 + np.exp(-eta)) if (name, link) == ("binomial", None) else np.exp(eta)
    losses = {
        ("gaussian", None): 0.5 * (y - eta) ** 2,
        ("gaussian", "log"): 0.5 * (y - mu) ** 2,
        ("binomial", None): np.logaddexp(0.0, eta) - y * eta,
        ("poisson", None): mu - y * eta,
        ("gamma", None): y / mu + eta,
        ("tweedie", None): 2.0 * y / np.sqrt(mu) + 2.0 * np.sqrt(mu),
        ("negative_binomial", None): (y + 1.0) * np.log1p(mu) - y * eta,
    }
    return float(losses[name, link].mean())


@pytest.mark.parametrize("spread", [0.5, 2.0])
@pytest.mark.parametrize(("name", "link"), [*((name, None) for name in EXPOSED), ("gaussian", "log")])
def test_the_intercept_beside_an_offset_is_the_maximum_likelihood_one(
    name: str, link: str | None, spread: float
) -> None:
    rng = np.random.default_rng(7)
    n = 1500
    X, offset = rng.normal(size=(n, 1)), spread * rng.normal(size=n)
    Z = rng.normal(size=(n, 4)) + X
    eta = offset - 0.5 * spread**2 + 0.3 * Z[:, 0]
    glm = family(name, link)
    y = draw(name, glm.activation(eta), rng)
    found = solve(Problem(Z, y, X, glm, offset=offset)).certificate
    best = minimize_scalar(
        lambda b: negative_log_likelihood(name, link, y, b + offset), (-1.0, 0.0), options={"xtol": 1e-12}
    )
    assert found.loss_null == pytest.approx(best.fun, rel=1e-9, abs=1e-9)
    plain = solve(Problem(Z, y, None, glm, offset=offset)).certificate
    assert found.loss_unconstrained == pytest.approx(plain.loss, rel=1e-5, abs=1e-6)
    assert found.cost == pytest.approx((found.loss - plain.loss) / (best.fun - plain.loss), rel=1e-2)


def test_the_intercepts_of_classes_beside_an_offset_are_the_maximum_likelihood_ones() -> None:
    rng = np.random.default_rng(2)
    n = 900
    offset, Z, X = rng.normal(size=(n, 3)) * [0.0, 1.0, 2.0], rng.normal(size=(n, 4)), rng.normal(size=(n, 1))
    y = rng.integers(0, 3, size=n).astype(float)
    found = solve(Problem(Z, y, X, "multinomial", offset=offset)).certificate

    def loss(b: np.ndarray) -> float:
        return -float(log_softmax(offset + contrasts(3) @ b, axis=1)[np.arange(n), y.astype(int)].mean())

    assert found.loss_null == pytest.approx(minimize(loss, np.zeros(2), tol=1e-12).fun, rel=1e-9)


def test_a_stream_has_the_null_model_of_the_rows_in_memory() -> None:
    rng = np.random.default_rng(3)
    n = 1200
    table = pd.DataFrame(rng.normal(size=(n, 4)), columns=list("abcg"))
    table["log"] = 2.0 * rng.normal(size=n)
    table["y"] = rng.poisson(np.exp(table.log - 2.0 + 0.3 * table.a)).astype(float)
    inside = OrthogonalGLMRegressor("poisson", protected="g").fit(table[list("abcg")], table.y, offset=table.log)
    parts = Stream([table.iloc[i : i + 500] for i in range(0, n, 500)])
    outside = OrthogonalGLMRegressor("poisson", protected="g").fit(parts, y="y", offset="log")
    ours, theirs = outside.solution_.certificate, inside.solution_.certificate
    for name in ("loss", "loss_null", "loss_unconstrained", "correlation_without", "reach", "n_left_out", "n_rows"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-6), name


@pytest.mark.parametrize("solver", SOLVERS)
def test_one_row_with_a_large_offset_does_not_pass_for_convergence(solver: str) -> None:
    rng = np.random.default_rng(2)
    n = 2000
    x, offset = rng.normal(size=n), np.zeros(n)
    offset[7] = 30.0
    Z = rng.normal(size=(n, 4)) + 0.5 * x[:, None]
    y = rng.poisson(np.exp(0.4 * Z[:, 0] - 0.3)).astype(float)
    found = solve(Problem(Z, y, x, "poisson", offset=offset), solver)
    assert found.status is Status.CONVERGED and found.n_iter > 1
    assert found.certificate.is_orthogonal and found.certificate.is_optimal
    assert found.certificate.loss_unconstrained <= found.certificate.loss < found.certificate.loss_null < 20.0
    start = prepare(Problem(Z, y, x, "poisson", offset=offset)).objective.start
    assert start.slope <= 2.0 * y.mean() * (1.0 + 1e-9) and start.curvature == pytest.approx(y.mean(), rel=1e-6)


def skewed(seed: int, n: int) -> Problem:
    """A positive skewed outcome, a hundred features and four protected columns."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.random(n) < share for share in (0.5, 0.3, 0.1, 0.4)]).astype(float)
    Z = rng.normal(size=(n, 100))
    Z[:, :20] += X @ rng.normal(size=(4, 20))
    y = np.exp(0.7 * (0.6 * Z[:, 0] + 0.5 * X[:, 0] + 0.4 * Z[:, 3]) + 1.5 * rng.normal(size=n))
    return Problem(Z, y / y.max(), X, "gamma")


def test_a_constraint_that_one_row_meets_is_certified_with_that_row_left_out() -> None:
    problem = skewed(2, 1000)
    found = solve(problem, "sqp")
    mu, certificate = predict(problem, found), found.certificate
    assert certificate.is_orthogonal and certificate.is_optimal
    order = np.argsort(-np.abs(mu - problem.outcome.mean()))
    without = [
        correlations(np.delete(mu, order[:k]), np.delete(problem.protected, order[:k], 0)).max() for k in range(11)
    ]
    assert without[0] < 1e-8 and without[1] > 0.2 and mu.max() > 10.0 * problem.outcome.max()
    assert certificate.correlation_without == pytest.approx(max(without[1:]), rel=1e-6)
    assert certificate.n_left_out == np.argmax(without)
    assert certificate.reach > 10.0 and certificate.rests_on_few_rows
    assert "rests on few rows" in str(certificate)


def test_the_estimator_warns_of_it_and_what_it_advises_helps() -> None:
    problem = skewed(2, 1000)
    data = {"X": problem.features, "y": problem.outcome, "protected": problem.protected}
    with pytest.warns(FewRowsWarning, match=r'without \d+ of 1000 rows the correlation .* is 0\.\d\d.*l2.*"poisson"'):
        OrthogonalGLMRegressor("gamma", solver="sqp").fit(**data)
    for model in (OrthogonalGLMRegressor("poisson"), OrthogonalGLMRegressor("gamma", l2=1.0)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert model.fit(**data).solution_.certificate.correlation_without < 0.1


def test_ordinary_fits_do_not_rest_on_few_rows() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        name, n = EXPOSED[seed % 6], (60, 300, 1500)[seed % 3]
        X = (rng.random((n, 1)) < 0.1).astype(float) if seed % 2 else rng.normal(size=(n, 1))
        Z = rng.normal(size=(n, 5)) + 0.6 * X
        y = draw(name, family(name).activation(Z[:, :3] @ [0.4, 0.3, -0.3] - 0.5), rng)
        certificate = solve(Problem(Z, y, X, name), "sqp").certificate
        assert not certificate.rests_on_few_rows, (seed, certificate)


def test_tallies_of_parts_add_up_to_that_of_all_rows_without_rounding_of_the_largest() -> None:
    """A row of 1e9 beside rows of 1: taken out of a sum afterwards it would leave nothing of them."""
    rng = np.random.default_rng(0)
    gap, x, w = rng.normal(size=(500, 1)), rng.normal(size=(500, 2)), rng.random(500)
    gap[3], w = 1e9, w / w.sum()
    parts = [Tally.of(gap[i : i + 70], x[i : i + 70], w[i : i + 70], gap[i : i + 70]) for i in range(0, 500, 70)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    left = np.delete(np.arange(500), 3)
    centred = gap[left, 0] - np.average(gap[left, 0], weights=w[left])
    expected = []
    for column in x[left].T:
        c = column - np.average(column, weights=w[left])
        expected.append(abs(w[left] @ (c * centred)) / np.sqrt((w[left] @ c**2) * (w[left] @ centred**2)))
    assert total.correlations(np.zeros(2), Floor(0.0, 0.0))[1] == pytest.approx(max(expected), rel=1e-9)
    assert total.prediction == 1e9 and total.influence[0] == pytest.approx(w[3] * 1e18)


def test_restarts_are_ranked_by_it_before_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    from setsquare.glm import solver as solvers

    problem = skewed(0, 400)
    seen = []

    def few(correlation: float, n_rows: int) -> bool:
        seen.append(correlation)
        return len(seen) == 1  # as if the first end rested on a row

    monkeypatch.setattr(solvers, "rests_on_few", few)
    solve(problem, "sqp", n_restarts=1, random_state=0)
    assert len(seen) == 2 and rests_on_few(0.3, 1000) and not rests_on_few(0.3, 50)


def test_predictions_that_only_separate_are_not_taken_for_driven_to_the_edge() -> None:
    """Separation sends probabilities to 0 and 1 while the loss falls: no offset is to blame."""
    rng = np.random.default_rng(1)
    n = 200
    X, Z = rng.normal(size=(n, 1)), rng.normal(size=(n, 4))
    y = (Z[:, 0] > 0.0).astype(float)
    problem = Problem(Z, y, X, "binomial", offset=0.1 * rng.normal(size=n))
    found = solve(problem, "sqp")
    assert found.status is not Status.INFEASIBLE and found.certificate.is_orthogonal
    assert found.certificate.loss < found.certificate.loss_null
    end = type("End", (), {"model": type("Model", (), {"steepness": 1e-9})})
    assert level_of(prepare(problem), end) < AT_THE_EDGE  # type: ignore[arg-type]
