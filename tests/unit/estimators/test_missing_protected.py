"""missing="model": what it reads, says, keeps and refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import setsquare as sq
from setsquare.errors import HardlyObservedWarning, InputError, MissingValuesError
from setsquare.glm.missing_protected import cross_fit_columns


def _table(n: int = 600, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    race = rng.choice(["a", "b", "c"], size=n)
    sex = rng.choice(["f", "m"], size=n)
    z = rng.normal(size=(n, 8)) + (race == "b")[:, None] + 0.5 * (sex == "m")[:, None]
    z[:, 5] += race == "c"
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-z[:, :4].sum(axis=1) / 2.0))).astype(int)
    table = pd.DataFrame({"z0": z[:, 0], "z1": z[:, 1], "job": rng.choice(["x", "y"], size=n), "z2": z[:, 2]})
    table = table.assign(**{f"z{j}": z[:, j] for j in range(3, 8)})
    table["race"], table["sex"] = race, sex
    table.loc[rng.random(n) < 0.7, "race"] = None
    return table, y


def _model(**options: Any) -> sq.OrthogonalGLMClassifier:
    return sq.OrthogonalGLMClassifier(protected=["race", "sex"], missing="model", **options)


def test_the_certificate_says_what_is_missing_and_assumed() -> None:
    table, y = _table()
    certificate = _model().fit(table, y).solution_.certificate
    assert certificate.missing_protected == ("race",)
    assert certificate.missing_shares == (table["race"].isna().mean(),)
    assert certificate.missing_given == ("the features", "the outcome", "sex")
    text = str(certificate)
    assert (
        "Orthogonal to the protected columns, missing values modelled" in text
        and f"race ({certificate.missing_shares[0]:.0%})" in text
    )
    assert "Assumed: missing at random given" in text
    assert certificate.to_dict()["missing_protected"] == ["race"]


def test_a_complete_column_is_used_as_it_is() -> None:
    table, y = _table()
    p = _model().fit(table, y).predict_proba(table)[:, 1]
    assert abs(np.corrcoef(table["sex"] == "m", p)[0, 1]) < 1e-8


def test_a_saved_model_keeps_it(tmp_path: Path) -> None:
    table, y = _table()
    model = _model().fit(table, y)
    sq.save(model, tmp_path / "m")
    again = sq.load(tmp_path / "m")
    assert again.missing == "model"
    assert again.solution_.certificate == model.solution_.certificate
    assert np.array_equal(again.predict_proba(table), model.predict_proba(table))


def test_prediction_needs_no_protected_column() -> None:
    table, y = _table()
    model = _model().fit(table, y)
    assert np.array_equal(model.predict_proba(table.drop(columns=["race", "sex"])), model.predict_proba(table))


def test_correlations_on_new_rows_are_those_with_the_columns_themselves() -> None:
    table, y = _table(2000)
    found = _model().fit(table, y).solution_.certificate.new_rows
    assert found is not None and 1.3 < found.inflation < 6.0  # 1 / sqrt(0.3) = 1.8 if nothing were predicted
    assert found.correlation <= found.upper <= 1.0


@pytest.mark.parametrize(
    "options",
    [
        {"given": ["job"]},
        {"given": "outcome"},
        {"basis": "cells"},
        {"orthogonal_on": "new rows"},
        {"l2": "auto"},
    ],
)
def test_it_goes_with_other_options(options: dict[str, Any]) -> None:
    table, y = _table(4000)
    certificate = _model(**options).fit(table, y).solution_.certificate
    assert certificate.is_orthogonal
    assert (certificate.new_rows is None) == ("given" in options)


def test_it_goes_with_weights_clusters_classes_and_offsets() -> None:
    table, y = _table(1500)
    rng = np.random.default_rng(0)
    three = np.where(rng.random(len(y)) < 0.3, 2, y)
    cluster = rng.integers(0, 300, size=len(y)).astype(str)
    model = _model().fit(table, three, sample_weight=rng.uniform(0.5, 2.0, size=len(y)), cluster=cluster)
    assert model.solution_.certificate.missing_given == ("the features", "the outcome", "the weights", "sex")
    counts = sq.OrthogonalGLMRegressor("poisson", protected="race", missing="model", use_protected=False)
    features = table.drop(columns="sex")
    counts.fit(features, rng.poisson(np.exp(0.2 * table["z0"])), offset=rng.normal(size=len(y)) / 10.0)
    assert counts.solution_.certificate.missing_given == ("the features", "the outcome", "the offset")


def test_columns_of_an_array() -> None:
    table, y = _table()
    Z = table[["z0", "z1", "z2"]].to_numpy()
    age = np.where(np.random.default_rng(0).random(len(y)) < 0.8, np.nan, Z[:, 0])
    model = sq.OrthogonalGLMClassifier(missing="model").fit(Z, y, protected=age)
    assert model.solution_.certificate.missing_protected == ("x0",)


def _all_missing(table: pd.DataFrame) -> None:
    table["race"] = None


def _one_class(table: pd.DataFrame) -> None:
    table.loc[table["race"].notna(), "race"] = "a"


def _few(table: pd.DataFrame) -> None:
    table.loc[table.index[49:], "race"] = None
    table.loc[table.index[:49], "race"] = ["a", "b", "c", "a", "b", "c", "a"] * 7


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_all_missing, "'race' are missing in every row"),
        (_one_class, "'race' has the same value in all .* rows that have it"),
        (_few, "'race' are known in 49 of 600 rows, too few"),
    ],
)
def test_what_cannot_be_modelled_is_refused(change: Any, sentence: str) -> None:
    table, y = _table()
    change(table)
    with pytest.raises(InputError, match=sentence):
        _model().fit(table, y)


def test_features_may_not_be_missing() -> None:
    table, y = _table()
    table.loc[3, "z0"] = np.nan
    with pytest.raises(MissingValuesError, match="'z0'"):
        _model().fit(table, y)


def test_options_that_need_every_value_are_refused() -> None:
    table, y = _table()
    with pytest.raises(InputError, match="use_protected"):
        _model(use_protected=True).fit(table, y)
    with pytest.raises(InputError, match=r"missing='model' with given= .* leave out orthogonal_on='new rows'"):
        _model(given=["job"], orthogonal_on="new rows").fit(table, y)
    with pytest.raises(InputError, match="in memory"):
        sq.OrthogonalGLMClassifier(protected="race", missing="model").fit(sq.Stream(lambda: iter([table])), "z0")
    with pytest.raises(InputError, match="missing='model' is not one of"):
        sq.LinearOrthogonalizer(missing="model").fit(table[["z0"]], protected=table[["race"]])
    with pytest.raises(InputError, match="missing='model' is not one of"):
        sq.PredictionOrthogonalizer(_model(), protected=["race"], missing="model").fit(table, y)


def test_rows_that_are_hardly_ever_observed_are_named() -> None:
    table, y = _table(4000)
    table["race"] = np.random.default_rng(1).choice(["a", "b"], size=4000)
    table.loc[table["z0"] > 0.3, "race"] = None
    with pytest.warns(HardlyObservedWarning, match="of 4000 rows"):
        sq.OrthogonalGLMClassifier(protected="race", missing="model").fit(table.drop(columns="sex"), y)


def test_columns_are_predicted_from_the_rows_of_other_folds() -> None:
    rng = np.random.default_rng(0)
    V = rng.normal(size=(400, 3)) + 5.0
    X = V @ [[1.0], [-2.0], [0.0]] + 0.01 * rng.normal(size=(400, 1))
    observed, fold = rng.random(400) < 0.5, np.arange(400) % 4
    predicted = cross_fit_columns(V, np.where(observed[:, None], X, np.nan), observed, np.ones(400), fold)
    assert np.abs(predicted - X).max() < 0.2 < X.std()


@pytest.mark.filterwarnings("ignore")
def test_a_trade_off_is_about_the_columns_themselves() -> None:
    """On new rows its correlations are those of the certificate, not those with the values that stand for the gaps."""
    table, y = _table()
    path = sq.tradeoff(_model(), table, y, budgets=[0.5])
    known = _model(budget=0.5).fit(table, y).solution_.certificate.new_rows
    point = path.points[0]
    assert known.inflation > 1.2
    assert point.new_correlation == pytest.approx(known.correlation, rel=1e-6)
    assert point.new_correlation_upper == pytest.approx(known.upper, rel=1e-6)
    assert "race" in path.notes[0] and "stand for them" in path.notes[0]
    assert not sq.tradeoff(_model(given="outcome"), table, y, budgets=[0.5]).knows_new_rows


def test_a_table_of_coefficients_says_that_values_are_taken_as_known() -> None:
    table, y = _table()
    assert "taken as known" in str(_model().fit(table, y).summary())


def test_a_column_that_no_row_of_weight_or_one_cluster_alone_has_is_refused() -> None:
    table, y = _table()
    weight = table["race"].isna().to_numpy(float)
    with pytest.raises(InputError, match="'race' are missing in every row"):
        _model().fit(table, y, sample_weight=weight)
    cluster = np.where(table["race"].isna(), np.arange(len(table)) % 9, 9)
    with pytest.raises(InputError, match="'race' is known in one cluster only"):
        _model().fit(table, y, cluster=cluster)


def test_rows_without_the_column_may_have_no_weight_or_one_cluster() -> None:
    table, y = _table()
    known = table["race"].notna().to_numpy()
    alone = _model().fit(table[known], y[known])
    weighted = _model().fit(table, y, sample_weight=known.astype(float))
    assert weighted.coef_ == pytest.approx(alone.coef_, abs=1e-4)
    cluster = np.where(known, np.arange(len(table)) % 50, 50)
    assert np.isfinite(_model().fit(table, y, cluster=cluster).coef_).all()
