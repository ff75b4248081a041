"""The path of budgets: numbers, picks, bad input, documents."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import setsquare as sq
from setsquare.errors import InputError

N = 600


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    age, sex = rng.normal(size=N), rng.choice(["f", "m"], N)
    table = pd.DataFrame({"age": age, "sex": sex, "a": age + rng.normal(size=N)})
    table["b"], table["c"] = (sex == "m") + rng.normal(size=N), rng.normal(size=N)
    table["y"] = table["a"] + table["b"] + table["c"] + rng.normal(size=N) > 0.5
    return table


@pytest.fixture(scope="module")
def path(people: pd.DataFrame) -> sq.Tradeoff:
    model = sq.OrthogonalGLMClassifier(protected=["age", "sex"])
    return sq.tradeoff(model, people.drop(columns="y"), people["y"], budgets=6)


def test_ends_are_the_orthogonal_and_the_plain_model(people: pd.DataFrame, path: sq.Tradeoff) -> None:
    Z = people.drop(columns="y")
    exact = sq.OrthogonalGLMClassifier(protected=["age", "sex"]).fit(Z, people["y"]).solution_.certificate
    plain = sq.OrthogonalGLMClassifier(protected=["age", "sex"], budget=1.0).fit(Z, people["y"]).solution_.certificate
    first, last = path.points[0], path.points[-1]
    assert first.loss == pytest.approx(exact.loss, abs=1e-6) and first.correlation < 1e-8
    assert last.loss == pytest.approx(plain.loss, abs=1e-6) and last.price == 0.0
    assert last.correlation == pytest.approx(plain.correlation)
    assert first.new_correlation == pytest.approx(exact.new_rows.correlation, abs=1e-6)
    assert last.new_correlation == pytest.approx(plain.new_rows.correlation, abs=1e-6)


def test_path_is_that_of_single_fits(people: pd.DataFrame, path: sq.Tradeoff) -> None:
    Z = people.drop(columns="y")
    for point in path.points[1:-1]:
        model = sq.OrthogonalGLMClassifier(protected=["age", "sex"], budget=point.budget).fit(Z, people["y"])
        found = model.solution_.certificate
        assert point.loss == pytest.approx(found.loss, abs=1e-7)
        assert point.correlation == pytest.approx(found.correlation, abs=1e-6)
        assert point.new_loss.estimate == pytest.approx(found.new_rows.loss, abs=1e-6)
        assert point.new_correlation_upper == pytest.approx(found.new_rows.upper, abs=1e-6)


def test_everything_is_monotone(path: sq.Tradeoff) -> None:
    table = path.table()
    assert (np.diff(table["loss"]) < 0).all() and (np.diff(table["price"]) < 0).all()
    assert (np.diff(table["correlation"]) > 0).all() and (np.diff(table["score"]) > 0).all()
    assert (table["new_loss_low"] < table["new_loss"]).all() and (table["new_loss"] < table["new_loss_high"]).all()
    assert (table["new_loss"] > table["loss"]).all()  # the training rows were fitted


def test_picks_follow_their_rules(path: sq.Tradeoff) -> None:
    table, picked = path.table(), path.pick()
    best = table.loc[table["new_loss"].idxmin()]
    within = table[table["new_loss"] <= best["new_loss"] + best["new_loss_std_error"]]
    assert picked.budget == within["budget"].min()
    limit = float(table["new_correlation_high"].iloc[3])
    assert path.pick(max_correlation=limit).budget == table["budget"].iloc[3]
    with pytest.raises(InputError, match=r"No budget has an upper bound of at most 0\.001"):
        path.pick(max_correlation=0.001)


def test_document_has_table_and_figures(path: sq.Tradeoff, tmp_path: Path) -> None:
    page = path.to_html(tmp_path / "page.html")
    assert page.count("polyline") >= 8  # two figures, two curves, wide and narrow
    assert "budget 0.400, new rows" in page and "one standard error" in str(path)
    found = json.loads(json.dumps(path.to_dict()))
    assert len(found["points"]) == 6 and found["picked"] == path.pick().budget


@pytest.mark.parametrize(
    ("estimator", "options", "message"),
    [
        (LogisticRegression(), {}, "needs an OrthogonalGLMClassifier"),
        (sq.OrthogonalGLMClassifier(orthogonal_on="new rows"), {}, 'orthogonal_on="training rows"'),
        (sq.OrthogonalGLMClassifier(relax="box"), {}, "leave out relax="),
        (sq.OrthogonalGLMClassifier(), {"budgets": 1}, "at least 2"),
        (sq.OrthogonalGLMClassifier(), {"budgets": [0.5, 1.5]}, "between 0 .* not 1.5"),
        (sq.OrthogonalGLMClassifier(), {"budgets": []}, "between 1 and 1000"),
        (sq.OrthogonalGLMClassifier(), {"budgets": None}, "a number of budgets"),
        (sq.OrthogonalGLMClassifier(), {"confidence": 1.0}, "confidence"),
        (sq.OrthogonalGLMClassifier(solver="mdmm"), {}, "mdmm"),
        (sq.OrthogonalGLMClassifier(solver="other"), {}, "solver='other' is not one of"),
        (sq.OrthogonalGLMClassifier(expand="other"), {}, "expand='other' is not one of"),
        (sq.OrthogonalGLMClassifier(missing="model", use_protected=True), {}, "leave out use_protected=True"),
    ],
)
def test_bad_input_is_refused(people: pd.DataFrame, estimator: object, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sq.tradeoff(estimator, people[["a", "b", "c"]], people["y"], people[["age", "sex"]], **options)


def test_protected_columns_and_rows_in_memory_are_needed(people: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="protected"):
        sq.tradeoff(sq.OrthogonalGLMClassifier(), people[["a", "b", "c"]], people["y"])
    stream = sq.Stream(lambda: iter([people]))
    with pytest.raises(InputError, match="rows in memory"):
        sq.tradeoff(sq.OrthogonalGLMClassifier(protected="sex"), stream, "y")


def test_without_new_rows_nothing_is_picked(people: pd.DataFrame) -> None:
    model = sq.OrthogonalGLMClassifier()
    path = sq.tradeoff(model, people[["a", "b"]], people["y"], people["sex"], budgets=3, new_rows=False)
    assert path.table()["new_loss"].isna().all() and path.to_dict()["picked"] is None
    with pytest.raises(InputError, match="new_rows=True"):
        path.pick()


def test_what_new_rows_need_is_said_where_they_are_not_known(people: pd.DataFrame) -> None:
    model, cluster = sq.OrthogonalGLMClassifier(given="c"), np.arange(len(people)) // 2
    path = sq.tradeoff(model, people[["a", "b", "c"]], people["y"], people["sex"], budgets=2, cluster=cluster)
    assert not path.knows_new_rows and "given controls" in path.notes[0] and "no clusters" in path.notes[0]
    with pytest.raises(InputError, match="given controls, two classes or a numeric outcome, no clusters"):
        path.pick()


@pytest.mark.parametrize("options", [{"given": "c"}, {"given": "outcome"}, {"l2": 0.01}, {"use_protected": True}])
def test_options_of_the_estimator_hold(people: pd.DataFrame, options: dict) -> None:
    Z = people.drop(columns="y")
    model = sq.OrthogonalGLMClassifier(protected=["age"], **options)
    path = sq.tradeoff(model, Z.drop(columns="sex"), people["y"], budgets=[0.0, 0.3, 1.0])
    single = sq.OrthogonalGLMClassifier(protected=["age"], budget=0.3, **options)
    found = single.fit(Z.drop(columns="sex"), people["y"]).solution_.certificate
    assert found.is_kept and found.is_optimal and found.covariance_share == pytest.approx(0.3, abs=1e-6)
    ridge = 0.5 * single.l2_ * float(np.sum(single.coef_**2))
    assert path.points[1].loss == pytest.approx(found.loss - ridge, abs=1e-7)


def test_counts_numbers_classes_weights_and_clusters(people: pd.DataFrame) -> None:
    rng = np.random.default_rng(0)
    Z, X = people[["a", "b", "c"]], people[["age", "sex"]]
    more = {"sample_weight": rng.integers(0, 3, N), "cluster": np.arange(N) // 3}
    counts = sq.tradeoff(
        sq.OrthogonalGLMRegressor("poisson"), Z, rng.poisson(np.exp(0.3 * Z["a"])), X, budgets=4, **more
    )
    assert counts.score == "rmse" and (np.diff([p.loss for p in counts.points]) < 0).all()
    assert all(p.new_loss.std_error > 0 for p in counts.points)
    classes = np.select([Z["a"] > 1, Z["b"] > 1], ["x", "y"], "z")
    found = sq.tradeoff(sq.OrthogonalGLMClassifier(l2=1e-3), Z, classes, X, budgets=4)
    assert found.score == "auc" and (np.diff([p.score for p in found.points]) > 0).all()


def test_new_rows_are_what_other_rows_show() -> None:
    """Leave-one-out numbers come nearer to those of many new rows than the training rows do."""
    rng = np.random.default_rng(1)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = rng.integers(0, 2, n).astype(float)
        Z = rng.normal(size=(n, 25))
        Z[:, :5] += 0.8 * x[:, None]
        return Z, (rng.random(n) < 1.0 / (1.0 + np.exp(-Z[:, :8].sum(axis=1) / 2.0 + 1.0))).astype(float), x

    gaps: dict[str, list[float]] = {"training": [], "left out": []}
    correlations: dict[str, list[float]] = {"training": [], "left out": []}
    for _ in range(12):
        Z, y, x = draw(300)
        point = sq.tradeoff(sq.OrthogonalGLMClassifier(), Z, y, x, budgets=[0.4]).points[0]
        model = sq.OrthogonalGLMClassifier(budget=0.4).fit(Z, y, protected=x)
        Z2, y2, x2 = draw(20_000)
        p = model.predict_proba(Z2)[:, 1]
        loss = float(-np.mean(y2 * np.log(p) + (1 - y2) * np.log1p(-p)))
        correlation = abs(float(np.corrcoef(x2, p)[0, 1]))
        gaps["training"].append(point.loss - loss)
        gaps["left out"].append(point.new_loss.estimate - loss)
        correlations["training"].append(point.correlation - correlation)
        correlations["left out"].append(point.new_correlation - correlation)
    assert np.mean(gaps["training"]) < -0.05  # far too good
    assert abs(np.mean(gaps["left out"])) < 0.03
    assert abs(np.mean(correlations["left out"])) < 0.02
    assert np.mean(correlations["training"]) < np.mean(correlations["left out"])


@pytest.mark.filterwarnings("ignore")
def test_a_wider_feature_space_has_the_ridge_of_the_fit() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=400)
    Z = X[:, None] + rng.normal(size=(400, 3))
    y = (Z[:, 0] + Z[:, 1] * Z[:, 2] + rng.normal(size=400) > 0.5).astype(int)
    model = sq.OrthogonalGLMClassifier(expand="auto")
    point = sq.tradeoff(model, Z, y, protected=X, budgets=[0.0, 1.0], new_rows=False).points[0]
    p = model.fit(Z, y, protected=X).predict_proba(Z)[:, 1]
    loss = -np.mean(np.log(np.where(y == 1, p, 1.0 - p)))
    assert model.l2_ > 0.0 and point.loss == pytest.approx(loss, rel=1e-6)  # without the ridge, as on new rows
