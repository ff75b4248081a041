"""Bad input gets one clear sentence that names the column and says what to do."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import setsquare as sq
from setsquare.errors import InputError, LabelSignalWarning, MissingValuesError, OutcomeRangeError, WeightWarning

N = 60


@pytest.fixture
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.normal(50.0, 10.0, size=N),
            "sex": np.where(rng.random(N) < 0.5, "f", "m"),
            "a": rng.normal(size=N),
            "b": rng.normal(size=N),
            "c": rng.normal(size=N),
            "y": (rng.random(N) < 0.5).astype(int),
        }
    )


def fit(table, protected=("age", "sex"), model=sq.OrthogonalGLMClassifier, y=None, **options):
    outcome = table["y"] if y is None else y
    return model(protected=None if protected is None else list(protected), **options).fit(
        table.drop(columns="y"), outcome
    )


def one_sentence(error: pytest.ExceptionInfo) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))
    return text


@pytest.mark.parametrize("column", ["a", "age"])
@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinite")])
def test_missing_and_infinite_values_are_counted_by_column(table, column, value, word):
    table.loc[[3, 5], column] = value
    with pytest.raises(MissingValuesError) as error:
        fit(table)
    text = one_sentence(error)
    assert column in text and "2" in text and word in text


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_missing_outcomes_are_counted(table, value):
    y = table["y"].astype(float)
    y[4] = value
    with pytest.raises(MissingValuesError) as error:
        fit(table, y=y, model=sq.OrthogonalGLMRegressor)
    assert "outcome" in one_sentence(error)


@pytest.mark.parametrize(
    ("family", "value", "words"),
    [("poisson", -1.0, "0 or more"), ("gamma", 0.0, "positive"), ("binomial", 1.5, "between 0 and 1")],
)
def test_outcomes_outside_the_range_of_the_family(table, family, value, words):
    y = np.full(N, 0.5)
    y[7] = value
    with pytest.raises(OutcomeRangeError) as error:
        fit(table, y=y, model=sq.OrthogonalGLMRegressor, family=family)
    text = one_sentence(error)
    assert words in text and f"{value:g}" in text and family in text


def test_one_class_only(table):
    with pytest.raises(InputError, match="only one class"):
        fit(table, y=np.ones(N))


def test_all_outcomes_equal(table):
    with pytest.raises(InputError, match="nothing to predict"):
        fit(table, y=np.zeros(N), model=sq.OrthogonalGLMRegressor, family="poisson")


def test_a_constant_protected_column(table):
    with pytest.raises(InputError) as error:
        fit(table.assign(sex="f"), protected=["sex"])
    assert "sex" in one_sentence(error)
    with pytest.raises(InputError, match=r"age.*constant|constant.*age"):
        fit(table.assign(age=3.0), protected=["age"])


def test_more_protected_columns_than_features(table):
    with pytest.raises(InputError) as error:
        fit(table[["age", "sex", "a", "y"]])
    assert "Only a constant prediction is orthogonal" in one_sentence(error)


def test_fewer_rows_than_protected_columns(table):
    with pytest.raises(InputError, match=r"Too few rows \(n_samples = 2\)"):
        fit(table.iloc[[0, 1]].assign(sex=["f", "m"], y=[0, 1]))


def test_everything_protected(table):
    with pytest.raises(InputError, match="All columns of the table are protected"):
        fit(table[["age", "sex", "y"]])


def test_mismatched_lengths(table):
    features = table[["a", "b", "c"]]
    with pytest.raises(InputError, match="outcome has 10 rows but the features have 60"):
        sq.OrthogonalGLMClassifier().fit(features, table["y"][:10], protected=table["age"])
    with pytest.raises(InputError, match="protected has 10 rows but the features have 60"):
        sq.OrthogonalGLMClassifier().fit(features, table["y"], protected=table["age"][:10])
    with pytest.raises(InputError, match="sample_weight"):
        sq.OrthogonalGLMClassifier().fit(features, table["y"], protected=table["age"], sample_weight=np.ones(3))
    with pytest.raises(InputError, match="offset"):
        sq.OrthogonalGLMClassifier().fit(features, table["y"], protected=table["age"], offset=np.ones(3))


def test_an_unknown_column_offers_the_nearest_names(table):
    with pytest.raises(InputError) as error:
        fit(table, protected=["agee"])
    text = one_sentence(error)
    assert "agee" in text and "'age'" in text


def test_duplicate_column_names(table):
    doubled = pd.concat([table, table[["a"]]], axis=1)
    with pytest.raises(InputError) as error:
        sq.OrthogonalGLMClassifier(protected=["age"]).fit(doubled.drop(columns="y"), table["y"])
    assert "'a'" in one_sentence(error)


def test_an_empty_table(table):
    with pytest.raises(ValueError, match=r"empty|0 sample|minimum of 1"):
        fit(table.iloc[:0])


def test_a_type_without_a_coding(table):
    with pytest.raises(InputError) as error:
        fit(table.assign(a=pd.date_range("2020-01-01", periods=N)))
    assert "'a'" in one_sentence(error)


def test_text_as_the_outcome_of_a_regression(table):
    with pytest.raises(InputError, match="must be numbers"):
        fit(table, y=np.where(table["y"] == 1, "yes", "no"), model=sq.OrthogonalGLMRegressor)


def test_nothing_or_everything_said_twice(table):
    features = table[["a", "b", "c"]]
    with pytest.raises(InputError, match="Nothing is protected"):
        sq.OrthogonalGLMClassifier().fit(features, table["y"])
    with pytest.raises(InputError, match="given twice"):
        sq.OrthogonalGLMClassifier(protected=["a"]).fit(features, table["y"], protected=table["age"])


def test_a_protected_column_that_is_the_outcome_says_how_much_of_the_label_goes(table):
    signal = table["a"] + np.random.default_rng(1).normal(size=N)
    y = (signal > 0).astype(int)
    with pytest.warns(LabelSignalWarning, match=r"explain 100% of the outcome's variance.*copy of it"):
        model = sq.OrthogonalGLMClassifier().fit(table[["a", "b", "c"]], y, protected=pd.DataFrame({"copy": y}))
    p = model.predict_proba(table[["a", "b", "c"]])[:, 1]
    assert abs(np.cov(p, y)[0, 1]) < 1e-10
    assert model.solution_.certificate.label_share == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"solver": "magic"}, "Unknown solver 'magic'"),
        ({"l2": -1.0}, "l2 must be"),
        ({"missing": "ignore"}, "missing='ignore'"),
        ({"basis": "one-hot"}, "basis='one-hot'"),
        ({"reference": {"sex": "x"}}, "sex"),
    ],
)
def test_options_that_do_not_exist(table, options, words):
    with pytest.raises(InputError) as error:
        fit(table, **options)
    assert words in one_sentence(error)


def test_rows_in_another_order_are_noticed(table):
    features = table[["a", "b", "c"]]
    shuffled = table["age"].sample(frac=1.0, random_state=0)
    with pytest.raises(InputError, match="rows of protected have the labels of the features in another order"):
        sq.OrthogonalGLMClassifier().fit(features, table["y"], protected=shuffled)
    with pytest.raises(InputError, match="rows of the outcome"):
        sq.OrthogonalGLMClassifier().fit(features, table["y"].sample(frac=1.0, random_state=0), protected=table["age"])


@pytest.mark.parametrize("names", [["age", "sex"], "age"])
def test_names_given_to_fit_are_sent_to_the_constructor(table, names):
    with pytest.raises(InputError, match="in the constructor"):
        sq.OrthogonalGLMClassifier().fit(table[["a", "b", "c"]], table["y"], protected=names)


def test_tables_given_to_the_constructor_are_sent_to_fit(table):
    for wrong in (table[["age"]], table["age"], table[["age"]].to_numpy()):
        with pytest.raises(InputError, match=r"to fit\(protected"):
            sq.OrthogonalGLMClassifier(protected=wrong).fit(table[["a", "b", "c"]], table["y"])
    with pytest.raises(InputError, match="empty"):
        sq.OrthogonalGLMClassifier(protected=[]).fit(table[["a", "b", "c"]], table["y"])


def test_a_number_that_is_a_position_and_another_columns_name(table):
    numbered = table[["a", "b", "c", "age"]].set_axis([1, 2, 3, 4], axis=1)
    with pytest.raises(InputError, match="2 is a position and also the name"):
        sq.OrthogonalGLMClassifier(protected=[2]).fit(numbered, table["y"])


def test_cells_of_numeric_codes_are_refused(table):
    codes = pd.DataFrame({"sex": table["sex"], "site": np.arange(N) % 3})
    with pytest.raises(InputError, match="'site' is numeric"):
        sq.PredictionOrthogonalizer(LogisticRegression(), basis="cells").fit(table[["a"]], table["y"], protected=codes)
    with pytest.raises(InputError, match="formula is a basis of its own"):
        sq.OrthogonalGLMClassifier(protected="~ sex", basis="cells").fit(table.drop(columns="y"), table["y"])


def test_an_identifier_is_no_feature():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"id": [f"p{i}" for i in range(200)], "a": rng.normal(size=200), "b": rng.normal(size=200)})
    with pytest.raises(InputError, match="'id' has 200 levels in 200 rows"):
        sq.OrthogonalGLMClassifier().fit(table, np.arange(200) % 2, protected=rng.normal(size=200))


def test_a_misspelt_reference_column(table):
    with pytest.raises(InputError, match="'Sex'"):
        fit(table, reference={"Sex": "f"})


def test_text_outcomes_with_missing_values_are_counted(table):
    y = pd.Series(np.where(table["y"] == 1, "yes", "no"), dtype=object)
    y[3] = None
    with pytest.raises(MissingValuesError, match="1 missing"):
        fit(table, y=y)


def test_weights_that_the_model_inside_cannot_take_are_said(table):
    inside = make_pipeline(StandardScaler(), LogisticRegression())
    with pytest.warns(WeightWarning, match="Pipeline takes no sample_weight"):
        sq.PredictionOrthogonalizer(inside).fit(
            table[["a", "b"]], table["y"], protected=table["age"], sample_weight=np.ones(N)
        )


def test_missing_values_in_new_rows_are_not_to_be_dropped() -> None:
    """Before, the message advised ``missing="drop"``, which the model had."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=200), "b": rng.normal(size=200), "sex": rng.choice(["f", "m"], 200)})
    table.loc[3, "a"] = np.nan
    model = sq.OrthogonalGLMRegressor(protected="sex", missing="drop").fit(table, rng.normal(size=200))
    with pytest.raises(MissingValuesError, match=r"column 'a' \(1\) of the rows to predict.*missing='level'") as told:
        model.predict(table)
    assert "drop" not in str(told.value)


def test_a_fitted_model_is_not_a_kind_of_folds() -> None:
    rng = np.random.default_rng(0)
    model = sq.PredictionOrthogonalizer(LinearRegression(), cv="prefit")
    with pytest.raises(InputError, match=r"cv='prefit' is not .*'training rows'; for a fitted model pass prefit=True"):
        model.fit(rng.normal(size=(50, 2)), rng.normal(size=50), protected=rng.normal(size=50))


def test_names_that_a_pipeline_lost_are_explained() -> None:
    rng = np.random.default_rng(0)
    model = sq.OrthogonalGLMRegressor(protected="sex")
    with pytest.raises(InputError, match=r"no column 'sex'; the table is an array without names.*set_output"):
        model.fit(rng.normal(size=(50, 3)), rng.normal(size=50))
