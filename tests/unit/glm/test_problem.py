"""Every bad input is one clear sentence that names the column and says what to do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from setsquare import OrthogonalGLMClassifier, Stream
from setsquare.errors import InputError, MissingValuesError, OutcomeRangeError
from setsquare.glm.outcome_summary import OutcomeSummary
from setsquare.glm.preparation import prepare
from setsquare.glm.problem import Problem
from setsquare.glm.solver import solve
from setsquare.rows import LocalParts, RowsInParts
from setsquare.rows.blocks import Block
from setsquare.rows.passes import Piece

NAMES = {"feature_names": ("age", "income", "debt", "rooms"), "protected_names": ("sex", "race")}


def draw(n: int = 50) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.random(n) < 0.5, rng.normal(size=n)]).astype(float)
    Z = rng.normal(size=(n, 4)) + X[:, [1]]
    return {"features": Z, "outcome": (rng.random(n) < 0.5).astype(float), "protected": X}


def spoil(key: str, index, value: float) -> dict[str, np.ndarray]:
    data = draw()
    data[key][index] = value
    return data


def sentence(call, error: type[InputError], *parts: str) -> None:
    """One sentence or two on one line, with all these parts in it."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message and message.endswith(".")
    assert len(message) < 300


@pytest.mark.parametrize(("bad", "kind"), [(np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "infinite")])
@pytest.mark.parametrize(
    ("key", "index", "name"),
    [("features", (3, 2), "debt"), ("protected", (3, 1), "race"), ("outcome", 3, "outcome")],
)
def test_values_that_are_no_numbers(key: str, index, name: str, bad: float, kind: str) -> None:
    data = spoil(key, index, bad)
    sentence(lambda: Problem(**data, family="binomial", **NAMES), MissingValuesError, name, kind, "1 ")


def test_values_that_are_no_numbers_in_sparse_features() -> None:
    data = spoil("features", (3, 2), np.nan)
    data["features"] = sparse.csr_array(data["features"])
    sentence(lambda: Problem(**data, family="binomial", **NAMES), MissingValuesError, "debt", "NaN")


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("binomial", 2.0, "between 0 and 1"),
        ("poisson", -1.0, "0 or more"),
        ("gamma", -1.0, "positive"),
        ("negative_binomial", -1.0, "0 or more"),
        ("tweedie", -1.0, "0 or more"),
    ],
)
def test_outcome_outside_the_range(name: str, value: float, wanted: str) -> None:
    data = draw()
    data["outcome"] = data["outcome"] + (1.0 if name == "gamma" else 0.0)
    data["outcome"][4] = value
    sentence(lambda: Problem(**data, family=name), OutcomeRangeError, name, f"such as {value:g}", wanted, "outcome")


@pytest.mark.parametrize(("name", "value"), [("binomial", 0.0), ("binomial", 1.0), ("poisson", 0.0), ("tweedie", 0.0)])
def test_only_one_class_or_only_zeros(name: str, value: float) -> None:
    data = draw()
    data["outcome"][:] = value
    sentence(lambda: Problem(**data, family=name), InputError, "nothing to predict", name)


@pytest.mark.parametrize("name", ["gaussian", "poisson", "gamma", "multinomial"])
def test_an_outcome_that_does_not_vary(name: str) -> None:
    data = draw()
    data["outcome"][:] = 0.0 if name == "multinomial" else 3.0
    sentence(lambda: solve(Problem(**data, family=name)), InputError)


@pytest.mark.parametrize("outcome", [[0.0, 2.0], [0.0, 1.5, 1.0], [-1.0, 0.0, 1.0], [1.0, 2.0]])
def test_class_numbers_with_holes_fractions_or_signs(outcome: list[float]) -> None:
    data = draw()
    data["outcome"] = np.resize(outcome, 50)
    sentence(lambda: Problem(**data, family="multinomial"), InputError, "class")


def test_constant_protected_columns() -> None:
    data = draw()
    data["protected"] = np.ones((50, 2))
    sentence(lambda: solve(Problem(**data, family="binomial", **NAMES)), InputError, "sex", "race", "constant")


@pytest.mark.parametrize("q", [1, 2])
def test_as_many_protected_columns_as_features(q: int) -> None:
    data = draw()
    data["features"] = data["features"][:, :q]
    sentence(
        lambda: solve(Problem(**data, family="binomial")),
        InputError,
        "2 independent protected",
        str(q),
        "more features",
    )


