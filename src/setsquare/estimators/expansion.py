"""A wider feature space without work: hinges of numbers, levels as they are, and the products that matter."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from setsquare._typing import Array, IntArray, Table
from setsquare.errors import InputError
from setsquare.glm.problem import Problem
from setsquare.glm.products import Pilot, choose_columns, fit_pilot, screen
from setsquare.glm.ridge import Ridge
from setsquare.glm.ridge_step import choose_penalty
from setsquare.tables.coders import Categorical, Coder, Numeric
from setsquare.tables.column import TableRows
from setsquare.tables.design import Design
from setsquare.tables.expansion import Hinges, Products, learn_hinges, rank_curve
from setsquare.tables.frame import is_sparse, open_table
from setsquare.tables.roles import Reader
from setsquare.tables.validation import check_choice

#: Most knots of a column, columns of numbers in all up to which there are two knots or more, and rows for each of them.
MOST_KNOTS, MOST_COLUMNS, ROWS_EACH = 5, 85, 10
#: Most products, and rows for each of them; more where there are many rows.
MOST_PRODUCTS, ROWS_PRODUCT = 60, 50
MORE_PRODUCTS, ROWS_MORE = 80, 160
#: Rows on which products are chosen: a quarter of them, but so many at least and at most.
FEW_PILOT_ROWS, MOST_PILOT_ROWS = 2000, 5000
#: Most products among which they are chosen, and which are compared in full.
MOST_CANDIDATES, MOST_SCREENED = 1000, 200
#: Least reduction of the loss by a product, in units of what a useless one takes away on average, where the constraint
#: pulls at the rows with less than this share of the outcome's force. Where it pulls more, products also make room for
#: the constraint, which one step from the pilot does not show, and all that fit are taken.
LEAST_GAIN, CHEAP = 4.0, 0.1
#: Features for each one of the table, at least, where rows and columns are not few: room for a wider protected basis.
WIDENED = 2.0
#: Relative gradient up to which the fit that chooses goes on.
PILOT_KKT = 1e-2
#: Share of the rows that a level must have, and that a product must be nonzero in, to take part.
LEAST_SHARE = 0.005


def check_expand(expand: Any) -> None:
    """Refuse a value of ``expand`` that does not exist."""
    if expand is not None:
        check_choice("expand", expand, ("auto",))


def refuse_expansion(what: str) -> None:
    """Refuse to expand rows that are not a table in memory."""
    raise InputError(f'expand="auto" needs the features as a table or array in memory, not {what}: leave it out.')


class Expanded(NamedTuple):
    """A problem with wider features, how they are read, and a penalty with a start where one was chosen already."""

    problem: Problem
    reader: Reader
    ridge: Ridge | None


def expand_problem(problem: Problem, reader: Reader, table: Table, quick: bool) -> Expanded:
    """Widen the features of a problem, read from the feature table of its rows."""
    if is_sparse(table):
        refuse_expansion("as a sparse matrix")
    assert reader.features is not None
    frame = open_table(table)
    counted = None if problem.weight is None or problem.weight.all() else problem.weight > 0.0
    rows = TableRows(frame, reader.features.columns, "level")
    learned_from = rows if counted is None else TableRows(frame, rows.columns, "level", counted)
    design = widen(reader.features, learned_from)
    chosen, ridge = _try_sample(problem, design, rows, quick)
    if chosen is not None:
        design = replace(design, coders=(*design.coders, chosen))
    reader = replace(reader, features=design)
    Z, _ = reader.feature_matrix(frame, as_codes=True)
    names, protected = design.names, reader.protected.names  # a problem that is given the outcome has more of these
    return Expanded(replace(problem, features=Z, feature_names=names, protected_names=protected), reader, ridge)


def widen(design: Design, rows: TableRows) -> Design:
    """Replace the numeric columns of a design by hinges, fewer where rows are few or columns many."""
    count = sum(isinstance(coder, Numeric) for coder in design.coders)
    room = min(max(MOST_COLUMNS, 2 * count), rows.n // ROWS_EACH)
    knots = min(MOST_KNOTS, max(0, room // count - 1)) if count else 0
    coders = tuple(
        learn_hinges(coder, rows.numbers(coder.name), knots) if isinstance(coder, Numeric) else coder
        for coder in design.coders
    )
    return Design(coders, design.missing, design.unseen)


def _try_sample(problem: Problem, design: Design, rows: TableRows, quick: bool) -> tuple[Products | None, Ridge | None]:
    """Choose products of two columns, and a penalty, by a fit to some of the rows; None for what cannot be chosen."""
    weight = problem.weight
    known = np.arange(rows.n) if weight is None else np.flatnonzero(weight)
    most = min(max(len(known) // 4, FEW_PILOT_ROWS), MOST_PILOT_ROWS)
    picked = np.sort(np.random.default_rng(0).permutation(known)[:most])
    mask = np.zeros(rows.n, dtype=bool)
    mask[picked] = True
    few = TableRows(rows.frame, rows.columns, "level", mask)
    coded = _pilot_design(design, few)
    Z = np.zeros((few.n, len(coded.names)), order="F")
    coded.fill(few, Z)
    pilot = fit_pilot(_pilot_problem(problem, Z, picked), PILOT_KKT)
    products, columns = _choose_products(design, few, Z, pilot, coded.sources, len(known))
    if problem.n_predictors > 1 or not quick:
        return products, None
    found = choose_penalty(np.column_stack([Z, columns]), pilot)
    places, width = _places(design, coded)
    start = np.zeros((1, width + columns.shape[1]))  # rare levels start at 0
    start[0, places], start[0, width:] = found.coef[0, : len(places)], found.coef[0, len(places) :]
    return products, Ridge(found.l2 * len(picked) / len(known), (found.intercept, start))


def _choose_products(
    design: Design, rows: TableRows, Z: Array, pilot: Pilot, sources: tuple[str, ...], n: int
) -> tuple[Products | None, Array]:
    """Products that lower the loss of the pilot most, at most one for so many of all n rows, and their values."""
    products = _factors(design, rows)
    most = max(min(MOST_PRODUCTS, n // ROWS_PRODUCT), min(MORE_PRODUCTS, n // ROWS_MORE))
    if len(products.columns) < 2 or most < 1:
        return None, Z[:, :0]
    candidates, pairs = _candidates(products, rows, _importance(sources, Z, pilot), Z, pilot)
    chosen = np.sort(choose_columns(Z, candidates, pilot, most, LEAST_GAIN if pilot.price < CHEAP else 0.0))
    if not len(chosen):
        return None, Z[:, :0]
    return products.with_pairs([pairs[j] for j in chosen]), candidates[:, chosen]


def _pilot_problem(problem: Problem, Z: Array, picked: IntArray) -> Problem:
    """Problem of the rows picked; what it is given, and clusters, do not matter for the choice of products."""
    some: dict[str, Any] = {
        name: None if (values := getattr(problem, name)) is None else values[picked]
        for name in ("outcome", "protected", "weight", "offset")
    }
    return Problem(Z, family=problem.family, **some)


def _factors(design: Design, rows: TableRows) -> Products:
    """All factors of products, without a product."""
    names, curves, levels, fills = [], [], [], []
    for coder in design.coders:
        if isinstance(coder, Hinges):
            values = rows.numbers(coder.name)
            if np.isnan(values).all() or np.nanmin(values) == np.nanmax(values):
                continue
            curves.append(rank_curve(values))
            levels.append(())
            fills.append(float(np.nanmean(values)) if coder.fill is None else coder.fill)
        elif isinstance(coder, Categorical):
            curves.append(())
            levels.append(_frequent(coder, rows))
            fills.append(0.0)
        else:
            continue
        names.append(coder.columns[0])
    return Products(tuple(names), tuple(curves), tuple(levels), tuple(fills), ())


def _frequent(coder: Categorical, rows: TableRows) -> tuple[Any, ...]:
    """Levels with enough rows, but for the reference."""
    codes, _ = coder.codes(rows, "pool")
    counts = np.bincount(codes, minlength=len(coder.levels))
    return tuple(coder.levels[i] for i in range(1, len(coder.levels)) if counts[i] >= LEAST_SHARE * rows.n)


def _pilot_design(design: Design, rows: TableRows) -> Design:
    """The design for the rows picked; rare levels count as the reference."""
    coders: list[Coder] = []
    for coder in design.coders:
        if isinstance(coder, Categorical):
            coder = Categorical(coder.name, (coder.levels[0], *_frequent(coder, rows)))
        coders.append(coder)
    return Design(tuple(coders), "level", "pool")


def _places(design: Design, coded: Design) -> tuple[list[int], int]:
    """Positions of the columns of the pilot's design among those of all rows, and the number of these."""
    found, width = list[int](), 0
    for coder, own in zip(design.coders, coded.coders, strict=True):
        places: Iterable[int] = range(len(own.names))
        if isinstance(own, Categorical) and isinstance(coder, Categorical):
            levels = {level: j for j, level in enumerate(coder.levels)}
            places = (levels[level] - 1 for level in own.levels[1:])
        found += (width + j for j in places)
        width += len(coder.names)
    return found, width


