"""Random forest evaluation model: predict the predictions from the protected columns.

:func:`forest_importances` tests which protected columns a random forest uses, with the p-values of Altmann et al.
(2010): the forest is refitted to permuted predictions. The importance is Breiman's out-of-bag permutation importance:
the increase of the squared error when a column is shuffled, as a share of the predictions' variance. Unlike the
decrease of impurity it does not favour columns with many values, and one strong column does not push the importance of
the others below its null.

:func:`forest_r2` tests only whether the columns together predict anything. Its trees are totally random, grown without
using the predictions (Geurts et al., 2006): their output is linear in ``y``, so one forest serves all permutations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from sklearn.ensemble import RandomForestRegressor, RandomTreesEmbedding

from setsquare._typing import Array, IntArray, Matrix
from setsquare.auditing.evaluations.permutation import (
    PermutationTest,
    columns_by_source,
    paired_arrays,
    permutation_test,
    row_blocks,
)
from setsquare.errors import InputError

#: Smallest number of rows in a leaf: smaller leaves detect finer structure, larger ones weaker effects.
LEAF_ROWS = 10
#: Largest number of leaf values in memory, which sets the number of permutations per batch.
LEAF_VALUES = 2**22


@dataclass(frozen=True, slots=True)
class ForestImportances:
    """Importance of each protected column, and of all columns of a source together.

    Attributes
    ----------
    by_column, by_source : mapping of str to PermutationTest
        The statistic is the importance as a share of the variance of the predictions; under the null it is negative as
        often as positive. The p-values are not adjusted for multiple testing.
    """

    by_column: Mapping[str, PermutationTest]
    by_source: Mapping[str, PermutationTest]


def forest_importances(
    y: Array,
    X: Array,
    names: Sequence[str],
    sources: Sequence[str],
    *,
    rng: np.random.Generator,
    n_permutations: int = 99,
    n_trees: int = 50,
    max_rows: int = 2000,
) -> ForestImportances:
    """Test which protected columns a random forest needs to predict the predictions.

    The null hypothesis is that *no* column helps. Of two correlated columns, one may stand in for the other.

    Parameters
    ----------
    y : ndarray of shape (n,) or (n, k)
        Predictions, or a column for each class.
    X : ndarray of shape (n, p)
        Protected columns, encoded.
    names, sources : sequence of p str
        Name of each column, and the source that it belongs to.
    rng : numpy.random.Generator
    n_permutations : int
        Number of permutations, each of which fits a forest.
    n_trees : int
    max_rows : int
        Rows that are used, drawn at random.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> names = ["age", "pay"]
    >>> found = forest_importances(X[:, 0] ** 2, X, names, names, rng=rng, n_permutations=19, n_trees=10)
    >>> {name: test.p_value <= 0.05 for name, test in found.by_column.items()}
    {'age': True, 'pay': False}
    """
    Y, X = paired_arrays(y, X, n_permutations)
    by_source = columns_by_source(sources, X.shape[1])
    by_name = columns_by_source(names, X.shape[1])
    if len(by_name) < X.shape[1]:
        raise InputError("Two protected columns have the same name: rename one.")
    groups = list({tuple(columns): None for columns in (*by_name.values(), *by_source.values())})
    rows = row_blocks(len(Y), rng, max_rows=max_rows, block_rows=max_rows)[0]
    Y, X32 = Y[rows] - Y[rows].mean(axis=0), X[rows].astype(np.float32)
    observed = _importances(Y, X32, groups, rng, n_trees)
    null = np.stack([_importances(rng.permutation(Y), X32, groups, rng, n_trees) for _ in range(n_permutations)])
    tests = {group: permutation_test(observed[g], null[:, g], n_rows=len(rows)) for g, group in enumerate(groups)}
    return ForestImportances(
        {name: tests[tuple(columns)] for name, columns in by_name.items()},
        {source: tests[tuple(columns)] for source, columns in by_source.items()},
    )


def _importances(
    Y: Array,
    X32: np.typing.NDArray[np.float32],
    groups: Sequence[tuple[int, ...]],
    rng: np.random.Generator,
    n_trees: int,
) -> Array:
    """Increase of the out-of-bag error, as a share of the variance, when the columns of each group are shuffled."""
    n, k = Y.shape
    variance = np.mean(Y**2, axis=0).sum()
    forest = RandomForestRegressor(
        n_trees, min_samples_leaf=LEAF_ROWS, max_features=1 / 3, random_state=int(rng.integers(2**31))
    ).fit(X32, Y if k > 1 else Y[:, 0])
    growth = np.zeros(len(groups))
    for tree, in_bag in zip(forest.estimators_, forest.estimators_samples_, strict=True):
        out = np.setdiff1d(np.arange(n), in_bag)
        shuffled = rng.permutation(out)
        stacked = np.tile(X32[out], (1 + len(groups), 1, 1))
        for g, group in enumerate(groups, start=1):
            stacked[g][:, group] = X32[shuffled][:, group]
        predicted = tree.predict(stacked.reshape(-1, X32.shape[1]), check_input=False).reshape(-1, len(out), k)
        error = ((Y[out] - predicted) ** 2).sum(axis=2).mean(axis=1)
        growth += error[1:] - error[0]
    share: Array = growth / (n_trees * variance) if variance > 0.0 else growth
    return share


def forest_r2(
    y: Array,
    X: Array,
    *,
    rng: np.random.Generator,
    n_permutations: int = 199,
    n_trees: int = 100,
    max_rows: int = 20_000,
) -> PermutationTest:
    """Test whether a forest predicts the predictions from the protected columns, out of bag.

    The statistic is the out-of-bag R², from sums of squares over all columns of `y`. Each tree is fitted to a random
    half of the rows and predicts the others. R² is near or below 0 if there is nothing to predict, and usually lower
    than that of a forest that optimises its splits.

    Parameters
    ----------
    y : ndarray of shape (n,) or (n, k)
        Predictions, or a column for each class.
    X : ndarray of shape (n, p)
        Protected columns, encoded.
    rng : numpy.random.Generator
    n_permutations, n_trees : int
    max_rows : int
        Rows that are used, drawn at random.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(300, 1))
    >>> forest_r2(x**2, x, rng=rng).p_value
    0.005
    """
    Y, X = paired_arrays(y, X, n_permutations)
    rows = row_blocks(len(Y), rng, max_rows=max_rows, block_rows=max_rows)[0]
    Y = Y[rows] - Y[rows].mean(axis=0)
    fill, read = _smoother(X[rows], rng, n_trees)
    n, n_leaves = read.shape
    step = max(1, LEAF_VALUES // (n_leaves * Y.shape[1]))
    null = [
        _r2(Y, rng.permuted(np.tile(np.arange(n), (min(step, n_permutations - done), 1)), axis=1), fill, read)
        for done in range(0, n_permutations, step)
    ]
    return permutation_test(_r2(Y, np.arange(n)[None], fill, read)[0], np.concatenate(null), n_rows=n)


def _r2(Y: Array, orders: IntArray, fill: Matrix, read: Matrix) -> Array:
    """Out-of-bag R² of the centred predictions (n, k) for each of m permutations (m, n); 0 if they are constant."""
    m, n = orders.shape
    permuted = Y[orders.T].reshape(n, -1)
    error = ((permuted - read @ (fill @ permuted)) ** 2).sum(axis=0).reshape(m, -1).sum(axis=1)
    total = np.sum(Y**2)
    return 1.0 - error / total if total > 0.0 else np.zeros(m)


def _smoother(X: Array, rng: np.random.Generator, n_trees: int) -> tuple[Matrix, Matrix]:
    """Sparse factors of the linear map from centred predictions to out-of-bag ones.

    The first (leaves, n) takes the mean over the rows in the bag of each leaf, 0 where there is none; the second
    (n, leaves) the mean over the trees in which a row is out of the bag.
    """
    forest = RandomTreesEmbedding(
        n_trees, max_depth=None, min_samples_leaf=LEAF_ROWS, random_state=int(rng.integers(2**31))
    ).fit(X)
    sizes = [tree.tree_.node_count for tree in forest.estimators_]
    leaf = forest.apply(X) + np.cumsum([0, *sizes[:-1]])
    row = np.broadcast_to(np.arange(len(X))[:, None], leaf.shape)
    in_bag = rng.random(leaf.shape) < 0.5
    fill = _means(leaf[in_bag], row[in_bag], (sum(sizes), len(X)))
    return fill, _means(row[~in_bag], leaf[~in_bag], (len(X), sum(sizes)))


def _means(i: IntArray, j: IntArray, shape: tuple[int, int]) -> Matrix:
    ones = sparse.csr_array((np.ones(len(i)), (i, j)), shape=shape)
    return sparse.diags_array(1.0 / np.maximum(np.diff(ones.indptr), 1)) @ ones
