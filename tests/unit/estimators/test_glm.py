"""The corrected generalised linear models as a statistician uses them."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import NotFittedError

import setsquare as sq
from setsquare import families
from setsquare.errors import DroppedColumnWarning, OffsetWarning, PooledLevelWarning, SolverWarning
from setsquare.estimators.warn import judge


def largest_correlation(protected, predictions) -> float:
    P, Y = np.asarray(protected, dtype=float), np.asarray(predictions, dtype=float)
    P, Y = P.reshape(len(P), -1), Y.reshape(len(Y), -1)
    return float(np.abs(np.corrcoef(P.T, Y.T)[: P.shape[1], P.shape[1] :]).max())


def patients(n: int = 600, seed: int = 0) -> pd.DataFrame:
    """A table whose outcome and features depend on sex and race."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(["female", "male"], size=n)
    race = rng.choice(["a", "b", "c"], p=[0.6, 0.3, 0.1], size=n)
    income = rng.normal(size=n) + 0.8 * (sex == "male") - 0.5 * (race == "c")
    job = np.where(rng.random(n) < 0.3 + 0.3 * (sex == "male"), "office", "field")
    weight, visits, steps = rng.normal(size=(3, n)) + 0.3 * income + 0.2 * (race == "b")
    score = 0.9 * income + 0.5 * (job == "office") + 0.4 * visits + rng.normal(size=n)
    columns = {"sex": sex, "race": race, "income": income, "job": job, "weight": weight, "visits": visits}
    return pd.DataFrame({**columns, "steps": steps, "sick": score > 0.4})


def dummies(table: pd.DataFrame) -> np.ndarray:
    return pd.get_dummies(table[["sex", "race"]], drop_first=True).to_numpy(dtype=float)


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_named_columns_of_any_dataframe_are_protected_and_left_out_of_the_features(kind):
    table = patients()
    convert = {"pandas": lambda t: t, "polars": pl.from_pandas, "pyarrow": pa.Table.from_pandas}[kind]
    features = convert(table.drop(columns="sick"))
    model = sq.OrthogonalGLMClassifier(protected=["sex", "race"]).fit(features, table["sick"])
    p = model.predict_proba(features)[:, 1]
    assert list(model.coefficient_names_) == ["income", "job[office]", "weight", "visits", "steps"]
    assert list(model.protected_names_) == ["sex[male]", "race[b]", "race[c]"]
    assert list(model.feature_names_in_) == ["sex", "race", "income", "job", "weight", "visits", "steps"]
    assert largest_correlation(dummies(table), p) < 1e-8
    certificate = model.solution_.certificate
    assert certificate.loss_unconstrained < certificate.loss < certificate.loss_null


def test_a_protected_table_given_to_fit_is_not_needed_to_predict():
    table = patients()
    features = table[["income", "steps", "job"]]
    model = sq.OrthogonalGLMClassifier().fit(features, table["sick"], protected=table[["sex"]])
    assert largest_correlation(dummies(table)[:, 0], model.predict_proba(features)[:, 1]) < 1e-8
    assert set(model.predict(features.head(3))) <= {False, True}


def test_use_protected_keeps_the_columns_among_the_features():
    table = patients()
    features = table.drop(columns="sick")
    model = sq.OrthogonalGLMClassifier(protected=["sex", "race"], use_protected=True).fit(features, table["sick"])
    assert "sex[male]" in model.coefficient_names_
    assert largest_correlation(dummies(table), model.predict_proba(features)[:, 1]) < 1e-8
    without = sq.OrthogonalGLMClassifier(protected=["sex", "race"]).fit(features, table["sick"])
    assert model.solution_.certificate.loss <= without.solution_.certificate.loss + 1e-12


def test_all_cells_protect_the_interaction_that_dummies_leave():
    table = patients(1500)
    # Women of race b are rich, men of race b are poor: invisible to sex and race alone.
    b = table["race"] == "b"
    table["income"] += np.where(b, np.where(table["sex"] == "male", -1.5, 1.5), 0.0)
    table["height"] = table["steps"] ** 2
    features = table.drop(columns="sick")
    cells = (table["sex"] + table["race"]).to_numpy()
    means = {}
    for coding in ("linear", "cells"):
        model = sq.OrthogonalGLMClassifier(protected=["sex", "race"], basis=coding).fit(features, table["sick"])
        p = model.predict_proba(features)[:, 1]
        means[coding] = np.ptp([p[cells == cell].mean() for cell in np.unique(cells)])
    assert means["linear"] > 1e-3
    assert means["cells"] < 1e-9


