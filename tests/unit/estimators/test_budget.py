"""The budget of the estimators: options, certificates, warnings, storage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

import setsquare as sq
from setsquare.errors import InputError
from setsquare.storage.states import read_state, write_state

N = 400


def _draw() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    X = np.column_stack([rng.normal(size=N), rng.integers(0, 2, N)])
    Z = np.column_stack([X + rng.normal(size=(N, 2)), rng.normal(size=(N, 2))])
    return Z, (Z.sum(axis=1) + rng.normal(size=N) > 0).astype(int), X


@pytest.mark.parametrize("budget", [-0.1, 1.1, np.nan, np.inf, "half", None, True])
def test_shares_outside_zero_and_one_are_refused(budget: object) -> None:
    Z, y, X = _draw()
    for model in (sq.OrthogonalGLMClassifier(budget=budget), sq.OrthogonalGLMRegressor(budget=budget)):
        with pytest.raises(InputError, match="budget must be between 0"):
            model.fit(Z, y, protected=X)
    with pytest.raises(InputError, match="budget must be between 0"):
        sq.solve(sq.Problem(Z, y, X, family="binomial"), budget=budget)


def test_options_that_contradict_a_budget_are_refused() -> None:
    Z, y, X = _draw()
    for options, message in (({"orthogonal_on": "new rows"}, "one of them"), ({"solver": "mdmm"}, "has no budget")):
        with pytest.raises(InputError, match=message):
            sq.OrthogonalGLMClassifier(budget=0.5, **options).fit(Z, y, protected=X)
    model = sq.OrthogonalGLMClassifier(budget=0.5).fit(Z, y, protected=X)
    with pytest.raises(InputError, match="not available with budget"):
        model.summary()


def test_certificate_says_what_is_promised() -> None:
    Z, y, X = _draw()
    model = sq.OrthogonalGLMClassifier(budget=0.25).fit(Z, y, protected=X)
    found = model.solution_.certificate
    assert found.is_kept and found.is_optimal and not found.is_orthogonal and not found.rests_on_few_rows
    assert found.budget == 0.25 and found.covariance_share == pytest.approx(0.25, abs=1e-6)
    p = model.predict_proba(Z)[:, 1]
    Q = np.linalg.qr(X - X.mean(axis=0))[0]
    assert found.correlation == pytest.approx(np.linalg.norm(Q.T @ p) / np.linalg.norm(p - p.mean()), abs=1e-9)
    text = str(found)
    assert "Within the budget" in text and "Orthogonal to the protected columns" not in text
    assert found.to_dict()["is_kept"] is True


@pytest.mark.parametrize("solver", ["sqp", "large"])
def test_solvers_agree(solver: str) -> None:
    Z, y, X = _draw()
    first = sq.solve(sq.Problem(Z, y, X, family="binomial"), budget=0.3)
    again = sq.solve(sq.Problem(Z, y, X, family="binomial"), solver, budget=0.3)
    assert again.certificate.loss == pytest.approx(first.certificate.loss, abs=1e-9)
    assert np.abs(again.coef - first.coef).max() < 1e-5


def test_streams_and_tables_agree(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    Z, y, X = _draw()
    table = pd.DataFrame(np.column_stack([Z, X, y]), columns=["a", "b", "c", "d", "age", "sex", "y"])
    table.to_parquet(tmp_path / "rows.parquet")
    model = sq.OrthogonalGLMRegressor("binomial", ["age", "sex"], budget=0.3)
    inside = clone(model).fit(table.drop(columns="y"), table["y"])
    outside = clone(model).fit(tmp_path / "rows.parquet", "y")
    assert outside.solution_.certificate.is_kept
    assert np.abs(inside.coef_ - outside.coef_).max() < 1e-6


def test_one_column_and_no_association() -> None:
    rng = np.random.default_rng(0)
    Z, y, x = rng.normal(size=(300, 3)), rng.normal(size=300), rng.normal(size=300)
    for budget in (0.0, 1e-6, 0.5, 1.0 - 1e-9, 1.0):
        found = sq.OrthogonalGLMRegressor(budget=budget).fit(Z, y, protected=x).solution_.certificate
        assert found.is_kept and found.is_optimal
    x = Z[:, 0] - Z @ np.linalg.lstsq(Z - Z.mean(axis=0), Z[:, 0] - Z[:, 0].mean(), rcond=None)[0]
    y = Z @ [0.0, 1.0, 1.0]
    x = np.column_stack([np.ones(300), Z])
    x = rng.normal(size=300) - x @ np.linalg.lstsq(x, np.zeros(300), rcond=None)[0]
    assert sq.OrthogonalGLMRegressor(budget=0.5).fit(Z, y, protected=x).solution_.certificate.is_kept


def test_models_keep_their_budget_and_old_files_load() -> None:
    Z, y, X = _draw()
    state = write_state(sq.OrthogonalGLMClassifier(budget=0.25).fit(Z, y, protected=X))
    again = read_state(state)
    assert again.budget == 0.25 and again.solution_.certificate.covariance_share == pytest.approx(0.25, abs=1e-6)
    assert again.solution_.certificate.is_kept
    old = write_state(sq.OrthogonalGLMClassifier().fit(Z, y, protected=X))
    for key in ("budget", "covariance_share", "correlation"):
        old["solution"]["certificate"].pop(key)
    old["parameters"].pop("budget")
    loaded = read_state(old)
    assert loaded.budget == 0.0 and loaded.solution_.certificate.is_kept and loaded.solution_.certificate.is_orthogonal
