"""Shared parts of the permutation tests: p-value, sampling of rows, and input checks.

If the predictions are independent of the protected columns, every assignment of predictions to rows is as likely as the
observed one. So the rank of the observed statistic among permuted ones is uniform, and

    p = (1 + #{null >= observed}) / (1 + B)

is at most ``alpha`` with probability at most ``alpha``, for every sample size and every statistic (Phipson and Smyth,
2010). Rows must be exchangeable: no repeated measurements, and no weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array, IntArray
from setsquare.errors import InputError
from setsquare.tables.validation import require_finite

#: Statistics that differ by less than this share of the largest one are ties: sums in another order round differently.
TIE = 1e-10
#: With fewer rows there are too few permutations for a small p-value.
MIN_ROWS = 8


@dataclass(frozen=True, slots=True)
class PermutationTest:
    """A statistic with its permutation p-value.

    Attributes
    ----------
    statistic : float
        Large values are evidence against independence.
    p_value : float
        At least ``1 / (1 + n_permutations)``.
    n_permutations : int
    n_rows : int
        Number of rows used, drawn at random from all rows.
    n_blocks : int
        Number of blocks of equal size within which predictions were permuted.
    null_mean, null_sd : float
        Mean and standard deviation of the statistic over the permutations.
    """

    statistic: float
    p_value: float
    n_permutations: int
    n_rows: int
    n_blocks: int
    null_mean: float
    null_sd: float


def permutation_test(observed: float, null: Array, *, n_rows: int, n_blocks: int = 1) -> PermutationTest:
    """Compare a statistic with its values ``null`` (B,) for permuted predictions.

    Examples
    --------
    >>> import numpy as np
    >>> permutation_test(2.0, np.array([0.0, 1.0, 2.0]), n_rows=9).p_value
    0.5
    """
    slack = TIE * max(abs(observed), float(np.abs(null).max()))
    p = (1 + np.count_nonzero(~(null < observed - slack))) / (1 + len(null))  # NaN never makes a p-value small
    return PermutationTest(
        float(observed), float(p), len(null), n_rows, n_blocks, float(null.mean()), float(null.std())
    )


def row_blocks(n_rows: int, rng: np.random.Generator, *, max_rows: int, block_rows: int) -> IntArray:
    """Draw rows without replacement and cut them into blocks of equal size.

    A statistic that needs a matrix over pairs of rows is averaged over blocks (Zaremba et al., 2013), so that the
    matrix stays small and the cost linear in the rows. The remainder, fewer rows than blocks, is dropped.

    Returns
    -------
    ndarray of int of shape (blocks, rows per block)

    Examples
    --------
    >>> import numpy as np
    >>> row_blocks(200_000, np.random.default_rng(0), max_rows=10_000, block_rows=500).shape
    (20, 500)
    >>> row_blocks(701, np.random.default_rng(0), max_rows=10_000, block_rows=500).shape
    (2, 350)
    """
    if min(max_rows, block_rows) < MIN_ROWS:
        raise InputError(f"A permutation test needs at least {MIN_ROWS} rows per block: raise max_rows and block_rows.")
    used = min(n_rows, max_rows)
    count = -(-used // block_rows)
    size = used // count
    return rng.choice(n_rows, size=count * size, replace=False).reshape(count, size)


def sample_rows(n_rows: int, size: int, rng: np.random.Generator) -> IntArray:
    """Draw at most `size` rows without replacement, in their order.

    Examples
    --------
    >>> import numpy as np
    >>> sample_rows(4, 10, np.random.default_rng(0))
    array([0, 1, 2, 3])
    """
    return np.asarray(np.arange(n_rows) if n_rows <= size else np.sort(rng.choice(n_rows, size, replace=False)))


def paired_arrays(y: Array, X: Array, n_permutations: int) -> tuple[Array, Array]:
    """Predictions as (n, k) and protected columns as (n, p), checked."""
    y, X = (np.asarray(part, dtype=np.float64) for part in (y, X))
    if n_permutations < 1:
        raise InputError(f"n_permutations={n_permutations} gives no p-value: use 99 or more.")
    if X.ndim != 2 or y.ndim not in (1, 2) or len(y) != len(X):
        raise InputError(
            f"Predictions of shape {y.shape} and protected columns of shape {X.shape} do not belong together: "
            "give (n,) or (n, k) and (n, p) for the same rows."
        )
    if len(y) < MIN_ROWS:
        raise InputError(f"{len(y)} rows are too few for a permutation test: at least {MIN_ROWS} are needed.")
    require_finite("The predictions or the protected columns have", y, X)
    return y.reshape(len(y), -1), X


def columns_by_source(sources: Sequence[str], n_columns: int) -> dict[str, list[int]]:
    """Positions of the columns of each source, in the order in which the sources first appear.

    Examples
    --------
    >>> columns_by_source(("race", "age", "race"), 3)
    {'race': [0, 2], 'age': [1]}
    """
    if len(sources) != n_columns or n_columns == 0:
        raise InputError(f"There are {n_columns} protected columns and {len(sources)} sources: give one per column.")
    groups: dict[str, list[int]] = {}
    for j, source in enumerate(sources):
        groups.setdefault(source, []).append(j)
    return groups