def test_a_formula_protects_interactions_and_splines():
    table = patients()
    table["age"] = np.random.default_rng(1).uniform(20, 80, size=len(table))
    table["income"] += 0.05 * (table["age"] - 50) ** 2 / 30
    table["height"] = np.random.default_rng(2).normal(size=len(table))
    for name in ("u", "v", "w", "x"):
        table[name] = np.random.default_rng(ord(name)).normal(size=len(table)) + 0.3 * table["income"]
    features = table.drop(columns="sick")
    model = sq.OrthogonalGLMClassifier(protected="~ sex + bs(age, df=4)").fit(features, table["sick"])
    p = model.predict_proba(features)[:, 1]
    assert "age" not in model.coefficient_names_
    assert largest_correlation(table["age"] ** 2, p) < 1e-8  # a cubic spline holds all quadratics


def test_three_classes_on_real_data_are_orthogonal_class_by_class():
    Z, y = load_iris(return_X_y=True)
    protected, features = Z[:, :1], Z[:, 1:]
    model = sq.OrthogonalGLMClassifier().fit(features, y, protected=protected)
    p = model.predict_proba(features)
    assert p.shape == (150, 3)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-14)
    centred = protected - protected.mean()
    assert np.abs(centred.T @ p / len(y) / centred.std()).max() < 1e-8
    plain = sq.solve(sq.Problem(features, y.astype(float), family="multinomial", l2=1e-6))
    free = families.activation("softmax")(features @ plain.coef.T + plain.intercept)
    assert largest_correlation(protected, free) > 0.5


def test_class_labels_of_any_kind_come_back():
    table = patients()
    y = np.where(table["sick"], "ill", "well")
    features = table[["income", "steps"]]
    model = sq.OrthogonalGLMClassifier().fit(features, y, protected=table["sex"])
    assert set(model.predict(features)) == {"ill", "well"}
    assert list(model.classes_) == ["ill", "well"]
    scores = model.decision_function(features)
    assert ((scores > 0) == (model.predict(features) == "well")).all()


FAMILIES = [
    ("gaussian", None),
    ("gaussian", "log"),
    ("poisson", None),
    ("gamma", None),
    ("gamma", "canonical"),
    ("tweedie", None),
    (families.tweedie(1.7), None),
    ("negative_binomial", None),
    ("negative_binomial", "canonical"),
    ("binomial", None),
]


@pytest.mark.parametrize(("family", "link"), FAMILIES)
def test_every_family_meets_its_constraint_and_beats_the_constant(family, link):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(400, 2))
    Z = 0.6 * X @ rng.normal(size=(2, 4)) + rng.normal(size=(400, 4))
    mean = np.exp(0.3 * Z @ [1.0, -0.5, 0.3, 0.2] + 0.3)
    name = family if isinstance(family, str) else family.name
    y = {
        "gaussian": np.maximum(mean + 0.1 * rng.normal(size=400), 0.05),
        "poisson": rng.poisson(mean),
        "gamma": rng.gamma(2.0, mean / 2.0),
        "tweedie": rng.gamma(2.0, mean / 2.0) * (rng.random(400) < 0.7),
        "negative_binomial": rng.negative_binomial(2.0, 2.0 / (2.0 + mean)),
        "binomial": rng.binomial(4, mean / (1.0 + mean)) / 4.0,
    }[name]
    model = sq.OrthogonalGLMRegressor(family, link=link).fit(Z, y, protected=X)
    certificate = model.solution_.certificate
    assert largest_correlation(X, model.predict(Z)) < 1e-8
    assert certificate.loss < certificate.loss_null - 1e-4
    assert certificate.loss_unconstrained < certificate.loss
    assert certificate.is_optimal


