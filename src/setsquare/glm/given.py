"""Orthogonality given controls, or given the outcome: residuals take the place of the protected columns in the rows.

Given columns C, the protected columns become ``Xr``, their residuals on [1, C]: the effects of X in a regression of the
predictions on X and C are then zero. Given the outcome, C is a basis ``b(y)`` of functions of it, and X becomes
``b(y) X``, one copy per function: for classes the constraint is
``sum_i 1[y_i = k] (x_i - mean_k(x)) prediction_i = 0`` for each class k, equal mean predictions of the groups within
each class. A numeric outcome with more than a few values takes hat functions (a linear spline) with knots at its
quantiles, so that effects of X that vary with the outcome are zero as well.

The rows are changed once, where a problem is built; solvers, certificates, streams and clusters read the changed rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from setsquare._typing import Array
from setsquare.families import Family, contrasts
from setsquare.glm.outcome_summary import OutcomeSummary
from setsquare.projection.controls import Controls, controls_of
from setsquare.projection.moments import Moments
from setsquare.rows.blocks import ArrayRows, Block, Rows
from setsquare.rows.parallel import Sums

#: Word for the outcome as what is given.
OUTCOME = "outcome"
#: Number of knots of the spline in a numeric outcome: with p protected columns there are this many times p constraints.
KNOTS = 4
#: Number of values of a numeric outcome up to which each is a class of its own.
FEW_VALUES = 5
#: Number of bins in which quantiles of the outcome are counted.
BINS = 4096


@dataclass(frozen=True, slots=True)
class OutcomeBasis:
    """Functions of the outcome that sum to one: shares of K classes, or hat functions at knots.

    Examples
    --------
    >>> import numpy as np
    >>> OutcomeBasis(np.array([0.0, 1.0, 3.0]), 0)(np.array([[0.0], [2.0]]))
    array([[1. , 0. , 0. ],
           [0. , 0.5, 0.5]])
    """

    knots: Array
    n_classes: int

    def __call__(self, y: Array) -> Array:
        """Values (n, m) for coded outcomes (n, k)."""
        if self.n_classes:
            return np.asarray(y @ contrasts(self.n_classes).T + 1.0 / self.n_classes)
        return np.column_stack([np.interp(y[:, 0], self.knots, unit) for unit in np.eye(len(self.knots))])

    @property
    def names(self) -> tuple[str, ...]:
        """One name per function."""
        return tuple(map(str, range(self.n_classes))) if self.n_classes else tuple(f"{knot:.6g}" for knot in self.knots)


def outcome_basis(rows: Rows, outcomes: OutcomeSummary, family: Family) -> OutcomeBasis:
    """Basis of functions of the outcome; for a numeric outcome this takes a pass over the rows."""
    if family.is_vector:
        return OutcomeBasis(np.zeros(0), len(outcomes.mean))
    low, high = outcomes.low, outcomes.high
    weight, least, most = rows.reduce(partial(_count, low, high), _merge_counts)
    used = np.flatnonzero(weight)
    if len(used) <= FEW_VALUES and (least[used] == most[used]).all():
        return OutcomeBasis(least[used], 0)
    reached = np.cumsum(weight[used])
    inner = np.searchsorted(reached, reached[-1] * np.arange(1, KNOTS - 1) / (KNOTS - 1))
    return OutcomeBasis(np.unique(np.concatenate([[low], least[used][inner], [high]])), 0)


def _count(low: float, high: float, block: Block) -> Sums:
    """Weight, smallest and largest outcome in each bin of its range."""
    y = block.y[:, 0]
    place = np.minimum(((y - low) * (BINS / (high - low))).astype(np.intp), BINS - 1)
    least, most = np.full(BINS, np.inf), np.full(BINS, -np.inf)
    np.minimum.at(least, place, y)
    np.maximum.at(most, place, y)
    return np.asarray(np.bincount(place, block.weight, BINS), dtype=np.float64), least, most


def _merge_counts(a: Sums, b: Sums) -> Sums:
    return a[0] + b[0], np.minimum(a[1], b[1]), np.maximum(a[2], b[2])


@dataclass(frozen=True, slots=True)
class Conditioned:
    """Protected columns of a block given controls: columns after the first ``p``, or functions of the outcome.

    Attributes
    ----------
    p : int
        Number of protected columns.
    outcome : OutcomeBasis or None
    controls : Controls or None
        None before they are fitted.
    """

    p: int
    outcome: OutcomeBasis | None
    controls: Controls | None = None

    def parts(self, X: Array, y: Array) -> tuple[Array, Array]:
        """Controls (n, c) and protected columns (n, p), multiplied by the functions of the outcome if it is given."""
        if self.outcome is None:
            return X[:, self.p :], X[:, : self.p]
        b = self.outcome(y)
        return b[:, 1:], (np.asarray(X)[:, :, None] * b[:, None, :]).reshape(len(X), -1)

    def moments(self, block: Block) -> Moments:
        """Joint moments of both."""
        return Moments.of(list(self.parts(np.asarray(block.X), block.y)), block.weight)

    def residual(self, X: Array, y: Array) -> tuple[Array, Array]:
        """Residuals (n, p) of the protected columns on the controls, and an orthonormal basis (n, s) of these."""
        assert self.controls is not None
        C, X = self.parts(X, y)
        return self.controls.residual(X, C), self.controls.basis(C)

    def __call__(self, block: Block) -> Block:
        """Return the block with residuals in place of the protected columns, and a basis of the controls."""
        X, Q = self.residual(np.asarray(block.X), block.y)
        return replace(block, X=X, Q=Q)


def condition(
    rows: Rows,
    outcomes: OutcomeSummary,
    family: Family,
    names: Sequence[str],
    given: Sequence[str] | None,
) -> tuple[Rows, tuple[str, ...], tuple[str, ...]]:
    """Rows whose protected columns are residuals on the controls, their names, and names that the controls determine.

    Parameters
    ----------
    rows : Rows
        With protected columns and, if ``given`` names them, the controls after these.
    outcomes : OutcomeSummary
    family : Family
    names : sequence of str
        Names of the protected columns.
    given : sequence of str or None
        Names of the controls; None for the outcome.
    """
    outcome = outcome_basis(rows, outcomes, family) if given is None else None
    change = Conditioned(len(names), outcome)
    moments: Moments = rows.reduce(change.moments, Moments.merge)
    if outcome is not None:
        given = ("the outcome",)
        names = [f"{name} at outcome {level}" for name in names for level in outcome.names]
    c = len(moments.mean) - len(names)
    controls = controls_of(moments, c, tuple(names), tuple(given or ()))
    change = replace(change, controls=controls)
    determined = tuple(name for name, free in zip(names, controls.free, strict=True) if not free)
    return _changed(rows, change), controls.names(tuple(names)), determined


def _changed(rows: Any, change: Conditioned) -> Rows:
    """Arrays in memory stay arrays: solvers for many features need them."""
    if isinstance(rows, ArrayRows):
        X, Q = change.residual(np.asarray(rows.X), rows.y)
        return replace(rows, X=X, Q=Q)
    mapped: Rows = rows.map(change)
    return mapped
