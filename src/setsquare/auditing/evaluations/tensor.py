"""Tensor-on-vector regression: every unit of a tensor on the protected columns at once (Corollary 6).

All axes but the first are flattened into units. Each unit has its own evaluation model with HC3 standard errors, linear
or that of another family. With an intercept all of them have the same hypothesis: the unit is uncorrelated with the
protected columns. A permutation test of the explained variance decides whether any unit depends on them; it is valid
for any number of units and any dependence between them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy import special

from setsquare._typing import Array, IntArray
from setsquare.auditing.evaluations.glm import REGRESSIONS
from setsquare.auditing.evaluations.permutation import sample_rows
from setsquare.auditing.evaluations.records import ALL, Effect, Evaluation, Test, benjamini_hochberg
from setsquare.auditing.evaluations.unit_glms import fit_units
from setsquare.auditing.protected import Protected
from setsquare.document.formats import joined
from setsquare.families import Family, gaussian
from setsquare.notes import Note
from setsquare.projection import protected_basis
from setsquare.rows.blocks import mean_weight
from setsquare.rows.parallel import row_slices, single_threaded_blas

#: Default size of the permutation test: number of values, and smallest and largest number of rows.
MAX_VALUES, MIN_ROWS, MAX_ROWS = 10_000_000, 1000, 20_000


@dataclass(frozen=True, slots=True, eq=False)  # arrays compare elementwise
class EffectMap:
    """Effects of the protected columns on each unit.

    Attributes
    ----------
    estimate, std_error : ndarray of shape (p, *units)
        Effect of each protected column on each unit, as the family has it (a slope, or the logarithm of a ratio of odds
        or rates), with HC3 standard errors; NaN for a column that others determine, and for an infinite effect.
    correlation : ndarray of shape units
        Multiple correlation of each unit with the protected columns.
    p_value, p_adjusted : ndarray of shape units
        Joint p-value of all protected columns, and its Benjamini-Hochberg adjustment over the units.
    names : tuple of str
        Protected columns.
    """

    estimate: Array
    std_error: Array
    correlation: Array
    p_value: Array
    p_adjusted: Array
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        for part in (self.estimate, self.std_error, self.correlation, self.p_value, self.p_adjusted):
            part.setflags(write=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EffectMap) or self.names != other.names:
            return False
        parts = ("estimate", "std_error", "correlation", "p_value", "p_adjusted")
        return all(np.array_equal(getattr(self, part), getattr(other, part), equal_nan=True) for part in parts)

    def __hash__(self) -> int:
        return hash((self.names, self.correlation.shape))


def unit_correlations(Y: Array, X: Array, weight: Array | None = None) -> Array:
    """Multiple correlation of each column of ``Y`` (n, m) with the columns of ``X`` (n, p).

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[0.0], [0.0], [1.0], [1.0]])
    >>> unit_correlations(np.column_stack([X[:, 0], [1.0, 2.0, 1.0, 2.0]]), X).round(12)
    array([1., 0.])
    """
    w = mean_weight(len(Y), weight)
    Q = protected_basis(X, w).apply(X)
    Z, _ = _standardise(Y, w)
    return np.asarray(np.sqrt(np.minimum(np.sum((Q.T @ (w[:, None] * Z)) ** 2, axis=0), 1.0)))


def evaluate_tensor(
    Y: Array,
    protected: Protected,
    shape: tuple[int, ...],
    *,
    glm: Family = gaussian,
    n_permutations: int = 499,
    max_rows: int | None = None,
    rng: np.random.Generator,
) -> tuple[Evaluation, EffectMap]:
    """Regress units ``Y`` (n, m) on the protected columns by the model of a family; m is the product of `shape`."""
    tested = protected.tested or protected
    Y = Y if tested.taken is None else Y[tested.taken]
    w = mean_weight(len(Y), tested.weight)
    X, names, m = tested.values, tested.names, Y.shape[1]
    sources = tuple(dict.fromkeys(tested.sources))
    regression = REGRESSIONS[glm.name][glm.link != "canonical"]
    title = f"{regression} of {m} units on {joined(list(sources))}, permutation test"
    if not tested.varies.any():
        tests = [Test(name, math.nan, math.nan, math.nan, "nothing to test") for name in (ALL, *sources)]
        effects = tuple(Effect(*pair, *6 * (math.nan,)) for pair in zip(names, tested.sources, strict=True))
        blank = np.full((len(names), *shape), np.nan)
        nothing = EffectMap(blank, blank.copy(), blank[0].copy(), blank[0].copy(), blank[0].copy(), names)
        return Evaluation("tensor", title, effects, tests[0], tuple(tests[1:]), notes=tested.notes), nothing
    basis = tested.basis
    Z, spread = _standardise(Y, w)
    Q = basis.apply(X)
    estimate, error, correlation, p_values = _unit_maps(Z, Q, w, basis.transform, spread)
    n_infinite = 0
    if glm != gaussian:
        fits = fit_units(Y, Q, w, glm)
        estimate = basis.transform @ fits.coef
        error = np.sqrt(np.einsum("pr,mrs,ps->pm", basis.transform, fits.cov, basis.transform))
        p_values = np.where(fits.is_finite & (spread > 0.0), fits.p_value, p_values)
        n_infinite = int((~fits.is_finite & (spread > 0.0)).sum())
    kept = np.asarray([name not in basis.dropped for name in names])
    estimate, error = (np.where(kept[:, None], part, np.nan) for part in (estimate, error))
    effect_map = EffectMap(
        estimate.reshape(-1, *shape),
        error.reshape(-1, *shape),
        correlation.reshape(shape),
        p_values.reshape(shape),
        benjamini_hochberg(p_values).reshape(shape),
        names,
    )
    rows = sample_rows(len(Y), max_rows or max(MIN_ROWS, min(MAX_ROWS, MAX_VALUES // m)), rng)
    tests = _permutation_tests(Z, X, w, tested, sources, n_permutations, rows, rng)
    effects = tuple(
        Effect(t.name, source, math.sqrt(t.statistic), math.nan, math.sqrt(t.statistic), t.p_value, math.nan, math.nan)
        for t, source in zip(tests[1 + len(sources) :], tested.sources, strict=True)
    )
    found = int(np.nansum(effect_map.p_adjusted < 0.05))
    notes = [
        *tested.notes,
        Note(
            "meaning-of-estimates",
            "Estimates are root mean squares, over the {m} units, of the correlation with the column.",
            m=m,
        ),
        Note(
            "units-found",
            "{found} of {m} units depend on the protected columns (false discovery rate 5 %, HC3 standard errors); see "
            "effect_map.",
            found=found,
            m=m,
        ),
    ]
    if n_infinite:
        text = (
            "{count} of {m} units have no finite effect in the {name} family, because a group's values lie on the "
            "boundary of their range; their p-values are those of the linear model, which has the same hypothesis."
        )
        notes.append(Note("units-infinite", text, count=n_infinite, m=m, name=glm.name))
    if len(rows) < len(Y):
        text = "The permutation tests used {used} of the {n} rows, drawn at random: raise max_rows to use more."
        notes.append(Note("rows-sampled", text, used=len(rows), n=len(Y)))
    joint, *by_source = tests[: 1 + len(sources)]
    return Evaluation("tensor", title, effects, joint, tuple(by_source), notes=tuple(notes)), effect_map


def _standardise(Y: Array, w: Array) -> tuple[Array, Array]:
    """Units with mean zero and variance one (a constant unit is zero), and their standard deviations."""
    mean = w @ Y
    Z = Y - mean
    spread = np.sqrt(w @ (Z * Z))
    varies = spread > 1e-12 * np.abs(mean)
    Z /= np.where(varies, spread, np.inf)
    return Z, np.where(varies, spread, 0.0)


def _unit_maps(Z: Array, Q: Array, w: Array, transform: Array, spread: Array) -> tuple[Array, Array, Array, Array]:
    """Slopes, HC3 standard errors (p, m), multiple correlations and p-values (m,), in one pass over the units."""
    n, r = Q.shape
    C = Q.T @ (w[:, None] * Z)
    rest = np.maximum(1.0 - w * (1.0 + np.einsum("nr,nr->n", Q, Q)), 1e-9)
    pairs = [(a, b) for a in range(r) for b in range(a + 1)]
    meat = np.zeros((Z.shape[1], r, r))
    for rows in row_slices(*Z.shape):
        squares = ((Z[rows] - Q[rows] @ C) * (w[rows] / rest[rows])[:, None]) ** 2
        products = np.stack([Q[rows, a] * Q[rows, b] for a, b in pairs])
        sums = products @ squares
        for (a, b), row in zip(pairs, sums, strict=True):
            meat[:, a, b] += row
            if a != b:
                meat[:, b, a] += row
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = np.einsum("pr,mrs,ps->pm", transform, meat, transform)
        errors = np.sqrt(np.maximum(variance, 0.0)) * spread
        size = np.trace(meat, axis1=1, axis2=2)[:, None, None]
        scaled = meat / np.where(size > 0.0, size, 1.0) + 1e-14 * np.eye(r)
        W = np.einsum("rm,mr->m", C, np.linalg.solve(scaled, C.T[:, :, None])[:, :, 0]) / size[:, 0, 0]
    p_values = np.where(spread > 0.0, special.fdtrc(r, max(n - r - 1, 1), W / r), np.nan)
    return (transform @ C) * spread, errors, np.sqrt(np.minimum(np.sum(C * C, axis=0), 1.0)), p_values


def _smaller_rank(statistics: Array) -> float:
    """P-value of the first row of ``statistics`` (1 + B, 2) among all, by the better of its two ranks."""
    ranks = np.min([len(c) - np.searchsorted(np.sort(c), c) for c in statistics.T], axis=0)  # how many are as large
    return float(np.mean(ranks <= ranks[0]))


def _permutation_tests(
    Z: Array,
    X: Array,
    w: Array,
    protected: Protected,
    sources: tuple[str, ...],
    n_permutations: int,
    rows: IntArray,
    rng: np.random.Generator,
) -> list[Test]:
    """Permutation test of the variance explained: its mean and its maximum over units.

    The mean detects effects spread over many units, the maximum those in a single unit. The better of the two ranks is
    compared with that of each permutation, so the test is exact.
    """
    groups = [np.arange(X.shape[1])]
    groups += [np.flatnonzero([s == source for s in protected.sources]) for source in sources]
    groups += [np.asarray([j]) for j in range(X.shape[1])]
    varies = np.ptp(X, axis=0) > 0.0
    bases = [protected_basis(X[:, g], w).apply(X[:, g]) if varies[g].any() else np.zeros((len(X), 0)) for g in groups]
    stacked = np.concatenate(bases, axis=1)
    ends = np.cumsum([0, *(base.shape[1] for base in bases)])
    U = w[:, None] * Z[:, Z.any(axis=0)]

    def explained(B: Array, U: Array) -> Array:
        """Mean and largest share over the units, of each group."""
        squares = (B.T @ U) ** 2
        shares = [squares[a:b].sum(axis=0) for a, b in pairwise(ends)]
        return np.asarray([[share.mean(), share.max()] for share in shares])

    observed = explained(stacked, U)
    U = U[rows]
    U -= U.mean(axis=0)
    with single_threaded_blas():  # products of such thin matrices are slower on several cores
        tested = explained(stacked[rows], U)
        null = np.stack([explained(stacked[rng.permutation(rows)], U) for _ in range(n_permutations)])
    tests = []
    method = f"permutation ({n_permutations}) of the variance explained: mean and maximum over units"
    for j, name in enumerate((ALL, *sources, *protected.names)):
        p = _smaller_rank(np.vstack([tested[j], null[:, j]])) if bases[j].shape[1] else math.nan
        tests.append(Test(name, float(observed[j, 0]), math.nan, p, method))
    return tests