def test_as_many_protected_columns_as_independent_features() -> None:
    """A copied feature adds no freedom."""
    data = draw()
    data["features"] = data["features"][:, [0, 1, 1, 0]]
    sentence(lambda: solve(Problem(**data, family="binomial")), InputError, "2 independent protected", "more features")


def test_collinear_protected_columns_do_not_count_twice() -> None:
    data = draw()
    data["protected"] = data["protected"][:, [0, 1, 0, 1, 0]]
    assert solve(Problem(**data, family="binomial")).certificate.rank_protected == 2


@pytest.mark.parametrize("n", [1, 2])
def test_fewer_rows_than_protected_columns(n: int) -> None:
    data = {key: value[:n] for key, value in draw().items()}
    data["outcome"] = np.arange(n) * 1.0
    sentence(lambda: Problem(**data), InputError, str(n), "2 protected column", "more rows")


@pytest.mark.parametrize("key", ["outcome", "protected", "weight", "offset"])
def test_lengths_that_do_not_match(key: str) -> None:
    data = draw() | {"weight": np.ones(50), "offset": np.zeros(50)}
    data[key] = data[key][:-1]
    sentence(lambda: Problem(**data, family="binomial"), InputError, key, "49", "50")


@pytest.mark.parametrize("key", ["feature_names", "protected_names"])
def test_names_that_do_not_match_the_columns(key: str) -> None:
    sentence(lambda: Problem(**draw(), family="binomial", **{key: ("a", "b", "c")}), InputError, "3", "name")


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_weights_that_cannot_be(weight: float) -> None:
    weights = np.ones(50)
    weights[3] = weight
    sentence(lambda: Problem(**draw(), family="binomial", weight=weights), InputError, "weights", "not negative")


def test_weights_that_are_all_zero() -> None:
    sentence(lambda: Problem(**draw(), family="binomial", weight=np.zeros(50)), InputError, "weights", "zero")


def test_a_class_without_weight_is_a_class_that_is_missing() -> None:
    data = draw()
    sentence(lambda: Problem(**data, family="binomial", weight=data["outcome"]), InputError, "nothing to predict")


@pytest.mark.parametrize("offset", [np.nan, -np.inf])
def test_offsets_that_cannot_be(offset: float) -> None:
    offsets = np.zeros(50)
    offsets[3] = offset
    sentence(lambda: Problem(**draw(), family="poisson", offset=offsets), InputError, "offset", "exposure")


@pytest.mark.parametrize("l2", [-1.0, np.nan, np.inf])
def test_ridges_that_cannot_be(l2: float) -> None:
    sentence(lambda: Problem(**draw(), family="binomial", l2=l2), InputError, "l2", "0 or more")


@pytest.mark.parametrize("shape", [(0, 3), (5, 0)])
def test_empty_features(shape: tuple[int, int]) -> None:
    sentence(lambda: Problem(np.zeros(shape), np.zeros(shape[0])), InputError, "at least one row and one column")


def test_features_that_are_no_matrix() -> None:
    sentence(lambda: Problem(np.zeros(5), np.zeros(5)), InputError, "features", "(5,)")


def test_an_outcome_of_several_columns() -> None:
    sentence(lambda: Problem(np.zeros((5, 2)), np.zeros((5, 2))), InputError, "outcome", "(5, 2)")


def test_a_protected_table_without_columns() -> None:
    data = draw()
    data["protected"] = np.zeros((50, 0))
    sentence(lambda: solve(Problem(**data, family="binomial")), InputError, "protected")


def test_a_protected_array_of_three_dimensions() -> None:
    data = draw()
    data["protected"] = np.ones((50, 2, 2))
    sentence(lambda: solve(Problem(**data, family="binomial")), InputError, "protected")


@pytest.mark.parametrize("key", ["features", "protected", "outcome"])
def test_text(key: str) -> None:
    data = draw()
    data[key] = data[key].astype(object)
    data[key][0] = "many"
    sentence(lambda: Problem(**data, family="binomial"), InputError, "must be numbers", "many")


def test_unknown_families_and_solvers() -> None:
    sentence(lambda: Problem(**draw(), family="normal"), InputError, "'normal'", "gaussian")
    sentence(lambda: solve(Problem(**draw(), family="binomial"), "newton"), InputError, "'newton'", "sqp")


def test_offsets_of_classes_need_a_column_a_class() -> None:
    data = draw()
    data["outcome"] = np.arange(50.0) % 3
    sentence(lambda: solve(Problem(**data, family="multinomial", offset=np.zeros(50))), InputError, "offset")


