"""Where the rows live, and how a sum over them is taken.

Everything that grows with the number of rows is a sum over row blocks: ``rows.reduce(kernel)`` calls the kernel on one
:class:`Block` after the other and adds up what it returns. No solver ever sees a row. A block is small enough to stay
in the cache between the two or three times that a kernel reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy import sparse

from setsquare.typing import Array, Matrix

Sums = tuple[Array, ...]
BLOCK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Block:
    """Some consecutive rows.

    Attributes
    ----------
    Z : ndarray or CSR matrix of shape (b, q)
        Features.
    y : ndarray of shape (b, k)
        Outcome; for classes, in contrasts.
    Q : ndarray of shape (b, r)
        Orthonormal, centred basis of the protected columns.
    weight : ndarray of shape (b,)
        Weights that sum to one over *all* blocks.
    offset : ndarray of shape (b, k) or None
    X : ndarray of shape (b, p) or None
        The protected columns themselves, for certificates.
    """

    Z: Matrix
    y: Array
    Q: Array
    weight: Array
    offset: Array | None = None
    X: Array | None = None


class Rows(Protocol):
    """What an objective needs to know of its rows."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        ...

    def reduce(self, kernel: Callable[[Block], Sums]) -> Sums:
        """Add up what ``kernel`` returns for each block."""
        ...


@dataclass(frozen=True, slots=True)
class ArrayRows:
    """Rows that are arrays in memory.

    Examples
    --------
    >>> import numpy as np
    >>> rows = ArrayRows(Z=np.ones((4, 1)), y=np.arange(4.0)[:, None], Q=np.zeros((4, 0)), weight=np.full(4, 0.25))
    >>> rows.reduce(lambda block: (block.weight @ block.y,))
    (array([1.5]),)
    """

    Z: Matrix
    y: Array
    Q: Array
    weight: Array
    offset: Array | None = None
    X: Array | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.y.shape[0])

    def blocks(self) -> Iterator[Block]:
        """Cut the rows into blocks."""
        for rows in row_slices(self.n_rows, self.Z.shape[1]):
            offset, X = (None if part is None else part[rows] for part in (self.offset, self.X))
            yield Block(as_double(self.Z[rows]), self.y[rows], self.Q[rows], self.weight[rows], offset, X)

    def reduce(self, kernel: Callable[[Block], Sums]) -> Sums:
        """Add up what ``kernel`` returns for each block."""
        return add_up(kernel(block) for block in self.blocks())


def row_slices(n_rows: int, n_columns: int, block_bytes: int = BLOCK_BYTES) -> Iterator[slice]:
    """Slices of rows whose float64 values fill ``block_bytes``, a hundred rows at least.

    Examples
    --------
    >>> list(row_slices(5, 2**19))
    [slice(0, 5, None)]
    """
    step = max(100, block_bytes // (8 * max(n_columns, 1)))
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def add_up(parts: Iterator[Sums]) -> Sums:
    """Add tuples of arrays entry by entry; a sum that has become infinite or NaN stays so without a warning."""
    total = next(parts)
    with np.errstate(invalid="ignore", over="ignore"):
        for part in parts:
            total = tuple(a + b for a, b in zip(total, part, strict=True))
    return total


def is_sparse(A: Matrix) -> bool:
    """Whether ``A`` is a scipy sparse matrix or array."""
    return bool(sparse.issparse(A))


def as_double(A: Matrix) -> Matrix:
    """Return ``A`` as float64, dense or CSR, without a copy where it is so already."""
    return A.astype(np.float64, copy=False) if is_sparse(A) else np.asarray(A, dtype=np.float64)


def weighted_product(A: Matrix, weight: Array, B: Matrix) -> Array:
    """Return ``A' diag(weight) B`` as a dense array; either factor may be sparse.

    Examples
    --------
    >>> import numpy as np
    >>> weighted_product(np.eye(2), np.array([1.0, 3.0]), np.ones((2, 1)))
    array([[1.],
           [3.]])
    """
    if is_sparse(B):
        scaled = B.multiply(weight[:, None]).tocsr()
        product = A.T @ scaled if is_sparse(A) else (scaled.T @ A).T
        return np.asarray(product.toarray() if is_sparse(product) else product)
    return np.asarray(A.T @ (B * weight[:, None]))
