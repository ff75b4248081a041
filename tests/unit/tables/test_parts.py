"""Matrices, coders and checks of tables against brute force, and their limits just inside and just outside."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from setsquare.errors import InputError, MissingValuesError, UnseenLevelError
from setsquare.tables import learn
from setsquare.tables.arrow import accept_unread, is_unread, read_unread
from setsquare.tables.coders import FEW_LEVELS, Categorical, Numeric, locate_cells, order_levels
from setsquare.tables.column import TableRows, complete_rows, open_rows, plain_columns, read_column
from setsquare.tables.design import Design, read_stored
from setsquare.tables.expansion import Products, learn_hinges, rank_curve
from setsquare.tables.frame import backend_of, check_column, dense, open_table, resolve, slice_rows
from setsquare.tables.mixed_matrix import MixedMatrix, group_sizes, join
from setsquare.tables.outcome import Values, bears, class_name, guess_family, positive_class, read_family, read_outcome
from setsquare.tables.partly_missing import check_known, encode_partly, learn_partly
from setsquare.tables.smooth import gaussian, learn_spline
from setsquare.tables.summary import observe, observed
from setsquare.tables.text_values import refuse_strays, stray_values
from setsquare.tables.validation import (
    check_alignment,
    check_classes,
    check_clusters,
    check_confidence,
    check_cutoff,
    check_folds,
    check_l2,
    check_max_rows,
    check_moments,
    check_offset,
    check_one_column,
    is_missing,
    read_cluster,
    read_offset,
    read_scores,
    read_time,
    read_weight,
    refuse_constant_protected,
    refuse_missing_outcome,
)

RNG = np.random.default_rng


# ------------------------------------------------------------------------------------------------- mixed matrices
def mixed(n: int = 40, seed: int = 0) -> tuple[MixedMatrix, np.ndarray]:
    """Two numbers around three categories, and the same as dummies."""
    rng = RNG(seed)
    numbers, sizes = rng.normal(size=(n, 2)), [3, 4, 2]
    codes = [rng.integers(0, size, n) for size in sizes]
    dummies = [np.eye(size)[code][:, 1:] for size, code in zip(sizes, codes, strict=True)]
    wide = np.column_stack([numbers[:, :1], dummies[0], dummies[1], numbers[:, 1:], dummies[2]])
    return join(numbers, codes, sizes, [False, True, True, False, True]), wide


@pytest.mark.parametrize("merge", [0, 6, 512])
def test_a_mixed_matrix_multiplies_like_its_dummies(merge: int) -> None:
    Z, wide = mixed()
    Z = Z.merged(merge) if merge else Z
    rng = RNG(1)
    B, b, thin, w = rng.normal(size=(8, 3)), rng.normal(size=8), rng.normal(size=(40, 2)), rng.random(40)
    assert Z.shape == (40, 8) and Z.dtype == np.float64
    np.testing.assert_array_equal(Z.toarray(), wide)
    np.testing.assert_array_equal(Z.take([6, 0, 2]), wide[:, [6, 0, 2]])
    np.testing.assert_allclose(Z @ B, wide @ B, atol=1e-13)
    np.testing.assert_allclose(Z @ b, wide @ b, atol=1e-13)
    np.testing.assert_allclose(Z @ B[:, :1], wide @ B[:, :1], atol=1e-13)
    np.testing.assert_allclose(Z.T @ thin, wide.T @ thin, atol=1e-13)
    np.testing.assert_allclose(w @ Z, w @ wide, atol=1e-13)
    np.testing.assert_allclose(Z.squares(w), w @ wide**2, atol=1e-13)
    dummies = [1, 2, 3, 4, 5, 7]
    counts = np.full(8, 40)
    counts[dummies] = wide[:, dummies].sum(0)
    np.testing.assert_array_equal(Z.counts(), counts)
    some = np.array([3, 5, 9])
    np.testing.assert_array_equal(Z[some].toarray(), wide[some])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(Z)).toarray(), wide)
    assert Z.nbytes == 40 * (2 * 8 + Z.codes.shape[1] * 4) and Z.stored == 2 + Z.codes.shape[1]
    for part in Z.parts:
        sums = Z.dummies[:, part.levels].sum(axis=0)
        np.testing.assert_allclose(part.fold(sums[:, None])[:, 0], wide[:, part.columns].sum(0))
        np.testing.assert_allclose(part.fold_diagonal(sums), wide[:, part.columns].T @ wide[:, part.columns])
        assert part.size == part.levels.stop - part.levels.start
        gram = np.zeros((8, 8))
        part.put(gram, part, wide[:, part.columns].T @ wide[:, part.columns])
        np.testing.assert_allclose(gram[np.ix_(part.columns, part.columns)], part.fold_diagonal(sums))
        assert np.count_nonzero(gram) <= len(part.columns) ** 2


def test_columns_are_replaced_and_centred() -> None:
    Z, wide = mixed()
    new = RNG(2).normal(size=(40, 2))
    changed = wide.copy()
    changed[:, [3, 6]] = new
    np.testing.assert_array_equal(Z.put([3, 6], new).toarray(), changed)
    mean = np.zeros(8)
    mean[[0, 3, 6]] = wide[:, [0, 3, 6]].mean(0)
    np.testing.assert_allclose(Z.centred(mean).toarray(), wide - mean, atol=1e-15)
    np.testing.assert_allclose(
        Z.centred(mean, ones=True).toarray(), np.column_stack([np.ones(40), wide - mean]), atol=1e-15
    )
    np.testing.assert_array_equal(Z.centred(np.zeros(8)).toarray(), wide)


def test_pairs_number_the_combinations_of_two_categories() -> None:
    Z, _ = mixed()
    levels = [Z.codes[:, j] - first for j, first in enumerate(Z.bounds[:-1])]
    for (i, j), numbers in Z.pairs.items():
        sizes = np.diff(Z.bounds)
        np.testing.assert_array_equal(numbers, levels[i] * sizes[j] + levels[j])
        assert numbers.max() < sizes[i] * sizes[j]


def test_categories_are_merged_smallest_first_up_to_a_limit() -> None:
    assert group_sizes([4, 2, 3], 6) == [[1, 2], [0]]
    assert group_sizes([4, 2, 3], 24) == [[1, 2, 0]] and group_sizes([4, 2, 3], 23) == [[1, 2], [0]]
    assert group_sizes([4, 2, 3], 5) == [[1], [2], [0]] and group_sizes([7], 3) == [[7 * 0]]
    Z, _ = mixed()
    assert Z.merged(5) is Z and len(Z.merged(6).parts) == 2 and Z.merged(24).n_levels <= 24


# ---------------------------------------------------------------------------------------------------------- coders
@pytest.mark.parametrize("levels", [FEW_LEVELS, FEW_LEVELS + 1, FEW_LEVELS + 2])
def test_dummies_of_few_and_of_many_levels(levels: int) -> None:
    text = [f"l{i:02d}" for i in RNG(0).permutation(np.arange(3 * levels) % levels)]
    design = learn(pd.DataFrame({"a": text}))
    np.testing.assert_array_equal(
        design.apply(pd.DataFrame({"a": text})).values, pd.get_dummies(text).to_numpy()[:, 1:]
    )


def test_cells_are_found_by_brute_force() -> None:
    rng = RNG(0)
    codes = [rng.integers(-1, 3, 200), rng.integers(-1, 2, 200), rng.integers(0, 4, 200)]
    cells = sorted({tuple(map(int, cell)) for cell in zip(*codes, strict=True) if min(cell) >= 0})[::2]
    found = locate_cells(cells, codes)
    known = {cell: k for k, cell in enumerate(cells)}
    assert found.tolist() == [known.get(tuple(map(int, cell)), -1) for cell in zip(*codes, strict=True)]
    assert observed([np.array([1, 0, 1]), np.array([0, 2, 0])]) == ((0, 2), (1, 0))


def test_unseen_levels_are_listed_up_to_five() -> None:
    design = learn(pd.DataFrame({"a": ["x", "y"]}))
    new = pd.DataFrame({"a": [*"bbacdef", "x"]})
    with pytest.raises(
        UnseenLevelError, match=r"'a' has 7 rows with levels .*: 'a' \(1\), 'b' \(2\), 'c' .*'e' \(1\), …;"
    ):
        design.apply(new)
    with pytest.raises(UnseenLevelError, match=r"has 1 row with levels .*: 'q' \(1\); recode.* reference 'x'"):
        design.apply(pd.DataFrame({"a": ["q", "x"]}))
    five = pd.DataFrame({"a": [*"abcde"]})
    with pytest.raises(UnseenLevelError, match=r"'e' \(1\); recode"):
        design.apply(five)


def test_references_come_first_and_must_exist() -> None:
    assert order_levels(["a", "b", "c"], "x", "c") == ("c", "a", "b") and order_levels(["a"], "x", None) == ("a",)
    with pytest.raises(InputError, match="'x' has no level 'd' for a reference; it has 'a', 'b'"):
        order_levels(["a", "b"], "x", "d")
    with pytest.raises(InputError, match="'x' has two levels written '1'"):
        order_levels(["1", 1, "2"], "x", None)
    with pytest.raises(InputError, match="Column 'n' is numeric and has no reference level"):
        learn(pd.DataFrame({"n": [1.0, 2.0]}), reference={"n": 1})


@pytest.mark.parametrize(
    ("levels", "rows", "passes"), [(50, 60, True), (51, 60, False), (60, 120, True), (61, 121, False)]
)
def test_an_identifier_has_more_than_fifty_levels_and_than_half_the_rows(levels: int, rows: int, passes: bool) -> None:
    table = pd.DataFrame({"id": [f"l{i % levels}" for i in range(rows)]})
    if passes:
        assert len(learn(table).names) == levels - 1
    else:
        with pytest.raises(InputError, match=f"'id' has {levels} levels in {rows} rows, as an identifier has"):
            learn(table)


@pytest.mark.parametrize(
    ("values", "rows", "codes"), [(20, 200, True), (20, 199, False), (21, 2100, False), (2, 20, True)]
)
def test_numbers_that_look_like_groups_are_no_part_of_cells(values: int, rows: int, codes: bool) -> None:
    table = pd.DataFrame({"n": np.arange(rows) % values, "a": np.where(np.arange(rows) % 3, "x", "y"), "b": "z"})
    if codes:
        with pytest.raises(InputError, match="'n' is numeric and would take no part in the cells"):
            learn(table, basis="cells")
        table["n"] += 0.5
    learn(table, basis="cells")


def test_missing_numbers_are_filled_with_the_mean() -> None:
    table = pd.DataFrame({"n": [1.0, np.nan, 4.0]})
    design = learn(table, missing="level")
    assert design.names == ("n", "n[missing]")
    np.testing.assert_array_equal(design.apply(table).values, [[1.0, 0.0], [2.5, 1.0], [4.0, 0.0]])
    whole = learn(pd.DataFrame({"n": [1.0, 4.0]}), missing="level", unseen="pool").apply(table)
    assert whole.values.ravel().tolist() == [1.0, 2.5, 4.0] and whole.n_pooled == {"n": 1}
    with pytest.raises(MissingValuesError, match="'n' has 1 missing values and had none in training"):
        learn(pd.DataFrame({"n": [1.0, 4.0]}), missing="level").apply(table)
    with pytest.raises(MissingValuesError, match=r"in columns 'n' \(1\), 'm' \(2\); fill"):
        learn(table.assign(m=[np.nan, np.nan, 1.0]))
    with pytest.raises(MissingValuesError, match=r"in column 'n' \(1\); fill"):
        learn(table)
    with pytest.raises(InputError, match="No row is left: every one has a missing value in 'n', 'm'"):
        learn(table.assign(m=[np.nan, 1.0, np.nan]), missing="drop")


# ------------------------------------------------------------------------------------------------- wider features
def test_hinges_are_clipped_and_scaled() -> None:
    x = RNG(0).normal(size=1001)
    hinges = learn_hinges(Numeric("x"), x, 3)
    ordered = np.sort(x)
    assert (hinges.low, hinges.high) == (ordered[5], ordered[995])
    assert hinges.knots == tuple(ordered[[250, 500, 750]])
    out = np.zeros((1001, 4))
    hinges.write(x, out)
    clipped = np.clip(x, hinges.low, hinges.high)
    for j, knot in enumerate((hinges.low, *hinges.knots)):
        raw = np.maximum(clipped - knot, 0.0)
        assert hinges.scales[j] == pytest.approx(raw.std(), rel=1e-12)
        np.testing.assert_allclose(out[:, j], raw / raw.std(), rtol=1e-12)
    assert hinges.names == ("x", *(f"x>{knot:.8g}" for knot in hinges.knots))
    np.testing.assert_allclose(out.std(0), 1.0)


@pytest.mark.parametrize(
    ("values", "most", "knots"),
    [
        ([0, 1], 5, ()),
        ([0, 1, 2], 5, (1,)),
        ([0, 1, 2], 0, ()),
        ([0, 1, 2, 3, 4], 3, (1, 2, 3)),
        ([0, 1, 2, 3, 4], 2, (1, 3)),
        ([0] * 50 + [1, 2, 3], 1, ()),
        ([0] * 90 + [1, 2, 3, 4, 5, 6], 2, (3,)),
        ([7], 2, ()),
    ],
)
def test_knots_are_values_inside_the_range(values: list[int], most: int, knots: tuple[int, ...]) -> None:
    found = learn_hinges(Numeric("x"), np.array(values, dtype=float), most)
    assert found.knots == knots and (found.low, found.high) == (min(values), max(values))
    assert all(scale > 0.0 for scale in found.scales) and len(found.scales) == 1 + len(knots)


def test_few_values_are_not_clipped() -> None:
    spread = np.repeat(np.arange(21.0), 100)
    spread[-1] = 500.0
    few = learn_hinges(Numeric("x"), np.where(spread == 19.0, 18.0, spread), 2)
    assert few.high == 500.0  # 21 values
    many = learn_hinges(Numeric("x"), np.append(spread, 600.0), 2)
    assert many.high == 20.0 and many.low == 0.0


def test_ranks_are_those_of_the_middle_of_ties() -> None:
    points, ranks = rank_curve(np.array([3.0, 1.0, 1.0, np.nan, 2.0]))
    assert points == (1.0, 2.0, 3.0) and ranks == (0.25, 0.625, 0.875)
    x = RNG(0).normal(size=500)
    points, ranks = rank_curve(x)
    assert len(points) == 21 and points[0] == x.min() and points[-1] == x.max()
    np.testing.assert_allclose(ranks, [(np.mean(x < p) + np.mean(x <= p)) / 2 for p in points])
    assert len(rank_curve(np.arange(21.0))[0]) == 21 and len(rank_curve(np.arange(22.0))[0]) == 21


def test_products_of_ranks_and_dummies() -> None:
    table = pd.DataFrame({"x": [1.0, 2.0, np.nan, 3.0], "g": ["a", "b", "b", "c"]})
    coder = Products(
        ("x", "g"), (((1.0, 3.0), (0.25, 0.75)), ()), ((), ("a", "b", "c")), (2.0, 0.0), ((0, 0, 1, 1), (1, 2, 1, 2))
    )
    assert coder.names == ("x:g[b]", "g[c]:g[c]") and coder.sources == ("x:g", "g:g") and coder.constant == ()
    rows, out = open_rows(open_table(table), ("x", "g"), "level"), np.zeros((4, 2))
    assert coder.encode(rows, out, "error") == {}
    np.testing.assert_allclose(out, [[0.0, 0.0], [0.5, 0.0], [0.5, 0.0], [0.0, 1.0]])
    values, places = coder.factors(rows)
    assert places == [(0, 0), (1, 0), (1, 1), (1, 2)]
    np.testing.assert_allclose(values[:, 0], [0.25, 0.5, 0.5, 0.75])
    assert coder.with_pairs([(0, 0, 1, 0)]).names == ("x:g[a]",)


# ------------------------------------------------------------------------------------------------------ smooth bases
def test_splines_of_few_values_are_any_function_and_of_many_cubic() -> None:
    few = np.repeat(np.arange(6.0), 5)
    coder = learn_spline(Numeric("x"), few)
    out = np.zeros((30, 5))
    coder.write(few, out)  # type: ignore[attr-defined]
    assert len(coder.names) == 5 and coder.names[0] == "x[spline 1]" and np.linalg.matrix_rank(out) == 5
    np.testing.assert_array_equal(out, np.eye(6)[few.astype(int)][:, 1:])
    x = RNG(0).normal(size=300)
    cubic = learn_spline(Numeric("x"), x)
    assert cubic.degree == 3 and len(cubic.names) == 7  # type: ignore[attr-defined]
    knots = np.quantile(x, [0.2, 0.4, 0.6, 0.8], method="inverted_cdf")
    np.testing.assert_array_equal(cubic.knots[4:8], knots)  # type: ignore[attr-defined]
    made = np.zeros((302, 7))
    cubic.write(np.concatenate([x, [-99.0, 99.0]]), made)  # type: ignore[attr-defined]
    np.testing.assert_allclose(made[-2], 0.0, atol=1e-12)
    np.testing.assert_allclose(made[-1], np.eye(7)[-1], atol=1e-12)  # beyond the rows it is as at the end
    D = np.column_stack([np.ones(300), made[:300]])
    for power in (1, 2, 3):
        assert np.abs(x**power - D @ np.linalg.lstsq(D, x**power, rcond=None)[0]).max() < 1e-9
    for n, count in ((1, 4), (10, 5), (100, 11)):  # n^(1/3) / 2, four at least
        many = learn_spline(Numeric("x"), np.tile(np.linspace(0.0, 1.0, 100), n))
        assert len(many.names) == count + 3, n
        few = learn_spline(Numeric("x"), np.tile(np.linspace(0.0, 1.0, 100), n), room=26.0)  # a third of 26 features
        assert len(few.names) == min(count, 5) + 3, n
    seven = learn_spline(Numeric("x"), np.repeat(np.arange(7.0), 4))
    assert seven.degree == 3  # type: ignore[attr-defined]
    base = Numeric("x")
    assert learn_spline(base, np.array([0.0, 1.0, np.nan])) is base


def test_functions_of_a_kernel_have_variance_one_and_a_bounded_rest() -> None:
    rng = RNG(0)
    table = pd.DataFrame({"x": 5.0 * rng.normal(size=60), "g": np.where(rng.random(60) < 0.5, "a", "b")})
    design = learn(table, basis={"kernel": 0.1})
    out = design.apply(table).values
    np.testing.assert_allclose(np.cov(out.T, bias=True), np.eye(out.shape[1]), atol=1e-6)
    np.testing.assert_allclose(out.mean(0), 0.0, atol=1e-9)
    U = np.column_stack([table["x"] / table["x"].std(ddof=0), table["g"] == "a", table["g"] == "b"])
    K = np.exp(-0.5 * ((U[:, None] - U[None]) ** 2).sum(-1))
    np.testing.assert_allclose(gaussian(U, U), K, atol=1e-12)
    centre = np.eye(60) - 1 / 60
    values = np.linalg.eigvalsh(centre @ K @ centre / 60)[::-1]
    m = out.shape[1]
    ball = design.ball
    assert ball is not None and ball.n_functions == m and np.sqrt(values[m]) <= ball.remainder <= 0.1
    assert np.sqrt(values[m - 1]) > 0.09 and f"{m} functions" in str(ball)
    assert learn(table).ball is None and len(learn(table, basis={"kernel": 0.3}).names) < m
    assert len(learn(table, basis="kernel").names) > m and design.names[0] == "x:g[kernel 1]"


@pytest.mark.parametrize(
    "basis", [{"kernel": 0.0}, {"kernel": 1.0}, {"kernel": 1}, {"kernel": 0.1, "a": 0.1}, {"a": 0.1}]
)
def test_the_bound_of_a_kernel_is_between_0_and_1(basis: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="with a bound between 0 and 1"):
        learn(pd.DataFrame({"x": np.arange(20.0)}), basis=basis)


# -------------------------------------------------------------------------------------------------------- designs
def test_a_design_is_split_when_it_has_many_dummies() -> None:
    def table(levels: int, rows: int) -> pd.DataFrame:
        return pd.DataFrame(
            {
                "g": pd.Categorical.from_codes(np.arange(rows) % levels, [f"l{i:03d}" for i in range(levels)]),
                "x": np.arange(float(rows)),
                "b": np.where(np.arange(rows) % 2, "u", "v"),
            }
        )

    small, large = table(101, 300), table(102, 300)
    for rows, is_split in ((small, False), (large, True)):
        design = learn(rows)
        assert design.has_codes is is_split
        found = design.split(rows)
        assert isinstance(found.values, MixedMatrix) is is_split
        values = found.values.toarray() if is_split else found.values
        np.testing.assert_array_equal(values, design.apply(rows).values)
        assert design.stored_width == (3 if is_split else 102)
        np.testing.assert_array_equal(design.split_batch(rows).toarray(), design.apply(rows).values)
    many = table(11, 100_001)
    assert isinstance(learn(many).split(many).values, MixedMatrix)
    assert not isinstance(learn(many).split(many[:100_000]).values, MixedMatrix)


def test_pooled_rows_are_counted_in_split_designs_too() -> None:
    table = pd.DataFrame({"g": [f"l{i % 150:03d}" for i in range(450)], "h": np.where(np.arange(450) % 2, "u", "v")})
    design = learn(table, unseen="pool")
    new = pd.DataFrame({"g": ["l001", "new", "other"], "h": ["w", "u", "v"]})
    assert design.split(new).n_pooled == design.apply(new).n_pooled == {"g": 2, "h": 1}


def test_batches_are_written_into_memory_that_is_there() -> None:
    table = pa.table({"a": [1.0, 2.0], "b": [3, 4]})
    design, out = learn(table), np.full((2, 2), 9.0)
    assert design.write(table, out) == {} and out.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    mixed_table = pd.DataFrame({"a": [1.0, 2.0], "g": ["u", "v"]})
    out = np.full((2, 2), 9.0)
    assert learn(mixed_table).write(mixed_table, out) == {} and out.tolist() == [[1.0, 0.0], [2.0, 1.0]]


def test_arrays_are_taken_as_they_are_stored() -> None:
    Z = RNG(0).normal(size=(20, 3))
    design = learn(Z)
    assert read_stored(design, Z) is Z and read_stored(design, Z, learned=True) is Z
    bad = Z.copy()
    bad[3, 1] = np.nan
    assert read_stored(design, bad) is None and read_stored(design, bad, learned=True) is bad
    assert read_stored(design, Z.astype(int)) is None and read_stored(design, pd.DataFrame(Z)) is None
    single = Z.astype(np.float32)
    assert read_stored(design, single) is single
    some = Design((Numeric("x2"), Numeric("x0")))
    np.testing.assert_array_equal(read_stored(some, Z), Z[:, [2, 0]])
    huge = np.full((2000, 1), 1e308)
    assert learn(huge).apply(huge).values.shape == (2000, 1)  # the sum overflows, the numbers are finite


def test_formulas_and_bases_exclude_each_other() -> None:
    table = pd.DataFrame({"x": np.arange(9.0), "g": ["a", "b", "c"] * 3})
    for options, what in (
        ({"columns": ["x"], "formula": "~ x"}, "either columns or a formula"),
        ({"formula": "~ x", "basis": "cells"}, "A formula is a basis of its own"),
        ({"columns": []}, "No column is named"),
        ({"columns": ["x"], "basis": "~ x + g"}, "uses 'g', which is not a protected column"),
        ({"columns": ["x", "g"], "basis": "~ x"}, "leaves out the protected column 'g'"),
        ({"reference": {"y": 1}}, "y"),
    ):
        with pytest.raises(InputError, match=what):
            learn(table, **options)
    assert learn(table, ["x", "g"], basis="~ x:g", reference={"g": "b"}).columns == ("x", "g")


# ------------------------------------------------------------------------------------------------------------ frames
def test_columns_by_position() -> None:
    frame = open_table(pd.DataFrame({"a": [1], "b": [2], "1": [3]}))
    assert resolve(frame, None) == (0, 1, 2) and resolve(frame, "b") == (1,) and resolve(frame, [0, "b"]) == (0, 1)
    assert resolve(frame, -1) == (2,) and resolve(frame, np.int64(2)) == (2,) and resolve(frame, -3) == (0,)
    for asked, what in (
        (3, "no column at position 3; the table has 3 columns"),
        (-4, "no column at position -4"),
        (1, "1 is a position and also the name of another column"),
        (True, "not by True"),
        (0.0, "not by 0.0"),
        (["a", 0], "'a' occurs more than once"),
    ):
        with pytest.raises(InputError, match=what):
            resolve(frame, asked)  # type: ignore[arg-type]


def test_the_nearest_names_are_suggested() -> None:
    check_column("a", ["a"])
    with pytest.raises(InputError, match="no column 'ages'; did you mean 'age'\\?"):
        check_column("ages", ["age", "sex"])
    with pytest.raises(InputError, match=r"no column 'q'; the table has 'c0', .*'c7'$"):
        check_column("q", [f"c{i}" for i in range(8)])
    with pytest.raises(InputError, match=r"'c7', …$"):
        check_column("q", [f"c{i}" for i in range(9)])


def test_rows_and_kinds_of_tables() -> None:
    table = pd.DataFrame({"a": [1, 2, 3], "g": ["u", None, "v"]})
    assert slice_rows(table, 1, 1)["a"].tolist() == [2] and slice_rows(table, 2, 9)["a"].tolist() == [3]
    assert backend_of(np.zeros(3), table) == "pandas" and backend_of(pa.table(table)) == "pyarrow"
    assert complete_rows(open_table(table), ["a", "g"]).tolist() == [True, False, True]
    rows = TableRows(open_table(table), ("a", "g"), "level", np.array([True, False, True]))
    assert rows.n == 2 and rows.numbers("a").tolist() == [1.0, 3.0] and rows.levels("g").codes.tolist() == [0, 1]
    assert TableRows(open_table(table), ("a",), "level").n == 3
    frame = open_table(table)
    assert frame.without([]) is frame and frame.without(["a"]).names == ("g",)
    assert dense(np.array([[1]])).dtype == np.float64


def test_plain_columns_of_arrow_are_read_without_a_copy() -> None:
    table = pa.table({"a": [1.0, 2.0], "b": [1, 2], "c": ["x", "y"], "d": [1.0, None]})
    assert [x.tolist() for x in plain_columns(table, ["a", "b"])] == [[1.0, 2.0], [1, 2]]
    for stop in ("c", "d", "none"):
        assert len(list(plain_columns(table, ["a", stop, "b"]))) == 1
    assert list(plain_columns(pa.concat_tables([table, table]), ["a"])) == []
    assert list(plain_columns(table.to_pandas(), ["a"])) == []
    assert read_column(table, "b").missing.tolist() == [False, False] and read_column(table, "d").missing.tolist() == [
        False,
        True,
    ]
    with pytest.raises(MissingValuesError, match="'a' has 1 infinite value; replace"):
        read_column(pa.table({"a": [1.0, np.inf]}), "a")
    with pytest.raises(MissingValuesError, match="'a' has 2 infinite values; replace"):
        read_column(pa.table({"a": [-np.inf, np.inf]}), "a")


def test_streams_are_read_once_and_other_things_not() -> None:
    table = pa.table({"a": [1.0, 2.0]})
    stream = table.to_reader()
    assert is_unread(stream) and not any(map(is_unread, (table, table.to_pandas(), np.zeros(2), "text", table["a"])))
    assert read_unread(table) is table

    @accept_unread
    def first(*tables: Any, **more: Any) -> tuple[Any, ...]:
        return (*tables, *more.values())

    assert [type(one) for one in first(stream, 3, other=table.to_reader())] == [pa.Table, int, pa.Table]
    assert first(table)[0] is table


def test_batches_are_summarised_like_the_whole() -> None:
    table = pd.DataFrame({"x": [1.0, np.nan, 3.0, 4.0], "g": ["a", "b", None, "a"], "k": [1.0, 2.0, 1.0, 2.0]})
    for missing in ("drop", "level"):
        whole = observe(table, ["x", "g", "k"], missing=missing, cells=["g", "k"])
        parts = observe(table[:2], ["x", "g", "k"], missing=missing, cells=["g", "k"]).merge(
            observe(table[2:], ["x", "g", "k"], missing=missing, cells=["g", "k"])
        )
        assert (whole.n_rows, whole.n_kept) == (parts.n_rows, parts.n_kept) == (4, 2 if missing == "drop" else 4)
        assert whole.cells == parts.cells
        for name, seen in whole.columns.items():
            other = parts.columns[name]
            assert (seen.n, seen.n_missing, seen.total, seen.levels) == (
                other.n,
                other.n_missing,
                other.total,
                other.levels,
            )
        assert whole.columns["k"].values == parts.columns["k"].values == {1.0, 2.0}
    assert whole.columns["g"].levels == ["a", "b", None] and whole.columns["x"].total == 8.0
    with pytest.raises(InputError, match="'x' is numeric in some batches and text"):
        observe(table, ["x"], missing="level").merge(observe(table.assign(x="a"), ["x"], missing="level"))
    blank = observe(table.assign(x=np.nan), ["x"], missing="level")
    assert blank.columns["x"].is_blank and blank.merge(observe(table, ["x"], missing="level")).columns["x"].total == 8.0


# ---------------------------------------------------------------------------------------- protected values in part
def test_columns_known_in_part_are_coded_where_they_are_known() -> None:
    rng = RNG(0)
    table = pd.DataFrame({"x": rng.normal(size=60), "g": np.where(rng.random(60) < 0.5, "a", "b")})
    table.loc[:9, "x"] = np.nan
    table.loc[50:, "g"] = None
    for basis in ("linear", "cells"):
        if basis == "cells":
            table["h"] = np.where(np.arange(60) % 2, "u", "v")
            table.loc[50:, "g"] = np.where(np.arange(10) % 2, "a", "b")
            design = learn_partly(table, ["g", "h"], basis=basis)
            assert not np.isnan(encode_partly(design, table)).any() and len(design.coders) == 1
            continue
        design = learn_partly(table, ["x", "g"], reference={"g": "b"})
        coded = encode_partly(design, table)
        assert design.names == ("x", "g[a]")
        np.testing.assert_array_equal(np.isnan(coded), table[["x", "g"]].isna().to_numpy())
        np.testing.assert_array_equal(
            coded[10:50], np.column_stack([table["x"], table["g"] == "a"])[10:50].astype(float)
        )


@pytest.mark.parametrize(("known", "rows", "passes"), [(50, 60, True), (49, 60, False), (20, 20, True), (0, 60, False)])
def test_fifty_rows_must_have_a_column(known: int, rows: int, passes: bool) -> None:
    mask = np.arange(rows) < known
    if passes:
        check_known(("x",), mask)
    else:
        what = f"known in {known} of {rows} rows" if known else "missing in every row"
        with pytest.raises(InputError, match=what):
            check_known(("x", "g"), mask)


def test_a_column_with_one_known_value_says_nothing_of_others() -> None:
    table = pd.DataFrame({"g": ["a"] * 55 + [None] * 5})
    with pytest.raises(InputError, match="'g' has the same value in all 55 rows"):
        learn_partly(table, ["g"])
    learn_partly(table[:55], ["g"])


# ---------------------------------------------------------------------------------------------------------- outcomes
@pytest.mark.parametrize(
    ("values", "of", "family"),
    [
        (Values(0.0, 1.0, 2), "outcome", "binomial"),
        (Values(n_levels=1, is_text=True), "outcome", "binomial"),
        (Values(n_levels=3, is_text=True), "outcome", "multinomial"),
        (Values(n_levels=2, is_text=True, n_columns=3), "outcome", "multinomial"),
        (Values(0.0, 2.0, 3, is_whole=True, n_columns=3), "outcome", "multinomial"),
        (Values(0.0, 2.0, 3, is_whole=True, n_columns=2), "outcome", "poisson"),
        (Values(0.5, 2.0, 3, n_columns=3), "outcome", "gaussian"),
        (Values(0.0, 7.0, 8, is_whole=True), "outcome", "poisson"),
        (Values(1.0, 7.0, 7, is_whole=True), "outcome", "gaussian"),
        (Values(0.0, 7.0, 8, is_whole=True, lowest_prediction=0.0), "outcome", "poisson"),
        (Values(0.0, 7.0, 8, is_whole=True, lowest_prediction=-0.1), "outcome", "gaussian"),
        (Values(0.0, 7.5, 8), "outcome", "gaussian"),
        (Values(0.0, 1.0, 9), "predictions", "binomial"),
        (Values(-1e-9, 1.0, 9), "predictions", "gaussian"),
        (Values(0.0, 1.0 + 1e-9, 9), "predictions", "gaussian"),
    ],
)
def test_the_family_that_values_suggest(values: Values, of: Any, family: str) -> None:
    assert guess_family(values, of)[0] == family


def test_outcomes_that_no_family_has() -> None:
    many = np.array([f"l{i}" for i in range(101)])
    assert read_family(many[:100]).family.name == "multinomial"
    for outcome, what in (
        (many, "text with 101 different values"),
        (np.array([3.0, 3.0]), "is 3.0 in every row"),
        (np.array([1 + 2j, 2j]), "is of type complex128"),
        (np.array([1.0, np.nan]), r"has 1 missing \(NaN\) value"),
        (np.array(["a", None], dtype=object), r"has 1 missing \(NaN\) value"),
    ):
        with pytest.raises(InputError, match=what):
            read_family(outcome)
    with pytest.raises(InputError, match="The outcome 'y' has 3 groups: the binomial family takes two"):
        read_family(np.array(["a", "b", "c"]), read_family(np.array([0, 1])).family, name="y")
    assert not read_family(np.array([0, 1, 2])).is_classes and read_family(np.array([0, 1])).is_classes
    with pytest.raises(InputError, match="target y is None"):
        read_outcome(None, 3)
    with pytest.raises(InputError, match="The outcome has 2 rows but the features have 3"):
        read_outcome(np.array([1, 2]), 3)
    with pytest.raises(MissingValuesError, match=re.escape("The outcome (input y) has")):
        read_outcome(np.array([1.0, np.inf]), 2)
    assert read_outcome(pd.Series([1, 2]), 2).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("classes", "positive"),
    [
        (("0", "1"), "1"),
        (("1", "-1"), "1"),
        (("false", "TRUE"), "TRUE"),
        (("1", "none"), "1"),
        ((" Yes ", "maybe"), " Yes "),
    ],
)
def test_classes_that_mean_yes(classes: tuple[str, str], positive: str) -> None:
    assert positive_class(classes) == positive_class(classes[::-1]) == positive


def test_classes_are_found_by_name_case_or_number() -> None:
    assert positive_class(["no", "Maybe"], "maybe") == "Maybe" and positive_class(["1.0", "2.0"], 2) == "2.0"
    assert positive_class(["1", "2"], columns=["p_2"]) == "2" and positive_class(["a", "b"], otherwise="b") == "b"
    for classes, options, what in (
        (("1", "2"), {}, "family='gaussian' if these are numbers|gaussian"),
        (("a", "b"), {}, "unclear which of the classes 'a' and 'b'"),
        (("a", "b"), {"asked": "c"}, "is not one of the classes 'a', 'b'"),
        (("a", "b"), {"columns": ["p_a", "p_b"], "otherwise": "a"}, "Some predictions are named after 'a' and some"),
    ):
        with pytest.raises(InputError, match=what):
            positive_class(classes, **options)  # type: ignore[arg-type]
    assert (
        class_name(2.0) == "2" and class_name(True) == "True" and class_name(b"a") == "a" and class_name(0.5) == "0.5"
    )
    assert bears("p1", "1") and bears("Prob_of_Approved", "approved") and not bears("p2", "1") and not bears("p", "")


# ------------------------------------------------------------------------------------------------------------ checks
@pytest.mark.parametrize(
    ("check", "inside", "outside"),
    [
        (check_confidence, [0.5, 0.999], [0.499, 1.0, float("nan")]),
        (check_max_rows, [None, 100], [99]),
        (check_l2, [0.0, 5.0], [-1e-9, np.inf, np.nan]),
        (check_moments, [1, 2], [0, 3, True, "1"]),
        (check_cutoff, [-3.0, 0.0], [np.inf, np.nan]),
        (lambda cv: check_folds(cv, 5), [2, 5], [1, 6, -3]),
        (check_one_column, [np.zeros(3)], [np.zeros((3, 1)), np.array(1.0)]),
        (lambda n: check_classes(list(range(n))), [2, 3], [1]),
        (check_offset, [np.zeros(2)], [np.array([0.0, -np.inf]), np.array([np.nan])]),
        (check_clusters, [np.array([0, 1])], [np.array([0, 0])]),
    ],
)
def test_limits_of_options(check: Any, inside: list[Any], outside: list[Any]) -> None:
    for value in inside:
        check(value)
    for value in outside:
        with pytest.raises(InputError):
            check(value)


def test_rows_that_are_told_apart_by_labels() -> None:
    table = pd.DataFrame({"a": [1, 2]}, index=["u", "v"])
    check_alignment(table, table, "x")
    check_alignment(table, pd.DataFrame({"b": [1, 2]}, index=["w", "v"]), "x")  # other labels say nothing
    check_alignment(table, pd.Series([1], index=["v"]), "x")
    check_alignment(table, np.zeros(2), "x")
    twice = pd.DataFrame({"a": [1, 2, 3]}, index=["u", "u", "v"])
    check_alignment(twice, twice.iloc[[2, 0, 1]], "x")
    with pytest.raises(InputError, match="The rows of x have the labels of the features in another order"):
        check_alignment(table, table[::-1], "x")


def test_times_and_clusters_are_numbered() -> None:
    assert read_time([3.0, 1.0, 2.0], 3).tolist() == [2, 0, 1] and read_time(np.array([[5], [4]]), 2).tolist() == [1, 0]
    assert read_time(["2024-05-31", "2023-01-01", "2024-05-31"], 3).tolist() == [1, 0, 1]
    assert read_cluster(np.array([["b"], ["a"]]), 2).tolist() == [1, 0]
    for time, what in (
        (["soon", "later"], "'soon' is neither"),
        ([1.0, np.nan], "time has missing values"),
        (["2024-01-01", None], "time has missing values"),
        ([1.0], "time"),
        (np.zeros((2, 2)), "time"),
    ):
        with pytest.raises(InputError, match=what):
            read_time(time, 2)
    assert [is_missing(value) for value in (None, np.nan, pd.NA, 0, "", np.inf)] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]


def test_scores_are_one_finite_column() -> None:
    assert read_scores([[0.5], [1.0]]).tolist() == [0.5, 1.0]
    for scores, what in (
        (["a"], "must be numbers"),
        ([], r"got shape \(0,\)"),
        (np.zeros((2, 2)), r"got shape \(2, 2\)"),
        ([1.0, np.nan, np.inf], "have 2 missing or infinite"),
    ):
        with pytest.raises(InputError, match=what):
            read_scores(scores)
    assert read_weight(1.5, 2).tolist() == [1.5, 1.5] and read_offset([1.0, 2.0], 2).tolist() == [1.0, 2.0]  # type: ignore[union-attr]
    with pytest.raises(InputError, match="offset"):
        read_offset(1.0, 2)
    assert read_offset(None, 2) is None


def test_a_third_or_many_strays_make_a_column_text() -> None:
    numbers = [str(i) for i in range(100)]
    assert stray_values([*numbers, "x", "."]) == ["x", "."] and stray_values(numbers) == []
    assert (
        stray_values([*numbers, *"abcdefghij"]) == list("abcdefghij") and stray_values([*numbers, *"abcdefghijk"]) == []
    )
    assert stray_values(["1", "2", "3", "x"]) == ["x"] and stray_values(["1", "2", "x"]) == []
    assert stray_values([1, 2, None]) == [] and stray_values(["-1.5", " 2e3 ", ".5", "+3.", "1e-4", "x"]) == ["x"]
    many = [str(i) for i in range(380)]
    assert len(stray_values([*many, *(f"s{i}" for i in range(20))])) == 20  # 5 % of 400
    assert stray_values([*many, *(f"s{i}" for i in range(21))]) == []
    with pytest.raises(InputError, match=r"but for 'a', 'b', 'c', 'd', 'e', … \(7 rows\)"):
        refuse_strays("Column 'x'", dict.fromkeys(numbers, 1) | dict.fromkeys("abcde", 1) | {"f": 2})
    with pytest.raises(InputError, match=r"but for 'a' \(1 row\)"):
        refuse_strays("Column 'x'", dict.fromkeys(numbers, 1) | {"a": 1})
    refuse_strays("Column 'x'", dict.fromkeys(numbers, 1))


def test_names_in_messages_are_five_at_most() -> None:
    with pytest.raises(InputError, match=r"\(a, b, c, d, e, …\): there is nothing to audit"):
        refuse_constant_protected(list("abcdef"), "audit")
    with pytest.raises(InputError, match=r"\(a, b, c, d, e\): there is nothing to protect"):
        refuse_constant_protected(list("abcde"))
    refuse_missing_outcome(0)
    with pytest.raises(MissingValuesError, match=r"The outcome has 2 missing \(NaN\) value\(s\): leave out those rows"):
        refuse_missing_outcome(2)
    assert Categorical("g", ("a", "b")).names == ("g[b]",)
