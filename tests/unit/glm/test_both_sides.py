"""Guards and conditions of two parts in fits: each part alone decides, and so does each end of a limit."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from setsquare.errors import InputError, NotOrthogonalError
from setsquare.families import family
from setsquare.families.softmax import contrasts
from setsquare.glm import (
    Descent,
    Problem,
    Settings,
    Status,
    bootstrap,
    budget,
    further_steps,
    intercept,
    mdmm,
    new_rows,
    new_rows_bound,
    solve,
)
from setsquare.glm.bootstrap import Draws, evaluate, refit_resampled
from setsquare.glm.box import solve_box
from setsquare.glm.budget_steps import _is_finite
from setsquare.glm.decisions import check_decisions, solve_decisions
from setsquare.glm.deferred import Deferred
from setsquare.glm.dense_pass import equal_weight
from setsquare.glm.large import Krylov
from setsquare.glm.objective import spread_of
from setsquare.glm.preparation import Survey, _whitening, prepare
from setsquare.glm.problem import _check_summary
from setsquare.glm.ridge import choose_ridge
from setsquare.glm.unconstrained_loss import _quasi_newton
from setsquare.projection.moments import Moments


def data(n: int = 120, q: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 1))
    Z = rng.normal(size=(n, q)) + 0.5 * X
    return Z, (Z[:, 0] + rng.logistic(size=n) > 0.0).astype(float), X


def problem(name: str = "binomial", **options: Any) -> Problem:
    Z, y, X = data()
    return Problem(Z, y, X, family(name), **options)


BAD = (np.inf, np.nan)


@pytest.mark.parametrize("bad", BAD)
def test_one_number_that_is_not_finite_is_enough(bad):
    one, two = np.array([1.0, bad]), np.array([1.0, 2.0])

    def model(loss: float, g: Any, J: Any) -> Any:
        return SimpleNamespace(loss=loss, g=g, J=J)

    assert _is_finite(model(1.0, two, two))
    assert not any(_is_finite(model(*one)) for one in ((bad, two, two), (1.0, one, two), (1.0, two, one)))

    def aimed(correlation: float, loss: float) -> Any:
        tallied = SimpleNamespace(correlation=correlation, loss=loss)
        return new_rows.Aimed.is_finite.fget(SimpleNamespace(tallied=tallied))

    assert aimed(0.1, 0.2) and not aimed(bad, 0.2) and not aimed(0.1, bad)
    steering, step = np.eye(2), np.array([1.0, 1.0])
    np.testing.assert_array_equal(new_rows._secant(steering, step, one), steering)
    moved = new_rows._secant(steering, step, two)
    np.testing.assert_allclose(moved, [[1.0, 0.0], [0.5, 1.5]])


def test_values_that_are_computed_later_are_equal_to_their_like_only():
    assert Deferred(1.5) == Deferred(1.5) and Deferred(1.5) != Deferred(2.5) and Deferred(1.5) != 1.5


@pytest.mark.parametrize(
    "values", [{"rate": 0.0}, {"rate": np.inf}, {"rate": -1.0}, {"damping": -0.1}, {"damping": np.inf}]
)
def test_rates_of_descents(values):
    with pytest.raises(InputError, match="must be a"):
        Descent(**values)
    assert Descent(rate=1e-9, damping=0.0).damping == 0.0


def test_ends_of_the_paper_s_method(monkeypatch):
    found = solve(problem(), "mdmm", max_iter=300, descent=Descent(rate=1e9))
    assert found.status is Status.STALLED
    for kkt, correlation, ends in ((1e9, 1e9, True), (1e9, -1.0, False), (-1.0, 1e9, False)):
        monkeypatch.setattr(mdmm, "ENOUGH_KKT", kkt)
        monkeypatch.setattr(mdmm, "ENOUGH_CORRELATION", correlation)
        found = solve(problem(), "mdmm", max_iter=3 * mdmm.TRACE_EVERY)
        assert (found.n_iter < 3 * mdmm.TRACE_EVERY) == ends


@pytest.mark.parametrize(("module", "check"), [(new_rows, "check_new_rows"), (budget, "check_spending")])
def test_matrices_that_would_be_too_large(module, check, monkeypatch):
    def ask(solver: str, most: int) -> None:
        monkeypatch.setattr(module, "MOST_PARAMETERS", most)
        if module is new_rows:
            new_rows.check_new_rows(problem(), solver, "new rows", 0.95)
        else:
            budget.check_spending(problem(), solver, 0.2, "training rows")

    ask("large", 4)
    ask("sqp", 3)
    with pytest.raises(InputError, match="a matrix of 4 x 4 for these features"):
        ask("large", 3)


def test_loss_and_error_of_a_constant():
    def worse(constant: float | None, error: float | None) -> bool:
        values = SimpleNamespace(loss=0.75, loss_constant=constant, loss_error=error)
        return bool(new_rows_bound.NewRows.is_worse_than_constant.fget(values))

    assert worse(0.5, 0.125) and not worse(0.5, 0.25) and not worse(0.5, 0.5)
    assert not worse(None, 0.125) and not worse(0.5, None)


def test_rows_for_a_limit():
    at = {"upper": 0.3, "n_units": 100, "n_steered": 1, "n_directions": 1, "is_zero": False}

    def rows(limit: float, correlation: float = 0.1) -> int | None:
        return new_rows_bound.NewRows.rows_for(SimpleNamespace(**at, correlation=correlation), limit)

    assert rows(0.3) == 100 and rows(0.1) is None and rows(0.2) == 400
    assert rows(0.0, -0.1) is None and rows(0.1, -0.1) == 400
    at["is_zero"] = True  # steered to zero: what is left is where the search ended
    assert rows(0.1) == 900 and rows(0.01) == 90_000


def test_quantiles_of_long_and_of_many_normal_variables():
    far = new_rows_bound.length_quantile(np.array([1e4]), np.eye(1), 0.95)
    assert far == pytest.approx((1e4 + 1.6449) ** 2, rel=1e-6)
    assert new_rows_bound.length_quantile(np.array([3.0, 4.0]), np.zeros((2, 2)), 0.95) == 25.0


def test_predictions_that_are_constant_on_new_rows():
    sums = SimpleNamespace(spread=0.0, c=np.zeros((2, 1)))
    found = new_rows_bound.bound_new_rows(sums, np.eye(2), ("a", "b"), 0.9, 50, new_rows_bound.Losses(0.6), 3.0, True)
    assert (found.correlation, found.upper, found.confidence, found.n_units) == (0.0, 0.0, 0.9, 50)
    assert found.uppers == {"a": 0.0, "b": 0.0} and found.n_directions == 2 and found.by_cluster


def draws(n: int, k: int = 2, **more: Any) -> Draws:
    rng = np.random.default_rng(1)
    fields: dict[str, Any] = dict.fromkeys(Draws._fields)
    return Draws(**fields | {"estimates": list(rng.normal(size=(n, 1, k))), "n_failed": 0} | more)


def test_refits_that_are_too_few():
    for n in (0, 1):
        found = evaluate(draws(n, n_failed=3))
        assert np.isnan(found.std_error).all() and (found.n_refits, found.n_failed) == (n, 3)
    found = evaluate(draws(2))
    estimates = np.array(draws(2).estimates)
    np.testing.assert_allclose(found.std_error, estimates.std(axis=0, ddof=1))


def test_refits_end_when_every_coefficient_is_precise(monkeypatch):
    monkeypatch.setattr(bootstrap, "BATCH", 10)
    precisions = iter([[1e-9, 1.0], [1e-9, bootstrap.PRECISE]])

    def judge(found: Any) -> Any:
        return SimpleNamespace(precision=np.array([next(precisions)]), n=len(found.estimates))

    monkeypatch.setattr(bootstrap, "evaluate", judge)
    Z, y, _ = data()
    found = refit_resampled(
        Problem(Z[:, :1], y, None, family("gaussian")),
        solve,
        40,
        np.random.default_rng(0),
        until=np.array([[True, True]]),
    )
    assert found.n == 20


def summarised(**values: Any) -> Any:
    whole: dict[str, Any] = {"weight": 10.0, "n_rows": 10, "low": 0.0, "high": 1.0, "mean": np.array([0.5])}
    vector = values.pop("vector", False)
    outcomes = SimpleNamespace(**whole | values)
    return SimpleNamespace(
        outcomes=outcomes, protected_names=("x",), l2=0.0, family=family("multinomial" if vector else "binomial")
    )


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"weight": 0.0}, "weight"),
        ({"weight": np.inf}, "add up to more than float64 holds"),
        ({"vector": True, "mean": np.array([0.5, 0.5, 0.0])}, "Each class needs at least one row"),
        ({"low": 1.0, "high": 1.0}, "Every outcome is 1"),
    ],
)
def test_summaries_of_streams_that_cannot_be_fitted(values, sentence):
    with pytest.raises(InputError, match=sentence):
        _check_summary(summarised(**values))
    _check_summary(summarised())
    _check_summary(summarised(vector=True, mean=np.array([0.5, 0.25, 0.25])))


def test_shares_of_which_one_is_constant():
    Z, y, X = data()
    shares = np.column_stack([0.3 + 0.2 * y, 0.5 - 0.2 * y, np.full(120, 0.2)])
    assert solve(Problem(Z, shares, X, family("multinomial"))).certificate.is_orthogonal
    with pytest.raises(InputError, match="Every row has the same shares"):
        Problem(Z, np.tile([0.3, 0.5, 0.2], (120, 1)), X, family("multinomial"))


@pytest.mark.parametrize("options", [{"solver": "mdmm"}, {"protected": False}])
def test_ridges_need_leave_one_out_losses(options):
    Z, y, X = data()
    asked = Problem(Z, y, X if options.get("protected", True) else None, family("binomial"))
    with pytest.raises(InputError, match="needs leave-one-out losses"):
        choose_ridge(asked, options.get("solver", "auto"))


def test_decisions_need_protected_columns():
    Z, y, _ = data()
    with pytest.raises(InputError, match="threshold= needs protected columns"):
        check_decisions(Problem(Z, y, None, family("binomial")), 0.5, "training rows", 0.0, None)
    for asked in (("new rows", 0.0, None), ("training rows", 0.1, None), ("training rows", 0.0, 0.2)):
        with pytest.raises(InputError, match="use one of them"):
            check_decisions(problem(), 0.5, *asked)
    check_decisions(problem(), 0.5, "training rows", 0.0, None)


def test_decisions_of_a_first_fit_that_leaks():
    leaking = []

    def leak(asked: Any, start: Any = None) -> Any:
        found = solve(asked)
        certificate = replace(found.certificate, max_correlation=0.3)
        leaking.append(found)
        return replace(found, certificate=certificate)

    decided = solve_decisions(problem(), 0.5, leak)
    assert decided.width == 1.0 and len(leaking) == 1
    calls = []

    def leak_later(asked: Any, start: Any = None) -> Any:
        found = solve(asked, start=start)
        calls.append(found.status)
        if len(calls) < 3:
            return found
        return replace(found, certificate=replace(found.certificate, max_correlation=0.3))

    solve_decisions(problem(), 0.5, leak_later)
    assert len(calls) == 3  # the path ends at the first fit that is not orthogonal


def test_intercepts_that_overflow_at_first():
    glm = family("poisson")
    seen = []

    def at(where: Any) -> Any:
        seen.append(float(where[0]))
        loss = np.inf if where[0] > 5.0 else float(np.exp(where[0]) - 2.0 * where[0])
        mean = np.exp(np.minimum(where, 5.0))
        return SimpleNamespace(loss=loss, mean=mean, gradient=np.exp(where) - 2.0, hessian=np.diag(np.exp(where)))

    here, point = intercept.fit_intercept(at, glm, np.array([2.0]), np.array([9.0]), 3.0)
    assert seen[:2] == [9.0, pytest.approx(np.log(2.0) - 3.0)]
    assert here[0] == pytest.approx(np.log(2.0), abs=1e-6) and point.loss == pytest.approx(2.0 - 2.0 * np.log(2.0))


@pytest.mark.parametrize(("loss", "hessian"), [(1.0, np.inf), (np.nan, 1.0)])
def test_intercepts_end_where_a_number_is_not_finite(loss, hessian):
    calls = []

    def at(where: Any) -> Any:
        calls.append(where)
        return SimpleNamespace(loss=loss, mean=np.array([0.0]), gradient=np.ones(1), hessian=np.array([[hessian]]))

    intercept.fit_intercept(at, family("poisson"), np.array([2.0]), np.zeros(1), 0.0)
    assert len(calls) <= 2


def test_boxes_that_leave_a_constant_only():
    Z, y, X = data()
    asked = Problem(X + 1e-9 * Z[:, :1], y, None, family("binomial"))
    with pytest.raises(NotOrthogonalError, match=r"No predictions other than constant ones|could not be brought below"):
        solve_box(asked, X, ["x"], factor=1e-3)


def test_paths_of_budgets_at_the_edge_of_a_domain_are_refused():
    objective = replace(prepare(problem()).objective, barrier=0.1)
    with pytest.raises(InputError, match="at the edge of the link's domain"):
        budget.follow(objective, None, [0.1], None, Settings())


def test_a_quasi_newton_step_solves_the_updated_system():
    rng = np.random.default_rng(7)
    A = rng.normal(size=(4, 4))
    H = B = A @ A.T + np.eye(4)
    target, pairs = rng.normal(size=4), []
    for scale in (0.5, 3.0):
        s = rng.normal(size=4)
        u = scale * (B @ s) + 0.1 * s
        pairs.append((s, u))
        B = B - np.outer(B @ s, B @ s) / (s @ B @ s) + np.outer(u, u) / (s @ u)
    uphill = (np.ones(4), -np.ones(4))  # a pair without curvature, which is left out
    np.testing.assert_allclose(_quasi_newton(H, [*pairs, uphill], target), np.linalg.solve(B, target), rtol=1e-9)


def test_the_units_that_moved_the_fit_most_are_solved_again(monkeypatch):
    monkeypatch.setattr(further_steps, "MOST_UNITS", 2)
    far = further_steps.FAR * np.array([5.0, 0.5, 2.0, 9.0, 7.0])
    found = further_steps.far_units(far, None)
    assert found is not None and found.rows.tolist() == [3, 4] and found.unit.tolist() == [0, 1]
    few = further_steps.far_units(far[:3], None)
    assert few is not None and few.rows.tolist() == [0, 2]
    by_unit = further_steps.far_units(np.repeat(far, 2), np.repeat(np.arange(5), 2))
    assert by_unit is not None and by_unit.rows.tolist() == [6, 7, 8, 9] and by_unit.unit.tolist() == [0, 0, 1, 1]
    assert further_steps.far_units(far[1:2], None) is None


def test_nothing_is_known_about_curvature_before_the_first_search():
    search: Any = SimpleNamespace(ritz=None)
    assert Krylov.bounds(search) == (-np.inf, 0)


def test_one_square_that_is_infinite_makes_the_spread_infinite():
    assert spread_of(np.zeros(2), np.array([np.inf, 1.0])) == np.inf
    assert spread_of(np.zeros(1), np.array([np.inf])) == np.inf
    assert spread_of(np.array([1.0, 0.0]), np.array([5.0, 5.0])) == 3.0


def test_statistics_of_rows_are_merged():
    def survey(eps: float, filled: Any) -> Survey:
        moments = Moments.of([np.arange(4.0)[:, None]], None)
        return Survey(np.ones(1), filled, moments, (np.ones(1),), eps)

    both = survey(1e-16, np.array([3])).merge(survey(1e-7, np.array([4])))
    assert both.eps == 1e-7 and both.filled is not None and both.filled.tolist() == [7]
    assert both.mean.tolist() == [2.0] and both.moments.weight == 8.0
    for one, other in ((None, np.array([3])), (np.array([3]), None), (None, None)):
        assert survey(1e-7, one).merge(survey(1e-16, other)).filled is None


def test_moments_that_are_not_positive_definite_are_not_whitened():
    gram = np.diag([4.0, -1.0])
    np.testing.assert_allclose(_whitening(gram, np.array([0])), [[0.5], [0.0]])
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        _whitening(gram, np.array([0, 1]))


def test_mean_probabilities_from_contrasts_add_up_to_one():
    share = np.array([0.2, 0.3, 0.5])
    np.testing.assert_allclose(intercept._shares(contrasts(3).T @ share), share, atol=1e-15)


@pytest.mark.parametrize(("weight", "found"), [([3.0], 3.0), ([2.0, 2.0], 2.0), ([2.0, 3.0], None), ([], None)])
def test_the_weight_of_every_row(weight, found):
    assert equal_weight(np.array(weight)) == found


def test_a_class_whose_predictions_hardly_vary_is_orthogonal_too() -> None:
    Z = np.array([[-1.18207644, 0.64400577, 1.83731265], [-1.05469805, 2.98263428, 0.02646386]])
    Z = np.vstack([Z, [-0.82796167, 0.57035618, -0.8554519]])
    problem = Problem(
        np.column_stack([Z, Z[:, 0]]),
        np.array([1.0, 2.0, 0.0]),
        np.array([[1.0], [1.0], [0.0]]),
        "multinomial",
        l2=1e-3,
    )
    certificate = solve(problem).certificate
    assert certificate.is_orthogonal and certificate.max_correlation < 1e-9  # before: 2e-8, and not orthogonal
