"""Rows of many features, kept as stored: single or half precision, sparse, or categories.

The features are never copied as a whole. A block of rows is converted to float64 while a kernel works on it, the column
of ones is implicit, and centring and scaling are applied to the coefficients (:class:`Standardised`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from setsquare._typing import Array, Matrix
from setsquare.rows.blocks import Block, Rows, is_sparse, view_rows
from setsquare.rows.parallel import Sums, add_up, row_slices, share_out
from setsquare.tables.mixed_matrix import MixedMatrix


@dataclass(frozen=True, slots=True)
class Slab:
    """Features (b, q) of some rows, with an implicit leading column of ones.

    Attributes
    ----------
    Z : ndarray, CSR matrix or MixedMatrix of shape (b, q)
        As stored; never changed.
    far : ndarray of int or None
        Dense features that are far from zero: ``shift`` is subtracted from them before anything else, so that no digits
        are lost.
    shift : ndarray of shape (far,)

    Examples
    --------
    >>> import numpy as np
    >>> slab = Slab(np.array([[2.0], [3.0]]))
    >>> slab @ np.array([[1.0], [10.0]])
    array([[21.],
           [31.]])
    >>> slab.T @ np.array([[1.0], [1.0]])
    array([[2.],
           [5.]])
    """

    Z: Matrix
    far: NDArray[np.intp] | None = None
    shift: Array | None = None

    @classmethod
    def shifted(cls, Z: Array, mean: Array) -> Slab:
        """Subtract ``mean`` (q,) from dense features wherever it is not zero."""
        far = np.flatnonzero(mean)
        return cls(Z, far, mean[far]) if len(far) else cls(Z)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and of features plus intercept."""
        return self.Z.shape[0], 1 + self.Z.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the features."""
        return int(self.Z.nbytes)

    def __getitem__(self, rows: slice) -> Slab:
        return replace(self, Z=view_rows(self.Z, rows))

    def near(self, rows: slice = slice(None)) -> Array:
        """Shifted features (b, far) of some rows; only if there are any."""
        return np.asarray(self.Z[rows, self.far] - self.shift)

    def toarray(self) -> Array:
        """Column-major array (b, 1 + q) with the column of ones."""
        out = np.empty(self.shape, order="F")
        out[:, 0], out[:, 1:] = 1.0, self.Z
        if self.far is not None:
            out[:, 1 + self.far] = self.near()
        return out

    def __matmul__(self, raw: Array) -> Array:
        # The operator @ would hold the interpreter's lock for results of fewer than 500 values.
        product = np.dot(self.Z, self.rest(raw)) if isinstance(self.Z, np.ndarray) else self.Z @ self.rest(raw)
        if self.far is None:
            return np.asarray(product + raw[0])
        return np.asarray(product + self.near() @ raw[1 + self.far] + raw[0])

    def rest(self, raw: Array) -> Array:
        """Coefficients of the features as they are stored, without those of shifted features."""
        if self.far is None:
            return raw[1:]
        rest = raw[1:].copy()
        rest[self.far] = 0.0
        return rest

    @property
    def T(self) -> _Turned:
        """Transpose, which supports ``slab.T @ array``."""
        return _Turned(self)


@dataclass(frozen=True, slots=True)
class _Turned:
    slab: Slab

    def __matmul__(self, thin: Array) -> Array:
        slab, total = self.slab, thin.sum(axis=0)
        # Row by row, as stored; not by the operator @, as above.
        turned = np.dot(thin.T, slab.Z).T if isinstance(slab.Z, np.ndarray) else slab.Z.T @ thin
        product = np.concatenate([total[None], np.asarray(turned)])
        if slab.far is not None:
            product[1 + slab.far] = slab.near().T @ thin
        return product


def pick_rows(block: Block, rows: NDArray[np.intp]) -> Block:
    """Copy some rows of a block."""
    Z = replace(block.Z, Z=block.Z.Z[rows]) if isinstance(block.Z, Slab) else block.Z[rows]
    offset = None if block.offset is None else block.offset[rows]
    return Block(Z, block.y[rows], block.Q[rows], block.weight[rows], offset)


@dataclass(frozen=True, slots=True)
class WideRows:
    """Rows in memory whose features are read block by block and never copied as a whole.

    The attributes are those of :class:`setsquare.rows.blocks.ArrayRows`, but ``Z`` has no column of ones, and may have
    any floating-point type.
    """

    Z: Matrix
    y: Array
    Q: Array
    weight: Array
    offset: Array | None = None
    X: Array | None = None
    _parts: tuple[tuple[slice, Matrix], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        k, r, n = self.y.shape[1], self.Q.shape[1], self.n_rows
        stored = 2 * self.Z.nnz // n if is_sparse(self.Z) else self.Z.shape[1]
        stored = 2 * self.Z.stored if isinstance(self.Z, MixedMatrix) else stored
        slices = row_slices(n, stored + k * (4 * k + r * (k + 1) // 2))
        object.__setattr__(self, "_parts", tuple((rows, view_rows(self.Z, rows)) for rows in slices))

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.y.shape[0])

    @property
    def has_categories(self) -> bool:
        """Whether some features are codes of a category."""
        return isinstance(self.Z, MixedMatrix)

    def reduce(
        self, kernel: Callable[..., Sums], *columns: Array, every: int = 1, dtype: type[np.floating] = np.float64
    ) -> Sums:
        """Add up the results of ``kernel(block, *columns)``, with the block's rows of additional ``columns`` (n, ...).

        The kernel may write into these columns. With ``every = k > 1`` it receives every k-th row only. Dense features
        are passed as ``dtype``.
        """

        def work(parts: Sequence[tuple[slice, Matrix]]) -> Sums:
            b = max(rows.stop - rows.start for rows, _ in parts)
            ready = not isinstance(self.Z, np.ndarray) or self.Z.dtype == dtype
            memory = None if ready else np.empty((-(-b // every), self.Z.shape[1]), dtype)
            with np.errstate(over="ignore", invalid="ignore"):  # outside a link's domain, sums are infinite
                return add_up(
                    kernel(self._block(rows, Z[::every], memory, every), *(part[rows][::every] for part in columns))
                    for rows, Z in parts
                )

        return share_out(work, self._parts)

    def _block(self, rows: slice, Z: Matrix, memory: Array | None, every: int) -> Block:
        if memory is not None:
            np.copyto(memory[: len(Z)], Z)
            Z = memory[: len(Z)]
        offset, X = (None if part is None else part[rows][::every] for part in (self.offset, self.X))
        y, Q, weight = (part[rows][::every] for part in (self.y, self.Q, self.weight))
        return Block(Slab(Z), y, Q, weight, offset, X)


@dataclass(frozen=True, slots=True)
class WideParts:
    """The same for rows that are read, or held by a cluster, in parts.

    What :class:`WideRows` keeps for each row, such as its curvature, is computed again from the rows in each pass: the
    additional columns of :meth:`reduce` are functions of a block.

    Attributes
    ----------
    rows : RowsInParts
        Blocks whose features are a :class:`Slab`.
    has_categories : bool
        Whether some features are codes of a category.
    """

    rows: Rows
    has_categories: bool

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.rows.n_rows

    def reduce(
        self,
        kernel: Callable[..., Sums],
        *columns: Callable[[Block], Array],
        every: int = 1,
        dtype: type[np.floating] = np.float64,
    ) -> Sums:
        """Add up the results of ``kernel(block, *columns)``; with ``every = k > 1`` of every k-th row only."""

        def work(block: Block) -> Sums:
            block = block if every == 1 else pick_rows(block, np.arange(0, len(block.weight), every))
            return kernel(block, *(column(block) for column in columns))

        return self.rows.reduce(work)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(None), ())  # None: a kernel sent to a worker refers to the rows but never uses them


def as_slab(block: Block, mean: Array, Q: Array) -> Block:
    """Features of a block as stored, without its column of ones, and a basis ``Q`` of the protected columns.

    Categories with almost no zeros are centred by their ``mean`` (q,).
    """
    Z = block.Z.centred(mean) if isinstance(block.Z, MixedMatrix) else block.Z[:, -len(mean) :]
    return replace(block, Z=Slab(Z), Q=Q)


@dataclass(frozen=True, slots=True)
class Standardised:
    """Operator that maps coefficients of standardised features to those of the original features.

    Attributes
    ----------
    mean, divisor : ndarray of shape (q,)
        The divisor of a constant feature is infinite, so that its coefficient is zero.

    Examples
    --------
    >>> import numpy as np
    >>> to_raw = Standardised(np.array([5.0]), np.array([2.0]))
    >>> to_raw @ np.array([[1.0], [1.0]])
    array([[-1.5],
           [ 0.5]])
    >>> to_raw.inverse(to_raw @ np.array([[1.0], [1.0]]))
    array([[1.],
           [1.]])
    """

    mean: Array
    divisor: Array

    @property
    def shape(self) -> tuple[int, int]:
        """Number of features plus intercept, twice."""
        return 1 + len(self.mean), 1 + len(self.mean)

    def __matmul__(self, theta: Array) -> Array:
        gamma = theta[1:] / self.divisor[:, None]
        return np.vstack([theta[0] - self.mean @ gamma, gamma])

    def adjoint(self, raw: Array) -> Array:
        """Map gradients (1 + q, c) in raw coefficients to gradients in standardised ones."""
        return np.vstack([raw[0], (raw[1:] - self.mean[:, None] * raw[0]) / self.divisor[:, None]])

    def inverse(self, raw: Array) -> Array:
        """Map raw coefficients to those of standardised features."""
        moving = np.where(np.isfinite(self.divisor), self.divisor, 0.0)
        return np.vstack([raw[0] + self.mean @ raw[1:], raw[1:] * moving[:, None]])
