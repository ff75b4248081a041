"""Both sides of conditions of two parts and of limits: just inside, just outside, and exactly at the limit."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from scipy.special import logit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold

import setsquare as sq
from setsquare.errors import InputError, NotOrthogonalError, SetsquareError
from setsquare.estimators import components, expansion, folds, odds_thresholds, prediction, stream_outcome, summary
from setsquare.estimators.feature_table import validate_features
from setsquare.estimators.partial_fit import MomentFitting
from setsquare.estimators.stream import _protected_names, assign
from setsquare.estimators.training_rows import TOO_GOOD, sign_of_training, too_good
from setsquare.estimators.unconstrained import PlainGLMClassifier, PlainGLMRegressor
from setsquare.glm.solution import Refits
from setsquare.tables import learn
from setsquare.tables.coders import Numeric
from setsquare.tables.column import TableRows
from setsquare.tables.expansion import Hinges
from setsquare.tables.frame import open_table
from setsquare.tables.roles import Columns


def table(n: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(2)
    x = np.arange(n) % 2.0
    return pd.DataFrame({"a": rng.normal(size=n) + x, "b": rng.normal(size=n), "c": rng.normal(size=n), "x": x})


def labels(n: int = 120) -> np.ndarray:
    rng = np.random.default_rng(3)
    return (table(n)["a"] + rng.normal(size=n) > 0.5).to_numpy().astype(int)


@pytest.mark.parametrize("threshold", [None, 0.3])
def test_a_score_at_the_limit(threshold, monkeypatch):
    model = sq.OrthogonalGLMClassifier(protected=["x"]).fit(table(), labels())
    limit = 0.0 if threshold is None else float(logit(threshold))
    scores = np.array([np.nextafter(limit, -1.0), limit, np.nextafter(limit, 1.0)])
    monkeypatch.setattr(model, "decision_function", lambda X, offset=None: scores)
    model.threshold = threshold
    assert model.predict(table()[:3]).tolist() == ([0, 0, 1] if threshold is None else [0, 1, 1])


def test_a_mean_at_the_end_of_the_domain_is_none(monkeypatch):
    model = sq.OrthogonalGLMRegressor("gamma", link="canonical", protected=["x"]).fit(table(), 1.0 + labels())
    high = model.family_.activation.domain[1]
    for eta, fails in ((high, True), (high - 1e-6, False)):
        monkeypatch.setattr(model, "_linear_predictor", lambda X, offset, e=eta: np.array([[e]]))
        if fails:
            with pytest.raises(InputError, match="1 row"):
                model.predict(table()[:1])
        else:
            assert np.isfinite(model.predict(table()[:1])).all()


@pytest.mark.parametrize(
    ("family", "link", "positive"),
    [("poisson", None, True), ("gaussian", "log", False), ("other", None, False), ("poisson", "sqrt", False)],
)
def test_tags_of_families_that_exist_and_of_others(family, link, positive):
    assert sq.OrthogonalGLMRegressor(family, link=link).__sklearn_tags__().target_tags.positive_only is positive


class Slices:
    """Rows of a file, which are arrays once they are cut."""

    dtype, ndim = np.dtype(float), 2

    def __init__(self, n: int) -> None:
        self.values = np.ones((n, 2))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> np.ndarray:
        return self.values[rows]


def test_rows_of_a_file_that_has_some():
    assert components._is_matrix(Slices(1)) and not components._is_matrix(Slices(0))
    assert not components._is_matrix(SimpleNamespace(dtype=np.dtype(float), ndim=1))


def test_text_and_other_faults_in_arrays_of_features():
    model = sq.LinearOrthogonalizer()
    assert validate_features(model, np.array([["u", 1.0], ["v", 2.0]], dtype=object), reset=True).dtype == object
    for bad in (np.array([1.0, 2.0], dtype=object), np.zeros((2, 2, 2), dtype=object), scipy.sparse.csr_array((0, 3))):
        with pytest.raises(ValueError, match=r"2D|3|minimum"):
            validate_features(model, bad, reset=True)


PARTS = [(np.arange(12), np.arange(12, 24)), (np.arange(12, 24), np.arange(12))]


@pytest.mark.parametrize("tests", [(np.arange(12), np.arange(12)), (np.arange(12), np.arange(11, 24))])
def test_folds_hold_out_each_row_once(tests):
    own = [(np.setdiff1d(np.arange(24), test), test) for test in tests]
    with pytest.raises(InputError, match="each row exactly once"):
        folds.split_rows(own, np.zeros(24), None, False, 0)


def test_one_fold_that_splits_a_cluster_is_enough():
    cluster = np.repeat([0, 1, 2], 2)
    tests = ([0, 1], [2], [3, 4, 5])
    own = [(np.setdiff1d(np.arange(6), test), np.array(test)) for test in tests]
    with pytest.raises(InputError, match="some rows of a cluster"):
        folds.split_rows(own, np.zeros(6), cluster, False, 0)
    with pytest.raises(InputError, match="A fold trains on rows that it tests"):
        folds.split_rows([PARTS[0], (np.arange(6, 24), PARTS[1][1])], np.zeros(24), None, False, 0)
    with pytest.raises(InputError, match="The rows cannot be split: "):
        folds.split_rows(KFold(25), np.zeros(24), None, False, 0)


def test_clusters_of_an_erasure():
    options = {"using": "features", "orthogonal_on": "new rows"}
    model = sq.LinearOrthogonalizer(["x"], **options)
    with pytest.raises(InputError, match="cluster"):
        model.fit(table(), cluster=np.zeros(120))
    pairs = model.fit(table(), cluster=np.arange(120) // 2).new_rows_
    alone = sq.LinearOrthogonalizer(["x"], **options).fit(table()).new_rows_
    assert pairs != alone


@pytest.mark.parametrize(("using", "on"), [("protected", "training rows"), ("features", "training rows")])
def test_what_cannot_be_adapted(using, on):
    model = sq.LinearOrthogonalizer(["x"], using=using, orthogonal_on=on).fit(table())
    with pytest.raises(InputError, match=r"can be adapted to other rows"):
        model.adapt(table())


def test_rows_for_an_adaptation():
    model = sq.LinearOrthogonalizer(["x"], using="features", orthogonal_on="new rows").fit(table())
    with pytest.raises(InputError, match=r"n_samples = 3\) to adapt the correction of 3 features"):
        model.adapt(table()[:3])
    with pytest.raises(SetsquareError, match=r"finite|NaN|infinit"):
        model.adapt(table().assign(a=np.inf))
    before = model.eraser_
    weighted = model.adapt(table()[:4], sample_weight=np.ones(4)).eraser_
    assert not np.allclose(before.mean, weighted.mean)
    np.testing.assert_allclose(weighted.mean, table()[:4][["a", "b", "c"]].mean())


def test_batches_of_corrections_that_need_all_rows():
    for options in ({"using": "features"}, {"moments": 2}):
        with pytest.raises(InputError, match="can be fitted in batches"):
            sq.LinearOrthogonalizer(["x"], **options).fit(stream(labels()))
    with pytest.raises(SetsquareError, match=r"Column\(s\) b have"):
        sq.LinearOrthogonalizer(["x"]).partial_fit(table().assign(b=1e200 * table()["b"]))
    large = {name: 1e200 * table()["b"] for name in "defghi"}
    with pytest.raises(SetsquareError, match=r"Column\(s\) d, e, f, g, h have"):  # the first of them
        sq.LinearOrthogonalizer(["x"]).partial_fit(table().assign(**large))


def test_missing_protected_values_beside_sparse_features_and_constant_columns():
    part = table().assign(x=np.where(np.arange(120) % 7, table()["x"], np.nan))
    sparse = scipy.sparse.csr_array(part[["a", "b", "c"]].to_numpy())
    with pytest.raises(InputError, match="not as a sparse matrix"):
        sq.OrthogonalGLMClassifier(missing="model").fit(sparse, labels(), protected=part[["x"]])
    model = sq.OrthogonalGLMClassifier(protected=["same", "x"], missing="model")
    with pytest.warns(UserWarning, match="constant: same"):
        model.fit(part.assign(same="s"), labels())
    assert model.solution_.certificate.missing_protected == ("x",)
    alone = sq.OrthogonalGLMClassifier(protected=["x"], missing="model").fit(part, labels())
    np.testing.assert_allclose(model.coef_, alone.coef_, rtol=1e-6)


def test_a_mixture_where_the_hull_has_no_width():
    hull = odds_thresholds.Hull(np.array([0.0, 1.0, 1.0]), np.array([0.5, 0.8, 1.0]), np.array([np.inf, 0.4, 0.1]))
    found = odds_thresholds.mix("g", 3, hull, 1.0, 0.9)
    assert (found.between if hasattr(found, "between") else found[4]) == 1.0


def test_the_number_of_protected_columns(monkeypatch):
    monkeypatch.setattr(prediction, "MOST_COLUMNS", 2)
    two = table().assign(u=np.arange(120) % 3 - 1.0)
    sq.PredictionOrthogonalizer(PlainGLMClassifier(), protected=["x", "u"]).fit(two, labels())
    with pytest.raises(InputError, match="have 3 columns, dummies of levels counted"):
        sq.PredictionOrthogonalizer(PlainGLMClassifier(), protected=["x", "u", "c"]).fit(two, labels())


class Sometimes(LinearRegression):
    """Predictions one of which is missing."""

    def predict(self, X: Any) -> Any:
        return np.where(np.arange(len(X)) == 3, np.nan, super().predict(X))


def test_one_prediction_that_is_missing():
    model = Sometimes().fit(table()[["a", "b", "c"]], table()["a"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SetsquareError, match="Prediction 0 has 1 NaN"):
            sq.PredictionOrthogonalizer(model, "linear", protected=["x"], prefit=True).fit(table(), table()["a"])


class Read(ClassifierMixin, BaseEstimator):
    """Probabilities of three classes, the first of which is a feature."""

    def fit(self, X: Any, y: Any) -> Any:
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X: Any) -> Any:
        p = np.asarray(X)[:, 0]
        return np.column_stack([p, 0.5 * (1.0 - p), 0.5 * (1.0 - p)])


def test_one_class_out_of_its_range_is_counted():
    x, k = np.arange(120) % 2, np.arange(120) // 2 % 2
    rows = pd.DataFrame({"p": np.array([[0.02, 0.5], [0.1, 0.9]])[x, k], "x": x})
    model = sq.PredictionOrthogonalizer(Read(), "linear", protected=["x"], cv=None)
    with pytest.warns(UserWarning, match="moves 30 of 120 predictions out of their range"):
        model.fit(rows, np.array(["u", "v", "w"])[np.arange(120) % 3])
    assert model.n_outside_ == 30


def test_one_class_without_an_optimum(monkeypatch):
    fit = prediction.GeneralizedProjector.fit

    def stop(*args: Any, **named: Any) -> Any:
        found = fit(*args, **named)
        object.__setattr__(found, "converged", np.array([True, False, True]))
        object.__setattr__(found, "residual", np.array([1e-12, 0.25, 1e-12]))
        return found

    monkeypatch.setattr(prediction.GeneralizedProjector, "fit", stop)
    kinds = np.array(["p", "q", "r"])[np.arange(120) % 3]
    with pytest.raises(NotOrthogonalError, match=r"largest association left 2\.5e-01"):
        sq.PredictionOrthogonalizer(PlainGLMClassifier(), protected=["x"], cv=None).fit(table(), kinds)


def test_a_column_to_preserve_may_be_named_alone():
    options: dict[str, Any] = {"using": "features"}
    one = sq.LinearOrthogonalizer(["x"], preserve="b", **options).fit(table()).transform(table())
    other = sq.LinearOrthogonalizer(["x"], preserve=["b"], **options).fit(table()).transform(table())
    np.testing.assert_array_equal(one, other)


def stream(y: np.ndarray, **more: Any) -> Any:
    rows = pa.Table.from_pandas(table().assign(y=y, **more), preserve_index=False)
    return sq.Stream(rows.to_batches(max_chunksize=50))


def test_classes_of_a_stream(monkeypatch):
    halves = sq.OrthogonalGLMClassifier(protected=["x"]).fit(stream(np.where(labels(), 1.0, 0.5)), "y")
    assert halves.classes_.tolist() == [0.5, 1.0]
    whole = sq.OrthogonalGLMClassifier(protected=["x"]).fit(stream(labels() + 1.0), "y")
    assert whole.classes_.tolist() == [1, 2] and whole.classes_.dtype.kind == "i"
    weight = (labels() == 1) * 1.0
    with pytest.raises(InputError, match="class"):
        sq.OrthogonalGLMClassifier(protected=["x"]).fit(stream(labels(), w=weight), "y", sample_weight="w")
    three = np.arange(120) % 3
    monkeypatch.setattr(stream_outcome, "MANY_CLASSES", 3)
    assert len(sq.OrthogonalGLMClassifier(protected=["x"]).fit(stream(three), "y").classes_) == 3
    monkeypatch.setattr(stream_outcome, "MANY_CLASSES", 2)
    with pytest.raises(InputError, match="has 3 different values in one batch"):
        sq.OrthogonalGLMClassifier(protected=["x"]).fit(stream(three), "y")


@pytest.mark.parametrize(("n_refits", "n_failed", "fails"), [(3, 3, False), (2, 4, True)])
def test_resamples_without_a_fit(n_refits, n_failed, fails, monkeypatch):
    model = sq.OrthogonalGLMRegressor(protected=["x"]).fit(table(), table()["a"] + labels())
    errors = np.ones((1, 4))
    found = Refits(errors, errors, errors, n_refits, n_failed)
    monkeypatch.setattr(summary, "refit_problem", lambda *args: found)

    def resample() -> Any:
        return model.bootstrap(table(), table()["a"] + labels(), n_samples=6)

    if fails:
        with pytest.raises(InputError, match=r"4 of 6 resamples have no corrected fit.*pool rare levels"):
            resample()
    else:
        assert "3 refits to resampled rows (3 more had no solution)" in str(resample())


def test_two_refits_are_the_fewest():
    model = sq.OrthogonalGLMRegressor(protected=["x"]).fit(table(), table()["a"] + labels())
    assert "2 refits" in str(model.bootstrap(table(), table()["a"] + labels(), n_samples=2))
    with pytest.raises(InputError, match="n_samples must be an integer of at least 2, got 1"):
        model.bootstrap(table(), table()["a"] + labels(), n_samples=1)


def test_predictions_that_are_nearly_the_outcomes():
    y = table()["a"].to_numpy()
    model = LinearRegression().fit(table()[["a"]][:50], y[:50])

    def sign(gap: float, k: int = 1) -> str:
        return sign_of_training(model, np.tile(y[:, None], k) + gap * np.eye(120, k), y)

    assert "exactly" in sign(0.0) and sign(1e-3) == "" and sign(0.0, 2) == ""
    assert "exactly" in sign(0.9e-8 * y.std()) and sign(1.1e-8 * y.std()) == ""
    p, truth = np.full((4, 1), 0.5), np.array([[1, 0], [0, 1], [1, 0], [0, 1]]) > 0
    assert too_good("m", p, truth) == ""
    closer = np.where(truth[:, 1:], 1.0, 0.0) * 0.6 + 0.2
    ratio = float(np.sum((truth[:, 1:] - closer) ** 2) / np.sum(closer * (1.0 - closer)))
    assert (too_good("m", closer, truth) != "") == (ratio < TOO_GOOD)


def test_families_of_plain_models():
    with pytest.raises(InputError, match="use PlainGLMClassifier"):
        PlainGLMRegressor("multinomial").fit(table(), labels())


def factors(**columns: Any) -> Any:
    """Factors of products in the rows but for the last two."""
    rows = pd.DataFrame(columns)
    design = learn(rows, list(columns), missing="level")
    whole = TableRows(open_table(rows), design.columns, "level")
    some = TableRows(open_table(rows), design.columns, "level", np.arange(len(rows)) < len(rows) - 2)
    return expansion._factors(expansion.widen(design, whole), some)


def test_columns_that_have_products():
    numbers = np.arange(202.0)
    gone, flat = np.where(numbers < 200.0, np.nan, numbers), np.where(numbers < 200.0, 1.0, numbers)
    found = factors(a=numbers, flat=flat, gone=gone, kind=["u", "v"] * 101)
    assert found.columns == ("a", "kind") and found.levels == ((), ("v",))
    part = factors(a=np.where(numbers < 5.0, np.nan, numbers), b=numbers)
    assert part.columns == ("a", "b") and part.fills[0] == pytest.approx(np.mean(numbers[5:]))
    rare = np.where(numbers == 7.0, "z", np.where(numbers < 100.0, "u", "v"))
    assert "z" in factors(kind=rare, a=numbers).levels[0]  # one row of 200
    assert "z" not in factors(kind=np.append(rare, ["u"]), a=np.arange(203.0)).levels[0]


def test_a_column_that_is_constant_or_missing_in_the_rows_picked_makes_no_product():
    frame = pd.DataFrame({"a": [1.0, 1.0, np.nan], "b": [np.nan] * 3, "c": [1.0, 2.0, np.nan], "d": [0.0, 1.0, 2.0]})
    coders: list[Any] = [Hinges(name, 0.0, 1.0, (), (1.0,), 4.0 if name == "d" else None, False) for name in frame]
    coders.append(Numeric("a", None, False))  # another kind
    rows = TableRows(open_table(frame), tuple(frame), "level")
    found = expansion._factors(SimpleNamespace(coders=coders), rows)
    assert found.columns == ("c", "d") and len(found.curves) == 2 and found.fills == (1.5, 4.0)


def test_a_stream_has_a_feature_left():
    stream = SimpleNamespace(columns=("a", "x", "y"), is_named=True)
    assert assign(stream, "y", None, None, None, Columns(["x"])).features == ("a",)
    with pytest.raises(InputError, match="No column of the stream is left as a feature"):
        assign(stream, "y", None, None, None, Columns(["a", "x"]))


def test_protected_columns_of_arrays_are_those_that_came_as_such():
    stream = SimpleNamespace(columns=("z0", "protected0"), is_named=False)
    assert _protected_names(stream, None, Columns(["protected0"])) == ("protected0",)
    for names in (["z0"], ["protected0", "z0"]):
        with pytest.raises(InputError, match="batches that are arrays have no column names"):
            _protected_names(stream, None, Columns(names))


def test_the_columns_of_a_correction_are_those_of_its_kind():
    with pytest.raises(NotImplementedError):
        MomentFitting()._columns()


def test_components_that_were_not_learned():
    with pytest.raises(NotFittedError):
        components.PrincipalComponents().transform(np.zeros((2, 2)))
