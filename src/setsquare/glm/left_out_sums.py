"""Sums over rows, or clusters, that are left out one at a time: for a bound, and beside the intercept-only model."""

from __future__ import annotations

import numpy as np

from setsquare._typing import Array, IntArray
from setsquare.families import RowTerms
from setsquare.glm.dense_pass import equal_weight
from setsquare.glm.objective import Objective
from setsquare.rows.blocks import Block
from setsquare.rows.parallel import Sums


def drift(block: Block, Q: Array, score: Array, reach: float, terms: RowTerms) -> Array:
    """Sums by which leave-one-out predictions depend on each other (``glm.new_rows_bound``), (4 + k r,).

    ``score`` (n, k) is the slope of the Lagrangian, and ``reach`` the sum over units of the squared length ``|L'g|^2``
    of its gradient, with centred features. Then follow the means of the squared score, of the squared slope of the
    activation, of the curvature, and of the products of score and basis.
    """
    w = block.weight
    slopes = terms.mean_slope
    steep = np.square(slopes[:, 0, 0]) if score.shape[1] == 1 else np.einsum("nij,nij->n", slopes, slopes)
    bent = terms.curvature[:, 0, 0] if score.shape[1] == 1 else np.einsum("nii->n", terms.curvature)
    weighted = w * score.T
    means = float(np.vdot(weighted, score.T)), float(w @ steep), float(w @ bent)
    return np.concatenate([[reach, *means], (weighted @ Q).ravel()])


def reach_of_units(block: Block, tangent: Array) -> float:
    """Sum over units of the squared length of their gradients, for those of the rows (n, s)."""
    if block.group is not None:
        tangent = np.add.reduceat(tangent, firsts(block.group))
    return float(np.vdot(tangent, tangent))


def mean_shift(objective: Objective, block: Block) -> Array:
    """Mean prediction of the fit minus that of the fit without each row or its cluster, (n, k) or (n, 1).

    The intercept makes it the mean outcome. Without this, leave-one-out predictions would fall where outcomes are high
    even if the model is a constant, which has no covariance with anything on new rows.
    """
    w = block.weight[:, None]
    return np.asarray(of_unit(block, w * (block.y - objective.start.mean)) / (1.0 - of_unit(block, w)))


def of_unit(block: Block, part: Array) -> Array:
    """Sums of ``part`` (n, ...) over the row, or over its cluster, for each row."""
    if block.group is None:
        return part
    number = np.cumsum(np.diff(block.group, prepend=block.group[0]) != 0)
    return np.asarray(np.add.reduceat(part, firsts(block.group))[number])


def of_whole_fit(block: Block, weighted: Array, narrower: Array) -> tuple[Array, float]:
    """Weighted predictions (k, n) whose covariance is that of the fit to all units, and the weight of its target.

    What is zero on average is the *correlation* on new rows. Each left-out prediction was made by a fit with a spread
    of its own, and is divided by it: fits that lean to the protected columns by chance also spread more, so that the
    mean of their covariances is not zero where that of the correlations is. And what comes back is larger for the
    fits without a unit than for the fit to all of them, by about its share W of the weight: the correction of
    P. Burman, "A comparative study of ordinary cross-validation, v-fold cross-validation and the repeated
    learning-testing methods", Biometrika 76 (1989), is ``sum_g (1 - W_g) c_g + kappa sum_g W_g^2``. Both are of the
    order of one over the number of units. Without them, 50 clusters of 10 rows with 20 features overshoot by 0.028.
    """
    own = of_unit(block, block.weight)
    return weighted * (narrower * (1.0 - own)), float(block.weight @ own)


def beside_constant(objective: Objective, block: Block, loss: Array) -> Sums:
    """Sums over units that compare the losses with those of the intercept-only model; see :class:`Tallied`."""
    k, w = objective.n_predictors, block.weight
    null = objective.start.theta.reshape(k, -1)[:, 0]
    if objective.family.is_vector:
        eta = np.broadcast_to(null, (len(w), k)) if block.offset is None else null + block.offset
        terms = objective.family.terms(block.y, eta, np.zeros_like(eta))
        own, slope, curvature = terms.loss, terms.slope, np.einsum("n,nij->ij", w, terms.curvature)
    else:
        eta = null if block.offset is None else null + block.offset[:, 0]
        own, slope, bent = objective.family.row_losses(block.y[:, 0], eta)
        total = bent[0] * w.sum() if len(bent) == 1 else np.dot(w, bent)  # without an offset one value may be for all
        slope, curvature = slope[:, None], np.full((1, 1), total)
    beside = np.empty((1 + k, len(w)))
    np.subtract(loss, own, out=beside[0])
    np.multiply(w, slope.T, out=beside[1:])
    beside[0] *= w
    if block.group is not None:
        beside = np.add.reduceat(beside, firsts(block.group), axis=1)
    slopes = np.dot(beside[1:], beside[1:].T)
    return np.asarray(np.dot(beside[0], beside[0])), np.concatenate([slopes, curvature]).reshape(2, k, k)


def firsts(group: IntArray) -> IntArray:
    """First rows of the clusters of a block."""
    return np.flatnonzero(np.diff(group, prepend=group[0] - 1))


def unit_sums(block: Block, Qt: Array, weighted: Array) -> Sums:
    """Sums over units that a bound needs, for basis (r, n) and weighted predictions (k, n): see :class:`Tallied`."""
    (k, n), r, w = weighted.shape, len(Qt), block.weight
    units = np.empty((k * r + r + 1, n))
    np.multiply(weighted[:, None], Qt, out=units[: k * r].reshape(k, r, -1))
    wQ = np.multiply(w, Qt, out=units[k * r : -1])
    units[-1] = w
    if block.group is None:
        own, share = np.square(wQ), equal_weight(w)
    else:
        first, share = firsts(block.group), None
        own, units = (np.add.reduceat(part, first, axis=1) for part in (wQ * Qt, units))
        own *= units[-1]
    # Two products, because numpy computes a matrix times its own transpose by a routine that is slow for few rows. With
    # equal weights the second is known: the basis is orthonormal over all rows.
    of_rows = units[k * r :]
    alone = np.dot(of_rows, of_rows.T) if share is None else share * w.sum() * np.eye(r + 1)
    moments = np.empty((len(units), len(units)))
    moments[: k * r] = np.dot(units[: k * r], units.T)
    moments[k * r :, : k * r], moments[k * r :, k * r :] = moments[: k * r, k * r :].T, alone
    carried = own.sum(axis=1) if block.group is not None else alone.diagonal()[:-1]
    return moments, np.stack([carried, np.einsum("rn,rn->r", own, own)])
