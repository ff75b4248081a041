"""From a problem whose rows are read in parts to an objective: one pass for all moments and the start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from setsquare._typing import Array
from setsquare.errors import InputError
from setsquare.families import Family
from setsquare.glm.aliasing import Copies, separate
from setsquare.glm.freedom import CLEAR, is_early, mixing, refuse_no_freedom
from setsquare.glm.intercept import Point, first_intercept, fit_intercept, intercept_sums, link_of, point_of
from setsquare.glm.objective import Start
from setsquare.glm.preparation import Prepared, check_squares, feature_moments, null_sums, set_up, start_of
from setsquare.glm.streamed_problem import StreamedProblem, add_sums
from setsquare.projection.basis import Basis, check_rows, cholesky_factor, settle_basis, stack_factors
from setsquare.rows import Parts
from setsquare.rows.blocks import Block, Rows, Sums, quietly, weighted_gram


@dataclass(frozen=True, slots=True)
class StreamedRows:
    """Rows that are read, or kept by a cluster, in parts.

    Attributes
    ----------
    blocks : Parts of Block
    n_rows : int
    """

    blocks: Parts[Block]
    n_rows: int

    def reduce(self, kernel: Any) -> Sums:
        """Add up what ``kernel`` returns for each block: one pass."""
        return self.blocks.reduce(partial(quietly, kernel), add_sums)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_elsewhere, ())  # a kernel that travels to its block refers to the rows but has no use for them


def _elsewhere() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Centre:
    """Makes a raw block what an objective reads: features less their mean, and the basis of the protected columns."""

    mean: Array
    basis: Basis | None
    unmix: Array | None = None

    def __call__(self, block: Block) -> Block:
        """Change the block in place: it was made for this pass."""
        Z = block.Z
        Z[:, 1:] -= self.mean
        if self.unmix is not None:
            changed = np.flatnonzero((self.unmix != np.eye(len(self.mean))).any(axis=0))
            Z[:, 1 + changed] = Z[:, 1:] @ self.unmix[:, changed]
        return block if self.basis is None else replace(block, Q=self.basis.apply(np.asarray(block.X)))


def prepare_streamed(problem: StreamedProblem, *, whiten: bool = True) -> Prepared:
    """Whiten the features, take a basis of the protected columns, set the objective up.

    It takes one pass; further ones where columns are, or nearly are, combinations of others.
    """
    q, p, k = len(problem.feature_names), len(problem.protected_names), problem.n_predictors
    if p:
        check_rows(problem.n_rows, p)
    if is_early(problem.n_rows, q, p):
        _refuse_early(problem)
    # Any point near the means keeps the digits of the spread; the first parts may have no rows that count.
    first = next(means for means in problem.blocks.map(_means) if means is not None)
    intercept, null = _null(problem)
    kernel = partial(_gather, first, problem.family, None if null else intercept)
    gram, *rest = problem.blocks.reduce(partial(quietly, kernel), add_sums)
    null = null or point_of(tuple(rest))
    check_squares(problem, np.diag(gram)[1 : 1 + q])
    if not np.isfinite(gram).all():
        raise InputError(
            "Protected columns or outcomes have missing or infinite values, or values whose squares exceed float64: "
            "rescale or repair them."
        )
    # Of the columns 1, Z, X, y less the means of the first block; from here on less the means of all rows.
    means = gram[0, 1:]
    scatter = gram[1:, 1:] - np.outer(means, means)
    Z, X, y = slice(0, q), slice(q, q + p), slice(q + p, q + p + k)
    mean = first[Z] + means[Z]
    basis = None if p == 0 else _basis(problem, first[X] + means[X], scatter[X, X])
    transform = np.zeros((p, 0)) if basis is None else basis.transform
    second = np.zeros((1 + q, 1 + q))
    second[0, 0], second[1:, 1:] = 1.0, scatter[Z, Z]
    average = first[y] + means[y]
    zy, zq = np.vstack([average, scatter[Z, y]]), np.vstack([np.zeros(transform.shape[1]), scatter[Z, X] @ transform])
    total = float(np.trace(scatter[y, y]))
    share = float(np.sum((transform.T @ scatter[X, y]) ** 2)) / total if total > 0.0 else 0.0

    def start(m: int) -> Start:
        sums = None
        if not problem.has_offset and problem.family.link == "canonical":
            terms = problem.family.terms(average[None], intercept[None], np.zeros((1, k)))
            sums = null_sums(null.loss, terms, second, zy, zq)
        return start_of(problem, intercept, null, m, sums)

    def exchange(copies: Copies, unmix: Array) -> tuple[StreamedRows, Array]:
        nonlocal second, zy, zq
        changed = StreamedRows(problem.blocks.map(Centre(mean, basis, unmix)).keep(), problem.n_rows)
        second, zy, zq = changed.reduce(feature_moments)
        return changed, second

    rows: Rows = StreamedRows(problem.blocks.map(Centre(mean, basis)).keep(), problem.n_rows)
    noise = np.finfo(float).eps * np.sqrt(mean**2 + np.diag(second)[1:])
    separated, rows = separate(second, mean, noise, rows, exchange)
    return set_up(problem, rows, basis, mean, separated, zq, start, share, whiten=whiten)


def _refuse_early(problem: StreamedProblem) -> None:
    """Refuse more protected columns than features have room for by one pass, in which they are few combinations."""
    q, p = len(problem.feature_names), len(problem.protected_names)
    first = next(means for means in problem.blocks.map(_means) if means is not None)
    kernel = partial(_mixed_moments, first[: q + p], mixing(p, q))
    gram = problem.blocks.reduce(partial(quietly, kernel), add_sums)[0]
    cross = gram[1:, 1:] - np.outer(gram[0, 1:], gram[0, 1:])
    spread = np.sqrt(np.maximum(np.diag(cross), 0.0))
    if not (np.isfinite(cross).all() and spread.all()):
        return
    cross = cross / np.outer(spread, spread)
    parts = cross[:q, :q], cross[q:, q:]
    if min(np.linalg.eigvalsh(part)[0] for part in parts) > 1e-6:  # else the pass over everything decides
        L, M = map(np.linalg.cholesky, parts)
        mutual = np.linalg.solve(M, np.linalg.solve(L, cross[:q, q:]).T)
        if np.linalg.svd(mutual, compute_uv=False).min() > CLEAR:
            refuse_no_freedom(f"{p}", q)


def _mixed_moments(shift: Array, mix: Array, block: Block) -> Sums:
    """Second moments of ones, features and mixed protected columns."""
    q, X = block.Z.shape[1] - 1, np.asarray(block.X)
    A = np.column_stack([block.Z[:, 1:] - shift[:q], (X - shift[q:]) @ mix])
    return (weighted_gram(np.column_stack([np.ones(len(A)), A]), block.weight),)


def _null(problem: StreamedProblem) -> tuple[Array, Point | None]:
    """Intercept of the intercept-only model; with an offset, which takes passes of its own, also the model there."""
    outcomes, average = problem.outcomes, problem.mean_outcome()
    if outcomes.offset is None:
        return link_of(problem.family, average), None

    def at(intercept: Array) -> Point:
        kernel = partial(intercept_sums, problem.family, intercept)
        return point_of(problem.blocks.reduce(partial(quietly, kernel), add_sums))

    first = first_intercept(problem.family, average, outcomes.offset / outcomes.weight, outcomes.top)
    return fit_intercept(at, problem.family, average, first, outcomes.top)


def _columns(block: Block) -> list[Array]:
    """Features, protected columns and outcome."""
    return [block.Z[:, 1:], *(() if block.X is None else (block.X,)), block.y]


def _means(block: Block) -> Array | None:
    return np.concatenate([part.mean(axis=0) for part in _columns(block)]) if len(block.weight) else None


def _gather(shift: Array, family: Family, intercept: Array | None, block: Block) -> Sums:
    """Second moments of ones, features, protected columns and outcome; with an intercept, its model's sums too."""
    w = block.weight
    A = np.empty((len(w), 1 + len(shift)), order="F")
    A[:, 0] = 1.0
    np.concatenate(_columns(block), axis=1, out=A[:, 1:])
    A[:, 1:] -= shift
    gram = weighted_gram(A, w)
    return (gram,) if intercept is None else (gram, *intercept_sums(family, intercept, block))


def _basis(problem: StreamedProblem, mean: Array, gram: Array) -> Basis:
    R = cholesky_factor(gram)
    if R is None:
        R = stack_factors(np.zeros_like(gram), problem.blocks.reduce(partial(_factor, mean), stack_factors))
    return settle_basis(mean, R, problem.protected_names)


def _factor(mean: Array, block: Block) -> Array:
    A = (np.asarray(block.X) - mean) * np.sqrt(block.weight)[:, None]
    return stack_factors(np.zeros((0, A.shape[1])), A)
