"""What an audit accepts: predictions of every shape and kind, protected columns, missing values, weights, clusters."""

from __future__ import annotations

import math
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse

import setsquare as sq
from setsquare.auditing.evaluations import nonlinear, run
from setsquare.errors import InputError

N = 240
rng = np.random.default_rng(7)
GROUP = rng.choice(["a", "b", "c"], N, p=[0.4, 0.3, 0.3])  # "a" is the largest group, so the reference
SCORE = rng.normal(size=N) + 0.6 * (GROUP == "b")
P = 1.0 / (1.0 + np.exp(-SCORE))
P3 = np.exp(np.column_stack([SCORE, rng.normal(size=N), rng.normal(size=N)]))
P3 /= P3.sum(axis=1, keepdims=True)
LABEL = P > 0.5
FIRST = np.arange(N) < 6


def one_sentence(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert "\n" not in text and text.endswith((".", "?"))
    return text


def refused(predictions: object, protected: object = GROUP, **options: object) -> str:
    with pytest.raises(InputError) as error:
        sq.audit(predictions, protected, **options)
    return one_sentence(error)


def tensor(values: np.ndarray) -> SimpleNamespace:
    """What torch has: a tensor that numpy cannot read before it is detached and moved."""
    on_cpu = SimpleNamespace(numpy=lambda: values)
    return SimpleNamespace(detach=lambda: SimpleNamespace(cpu=lambda: on_cpu))


# ------------------------------------------------------------------------------------------------- predictions
PROBABILITIES = {
    "list": P.tolist(),
    "column": P[:, None],
    "single precision": P.astype(np.float32),
    "objects": P.astype(object),
    "predict_proba": np.column_stack([1.0 - P, P]),
    "predict_proba as a table": pd.DataFrame({"no": 1.0 - P, "yes": P}),
    "pandas": pd.Series(P),
    "pandas nullable": pd.Series(P, dtype="Float64"),
    "pandas arrow": pd.Series(P, dtype="double[pyarrow]"),
    "polars": pl.Series(P),
    "polars table": pl.DataFrame({"p": P}),
    "pyarrow": pa.array(P),
    "pyarrow chunks": pa.chunked_array([P[:100], P[100:]]),
    "torch": tensor(P),
}


@pytest.mark.parametrize("kind", PROBABILITIES)
def test_probabilities_of_every_kind_are_the_same_audit(kind: str) -> None:
    found, wanted = sq.audit(PROBABILITIES[kind], GROUP), sq.audit(P, GROUP)
    assert found.family == "binomial" and found.n == N
    assert found.p_value == pytest.approx(wanted.p_value, rel=1e-5)
    assert found.certificate.correlation_upper == pytest.approx(wanted.certificate.correlation_upper, rel=1e-6)


def test_the_second_column_of_two_is_the_probability() -> None:
    turned = sq.audit(np.column_stack([P, 1.0 - P]), GROUP)
    assert turned.evaluations[0].effects[0].estimate == pytest.approx(
        -sq.audit(P, GROUP).evaluations[0].effects[0].estimate, rel=1e-9
    )


LABELS = {
    "booleans": LABEL,
    "integers": LABEL.astype(int),
    "floats": LABEL.astype(float),
    "1 and 2": LABEL + 1,
    "-1 and 1": 2 * LABEL - 1,
    "text": np.where(LABEL, "yes", "no"),
    "bytes": np.where(LABEL, b"yes", b"no"),
    "text objects": np.where(LABEL, "yes", "no").astype(object),
    "boolean objects": LABEL.astype(object),
    "pandas text": pd.Series(np.where(LABEL, "yes", "no")),
    "pandas string": pd.Series(np.where(LABEL, "yes", "no"), dtype="string"),
    "pandas boolean": pd.Series(LABEL, dtype="boolean"),
    "pandas Int64": pd.Series(LABEL.astype(int), dtype="Int64"),
    "categories": pd.Series(np.where(LABEL, "yes", "no"), dtype="category"),
    "categories, one unused": pd.Series(pd.Categorical(np.where(LABEL, "y", "n"), categories=["n", "x", "y"])),
    "polars booleans": pl.Series(LABEL),
    "polars categories": pl.Series(np.where(LABEL, "yes", "no"), dtype=pl.Categorical),
    "polars text": pl.Series(np.where(LABEL, "yes", "no")),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_every_kind_are_audited_as_0_and_1_with_a_note(kind: str) -> None:
    named = {"1 and 2": 2, "categories, one unused": "y"}.get(kind)
    found = sq.audit(LABELS[kind], GROUP, positive=named)
    assert found.family == "binomial"
    assert found.p_value == pytest.approx(sq.audit(LABEL.astype(float), GROUP, "binomial").p_value, rel=1e-12)
    assert any("class labels" in note for note in found.notes)


def test_labels_as_floats_are_labels_like_integers() -> None:
    """A classifier whose classes are 1.0 and 2.0 predicts floats."""
    assert sq.audit(LABEL + 1.0, GROUP, "binomial", positive=2.0).family == "binomial"


def test_the_note_says_which_label_is_1() -> None:
    note = next(note for note in sq.audit(np.where(LABEL, "yes", "no"), GROUP).notes if "labels" in note)
    assert "1 is 'yes'" in note


@pytest.mark.parametrize(("labels", "wanted"), [(("a", "b"), "'a' and 'b'"), ((1, 2), "'1' and '2'")])
def test_of_two_labels_that_say_nothing_the_positive_one_must_be_named(labels: tuple, wanted: str) -> None:
    """The alphabet does not decide: effects of the one label are those of the other with the other sign."""
    label = np.where(LABEL, *labels[::-1])
    with pytest.raises(InputError, match=f"which of the classes {wanted} is the positive one.*positive="):
        sq.audit(label, GROUP)
    effects = {}
    for one in labels:
        found = sq.audit(label, GROUP, positive=one)
        assert found.positive == str(one) and f"positive class: {one}" in str(found).split("Evaluation model")[0]
        effects[one] = [effect.estimate for effect in found.evaluations[0].effects]
    first, second = effects.values()
    np.testing.assert_allclose(first, -np.array(second), rtol=1e-8)
    with pytest.raises(InputError, match=r"positive='z' is not one of the classes"):
        sq.audit(label, GROUP, positive="z")


def test_of_two_columns_the_second_is_positive_unless_another_is_named() -> None:
    table = pd.DataFrame({"denied": 1.0 - P, "approved": P})
    assert sq.audit(table, GROUP).positive == "approved"
    other = sq.audit(table, GROUP, positive="denied")
    assert other.positive == "denied"
    assert other.table()["estimate"][0] == pytest.approx(-sq.audit(P, GROUP).table()["estimate"][0])
    with pytest.raises(InputError, match=r"positive='approved' belongs to two classes"):
        sq.audit(P3, GROUP, positive="approved")


def test_predictions_that_are_numeric_but_for_a_few_values_are_no_classes() -> None:
    given = np.array([".", *np.round(P[1:], 2).astype(str)], dtype=object)
    with pytest.raises(InputError, match=r"predictions holds numbers but for '\.' \(1 row\)"):
        sq.audit(given, GROUP)


def test_labels_of_several_classes_are_audited_as_indicators() -> None:
    label = P3.argmax(axis=1)
    text = sq.audit(np.array(["x", "y", "z"])[label], GROUP)
    shares = sq.audit(np.eye(3)[label], GROUP)
    numbers = sq.audit(label, GROUP, "multinomial")
    assert text.family == shares.family == numbers.family == "multinomial"
    assert text.p_value == pytest.approx(shares.p_value, rel=1e-12) == pytest.approx(numbers.p_value, rel=1e-12)
    assert [e.term for e in text.evaluations[0].effects][:2] == ["x0[b] (y vs x)", "x0[c] (y vs x)"]
    assert any("3 classes" in note for note in text.notes)


def test_whole_numbers_are_counts_unless_they_are_two_labels() -> None:
    counts = rng.poisson(3.0, N)
    assert sq.audit(counts, GROUP).family == "gaussian"
    assert sq.audit(counts, GROUP, "poisson").family == "poisson"
    assert sq.audit(LABEL.astype(int), GROUP, "poisson").family == "poisson"


@pytest.mark.parametrize("kind", ["array", "pandas", "polars", "pyarrow", "single precision"])
def test_probabilities_of_several_classes(kind: str) -> None:
    names = ["x", "y", "z"]
    given = {
        "array": P3,
        "pandas": pd.DataFrame(P3, columns=names),
        "polars": pl.DataFrame(P3, schema=names),
        "pyarrow": pa.table({name: P3[:, j] for j, name in enumerate(names)}),
        "single precision": P3.astype(np.float32),
    }[kind]
    found = sq.audit(given, GROUP)
    assert found.family == "multinomial" and found.verdict == "leak"
    assert found.p_value == pytest.approx(sq.audit(P3, GROUP).p_value, rel=1e-4)
    first = found.evaluations[0].effects[0].term
    assert first == ("x0[b] (y vs x)" if kind in ("pandas", "polars", "pyarrow") else "x0[b] (1 vs 0)")


def test_a_class_without_probability_is_left_out_and_counted() -> None:
    found = sq.audit(np.insert(P3, 1, 0.0, axis=1), GROUP)
    assert found.p_value == pytest.approx(sq.audit(P3, GROUP).p_value, rel=1e-9)
    assert any("1" in note and "left out" in note for note in found.notes)
    assert found.evaluations[0].effects[0].term == "x0[b] (2 vs 0)"


@pytest.mark.parametrize("shape", [(4,), (2, 2), (1, 1), (2, 1, 3)])
def test_other_arrays_are_units(shape: tuple[int, ...]) -> None:
    values = rng.normal(size=(N, *shape))
    found = sq.audit(values, GROUP, n_permutations=19)
    assert found.evaluations[0].name == "tensor"
    assert found.effect_map.p_value.shape == shape and found.effect_map.estimate.shape == (2, *shape)
    assert sq.audit(tensor(values), GROUP, n_permutations=19).p_value == found.p_value


CONSTANT = {
    "probabilities": np.full(N, 0.3),
    "ones": np.ones(N),
    "integers": np.full(N, 7),
    "labels": ["yes"] * N,
    "classes": np.tile([0.2, 0.3, 0.5], (N, 1)),
    "one class": np.tile([1.0, 0.0, 0.0], (N, 1)),
    "tensor": np.ones((N, 2, 2)),
    "rounding": np.full(N, 0.1) * 3.0 + np.where(FIRST, 0.0, 5e-17),
}


@pytest.mark.parametrize("kind", CONSTANT)
@pytest.mark.parametrize("evaluation", ["glm", "forest"])
def test_constant_predictions_have_nothing_to_leak(kind: str, evaluation: str) -> None:
    found = sq.audit(CONSTANT[kind], GROUP, evaluation=evaluation)
    assert found.verdict == "no leak found" and "nothing can leak" in found.reason
    assert math.isnan(found.p_value) and len(found.table()) == 0 and not found.is_leak
    assert found.certificate.correlation_upper == 0.0


@pytest.mark.parametrize("scale", [1e-150, 1e-9, 1e9, 1e150])
def test_the_scale_of_predictions_does_not_matter(scale: float) -> None:
    found, wanted = sq.audit(SCORE * scale, GROUP, "gaussian"), sq.audit(SCORE, GROUP)
    assert found.verdict == wanted.verdict == "leak"
    assert math.log(found.p_value) == pytest.approx(math.log(wanted.p_value), rel=1e-9)
    assert found.certificate.columns[0].effect_upper == pytest.approx(wanted.certificate.columns[0].effect_upper)


@pytest.mark.parametrize("family", ["poisson", "gamma", "tweedie"])
@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_the_scale_of_means_does_not_matter_to_a_log_link(family: str, scale: float) -> None:
    found, wanted = sq.audit(P * scale, GROUP, family), sq.audit(P, GROUP, family)
    assert found.p_value == pytest.approx(wanted.p_value, rel=1e-6)
    assert not found.evaluations[0].notes


def test_corrected_probabilities_above_1_are_used_and_counted() -> None:
    """Lemma 3 leaves the range of probabilities; R refuses them, statsmodels says nothing."""
    X = np.column_stack([GROUP == "b", GROUP == "c"]).astype(float)
    X -= X.mean(axis=0)
    high = 1.0 / (1.0 + np.exp(-2.0 - 2.0 * SCORE))
    corrected = high - X @ np.linalg.lstsq(X, high, rcond=None)[0]
    count = int(((corrected > 1.0) | (corrected < 0.0)).sum())
    assert count > 10
    assert sq.audit(high, GROUP).verdict == "leak"
    for given in (corrected, np.column_stack([1.0 - corrected, corrected])):
        found = sq.audit(given, GROUP, "binomial")
        assert found.p_value == pytest.approx(1.0) and found.family == "binomial"
        assert any(note.startswith(f"{count} of {N} predictions lie outside") for note in found.notes)


def test_a_group_mean_outside_the_range_is_an_infinite_effect() -> None:
    found = sq.audit(np.where(GROUP == "b", 1.2, P), GROUP, "binomial")
    assert found.verdict == "leak" and found.evaluations[0].effects[0].estimate == math.inf


BAD = {
    "nothing": ([], "no predictions"),
    "text that is no label": ([f"person {j}" for j in range(N)], "different values"),
    "numbers as text": ([f"{p}" for p in P], "holds numbers as text"),
    "table of text": (np.array([["a", "b"]] * N), "text"),
    "rows of unequal length": ([[1, 2], [3]] * (N // 2), "as an array"),
    "one row": (P[None], "The predictions have 1 rows"),
    "too short": (P[:-1], f"predictions have {N - 1} rows but the protected columns have {N}"),
    "missing": (np.where(FIRST, np.nan, P), "6 row"),
    "missing classes": (np.where(FIRST[:, None], np.nan, P3), "6 row"),
    "infinite": (np.where(FIRST, np.inf, P), "6 row"),
    "missing labels": (np.where(FIRST, None, np.where(LABEL, "a", "b")), "missing"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_prediction_is_refused_in_one_sentence(kind: str) -> None:
    given, words = BAD[kind]
    assert words in refused(given)


@pytest.mark.parametrize(
    ("given", "family", "words"),
    [
        (P3, "binomial", "multinomial"),
        (P, "multinomial", "column of probabilities for each class"),
        (rng.normal(size=(N, 4)), "binomial", "do not sum to 1"),
        (rng.normal(size=(N, 4)), "poisson", "units"),
        (LABEL, "poisson", "Class labels"),
        (np.where(LABEL, "y", "n"), "gaussian", "Class labels"),
        (P, "logistic", "Unknown family"),
    ],
)
def test_a_family_that_does_not_fit_is_refused(given: np.ndarray, family: str, words: str) -> None:
    assert words in refused(given, family=family)


@pytest.mark.parametrize(
    "given",
    [0.5, None, "text", {"p": P}, sparse.csr_matrix(P3), (p for p in P)],
    ids=["number", "None", "text", "dict", "sparse", "generator"],
)
def test_what_is_no_array_at_all_is_refused(given: object) -> None:
    refused(given)


def test_a_lazy_table_of_predictions_is_refused() -> None:
    lazy = pytest.importorskip("dask.array")
    assert "compute" in refused(lazy.from_array(P))


@pytest.mark.parametrize(
    "given",
    [
        pd.Series(LABEL, dtype="boolean").mask(FIRST),
        pd.Series(np.where(LABEL, "y", "n"), dtype="string").mask(FIRST),
        np.where(FIRST, pd.NA, P.astype(object)),
    ],
    ids=["boolean", "string", "objects"],
)
def test_missing_values_of_pandas_are_refused(given: object) -> None:
    assert "missing" in refused(given)


def test_masked_predictions_are_refused() -> None:
    refused(np.ma.array(P, mask=FIRST))


def test_dates_are_refused() -> None:
    refused(np.arange(N).astype("datetime64[D]"))


def test_complex_numbers_are_refused() -> None:
    refused(P + 1j)


def test_predictions_without_columns_are_refused() -> None:
    refused(np.zeros((N, 0)))


@pytest.mark.parametrize("family", ["gaussian", "poisson", "binomial"])
def test_labels_of_three_classes_do_not_fit_other_families(family: str) -> None:
    refused(np.array(["x", "y", "z"])[P3.argmax(axis=1)], family=family)


@pytest.mark.parametrize(
    ("given", "family"),
    [(1 + P3.argmax(axis=1), "binomial"), (P + 2.0, "binomial"), (-P, "poisson")],
    ids=["labels", "shares", "counts"],
)
def test_a_mean_outside_the_range_is_refused_in_words_of_an_audit(given: np.ndarray, family: str) -> None:
    text = refused(given, family=family)
    assert "prediction" in text and "outcome" not in text and "link" not in text


def test_decimals_are_numbers() -> None:
    assert sq.audit([Decimal(str(p)) for p in P], GROUP).family == "binomial"


@pytest.mark.parametrize("given", [P3.round(3), P3.astype(np.float16)], ids=["rounded", "half precision"])
def test_what_is_taken_for_units_is_said(given: np.ndarray) -> None:
    found = sq.audit(given, GROUP, n_permutations=19)
    assert found.family == "multinomial" or any("units" in note and "taken" in note for note in found.notes)


def test_rounded_probabilities_may_be_certain() -> None:
    given = np.where(FIRST[:, None], [0.998, 0.001, 0.001], P3).round(2)
    found = sq.audit(given, GROUP, n_permutations=19)
    assert given.max() == 1.0 and np.abs(given.sum(axis=1) - 1.0).max() > 0.005
    assert found.family == "multinomial" and any("scaled to do so" in note for note in found.notes)


def test_classes_far_outside_the_range_are_counted() -> None:
    found = sq.audit(1.0 / 3.0 + 3.0 * (P3 - 1.0 / 3.0), GROUP, n_permutations=19)
    assert any("outside" in note for note in found.notes)


def test_two_classes_are_bounded_like_one_probability() -> None:
    pair = np.column_stack([1.0 - P, P])
    one, two = sq.audit(P, GROUP).certificate, sq.audit(pair, GROUP, "multinomial").certificate
    assert two.correlation_upper == pytest.approx(one.correlation_upper)


# ------------------------------------------------------------------------------------------- protected columns
def test_protected_columns_of_every_kind_are_the_same_audit() -> None:
    wanted = sq.audit(P, GROUP).p_value
    for given in (
        GROUP.tolist(),
        GROUP.astype(object),
        pd.Series(GROUP, name="g"),
        pd.Series(GROUP, dtype="category"),
        pd.Series(pd.Categorical(GROUP, categories=["q", "a", "b", "c", "z"])),
        pd.DataFrame({"g": pd.Series(GROUP, dtype="string")}),
        pl.Series("g", GROUP),
        pl.DataFrame({"g": GROUP}),
        pa.table({"g": GROUP}),
        sparse.csr_matrix(np.column_stack([GROUP == "b", GROUP == "c"]).astype(float)),
    ):
        assert sq.audit(P, given).p_value == pytest.approx(wanted, rel=1e-10)


def test_unused_levels_have_no_effect_of_their_own() -> None:
    column = pd.Series(pd.Categorical(GROUP, categories=["q", "a", "b", "c", "z"]), name="g")
    assert [e.term for e in sq.audit(P, column).evaluations[0].effects] == ["g[b]", "g[c]"]


def test_collinear_and_constant_columns_have_no_effect_and_a_note() -> None:
    age = rng.normal(50.0, 10.0, N)
    table = pd.DataFrame({"age": age, "months": 12.0 * age, "one": 1.0, "g": GROUP})
    found, wanted = sq.audit(P, table), sq.audit(P, table[["age", "g"]])
    assert found.p_value == pytest.approx(wanted.p_value, rel=1e-9)
    lost = {e.term: e for e in found.evaluations[0].effects}
    assert all(math.isnan(lost[name].estimate) and math.isnan(lost[name].p_value) for name in ("months", "one"))
    assert lost["age"].p_value == pytest.approx(wanted.evaluations[0].effects[0].p_value, rel=1e-6)
    assert any("months, one" in note for note in found.evaluations[0].notes)
    bounds = {c.term: c for c in found.certificate.columns}
    assert bounds["months"].correlation_upper == pytest.approx(bounds["age"].correlation_upper)
    assert math.isnan(bounds["one"].correlation_upper)


def test_a_constant_column_is_bounded_by_nothing() -> None:
    bound = sq.audit(P, pd.DataFrame({"one": 1.0, "g": GROUP})).certificate.columns[0]
    assert math.isnan(bound.effect_upper) and bound.n_group is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (np.ones(N), "constant"),
        (["a"] * N, "constant"),
        (GROUP[:-1], f"predictions have {N} rows but the protected columns have {N - 1}"),
        (rng.normal(size=(N, 2, 2)), "dimensions"),
        (None, "dimensions"),
        (np.where(FIRST, np.inf, SCORE), "infinite"),
        (np.where(FIRST, np.nan, SCORE), "'x0' (6)"),
        (pd.DataFrame(np.ones((N, 2)), columns=["a", "a"]), "unique"),
        ([f"id{i}" for i in range(N)], "identifier"),
    ],
    ids=["constant", "constant text", "short", "3-d", "None", "infinite", "missing", "same name", "identifier"],
)
def test_protected_columns_that_cannot_be_used(given: object, words: str) -> None:
    assert words in refused(P, given)


@pytest.mark.parametrize(("n", "p"), [(20, 30), (20, 18), (3, 1)])
def test_more_columns_than_rows_are_refused(n: int, p: int) -> None:
    assert "Too few rows" in refused(P[:n], rng.normal(size=(n, p)))


@pytest.mark.parametrize(
    "given", [P[:5], LABEL[:5], P3[:5], SCORE[:5], rng.normal(size=(5, 2))], ids=["p", "label", "p3", "score", "units"]
)
def test_five_rows_are_too_few_to_tell(given: np.ndarray) -> None:
    found = sq.audit(given, np.array([0.3, -1.0, 2.0, 0.1, -0.4]), n_permutations=19)
    assert found.verdict == "inconclusive: n too small" or found.certificate.correlation_upper == 1.0


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1e12), (0.0, 1e-12), (1e6, 1.0), (-1e9, 1e3)])
def test_the_scale_and_origin_of_protected_columns_do_not_matter(shift: float, scale: float) -> None:
    age = rng.normal(size=N)
    found, wanted = sq.audit(P + 0.01 * age, shift + scale * age), sq.audit(P + 0.01 * age, age)
    assert found.p_value == pytest.approx(wanted.p_value, rel=1e-5)
    assert found.certificate.columns[0].effect_upper == pytest.approx(wanted.certificate.columns[0].effect_upper, 1e-5)


def test_an_audit_leaves_its_input_alone() -> None:
    """Whatever the memory order: one column, rows first, columns first, and a table of one number."""
    for X in (
        rng.normal(50.0, 10.0, N),
        rng.normal(50.0, 10.0, (N, 1)),
        rng.normal(50.0, 10.0, (N, 2)),
        np.asfortranarray(rng.normal(50.0, 10.0, (N, 2))),
    ):
        given = (P.copy(), P3.copy(), np.column_stack([P, SCORE]))
        weight, before = np.ones(N), X.copy()
        for predictions in given:
            found = sq.audit(predictions, X, sample_weight=weight, cluster=np.arange(N) // 2, n_permutations=19)
            assert all(c.unit.startswith("sd (") and c.unit != "sd (1)" for c in found.certificate.columns)
        np.testing.assert_array_equal(X, before)
        np.testing.assert_array_equal(given[0], P)
        np.testing.assert_array_equal(given[1], P3)


# ----------------------------------------------------------------------------------------------- single rows
def lone(*rows: int) -> np.ndarray:
    group = GROUP.astype("U8")
    for row in rows:
        group[row] = f"lone{row}"
    return group


@pytest.mark.parametrize("rows", [(0,), (0, 1, 2)])
@pytest.mark.parametrize("kind", ["means", "classes", "units"])
def test_levels_with_a_single_row_are_left_out_of_the_test_and_named(rows: tuple[int, ...], kind: str) -> None:
    given = {"means": P, "classes": P3, "units": np.column_stack([P, SCORE])}[kind]
    found = sq.audit(given, pd.DataFrame({"g": lone(*rows)}), n_permutations=19)
    rest = np.delete(np.arange(N), rows)
    wanted = sq.audit(given[rest], pd.DataFrame({"g": GROUP[rest]}), n_permutations=19)
    assert found.p_value == pytest.approx(wanted.p_value, rel=1e-9)
    notes = " ".join(found.evaluations[0].notes)
    assert f"{len(rows)} row(s)" in notes and all(f"g[lone{row}]" in notes for row in rows)


def test_a_reference_level_with_a_single_row_does_not_decide_the_audit() -> None:
    table = pd.DataFrame({"g": lone(0)})
    found = sq.audit(P, table, reference={"g": "lone0"})
    assert found.p_value == pytest.approx(sq.audit(P, table).p_value, rel=1e-9)
    assert any("1 row(s)" in note for note in found.evaluations[0].notes)


def test_effects_against_a_reference_of_one_row_are_not_against_another_level() -> None:
    found = sq.audit(P, pd.DataFrame({"g": lone(0)}), reference={"g": "lone0"}).evaluations[0]
    assert all(math.isnan(effect.estimate) for effect in found.effects) or any("lone0" in n for n in found.notes)


@pytest.mark.parametrize("given", [P, P3], ids=["means", "classes"])
def test_two_levels_one_of_a_single_row(given: np.ndarray) -> None:
    found = sq.audit(given, np.where(np.arange(N) == SCORE.argmax(), "x", "y"))
    assert found.verdict != "leak"


def test_units_with_two_levels_one_of_a_single_row() -> None:
    found = sq.audit(rng.normal(size=(N, 8)), np.where(np.arange(N) == 0, "x", "y"), n_permutations=19)
    assert not (found.effect_map.p_adjusted < 0.001).any()


def test_a_class_that_only_a_lone_row_has() -> None:
    label = np.where(np.arange(N) == 0, "q", np.where(LABEL, "x", "y"))
    assert sq.audit(label, pd.DataFrame({"g": lone(0)})).n == N


def test_predictions_that_vary_in_a_lone_row_only() -> None:
    found = sq.audit(np.where(np.arange(N) == 0, 0.9, 0.3), pd.DataFrame({"g": lone(0)}))
    assert found.verdict != "leak"


def test_one_far_value_decides_nothing_and_is_counted() -> None:
    far = np.where(np.arange(N) == 0, 1e9, SCORE)
    found = sq.audit(P, far)
    assert found.p_value == pytest.approx(sq.audit(P[1:], far[1:]).p_value, rel=1e-6)
    assert any("1 row(s)" in note for note in found.evaluations[0].notes)


# --------------------------------------------------------------------------------------------- separated levels
SEPARATED = {
    "labels": (np.where(GROUP == "b", True, LABEL), None),
    "probabilities": (np.where(GROUP == "b", 1.0, P), None),
    "counts": (np.where(GROUP == "b", 0, rng.poisson(3.0, N)), "poisson"),
    "classes": (np.where(GROUP == "b", "z", np.array(["x", "y", "z"])[P3.argmax(axis=1)]), None),
    "everything": (GROUP == "b", None),
    "every class": (GROUP, None),
}


def test_groups_that_are_the_predictions_are_certain_and_not_judged_by_rounding() -> None:
    found = sq.audit(GROUP, GROUP)
    assert all(effect.p_value < 1e-8 for effect in found.evaluations[0].effects)


@pytest.mark.parametrize("kind", SEPARATED)
def test_a_separated_level_is_an_infinite_effect_and_a_leak(kind: str) -> None:
    given, family = SEPARATED[kind]
    found = sq.audit(given, GROUP, family)
    assert found.verdict == "leak" and found.p_value < 1e-8
    effects = [e for e in found.evaluations[0].effects if e.term.startswith("x0[b]")]
    assert any(math.isinf(e.estimate) for e in effects) and all(e.p_value < 1e-8 for e in effects)
    assert math.isinf(found.certificate.columns[0].effect_upper)
    assert any("infinite" in note and "x0[b]" in note for note in found.evaluations[0].notes)


def test_a_threshold_on_a_protected_number_is_separation() -> None:
    age = rng.normal(size=N)
    found = sq.audit(age > 0.0, age)
    assert found.verdict == "leak" and found.evaluations[0].effects[0].estimate == math.inf


def test_a_separated_level_of_noise_is_no_leak() -> None:
    """Three of three rows predicted 1, where two of three rows are: nobody is surprised."""
    group = np.where(np.arange(N) < 3, "rare", "other")
    label = (np.arange(N) % 3 > 0) | (group == "rare")
    found = sq.audit(label, group)
    assert math.isinf(found.evaluations[0].effects[0].estimate) and found.verdict != "leak"


def test_bounds_of_a_fit_without_an_end_are_no_bounds() -> None:
    """Rates 1 and about 0.5: the ratio is 2, which the certificate must not rule out."""
    found = sq.audit(np.where(GROUP == "b", 1.0, P), GROUP, sq.families.family("binomial", link="log"))
    ratio = 1.0 / P[GROUP == "a"].mean()
    assert found.certificate.columns[0].effect_upper >= ratio


# --------------------------------------------------------------------------- missing values, weights, clusters
@pytest.mark.parametrize(
    "given", [np.where(FIRST, np.nan, P), pl.Series([None] * 6 + P[6:].tolist())], ids=["numpy", "polars"]
)
def test_rows_without_a_prediction_can_be_left_out(given: object) -> None:
    found, wanted = sq.audit(given, GROUP, missing="drop"), sq.audit(P[~FIRST], GROUP[~FIRST])
    assert found.n == N - 6 and found.p_value == pytest.approx(wanted.p_value, rel=1e-12)
    assert found.notes[0].startswith(f"6 of {N} rows")


def test_missing_protected_values_drop_or_become_a_level() -> None:
    group = pd.DataFrame({"g": np.where(np.arange(N) < 30, None, GROUP)})
    dropped = sq.audit(P, group, missing="drop")
    assert dropped.n == N - 30 and dropped.p_value == pytest.approx(sq.audit(P[30:], GROUP[30:]).p_value, rel=1e-9)
    assert "g[missing]" in [e.term for e in sq.audit(P, group, missing="level").evaluations[0].effects]


def test_both_kinds_of_missing_rows_clusters_and_weights_drop_together() -> None:
    p, g = np.where(np.arange(N) < 5, np.nan, P), np.where(np.arange(N) % 40 == 7, None, GROUP)
    weight, cluster = rng.uniform(0.5, 2.0, N), np.arange(N) // 3
    keep = (np.arange(N) >= 5) & (np.arange(N) % 40 != 7)
    found = sq.audit(p, pd.DataFrame({"x0": g}), missing="drop", sample_weight=weight, cluster=cluster)
    wanted = sq.audit(P[keep], GROUP[keep], sample_weight=weight[keep], cluster=cluster[keep])
    assert found.n == keep.sum() and found.p_value == pytest.approx(wanted.p_value, rel=1e-9)


@pytest.mark.parametrize(
    "given", [np.where(FIRST, None, LABEL.astype(object)), np.where(FIRST, None, P.astype(object))]
)
def test_rows_without_a_label_can_be_left_out(given: np.ndarray) -> None:
    assert sq.audit(given, GROUP, missing="drop").n == N - 6


def test_labels_with_missing_values_are_still_labels() -> None:
    found = sq.audit(np.where(FIRST, np.nan, LABEL), GROUP, missing="drop")
    assert any("class labels" in note for note in found.notes)


def test_predictions_that_are_all_missing() -> None:
    assert "prediction" in refused(np.full(N, np.nan), missing="drop")


def test_a_row_without_weight_is_not_there() -> None:
    weight = np.where(FIRST, 0.0, rng.uniform(0.5, 2.0, N))
    group = np.where(FIRST, "only here", GROUP)
    found = sq.audit(P, group, sample_weight=weight)
    wanted = sq.audit(P[~FIRST], GROUP[~FIRST], sample_weight=weight[~FIRST])
    assert found.n == N - 6 and found.p_value == pytest.approx(wanted.p_value, rel=1e-12)
    assert [e.term for e in found.evaluations[0].effects] == ["x0[b]", "x0[c]"]


def test_a_row_without_weight_needs_no_prediction() -> None:
    assert sq.audit(np.where(FIRST, np.nan, P), GROUP, sample_weight=np.where(FIRST, 0.0, 1.0)).n == N - 6


@pytest.mark.parametrize("kind", ["labels", "probabilities"])
def test_a_class_of_rows_without_weight(kind: str) -> None:
    label = np.where(FIRST, 2, LABEL.astype(int))
    given = np.array(["x", "y", "z"])[label] if kind == "labels" else np.eye(3)[label]
    positive = "y" if kind == "labels" else None
    assert sq.audit(given, GROUP, sample_weight=np.where(FIRST, 0.0, 1.0), positive=positive).n == N - 6


def test_rows_that_were_left_out_are_not_counted_as_outside() -> None:
    found = sq.audit(np.where(FIRST, 1.5, P), GROUP, "binomial", sample_weight=np.where(FIRST, 0.0, 1.0))
    assert not any("outside" in note for note in found.notes)


@pytest.mark.parametrize(
    "weight",
    [np.zeros(N), -np.ones(N), np.full(N, np.nan), np.ones(N - 1), np.ones((N, 1))],
    ids=["zero", "negative", "missing", "short", "table"],
)
def test_weights_that_are_none(weight: np.ndarray) -> None:
    assert "eight" in refused(P, sample_weight=weight)


def test_weights_that_are_text() -> None:
    refused(P, sample_weight=["heavy"] * N)


@pytest.mark.parametrize("kind", [list, np.asarray, pd.Series, pl.Series])
def test_clusters_of_every_kind(kind: type) -> None:
    codes = np.arange(N) // 4
    wanted = sq.audit(P, GROUP, cluster=codes)
    for given in (codes, codes.astype(str), codes.astype(float)):
        assert sq.audit(P, GROUP, cluster=kind(given.tolist())).p_value == pytest.approx(wanted.p_value, rel=1e-12)
    assert "cluster-robust" in wanted.evaluations[0].title


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        (np.zeros(N), "two clusters"),
        (np.arange(N - 1), "one value per row"),
        (np.where(FIRST, np.nan, 1.0), "missing"),
        ([None, *["a"] * (N - 1)], "missing"),
        (pl.Series([None, *["a"] * (N - 1)]), "missing"),
        (pd.Series([None, *[1] * (N - 1)], dtype="Int64"), "missing"),
    ],
    ids=["one", "short", "NaN", "None", "polars", "Int64"],
)
def test_clusters_that_are_none(cluster: object, words: str) -> None:
    assert words in refused(P, cluster=cluster)


