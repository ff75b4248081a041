"""Protected columns, and predictions, that are read in parts: what an audit asks of them, each in a pass."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from setsquare.auditing.records import ALL, Test, wald
from setsquare.moments import Moments
from setsquare.projection import Basis, basis_of_moments
from setsquare.rows import Block, Sums, weighted_gram
from setsquare.sources import Parts
from setsquare.streamed_problem import add_sums
from setsquare.typing import Array, BoolArray


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
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, blocks: Parts[Block], names: tuple[str, ...], sources: tuple[str, ...], mean: float, n_rows: int
    ) -> StreamedProtected:
        """Read ranges and moments; ``mean`` is that of the predictions."""
        found = blocks.reduce(partial(_ranges, mean), _Ranges.merge)
        sizes = zip(found.total, found.is_indicator, strict=True)
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

    def score_tests(self) -> tuple[Test, tuple[Test, ...], tuple[Test, ...]]:
        """Tests of all columns, of each source and of each column given the others: one pass for all."""
        sources, p = np.asarray(self.sources), len(self.names)
        chosen = [(ALL, np.ones(p, dtype=bool))]
        chosen += [(source, sources == source) for source in dict.fromkeys(self.sources)]
        chosen += [(name, np.arange(p) == j) for j, name in enumerate(self.names)]
        maps = [_given_others(self.moments, mask) for _, mask in chosen]
        sums = self.blocks.reduce(partial(_scores, self.moments.mean, maps), add_sums)
        found = []
        for i, (name, _) in enumerate(chosen):
            test = wald(name, sums[2 * i], sums[2 * i + 1], math.inf)
            found.append(replace(test, method=f"score, chi-squared({test.df:g})"))
        slopes = self.basis.transform @ (self.basis.transform.T @ self.moments.scatter[:-1, -1])
        single = tuple(
            replace(test, statistic=math.copysign(math.sqrt(test.statistic), slope), method="score, normal")
            for test, slope in zip(found[-p:], slopes, strict=True)
        )
        return found[0], tuple(found[1:-p]), single


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Ranges, group sizes, weights and moments of some rows."""

    low: Array
    high: Array
    total: Array
    is_indicator: BoolArray
    widest: float
    heaviest: float
    concentration: float
    moments: Moments

    def merge(self, other: _Ranges) -> _Ranges:
        return _Ranges(
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.total + other.total,
            self.is_indicator & other.is_indicator,
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
        (X == X * X).all(axis=0),
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


class _Given(NamedTuple):
    """Columns that are tested, and what takes the others out of them (p, c) and of the predictions (p,)."""

    tested: Array
    residual: Array


def _given_others(moments: Moments, chosen: BoolArray) -> _Given:
    """Linear maps of the centred columns: the chosen ones, scaled, given the others, and the others' fit."""
    p, S = len(chosen), moments.scatter
    others = np.flatnonzero(~chosen & (np.diag(S)[:p] > 0.0))
    tested, residual = np.eye(p)[:, chosen], np.zeros(p)
    if len(others):
        T = basis_of_moments(_part(moments, others)).transform
        tested[others] -= T @ (T.T @ S[np.ix_(others, np.flatnonzero(chosen))])
        residual[others] = T @ (T.T @ S[others, -1])
    size = np.sqrt(np.maximum(np.einsum("pc,pq,qc->c", tested, S[:p, :p], tested), 0.0))
    whole = np.sqrt(np.maximum(np.diag(S)[:p][chosen], 0.0))
    varies = size > 1e-6 * whole
    return _Given(tested[:, varies] / size[varies], residual)


def _scores(mean: Array, maps: list[_Given], block: Block) -> Sums:
    X, gap = block.Z[:, 1:] - mean[:-1], block.y[:, 0] - mean[-1]
    sums: list[Array] = []
    for tested, residual in maps:
        scores = (X @ tested) * (block.weight * (gap - X @ residual))[:, None]
        sums += [scores.sum(axis=0), scores.T @ scores]
    return tuple(sums)
