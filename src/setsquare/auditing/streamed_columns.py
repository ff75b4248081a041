"""Protected columns, and predictions, that are read in parts: what an audit asks of them, each in a pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from setsquare._typing import Array, BoolArray
from setsquare.auditing.evaluations.score import Sample
from setsquare.glm.streamed_preparation import StreamedRows
from setsquare.glm.streamed_problem import add_sums
from setsquare.notes import Note
from setsquare.projection import Basis, basis_of_moments
from setsquare.projection.moments import Moments
from setsquare.rows import Parts
from setsquare.rows.blocks import Block, Sums, weighted_gram


@dataclass(frozen=True)  # without slots: what is worked out in a pass is kept
class StreamedProtected:
    """Protected columns, and predictions, that are read in parts.

    Attributes
    ----------
    blocks : Parts of Block
        Protected columns as features, behind ones; predictions as the outcome.
    names, sources : tuple of str
    moments : Moments
        Of the columns and, last, of the predictions; weights sum to one.
    ends : (ndarray of shape (p,), ndarray of shape (p,))
    group_sizes : tuple of int or None
    n_rows : int
    widest : float
        Largest weight times the largest distance of a prediction from the mean.
    heaviest, concentration : float
        Largest weight, and the sum of their squares.
    """

    blocks: Parts[Block]
    names: tuple[str, ...]
    sources: tuple[str, ...]
    moments: Moments
    ends: tuple[Array, Array]
    group_sizes: tuple[int | None, ...]
    n_rows: int
    widest: float
    heaviest: float
    concentration: float
    notes: tuple[Note, ...] = ()

    @classmethod
    def of(
        cls, blocks: Parts[Block], names: tuple[str, ...], sources: tuple[str, ...], mean: float, n_rows: int
    ) -> StreamedProtected:
        """Read ranges and moments; ``mean`` is that of the predictions."""
        found = blocks.reduce(partial(_ranges, mean), _Ranges.merge)
        sizes = zip(found.total - n_rows * found.low, found.is_whole & (found.high - found.low == 1.0), strict=True)
        return cls(
            blocks,
            names,
            sources,
            found.moments,
            (found.low, found.high),
            tuple(int(size) if indicator else None for size, indicator in sizes),
            n_rows,
            found.widest,
            found.heaviest,
            found.concentration,
        )

    @cached_property
    def basis(self) -> Basis:
        """Orthonormal basis of the columns."""
        return basis_of_moments(_part(self.moments, slice(0, -1)), self.names)

    @cached_property
    def reach(self) -> float:
        """Length, in the basis, of the farthest corner of the columns' ranges: no row is farther out."""
        return self.basis.reach(*self.ends)

    @cached_property
    def max_leverage(self) -> float:
        """Largest leverage of a row in a linear model with an intercept, or a bound on it below 0.05."""
        bound = self.heaviest * (1.0 + self.reach**2)
        return bound if bound < 0.05 else float(self.blocks.reduce(partial(_leverage, self.basis), max))

    def largest_score(self) -> float:
        """Largest share that one row has in the error of a joint score test, or a bound on it below 0.2."""
        mean = float(self.moments.mean[-1])
        V = self.blocks.reduce(partial(_score_gram, self.basis, mean), add_sums)[0]
        values, vectors = np.linalg.eigh(V)
        if values[0] <= 1e-12 * values[-1]:
            return 1.0
        if (bound := (self.widest * self.reach) ** 2 / float(values[0])) < 0.2:
            return bound
        return float(self.blocks.reduce(partial(_score_share, self.basis, mean, vectors / np.sqrt(values)), max))

    @property
    def is_group(self) -> tuple[bool, ...]:
        """Which columns are indicators of a group."""
        return tuple(size is not None for size in self.group_sizes)

    def sample(self) -> Sample:
        """Sample of the columns and the predictions, for score tests and tests of shape."""
        rows = StreamedRows(self.blocks.map(without_ones), self.n_rows)
        equal = self.concentration * self.n_rows < 1.0 + 1e-12
        return Sample.of(rows, self.moments.mean, len(self.names), equal_weights=equal)


def without_ones(block: Block) -> Block:
    """Block of the protected columns alone."""
    return replace(block, Z=block.Z[:, 1:])


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Ranges, group sizes, weights and moments of some rows."""

    low: Array
    high: Array
    total: Array
    is_whole: BoolArray
    widest: float
    heaviest: float
    concentration: float
    moments: Moments

    def merge(self, other: _Ranges) -> _Ranges:
        return _Ranges(
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.total + other.total,
            self.is_whole & other.is_whole,
            max(self.widest, other.widest),
            max(self.heaviest, other.heaviest),
            self.concentration + other.concentration,
            self.moments.merge(other.moments),
        )


def _ranges(mean: float, block: Block) -> _Ranges:
    X, y, w = block.Z[:, 1:], block.y, block.weight
    return _Ranges(
        X.min(axis=0, initial=np.inf),
        X.max(axis=0, initial=-np.inf),
        X.sum(axis=0),
        (np.floor(X) == X).all(axis=0),
        float(np.abs(w * (y[:, 0] - mean)).max(initial=0.0)),
        float(w.max(initial=0.0)),
        float(w @ w),
        Moments.of(np.column_stack([X, y]), w),
    )


def _leverage(basis: Basis, block: Block) -> float:
    Q = basis.apply(block.Z[:, 1:])
    return float((block.weight * (1.0 + np.einsum("nr,nr->n", Q, Q))).max(initial=0.0))


def _score_gram(basis: Basis, mean: float, block: Block) -> Sums:
    return (weighted_gram(basis.apply(block.Z[:, 1:]), (block.weight * (block.y[:, 0] - mean)) ** 2),)


def _score_share(basis: Basis, mean: float, root: Array, block: Block) -> float:
    S = (basis.apply(block.Z[:, 1:]) @ root) * (block.weight * (block.y[:, 0] - mean))[:, None]
    return float(np.einsum("nr,nr->n", S, S).max(initial=0.0))


def _part(moments: Moments, columns: Any) -> Moments:
    scatter = moments.scatter[columns][:, columns]
    return Moments(moments.weight, moments.mean[columns], scatter)