def test_missing_clusters_of_pandas_text() -> None:
    refused(P, cluster=pd.Series([None, *["a"] * (N - 1)], dtype="string"))


def test_missing_clusters_of_dates() -> None:
    refused(P, cluster=pd.Series(pd.to_datetime([None, *["2020-01-01", "2020-01-02"] * (N // 2)][:N])))


def test_one_cluster_of_units() -> None:
    refused(rng.normal(size=(N, 3)), cluster=np.zeros(N), n_permutations=19)


def test_clusters_that_are_the_protected_levels() -> None:
    found = sq.audit(P, GROUP, cluster=GROUP)
    assert not any("without error" in note for note in found.evaluations[0].notes)


def test_pandas_rows_in_another_order_are_refused() -> None:
    p, g = pd.Series(P), pd.DataFrame({"g": GROUP})
    turned = slice(None, None, -1)
    assert "order" in refused(p[turned], g)
    assert "order" in refused(p, g, sample_weight=pd.Series(np.ones(N))[turned])
    assert "order" in refused(p, g, cluster=pd.Series(np.arange(N))[turned])
    relabelled = p.set_axis([f"row{i}" for i in range(N)])
    assert sq.audit(relabelled, g).p_value == pytest.approx(sq.audit(P, GROUP).p_value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"confidence": 1.0}, "confidence"),
        ({"confidence": 95}, "confidence"),
        ({"confidence": 0.05}, "confidence"),
        ({"tolerance": -0.1}, "tolerance"),
        ({"tolerance": 1.0}, "tolerance"),
        ({"n_permutations": 3}, "permutations"),
        ({"vcov": "hc3"}, "HC3"),
        ({"vcov": "cluster"}, "cluster="),
        ({"evaluation": "tree"}, "forest"),
        ({"evaluation": []}, "at least one"),
        ({"evaluation": ["glm", "glm"]}, "once"),
        ({"basis": "effects"}, "basis"),
        ({"missing": "ignore"}, "missing"),
        ({"reference": {"sex": "f"}}, "sex"),
        ({"reference": {"x0": "q"}}, "'q'"),
        ({"evaluation": "forest", "max_rows": 3}, "max_rows"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_used(options: dict[str, object], words: str) -> None:
    assert words in refused(P, **options)


@pytest.mark.parametrize("max_rows", [-5, 0, 3])
def test_too_few_rows_of_a_relu_test(max_rows: int) -> None:
    refused(P, evaluation="relu", max_rows=max_rows, n_permutations=19)


@pytest.mark.parametrize("evaluation", ["linear", "relu"])
def test_classes_and_models_of_one_column(evaluation: str) -> None:
    assert "one column" in refused(P3, evaluation=evaluation)


def test_classes_and_the_linear_model_in_words_of_an_audit() -> None:
    assert "outcome" not in refused(P3, evaluation="linear")


def test_glm_and_linear_are_one_model_of_units() -> None:
    found = sq.audit(rng.normal(size=(N, 3)), GROUP, evaluation=["glm", "linear"], n_permutations=19)
    names = [e.name for e in found.evaluations]
    assert len(set(names)) == len(names)


def test_every_permutation_based_evaluation_model_can_be_asked_for() -> None:
    """They are listed where they are asked for, and imported only then: they bring scikit-learn."""
    assert tuple(nonlinear.PERMUTATION_BASED) == run.PERMUTATION_BASED