def test_exposure_enters_as_an_offset():
    rng = np.random.default_rng(4)
    X, exposure = rng.normal(size=(500, 1)), rng.uniform(0.5, 3.0, size=500)
    Z = X + rng.normal(size=(500, 3))
    y = rng.poisson(exposure * np.exp(0.4 * Z[:, 0]))
    model = sq.OrthogonalGLMRegressor("poisson").fit(Z, y, protected=X, offset=np.log(exposure))
    assert largest_correlation(X, model.predict(Z, offset=np.log(exposure))) < 1e-8
    with pytest.warns(OffsetWarning, match="offset of 0"):
        rate = model.predict(Z)
    np.testing.assert_allclose(model.predict(Z, offset=np.log(exposure)), exposure * rate, rtol=1e-12)
    assert model.score(Z, y, offset=np.log(exposure)) > 0.0


def test_weights_count_as_repetition():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(200, 1))
    Z = X + rng.normal(size=(200, 3))
    y = rng.poisson(np.exp(0.3 * Z[:, 0]))
    weight = rng.integers(0, 4, size=200)
    weighted = sq.OrthogonalGLMRegressor("poisson").fit(Z, y, protected=X, sample_weight=weight)
    repeated = sq.OrthogonalGLMRegressor("poisson").fit(
        np.repeat(Z, weight, axis=0), np.repeat(y, weight), protected=np.repeat(X, weight, axis=0)
    )
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-7)


