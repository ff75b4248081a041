"""Independence of predictions and protected columns: distance correlation, HSIC and mutual information.

**Distance correlation and HSIC** are one statistic with two dissimilarities between rows (Sejdinovic et al., 2013): the
Euclidean distance ``d``, and ``1 - exp(-d^2 / 2m^2)`` of the Gaussian kernel, ``m`` being the median of the distances
that are not zero. With ``A`` and ``B`` the U-centred matrices of the predictions and the protected columns (Székely and
Rizzo, 2014; the same as the unbiased HSIC of Song et al., 2012)

    statistic = sum_blocks <A, B> / sqrt(sum_blocks <A, A>  sum_blocks <B, B>)

is an unbiased squared correlation: its mean over permutations is 0, so it may be negative, and it is 1 for equal
matrices. A permutation only reorders ``A``, and one reordered ``A`` serves all protected columns.

**Mutual information** (nats) is computed from a contingency table, minus its mean under independence (Miller and Madow,
1955). Nearest-neighbour estimates, such as scikit-learn's, handle one protected column at a time and would need a new
search for each permutation. A permuted table is a random table with the same margins, which can be drawn directly
(Patefield, 1981): this gives an exact test on *all* rows at almost no cost. The cells are leaves of a tree that groups
similar rows, grown on ranks, so that increasing transformations of a column change nothing; about the cube root of n on
each side.

**Scales.** Each source counts as one variable: its columns are divided by the root of their total variance. The
reference level of dummy-coded sources is added back, so that its choice does not matter. Predictions keep their common
scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.spatial.distance import pdist, squareform
from scipy.special import xlogy
from sklearn.tree import DecisionTreeRegressor

from setsquare._typing import Array, IntArray
from setsquare.auditing.evaluations.permutation import (
    PermutationTest,
    columns_by_source,
    paired_arrays,
    permutation_test,
    row_blocks,
)
from setsquare.errors import InputError
from setsquare.rows.parallel import single_threaded_blas

MEASURES = ("distance_correlation", "hsic", "mutual_information")
#: Bounds on the number of cells per side of the table, and the smallest number of rows per cell.
MIN_CELLS, MAX_CELLS, CELL_ROWS = 2, 32, 5


@dataclass(frozen=True, slots=True)
class Dependence:
    """One measure of dependence, tested for all protected columns jointly and for each source.

    Attributes
    ----------
    measure : str
    joint : PermutationTest
    by_source : mapping of str to PermutationTest
        The p-values are not adjusted for multiple testing.
    """

    measure: str
    joint: PermutationTest
    by_source: Mapping[str, PermutationTest]


def independence(
    y: Array,
    X: Array,
    sources: Sequence[str],
    *,
    rng: np.random.Generator,
    n_permutations: int = 199,
    max_rows: int = 10_000,
    block_rows: int = 500,
    measures: Sequence[str] = MEASURES,
) -> tuple[Dependence, ...]:
    """Test whether predictions are independent of protected columns, by several measures.

    Parameters
    ----------
    y : ndarray of shape (n,) or (n, k)
        Predictions, or a column for each class.
    X : ndarray of shape (n, p)
        Protected columns, encoded.
    sources : sequence of p str
        Which columns belong together: the dummies of ``race`` share the source ``race``.
    rng : numpy.random.Generator
    n_permutations : int
    max_rows, block_rows : int
        The kernel measures use at most `max_rows` rows, drawn at random, in blocks of at most `block_rows`. Mutual
        information uses all rows, and grows each of its trees on at most `max_rows` of them.
    measures : sequence of {"distance_correlation", "hsic", "mutual_information"}

    Returns
    -------
    tuple of Dependence
        One for each of `measures`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(300, 1))
    >>> for found in independence(x**2, x, ["age"], rng=rng, n_permutations=99):
    ...     print(found.measure, found.joint.p_value)
    distance_correlation 0.01
    hsic 0.01
    mutual_information 0.01
    """
    unknown = [measure for measure in measures if measure not in MEASURES]
    if unknown:
        raise InputError(f"{unknown[0]!r} is not a measure of dependence: choose from {', '.join(MEASURES)}.")
    Y, X = paired_arrays(y, X, n_permutations)
    groups = columns_by_source(sources, X.shape[1])
    found = []
    for measure in measures:
        if measure == "mutual_information":
            tests = _table_tests(Y, _restore_references(X, groups), rng, n_permutations, max_rows)
        else:
            blocks = row_blocks(len(Y), rng, max_rows=max_rows, block_rows=block_rows)
            used = blocks.ravel()
            parts = _with_joint([_unit_variance(part) for part in _restore_references(X[used], groups)])
            dissimilarity = pdist if measure == "distance_correlation" else _gaussian
            with single_threaded_blas():  # the products are small: starting threads would cost more than it saves
                tests = _kernel_tests(Y[used], parts, len(blocks), dissimilarity, rng, n_permutations)
        found.append(Dependence(measure, tests[0], dict(zip(groups, tests[1:], strict=True))))
    return tuple(found)


# ------------------------------------------------------------------------------------------------ scales
def _restore_references(X: Array, groups: Mapping[str, list[int]]) -> list[Array]:
    """Columns of each source; the reference level that dummy coding leaves out is added back."""
    parts = [X[:, columns] for columns in groups.values()]
    return [
        np.column_stack([part, 1.0 - part.sum(axis=1)])
        if ((part == 0.0) | (part == 1.0)).all() and (part.sum(axis=1) <= 1.0).all()
        else part
        for part in parts
    ]


def _unit_variance(U: Array) -> Array:
    spread = np.sqrt(U.var(axis=0).sum())
    return U / spread if spread > 0.0 else U


def _with_joint(parts: Sequence[Array]) -> list[Array]:
    return [np.hstack(parts), *parts]


# ------------------------------------------------------------------------------------- distances and kernels
def _kernel_tests(
    Y: Array,
    parts: Sequence[Array],
    n_blocks: int,
    dissimilarity: Callable[[Array], Array],
    rng: np.random.Generator,
    n_permutations: int,
) -> list[PermutationTest]:
    """Test each of `parts`, with the same permutations within ``n_blocks`` blocks of consecutive rows."""
    products, variance = np.zeros((1 + n_permutations, len(parts))), np.zeros(len(parts))
    variance_y = 0.0
    for rows in np.split(np.arange(len(Y)), n_blocks):
        A = _u_centred(dissimilarity(Y[rows]))
        B = np.stack([_u_centred(dissimilarity(U[rows])).ravel() for U in parts])
        variance_y += float(np.vdot(A, A))
        variance += np.einsum("sb,sb->s", B, B)
        products[0] += B @ A.ravel()
        for j in range(1, 1 + n_permutations):
            order = rng.permutation(len(rows))
            products[j] += B @ A.take(order, axis=0).take(order, axis=1).ravel()
    scale = np.sqrt(variance_y * variance)  # 0 for constants
    r = np.divide(products, scale, out=np.zeros_like(products), where=scale > 0.0)
    return [permutation_test(r[0, s], r[1:, s], n_rows=len(Y), n_blocks=n_blocks) for s in range(len(parts))]


def _gaussian(U: Array) -> Array:
    """Dissimilarity of a Gaussian kernel with the median heuristic, for each pair of rows."""
    d = pdist(U)
    apart = d[d > 0.0]  # for a binary column most pairs are equal, and the median of all distances would be 0
    return -np.expm1(-0.5 * (d / np.median(apart)) ** 2) if len(apart) else d


def _u_centred(pairs: Array) -> Array:
    """U-centred matrix of dissimilarities, with zero row sums and unbiased inner products."""
    D = squareform(pairs, checks=False)
    b = len(D)
    sums = D.sum(axis=0) / (b - 2)
    D += sums.sum() / (b - 1) - sums - sums[:, None]
    np.fill_diagonal(D, 0.0)
    return D


# ------------------------------------------------------------------------------------------ mutual information
def _table_tests(
    Y: Array, parts: Sequence[Array], rng: np.random.Generator, n_permutations: int, max_rows: int
) -> list[PermutationTest]:
    ranked = [_unit_variance(stats.rankdata(part, axis=0)) for part in parts]
    cells = _cells(stats.rankdata(Y, axis=0), rng, max_rows)
    return [_table_test(cells, _cells(U, rng, max_rows), rng, n_permutations) for U in _with_joint(ranked)]


def _cells(U: Array, rng: np.random.Generator, max_rows: int) -> IntArray:
    """Cell of each row: the leaves of a tree that predicts the columns from themselves."""
    n_cells = int(np.clip(np.cbrt(len(U)), MIN_CELLS, MAX_CELLS))
    # Each tree is grown on different rows: shared rows would be partitioned alike on both sides.
    grown = U[row_blocks(len(U), rng, max_rows=max_rows, block_rows=max_rows)[0]]
    tree = DecisionTreeRegressor(max_leaf_nodes=n_cells, min_samples_leaf=CELL_ROWS, random_state=0)
    leaves: IntArray = np.unique(tree.fit(grown, grown).apply(U), return_inverse=True)[1]
    return leaves


def _table_test(a: IntArray, b: IntArray, rng: np.random.Generator, n_permutations: int) -> PermutationTest:
    n, shape = len(a), (int(a.max()) + 1, int(b.max()) + 1)
    table = np.bincount(a * shape[1] + b, minlength=shape[0] * shape[1]).reshape(shape)
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    if min(shape) == 1:  # only one such table exists, and scipy 1.17 returns a wrong one with a negative entry
        tables = np.repeat(table[None].astype(np.float64), n_permutations, axis=0)
    else:
        tables = stats.random_table(rows, columns).rvs(size=n_permutations, random_state=rng)
    fixed = np.log(n) - (xlogy(rows, rows).sum() + xlogy(columns, columns).sum()) / n
    fixed -= (shape[0] - 1) * (shape[1] - 1) / (2 * n)
    together = np.concatenate([table[None], tables])  # summed in the same order, so that equal tables tie exactly
    information = xlogy(together, together).sum(axis=(1, 2)) / n + fixed
    return permutation_test(information[0], information[1:], n_rows=n)