def test_what_is_accepted_as_it_comes() -> None:
    """Lists, integers, booleans, single precision, one protected column without its second dimension."""
    data = draw()
    plain = solve(Problem(data["features"], data["outcome"], data["protected"][:, :1], family="binomial"))
    other = solve(
        Problem(
            data["features"].tolist(), data["outcome"].astype(bool), data["protected"][:, 0].astype(int), "binomial"
        )
    )
    np.testing.assert_allclose(other.coef, plain.coef, atol=1e-12)
    single = solve(Problem(data["features"].astype(np.float32), data["outcome"], data["protected"], family="binomial"))
    double = solve(Problem(data["features"], data["outcome"], data["protected"], family="binomial"))
    np.testing.assert_allclose(single.coef, double.coef, atol=1e-5)
    assert single.certificate.is_orthogonal


def test_default_names_number_the_columns() -> None:
    problem = Problem(**draw(), family="binomial")
    assert problem.feature_names == ("z0", "z1", "z2", "z3") and problem.protected_names == ("x0", "x1")
    assert problem.n_rows == 50 and problem.n_predictors == 1
    np.testing.assert_allclose(problem.mean_weight().sum(), 1.0)


def test_classes_are_coded_in_contrasts() -> None:
    data = draw()
    data["outcome"] = np.arange(50.0) % 3
    problem = Problem(**data, family="multinomial")
    assert problem.n_predictors == 2 and problem.coded_outcome().shape == (50, 2)


def test_the_share_of_the_outcome_that_is_protected() -> None:
    data = draw()
    X = np.column_stack([np.ones(50), data["protected"]])
    y = data["outcome"]
    rest = y - X @ np.linalg.lstsq(X, y, rcond=None)[0]
    share = 1.0 - rest.var() / y.var()
    assert prepare(Problem(**data, family="binomial")).label_share == pytest.approx(share, rel=1e-10)
    assert prepare(Problem(data["features"], y, family="binomial")).label_share == 0.0


def test_the_input_is_not_changed() -> None:
    data = draw()
    copies = {key: value.copy() for key, value in data.items()}
    solve(Problem(**data, family="binomial"))
    for key, value in data.items():
        np.testing.assert_array_equal(value, copies[key])


def test_rows_that_live_elsewhere_are_the_same_problem() -> None:
    data, n = draw(), 50
    Z, y, X = data["features"], data["outcome"], data["protected"]
    known = Problem(Z, y, X, family="binomial", weight=np.arange(50.0))

    def read() -> Iterator[Piece]:
        for rows in (slice(0, 20), slice(20, 20), slice(20, n)):
            w = known.mean_weight()[rows]
            block = Block(
                np.insert(Z[rows], 0, 1.0, axis=1), y[rows, None], np.zeros((len(w), 0)), w, None, X[rows].copy()
            )
            yield Piece(block, len(w), "")

    parts, outcomes = RowsInParts(LocalParts(read), 49), OutcomeSummary.of(y, known.mean_weight())
    other = Problem.of_rows(parts, outcomes, known.family, known.feature_names, known.protected_names)
    assert known.n_rows == other.n_rows == 49 and parts.in_memory() is None  # a row of weight 0 does not count
    assert known.outcomes.spread == pytest.approx(other.outcomes.spread, rel=1e-14)
    np.testing.assert_allclose(solve(other).coef, solve(known).coef, rtol=1e-9)
    np.testing.assert_allclose(solve(other, "large").coef, solve(known).coef, rtol=1e-6)
    with pytest.raises(InputError, match="needs the rows in memory"):
        solve(other, "mdmm")


def test_a_summary_of_outcomes_far_from_zero_keeps_their_spread() -> None:
    y = 1e9 + np.random.default_rng(0).normal(size=3000)
    parts = [OutcomeSummary.of(part) for part in np.split(y, 3)]
    assert parts[0].merge(parts[1]).merge(parts[2]).spread == pytest.approx(y.std(), rel=1e-6)


def test_features_of_a_stream_whose_squares_vanish_are_refused() -> None:
    data = draw()
    table = pd.DataFrame(data["features"], columns=list("abcd")).assign(y=data["outcome"], g=data["protected"][:, 0])
    table["b"] *= 1e-170
    with pytest.raises(InputError, match=r"b have values so small"):
        OrthogonalGLMClassifier(protected="g").fit(Stream([table.iloc[:30], table.iloc[30:]]), "y")