@pytest.mark.parametrize(
    "convert", [sparse.csr_matrix, sparse.csr_array, sparse.csc_matrix, lambda Z: Z.astype(np.float32)]
)
def test_sparse_and_single_precision_features_give_the_same_model(convert):
    rng = np.random.default_rng(6)
    X = (rng.random((300, 2)) < 0.3).astype(float)
    Z = ((rng.random((300, 6)) + 0.2 * X[:, :1]) < 0.4).astype(float)
    y = (rng.random(300) < 0.3 + 0.4 * Z[:, 0]).astype(int)
    dense = sq.OrthogonalGLMClassifier().fit(Z, y, protected=X)
    other = sq.OrthogonalGLMClassifier().fit(convert(Z), y, protected=X)
    np.testing.assert_allclose(other.coef_, dense.coef_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(other.predict_proba(convert(Z)), dense.predict_proba(Z), atol=1e-8)


def test_rows_with_missing_values_can_be_dropped_or_given_a_level():
    table = patients()
    table.loc[:9, "income"] = np.nan
    table.loc[5:14, "race"] = None
    features = table.drop(columns="sick")
    dropped = sq.OrthogonalGLMClassifier(protected=["sex", "race"], missing="drop").fit(features, table["sick"])
    complete = features.dropna()
    by_hand = sq.OrthogonalGLMClassifier(protected=["sex", "race"]).fit(complete, table["sick"][complete.index])
    np.testing.assert_allclose(dropped.coef_, by_hand.coef_, rtol=1e-10)
    assert dropped.n_dropped_ == len(features) - len(complete) == 15
    with pytest.raises(sq.errors.MissingValuesError, match="'income'"):
        dropped.predict(features)
    level = sq.OrthogonalGLMClassifier(protected=["sex", "race"], missing="level").fit(features, table["sick"])
    assert "race[missing]" in level.protected_names_
    assert "income[missing]" in level.coefficient_names_


def test_unseen_levels_are_refused_or_pooled_with_a_count():
    table = patients()
    features = table.drop(columns="sick")
    new = features.head(4).assign(job=["office", "field", "sea", "sea"])
    strict = sq.OrthogonalGLMClassifier(protected=["sex", "race"]).fit(features, table["sick"])
    with pytest.raises(sq.errors.UnseenLevelError, match=r"'job'.*sea"):
        strict.predict(new)
    pooling = sq.OrthogonalGLMClassifier(protected=["sex", "race"], unseen="pool").fit(features, table["sick"])
    with pytest.warns(PooledLevelWarning, match=r"job \(2\)"):
        p = pooling.predict_proba(new)
    np.testing.assert_allclose(p[2:], pooling.predict_proba(new.assign(job="field"))[2:])


def test_protected_columns_may_be_gone_from_the_table_at_prediction():
    table = patients()
    features = table.drop(columns="sick")
    model = sq.OrthogonalGLMClassifier(protected=["sex", "race"]).fit(features, table["sick"])
    bare = features.drop(columns=["sex", "race"])
    np.testing.assert_array_equal(model.predict_proba(features.drop(columns="sex")), model.predict_proba(features))
    np.testing.assert_array_equal(model.predict_proba(bare), model.predict_proba(features))
    np.testing.assert_array_equal(model.predict_proba(pl.from_pandas(bare)), model.predict_proba(features))
    with pytest.raises(sq.errors.InputError, match="'income'"):
        model.predict_proba(bare.drop(columns="income"))


def test_new_protected_levels_do_not_matter_to_prediction():
    table = patients()
    features = table.drop(columns="sick")
    model = sq.OrthogonalGLMClassifier(protected=["sex", "race"]).fit(features, table["sick"])
    changed = features.assign(sex="unknown", race="z")
    np.testing.assert_array_equal(model.predict_proba(changed), model.predict_proba(features))


def test_collinear_and_constant_protected_columns_are_named_and_harmless():
    table = patients()
    P = pd.DataFrame({"male": (table["sex"] == "male").astype(float), "one": 1.0})
    P["female"] = 1.0 - P["male"]
    features = table[["income", "steps", "job"]]
    with pytest.warns(DroppedColumnWarning, match=r"constant: one; linear combinations of others: female"):
        model = sq.OrthogonalGLMClassifier().fit(features, table["sick"], protected=P)
    assert largest_correlation(P[["male", "female"]], model.predict_proba(features)[:, 1]) < 1e-8
    assert model.solution_.certificate.rank_protected == 1


def test_warnings_point_at_the_line_that_called():
    table = patients()
    with pytest.warns(DroppedColumnWarning) as caught:
        sq.OrthogonalGLMClassifier().fit(
            table[["income", "steps"]], table["sick"], protected=table[["sex"]].assign(one=1.0)
        )
    assert caught[0].filename == __file__


def test_a_warm_start_needs_no_more_than_two_iterations():
    table = patients()
    features = table.drop(columns="sick")
    model = sq.OrthogonalGLMClassifier(protected=["sex", "race"], warm_start=True).fit(features, table["sick"])
    before = model.coef_.copy()
    assert model.n_iter_ > 2
    model.fit(features, table["sick"])
    assert model.n_iter_ <= 2
    np.testing.assert_allclose(model.coef_, before, rtol=1e-6)


def test_the_papers_optimiser_says_what_it_leaves():
    table = patients()
    features = table.drop(columns="sick")
    with pytest.warns(SolverWarning, match=r"still correlated.*mdmm"):
        model = sq.OrthogonalGLMClassifier(protected=["sex", "race"], solver="mdmm", max_iter=300).fit(
            features, table["sick"]
        )
    assert largest_correlation(dummies(table), model.predict_proba(features)[:, 1]) > 1e-6


def test_too_few_iterations_are_orthogonal_all_the_same_and_say_that_they_were_too_few():
    table = patients()
    features = table.drop(columns="sick")
    with pytest.warns(SolverWarning, match="largest number of iterations"):
        model = sq.OrthogonalGLMClassifier(protected=["sex", "race"], max_iter=1).fit(features, table["sick"])
    assert largest_correlation(dummies(table), model.predict_proba(features)[:, 1]) < 1e-8


def test_a_model_that_leaks_is_never_returned():
    table = patients()
    model = sq.OrthogonalGLMClassifier(protected=["sex", "race"]).fit(table.drop(columns="sick"), table["sick"])
    certificate = dataclasses.replace(model.solution_.certificate, max_correlation=1e-3)
    with pytest.raises(sq.errors.NotOrthogonalError, match=r"1.0e-03.*increase max_iter"):
        judge(dataclasses.replace(model.solution_, certificate=certificate))


def test_models_survive_clone_and_pickle():
    Z, y = load_diabetes(return_X_y=True)
    model = sq.OrthogonalGLMRegressor(families.tweedie(1.5), protected=[0, 1]).fit(Z, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(Z), model.predict(Z))
    assert again.solution_.certificate == model.solution_.certificate
    assert not hasattr(clone(model), "coef_")


def test_the_canonical_gamma_link_refuses_rows_without_a_mean():
    rng = np.random.default_rng(7)
    X = rng.normal(size=(300, 1))
    Z = np.abs(0.5 * X + rng.normal(size=(300, 2)))
    y = rng.gamma(5.0, 1.0 / (1.0 + Z[:, 0]) / 5.0)
    model = sq.OrthogonalGLMRegressor("gamma", link="canonical").fit(Z, y, protected=X)
    far = Z[:2] + 1e4 * np.sign(model.coef_)
    with pytest.raises(sq.errors.InputError, match=r'2 row.*link="log"'):
        model.predict(far)


def test_a_failed_fit_leaves_no_model_that_leaks(monkeypatch):
    table = patients()
    features = table.drop(columns="sick")

    def refuse(solution, constant, **_):
        raise sq.errors.NotOrthogonalError("it leaks")

    monkeypatch.setattr("setsquare.estimators.glm.judge", refuse)
    model = sq.OrthogonalGLMClassifier(protected=["sex", "race"])
    with pytest.raises(sq.errors.NotOrthogonalError):
        model.fit(features, table["sick"])
    with pytest.raises(NotFittedError):
        model.predict(features)


def test_classes_are_those_of_the_rows_that_are_left():
    table = patients()
    y = np.where(table["sick"], "ill", "well").astype(object)
    y[:20] = "gone"
    features = table.drop(columns="sick").assign(income=table["income"].where(np.arange(len(table)) >= 20))
    model = sq.OrthogonalGLMClassifier(protected=["sex", "race"], missing="drop").fit(features, y)
    assert list(model.classes_) == ["ill", "well"] and model.predict_proba(features.iloc[20:]).shape[1] == 2


@pytest.mark.parametrize(("family", "link"), [("gamma", "canonical"), ("poisson", None)])
def test_restarts_stay_in_the_domain_and_never_end_worse(family, link):
    rng = np.random.default_rng(9)
    X = rng.normal(size=(200, 1))
    Z = np.abs(0.5 * X + rng.normal(size=(200, 3)))
    y = rng.gamma(5.0, 1.0 / (1.0 + Z[:, 0]) / 5.0)
    once = sq.OrthogonalGLMRegressor(family, link=link).fit(Z, y, protected=X)
    often = sq.OrthogonalGLMRegressor(family, link=link, n_restarts=5, random_state=0).fit(Z, y, protected=X)
    assert often.solution_.certificate.loss <= once.solution_.certificate.loss + 1e-12


def test_a_ridge_settles_collinear_features_on_any_scale():
    rng = np.random.default_rng(10)
    X = rng.normal(size=(300, 1))
    z = X + rng.normal(size=(300, 2))
    Z = np.column_stack([1e6 * z, 1e6 * z[:, 0]])
    y = (z[:, 0] + rng.normal(size=300) > 0).astype(int)
    with pytest.warns(sq.errors.DroppedColumnWarning, match="x2"):  # 1e-16 of the variance: the ridge is none
        model = sq.OrthogonalGLMClassifier(l2=1e-4).fit(Z, y, protected=X)
    assert largest_correlation(X, model.predict_proba(Z)[:, 1]) < 1e-8


@pytest.mark.parametrize("seed", [11, 13, 14, 18, 20])  # 18 and 20 took 100 steps once
def test_an_outcome_far_from_zero_is_certified_honestly(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(300, 1))
    Z = X + rng.normal(size=(300, 3))
    y = 1e9 + Z[:, 0] + rng.normal(size=300)
    model = sq.OrthogonalGLMRegressor().fit(Z, y, protected=X)
    assert largest_correlation(X, model.predict(Z) - 1e9) < 1e-6
    assert model.n_iter_ < 10


@pytest.mark.parametrize("positions", [[0, 1], [3, 4], [4, 1]])
def test_protected_columns_of_an_array_may_stand_anywhere(positions: list[int]) -> None:
    rng = np.random.default_rng(0)
    A = rng.normal(size=(400, 5)) + rng.normal(size=(400, 1))
    y = (rng.random(400) < 1.0 / (1.0 + np.exp(-A.sum(axis=1) / 3.0))).astype(int)
    inside = sq.OrthogonalGLMClassifier(protected=positions).fit(A, y)
    beside = sq.OrthogonalGLMClassifier().fit(np.delete(A, positions, axis=1), y, protected=A[:, positions])
    np.testing.assert_allclose(inside.coef_, beside.coef_, rtol=1e-9)
    assert inside.coef_.shape == (1, 3)
