"""Weighted matrix products of row blocks: dense, sparse, or numbers and categories."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from setsquare._typing import Array, Matrix
from setsquare.rows.blocks import is_sparse, view_rows
from setsquare.rows.parallel import row_slices
from setsquare.rows.wide import Slab
from setsquare.tables.mixed_matrix import MixedMatrix

#: In single precision or float64.
Floats = NDArray[np.floating]
#: Replacement for a weight of zero, whose root is a divisor; its contribution is below rounding error.
NO_WEIGHT = 1e-200
#: Columns that BLAS processes together: a product of 27 columns takes a fifth longer than one of 28.
LANES = 4
#: Size of the scaled rows that a product reads at once: they stay in the cache between being written and being read.
PIECE_BYTES, LEAST_ROWS = 2**21, 512
#: The same for a product that is read once more and then forgotten.
SMALL_BYTES = 2**21
#: Columns of a triangular factor that are multiplied together, and the largest number of such groups.
LEAST_STEP, MOST_STEPS = 24, 4
#: Number of columns up to which products with vectors are faster than a matrix product.
FEW_COLUMNS = 3


def whole_lanes(width: int) -> int:
    """Number of columns that BLAS processes as quickly as ``width``.

    Examples
    --------
    >>> whole_lanes(27), whole_lanes(28)
    (28, 28)
    """
    return -(-width // LANES) * LANES


def weighted_gram(A: Matrix, weight: Array) -> Array:
    """Return ``A' diag(weight) A``; a weight may be negative.

    Examples
    --------
    >>> import numpy as np
    >>> weighted_gram(np.eye(2), np.array([1.0, -3.0]))
    array([[ 1.,  0.],
           [ 0., -3.]])
    """
    if is_sparse(A):
        return weighted_product(A, weight, A)
    return gram_and_product(A, weight, np.zeros((len(weight), 0)))[0]


def gram_and_product(A: Matrix, weight: Array, thin: Array) -> tuple[Array, Array]:
    """Return ``A' diag(weight) A`` and ``A' thin`` for a few columns ``thin``; a weight may be negative.

    The columns are part of one symmetric product: a separate thin product would take half as long as the square one.

    Examples
    --------
    >>> import numpy as np
    >>> gram, product = gram_and_product(np.eye(2), np.array([1.0, -3.0]), np.array([[5.0], [7.0]]))
    >>> product
    array([[5.],
           [7.]])
    """
    if isinstance(A, MixedMatrix):
        return _split_gram(A, weight, thin)
    if is_sparse(A):
        return weighted_product(A, weight, A), np.asarray(A.T @ thin)
    q, width = A.shape[1], A.shape[1] + thin.shape[1]
    padded = whole_lanes(width)
    step = max(LEAST_ROWS, min(len(thin), PIECE_BYTES // (8 * padded)))
    both = scratch((step, padded), is_row_major(A))
    both[:, width:] = 0.0
    root = np.abs(weight)
    if thin.shape[1]:  # otherwise nothing is divided by it, and weights of any size count
        np.maximum(root, NO_WEIGHT, out=root)
    np.sqrt(root, out=root)
    inverse = 1.0 / root if thin.shape[1] else root
    gram = np.zeros((padded, padded))
    for start in range(0, len(thin), step):
        rows = slice(start, min(start + step, len(thin)))
        piece = both[: rows.stop - start]
        scale_rows(A, rows, root[rows, None], piece[:, :q])
        np.multiply(thin[rows], inverse[rows, None], out=piece[:, q:width])
        gram += piece.T @ piece  # numpy detects the symmetry and does half the work
        turn_negative(gram[:q, :q], piece[:, :q], weight[rows])
    return gram[:q, :q], gram[:q, q:width]


def thin_product(A: Matrix, thin: Array) -> Array:
    """Return ``A' thin`` for a few columns.

    A matrix product first copies ``A`` into its own order, which takes longer than up to three products with vectors.

    Examples
    --------
    >>> import numpy as np
    >>> thin_product(np.eye(2), np.array([[5.0], [7.0]]))
    array([[5.],
           [7.]])
    """
    if not isinstance(A, np.ndarray) or not 0 < thin.shape[1] <= FEW_COLUMNS:
        return np.asarray(A.T @ thin)
    return np.column_stack([A.T @ column for column in thin.T])


def thin_scores(A: Floats, turned: Floats, few: int = FEW_COLUMNS) -> Any:
    """Return ``turned A'`` for a few rows ``turned`` (r, q), by products with vectors as in :func:`thin_product`.

    Examples
    --------
    >>> import numpy as np
    >>> thin_scores(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 10.0]]))
    array([[21., 43.]])
    """
    scores = np.empty((len(turned), len(A)), dtype=np.result_type(A, turned))
    if len(turned) > few:
        return np.dot(turned, A.T, out=scores)
    for row, out in zip(turned, scores, strict=True):
        np.dot(A, row, out=out)  # the operator @ would hold the interpreter's lock for fewer than 500 rows
    return scores


def thin_sums(A: Floats, scores: Floats, few: int = FEW_COLUMNS) -> Any:
    """Return ``scores A`` for a few rows ``scores`` (r, n), likewise.

    Examples
    --------
    >>> import numpy as np
    >>> thin_sums(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 10.0]]))
    array([[31., 42.]])
    """
    if len(scores) > few:
        return np.dot(A.T, scores.T).T  # the other way round takes up to a half longer
    sums = np.empty((len(scores), A.shape[1]), dtype=np.result_type(A, scores))
    for row, out in zip(scores, sums, strict=True):
        np.dot(row, A, out=out)
    return sums


def _split_gram(A: MixedMatrix, weight: Array, thin: Array) -> tuple[Array, Array]:
    """The same for numbers and categories: sums by level, and by pair of levels."""
    d, t = A.dense.shape[1], thin.shape[1]
    scaled = scratch((len(weight), 1 + d + t), row_major=True)
    scaled[:, 0], scaled[:, 1 + d :] = weight, thin
    np.multiply(A.dense, weight[:, None], out=scaled[:, 1 : 1 + d])
    sums, numbers = A.sums_by_level(scaled), A.dense.T @ scaled[:, 1:]
    product = A.onto @ sums[:, 1:]  # (q, d + t): of each column with the numbers, and with the thin columns
    product[A.places] = numbers
    gram = np.zeros((A.width, A.width))
    gram[:, A.places] = product[:, :d]
    gram[A.places] = gram[:, A.places].T
    gram[np.ix_(A.places, A.places)] = 0.5 * (numbers[:, :d] + numbers[:, :d].T)
    _count_pairs(A, weight, sums[:, 0], gram)
    return gram, product[:, d:]


def _count_pairs(A: MixedMatrix, weight: Array, totals: Array, gram: Array) -> None:
    """Fill in the products of dummies: sums of weights by pair of levels, given those by level."""
    parts = A.parts
    for one in parts:
        one.put(gram, one, one.fold_diagonal(totals[one.levels]))
    for (i, j), flat in A.pairs.items():
        one, other = parts[i], parts[j]
        counts: Array = np.bincount(flat, weights=weight, minlength=one.size * other.size).astype(float, copy=False)
        block = one.fold(other.fold(counts.reshape(one.size, other.size).T).T)
        one.put(gram, other, block)
        other.put(gram, one, block.T)


def turn_negative(gram: Array, scaled: Array, weight: Array) -> None:
    """Restore the sign of rows of negative weight, which entered ``gram`` with its absolute value."""
    negative = np.flatnonzero(weight < 0.0)
    if len(negative):
        rest = scaled[negative]
        gram -= 2.0 * np.dot(rest.T, rest)


_kept = threading.local()


def scale_rows(A: Matrix, rows: slice, root: Array, out: Array) -> None:
    """Multiply some rows by their ``root`` (b, 1), in ``out``."""
    if not isinstance(A, Slab):
        np.multiply(A[rows], root, out=out)
        return
    out[:, :1] = root
    np.multiply(A.Z[rows], root, out=out[:, 1:])
    if A.far is not None:
        out[:, 1 + A.far] = A.near(rows) * root


def is_row_major(A: Matrix) -> bool:
    """Whether features are a :class:`Slab` of rows that lie one after the other."""
    return isinstance(A, Slab) and A.Z.strides[0] > A.Z.strides[1]


def scratch(shape: tuple[int, int], row_major: bool = False) -> Array:
    """Uninitialised matrix that reuses memory per thread: allocating new pages costs more than the computation.

    Column-major unless what is written there is row-major: crossing the memory order takes up to twice as long.
    """
    size = shape[0] * shape[1]
    if len(getattr(_kept, "memory", ())) < max(size, 1):  # a block can be empty
        _kept.memory = np.empty(max(size, 1))
    matrix: Array = _kept.memory[:size].reshape(shape, order="C" if row_major else "F")
    return matrix


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


def turned_product(A: Matrix, B: Array) -> Array:
    """Return ``B' A'``, whose rows are contiguous: one number per row of ``A`` for each column of ``B``.

    Examples
    --------
    >>> import numpy as np
    >>> turned_product(Slab(np.array([[2.0], [3.0]])), np.array([[1.0], [10.0]]))
    array([[21., 31.]])
    """
    if isinstance(A, np.ndarray):
        return np.asarray(B.T @ A.T)
    if not isinstance(A, Slab) or not isinstance(A.Z, np.ndarray):
        return np.ascontiguousarray(np.asarray(A @ B).T)
    product = np.asarray(A.rest(B).T @ A.Z.T)
    for j in np.flatnonzero(B[0]):
        product[j] += B[0, j]
    if A.far is not None:
        product += B[1 + A.far].T @ A.near().T
    return product


def squares_and_products(A: Matrix, B: Array, n_squared: int, *, single: bool = False) -> tuple[Array, Array]:
    """Sums of squares (n,) of the first columns of ``A B``, and the others, turned: (., n); of a few rows at a time.

    Where the first columns are lower triangular, those at the end leave out the features at the beginning. Products of
    dense features may be in ``single`` precision but for the last column, which takes about half of the time.

    Examples
    --------
    >>> import numpy as np
    >>> squares_and_products(np.array([[3.0, 4.0], [1.0, 1.0]]), np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]), 2)
    (array([25.,  2.]), array([[7., 2.]]))
    """
    n, step = A.shape[0], max(LEAST_ROWS, SMALL_BYTES // (8 * B.shape[1]))
    if single and isinstance(_stored(A), np.ndarray):
        return _single_squares_and_products(A, B, n_squared, step)
    first, *later = _steps(A, B, n_squared)
    if not later and n <= step:
        product = turned_product(A, B)
        return np.einsum("an,an->n", product[:first], product[:first]), product[first:]
    squares, others = np.empty(n), np.empty((B.shape[1] - n_squared, n))
    head = np.hstack([B[:, :first], B[:, n_squared:]]) if later else B
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        part = view_rows(A, rows) if n > step else A
        product = turned_product(part, head)
        np.einsum("an,an->n", product[:first], product[:first], out=squares[rows])
        others[:, rows] = product[first:]
        for begin, end in zip([first, *later], later, strict=False):
            product = B[begin:, begin:end].T @ _columns_from(part, begin).T
            squares[rows] += np.einsum("an,an->n", product, product)
    return squares, others


def _single_squares_and_products(A: Matrix, B: Array, n_squared: int, step: int) -> tuple[Array, Array]:
    """The same for dense features, by ``step`` rows, in single precision but for the last column of ``B``."""
    n, ones, last, stored = A.shape[0], isinstance(A, Slab), B[:, -1], _stored(A)
    turned = np.ascontiguousarray(B[:, :-1].T, dtype=np.float32)
    rounded = np.ones((min(step, n), len(last)), dtype=np.float32)  # with the column of ones, which Slab leaves out
    memory = np.empty(len(turned) * len(rounded), dtype=np.float32)
    squares, others = np.empty(n), np.empty((B.shape[1] - n_squared, n))
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        Z, piece = stored[rows], rounded[: rows.stop - start]
        np.dot(Z, last[ones:], out=others[-1, rows])
        piece[:, ones:] = Z
        product = np.dot(turned, piece.T, out=memory[: len(turned) * len(piece)].reshape(len(turned), -1))
        squares[rows] = np.einsum("an,an->n", product[:n_squared], product[:n_squared])
        others[:-1, rows] = product[n_squared:]
    if ones:
        others[-1] += last[0]
    return squares, others


def _stored(A: Matrix) -> Matrix:
    """Features as they are stored, without a column of ones; shifted ones and others are returned as they are."""
    return A.Z if isinstance(A, Slab) and A.far is None else A


def _steps(A: Matrix, B: Array, n_squared: int) -> list[int]:
    """Ends of groups of columns of ``B``: each leaves out the features before it. One group if that does not pay."""
    count = min(n_squared // LEAST_STEP, MOST_STEPS) if isinstance(_stored(A), np.ndarray) else 1
    ends = [n_squared * (i + 1) // count for i in range(count)] if count > 1 else [n_squared]
    triangular = len(ends) == 1 or not np.triu(B[:, :n_squared], 1).any()
    return ends if triangular else [n_squared]


def _columns_from(A: Matrix, start: int) -> Array:
    """Features from ``start`` on, where the column of ones counts; ``start`` is above 0."""
    return np.asarray(A.Z[:, start - 1 :] if isinstance(A, Slab) else A[:, start:])


def row_product(Z: Matrix, B: Array) -> Array:
    """``Z @ B`` without a copy of Z as float64, or of its categories."""
    if is_sparse(Z) or (isinstance(Z, np.ndarray) and Z.dtype == np.float64):
        return np.asarray(Z @ B)
    return np.vstack([Z[rows] @ B for rows in row_slices(*Z.shape)])