def _importance(sources: tuple[str, ...], Z: Array, pilot: Pilot) -> dict[str, float]:
    """Standard deviation of the part of the linear predictors that each column contributes."""
    found = {}
    for name in dict.fromkeys(sources):
        own = np.array([source == name for source in sources])
        found[name] = float(np.sqrt((Z[:, own] @ pilot.coef[:, own].T).var(axis=0).sum()))
    return found


def _candidates(
    products: Products, rows: TableRows, importance: dict[str, float], Z: Array, pilot: Pilot
) -> tuple[Array, list[tuple[int, int, int, int]]]:
    """Products (n, c) among which to choose, those of the most important columns, and the factors of each."""
    values, factors = products.factors(rows)
    common = np.flatnonzero((values != 0.0).mean(axis=0) >= LEAST_SHARE)
    rank = sorted(common, key=lambda f: -importance[products.columns[factors[f][0]]])
    kept = sorted(rank[: int(np.sqrt(2.0 * MOST_CANDIDATES))])
    pairs = [(f, g) for f, g in itertools.combinations(kept, 2) if factors[f][0] != factors[g][0]]
    if not pairs:
        return values[:, :0], []
    first, second = np.array(pairs).T
    # Means, squares and shares of all products at once: most are never formed.
    mean, square, share = (part.T @ part / len(values) for part in (values, values**2, (values != 0.0) * 1.0))
    spread = np.sqrt(np.maximum(square - mean**2, 0.0))[first, second]
    varies = np.array(pairs)[(share[first, second] >= LEAST_SHARE) & (spread > 1e-3)]
    varies = varies[screen(Z, values, varies, pilot, MOST_SCREENED)]
    columns = np.asfortranarray(values)
    made = np.empty((len(values), len(varies)), order="F")
    for place, (f, g) in enumerate(varies):
        np.multiply(columns[:, f], columns[:, g], out=made[:, place])
    return made, [(*factors[f], *factors[g]) for f, g in varies]
