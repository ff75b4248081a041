"""Properties of every public way to correct or audit: what may not matter does not; no correction adds to a leak."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import setsquare as sq
from setsquare import projection
from setsquare.errors import InputError, NotOrthogonalError, SetsquareWarning
from setsquare.estimators.unconstrained import PlainGLMClassifier, PlainGLMRegressor

FEATURES, PROTECTED = ["z0", "z1", "z2", "z3"], ["sex", "age"]
SEEDS = st.integers(0, 10**6)
quick = settings(deadline=None, max_examples=2, phases=(Phase.explicit, Phase.reuse, Phase.generate))
Entry = Callable[..., np.ndarray]


@contextmanager
def calm() -> Iterator[None]:
    """Small samples warn of many things that are not the point here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SetsquareWarning)
        yield


def draw(seed: int, leak: float = 0.8) -> pd.DataFrame:
    """Rows whose features and outcomes depend on a group and a number."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(60, 120))
    sex, age = np.arange(n) % 3 == rng.integers(3), rng.normal(40.0, 10.0, n)
    Z = rng.normal(size=(n, 4)) + leak * sex[:, None] + leak * (age[:, None] - 40.0) / 20.0
    signal = 0.6 * (Z[:, 0] - Z[:, 1] + 0.5 * Z[:, 2])
    rows = pd.DataFrame(Z, columns=FEATURES).assign(sex=np.where(sex, "m", "f"), age=age)
    return rows.assign(
        label=np.where(signal + rng.logistic(size=n) > 0.3, "yes", "no"),
        grade=np.array(["a", "b", "c"])[np.clip((signal + rng.normal(size=n) + 1.5).astype(int), 0, 2)],
        count=rng.poisson(np.exp(np.clip(signal, -2.0, 1.5))).astype(float),
        cost=rng.gamma(2.0, np.exp(0.3 * np.clip(signal, -2.0, 2.0))),
        number=signal + rng.normal(size=n),
    )


def estimator(make: Callable[[], Any], outcome: str) -> Entry:
    """An estimator as a function of rows and weights."""

    def run(rows: Any, weight: Any = None, form: Callable[[Any], Any] = lambda table: table) -> np.ndarray:
        table = form(rows[[*FEATURES, *PROTECTED]])
        options = {} if weight is None else {"sample_weight": weight}
        with calm():
            return output(make().fit(table, rows[outcome].to_numpy(), **options), table)

    return run


def output(model: Any, table: Any) -> np.ndarray:
    for name in ("predict_proba", "predict", "transform"):
        if hasattr(model, name):
            values = np.asarray(getattr(model, name)(table))
            return values[:, 1:] if name == "predict_proba" else values.reshape(len(values), -1)
    raise AssertionError


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "classifier": (lambda: sq.OrthogonalGLMClassifier(protected=PROTECTED), "label"),
    "classes": (lambda: sq.OrthogonalGLMClassifier(protected=PROTECTED), "grade"),
    "gaussian": (lambda: sq.OrthogonalGLMRegressor("gaussian", PROTECTED), "number"),
    "poisson": (lambda: sq.OrthogonalGLMRegressor("poisson", PROTECTED), "count"),
    "gamma": (lambda: sq.OrthogonalGLMRegressor("gamma", PROTECTED), "cost"),
    "budget": (lambda: sq.OrthogonalGLMClassifier(protected=PROTECTED, budget=0.5), "label"),
    "decisions": (lambda: sq.OrthogonalGLMClassifier(protected=PROTECTED, threshold=0.5), "label"),
    "large": (lambda: sq.OrthogonalGLMClassifier(protected=PROTECTED, solver="large"), "label"),
    "linear": (lambda: sq.LinearOrthogonalizer(PROTECTED), "number"),
    "features": (lambda: sq.LinearOrthogonalizer(PROTECTED, using="features"), "number"),
    "probabilities": (
        lambda: sq.PredictionOrthogonalizer(PlainGLMClassifier(), protected=PROTECTED, cv="training rows"),
        "label",
    ),
    "predictions": (
        lambda: sq.PredictionOrthogonalizer(PlainGLMRegressor(), "linear", protected=PROTECTED, cv="training rows"),
        "number",
    ),
}
ENTRIES: dict[str, Entry] = {name: estimator(*made) for name, made in MODELS.items()}
MAPS = ("linear", "features")
#: Where a fit is refused for a sample: predictions at the edge of their range, or constraints that cannot be met.
each_entry = pytest.mark.parametrize("name", ENTRIES)


def solved(name: str, *arguments: Any, **options: Any) -> np.ndarray:
    """Output of an entry; a sample in which the guarantee cannot be met is refused in every form."""
    try:
        return ENTRIES[name](*arguments, **options)
    except NotOrthogonalError:
        return np.full(1, np.nan)
    except InputError as error:
        if "selects nobody" in str(error) or "selects everybody" in str(error):  # so does a threshold without decisions
            return np.full(1, np.nan)
        raise


def audited(protected: Any, score: np.ndarray, weight: Any = None) -> dict[str, float]:
    """Numbers of an audit that do not depend on names."""
    with calm():
        found = sq.audit(score, protected, family="gaussian", sample_weight=weight)
    return {
        "statistic": found.evaluations[0].joint.statistic,
        "p": found.p_value,
        "correlation": found.certificate.correlation,
        "upper": found.certificate.correlation_upper,
    }


# ------------------------------------------------------------------------------------------- what may not matter
@each_entry
@given(seed=SEEDS)
@quick
def test_the_order_of_rows_does_not_matter(name: str, seed: int) -> None:
    rows = draw(seed)
    order = np.random.default_rng(seed).permutation(len(rows))
    one, other = solved(name, rows), solved(name, rows.iloc[order].reset_index(drop=True))
    np.testing.assert_allclose(other, one[order] if len(one) > 1 else one, rtol=1e-5, atol=1e-7)


@each_entry
@given(seed=SEEDS)
@quick
def test_units_and_coding_of_the_protected_columns_do_not_matter(name: str, seed: int) -> None:
    rows = draw(seed)
    one = solved(name, rows)
    age = -7.0 - 0.01 * rows["age"] + 3.0 * (rows["sex"] == "m")
    for changed in (
        rows.assign(age=age, sex=pd.Categorical(rows["sex"], categories=["m", "x", "f"])),
        rows.assign(sex=rows["sex"] == "f" if seed % 2 else np.where(rows["sex"] == "f", 5.0, 2.0)),
    ):
        np.testing.assert_allclose(solved(name, changed), one, rtol=1e-5, atol=1e-7)


@each_entry
@given(seed=SEEDS)
@quick
def test_units_of_the_features_do_not_matter(name: str, seed: int) -> None:
    rows, rng = draw(seed), np.random.default_rng(seed)
    A, b = rng.normal(size=(4, 4)) + 3.0 * np.eye(4), rng.normal(size=4)
    Z = rows[FEATURES].to_numpy() @ A + b
    one, other = solved(name, rows), solved(name, rows.assign(**dict(zip(FEATURES, Z.T, strict=True))))
    np.testing.assert_allclose(other, one @ A + b if name in MAPS else one, rtol=1e-5, atol=1e-6)


@each_entry
@given(seed=SEEDS)
@quick
def test_a_weight_is_a_number_of_copies(name: str, seed: int) -> None:
    rows = draw(seed)
    counts = np.random.default_rng(seed).integers(1, 4, len(rows))
    place = np.repeat(np.arange(len(rows)), counts)
    weighted = solved(name, rows, counts.astype(float))
    copied = solved(name, rows.iloc[place].reset_index(drop=True))
    np.testing.assert_allclose(copied, weighted[place] if len(weighted) > 1 else weighted, rtol=1e-5, atol=1e-7)


@each_entry
@given(seed=SEEDS)
@quick
def test_the_dataframe_library_does_not_matter(name: str, seed: int) -> None:
    rows = draw(seed)
    one = solved(name, rows)
    for form in (pl.from_pandas, lambda table: pa.Table.from_pandas(table, preserve_index=False)):
        np.testing.assert_allclose(solved(name, rows, form=form), one, rtol=1e-9, atol=1e-10)


@given(seed=SEEDS)
@quick
def test_an_audit_depends_on_nothing_that_may_not_matter(seed: int) -> None:
    rows = draw(seed)
    score = rows["z0"].to_numpy()
    one = audited(rows[PROTECTED], score)
    order = np.random.default_rng(seed).permutation(len(rows))
    shuffled = audited(rows[PROTECTED].iloc[order], score[order])
    assert shuffled | {"p": one["p"]} == pytest.approx(one, rel=1e-6, abs=1e-9)  # permutations are drawn by position
    for other in (
        audited(rows[PROTECTED].assign(age=3.0 - 100.0 * rows["age"]), score),
        audited(rows[PROTECTED].assign(sex=pd.Categorical(rows["sex"], ["m", "f"])), score),
        audited(pl.from_pandas(rows[PROTECTED]), score),
        audited(rows[PROTECTED], 5.0 - 0.1 * score),
        audited(rows[PROTECTED], score, np.full(len(rows), 7.0)),
    ):
        assert other == pytest.approx(one, rel=1e-6, abs=1e-9)


# --------------------------------------------------------------------------------------------- one road for rows
@pytest.mark.parametrize("name", ["classifier", "classes", "gaussian", "poisson", "gamma", "large", "linear"])
@given(seed=SEEDS)
@quick
def test_a_stream_is_its_rows(name: str, seed: int) -> None:
    rows, (make, outcome) = draw(seed), MODELS[name]
    columns = [*FEATURES, *PROTECTED] + ([] if name in MAPS else [outcome])
    one = solved(name, rows)
    cuts = np.sort(np.random.default_rng(seed).integers(0, len(rows), 2))
    parts = [part for part in (rows[: cuts[0]], rows[cuts[0] : cuts[1]], rows[cuts[1] :]) if len(part)]
    try:
        with calm():
            model = make().fit(sq.Stream([part[columns] for part in parts]), None if name in MAPS else outcome)
            other = output(model, rows[[*FEATURES, *PROTECTED]])
    except NotOrthogonalError:
        other = np.full(1, np.nan)
    np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["classifier", "poisson", "linear"])
def test_a_cluster_is_its_rows(name: str) -> None:
    dask = pytest.importorskip("dask")
    frame = pytest.importorskip("dask.dataframe")
    rows, (make, outcome) = draw(1), MODELS[name]
    columns = [*FEATURES, *PROTECTED] + ([] if name in MAPS else [outcome])
    with calm(), dask.config.set(scheduler="synchronous"):
        cluster = frame.from_pandas(rows[columns], npartitions=3)
        model = make().fit(cluster, None if name in MAPS else outcome)
    np.testing.assert_allclose(output(model, rows[[*FEATURES, *PROTECTED]]), solved(name, rows), atol=1e-7)


@given(seed=SEEDS)
@quick
def test_the_audit_of_a_stream_is_that_of_its_rows(seed: int) -> None:
    rows = draw(seed)
    with calm():
        one = sq.audit(rows["z0"].to_numpy(), rows[PROTECTED], family="gaussian")
        parts = sq.Stream([rows[["z0", *PROTECTED]][:30], rows[["z0", *PROTECTED]][30:]])
        other = sq.audit(parts["z0"], parts[PROTECTED], family="gaussian")
    for found in (one, other):
        assert found.n == len(rows)
    assert other.certificate.correlation == pytest.approx(one.certificate.correlation, rel=1e-9)
    for column in ("estimate", "std_error"):
        np.testing.assert_allclose(other.table()[column], one.table()[column], rtol=1e-6, atol=1e-9)
    tests = [found.evaluations[0].joint for found in (one, other)]
    if not tests[0].method.startswith("permutation"):  # the rows of a stream are not permuted
        assert tests[1].statistic == pytest.approx(tests[0].statistic, rel=1e-6)


@each_entry
@given(seed=SEEDS)
@quick
def test_a_saved_model_is_the_model(name: str, seed: int) -> None:
    rows, (make, outcome) = draw(seed), MODELS[name]
    table = rows[[*FEATURES, *PROTECTED]]
    with calm(), tempfile.TemporaryDirectory() as folder:
        try:
            model = make().fit(table, rows[outcome].to_numpy())
        except NotOrthogonalError:
            return
        sq.save(model, Path(folder) / "model")
        again = sq.load(Path(folder) / "model")
        np.testing.assert_array_equal(output(again, table), output(model, table))
        fresh = draw(seed + 1)[[*FEATURES, *PROTECTED]]
        np.testing.assert_array_equal(output(again, fresh), output(model, fresh))
        sq.save(again, Path(folder) / "again")
        assert (Path(folder) / "again").read_bytes() == (Path(folder) / "model").read_bytes()


@pytest.mark.parametrize("activation", ["identity", "sigmoid", "relu", "tanh", "exp"])
@given(seed=SEEDS)
@quick
def test_numpy_and_torch_agree(activation: str, seed: int) -> None:
    torch = pytest.importorskip("torch")
    from setsquare.nn.functional import generalized_project_out, project_out

    rows = draw(seed)
    Z, X = rows[FEATURES].to_numpy(), np.column_stack([rows["sex"] == "m", rows["age"]]).astype(float)
    exact, tensor = projection.project_out(Z, X), project_out(torch.tensor(Z), torch.tensor(X))
    np.testing.assert_allclose(tensor.numpy(), exact, atol=1e-10)
    both = (
        projection.GeneralizedProjector.fit(Z, X, activation).predict(Z, X),
        projection.GeneralizedProjector.fit(Z, X, activation).activation(
            generalized_project_out(torch.tensor(Z), torch.tensor(X), activation).numpy()
        ),
    )
    np.testing.assert_allclose(both[0], both[1], atol=1e-6)


# ------------------------------------------------------------------------------------------------- what is promised
def leak(values: np.ndarray, rows: pd.DataFrame) -> np.ndarray:
    """Multiple correlation of each column with the protected columns."""
    X = np.column_stack([np.ones(len(rows)), rows["sex"] == "m", (rows["age"] - 40.0) / 10.0]).astype(float)
    total = np.square(values - values.mean(0)).sum(0)
    left = np.square(values - X @ np.linalg.lstsq(X, values, rcond=None)[0]).sum(0)
    return np.sqrt(np.maximum(1.0 - left / np.where(total > 1e-20, total, np.inf), 0.0) * (total > 1e-20))


@pytest.mark.parametrize("name", [name for name in ENTRIES if name != "decisions"])  # its probabilities may leak
@given(seed=SEEDS, strength=st.sampled_from([0.0, 0.05, 0.8, 3.0]))
@quick
def test_no_correction_adds_to_the_leak_on_its_rows(name: str, seed: int, strength: float) -> None:
    rows = draw(seed, strength)
    after = solved(name, rows)
    if np.isnan(after).any():
        return
    table, (_, outcome) = rows[FEATURES], MODELS[name]
    if name in MAPS:
        before = table.to_numpy()
    elif outcome in ("label", "grade"):
        before = output(PlainGLMClassifier().fit(table, rows[outcome].to_numpy()), table)
    else:
        family = {"number": "gaussian", "count": "poisson", "cost": "gamma"}[outcome]
        before = output(PlainGLMRegressor(family).fit(table, rows[outcome].to_numpy()), table)
    assert (leak(after, rows) <= leak(before, rows).max() + 1e-7).all()
    if name != "budget":
        assert leak(after, rows).max() < 1e-6


@pytest.mark.parametrize("name", ["linear", "features", "probabilities", "predictions"])
@given(seed=SEEDS)
@quick
def test_a_second_correction_changes_nothing(name: str, seed: int) -> None:
    rows = draw(seed)
    once = solved(name, rows)
    if name in MAPS:
        again = solved(name, rows.assign(**dict(zip(FEATURES, once.T, strict=True))))
    else:
        X = np.column_stack([rows["sex"] == "m", rows["age"]]).astype(float)
        kind = projection.GeneralizedProjector if name == "probabilities" else projection.Projector
        if name == "probabilities":
            eta = np.log(once / (1.0 - once))
            again = kind.fit(eta, X, "sigmoid").predict(eta, X)
        else:
            again = kind.fit(once, X).apply(once, X)
    np.testing.assert_allclose(again, once, atol=1e-7)


@given(seed=SEEDS)
@quick
def test_group_thresholds_do_not_add_to_the_leak_of_decisions(seed: int) -> None:
    rows = draw(seed)
    score, sex = rows["z0"].to_numpy(), rows[["sex"]]
    with calm():
        decided = np.asarray(sq.GroupThresholds(0.4).fit(score, sex).decide(score, sex), dtype=float)
    plain = (score > np.quantile(score, 1.0 - decided.mean())).astype(float)
    shares = [[part[rows["sex"] == level].mean() for level in "fm"] for part in (decided, plain)]
    assert abs(np.subtract(*shares[0])) <= max(abs(np.subtract(*shares[1])), 1.0 / min(np.bincount(sex["sex"] == "m")))
