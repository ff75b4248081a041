"""Leave-one-out predictions from one factorisation: what the model without a row, or a cluster, predicts for it.

Without the rows of a cluster g the fit solves the same problem with fewer rows, and protected columns that are centred
again. One Newton step of its optimality conditions, from the fit to all rows, is

    (K - K_g + U_g) (d theta; d lam) = right-hand side,     K = [[A, J'], [J, 0]],

with ``A`` the Hessian of the Lagrangian and ``J`` the Jacobian of the constraint. ``K_g`` is the part of the rows, and
``U_g`` the change of ``J`` by centring; both are combinations of the rows' features ``z_j``, their protected values
``q_j`` and one vector ``u = sum w h' z``, so the Woodbury formula leaves a system of ``2m + 1`` equations for a cluster
of m rows. With the gaussian family and the identity link the step is exact. The ridge keeps its weight relative to the
*summed* loss, and a target ``kappa`` of the constraint stays the same mean.

Everything is a sum over row blocks, which use only ``Z @ dense``. The blocks of the inverse are
``G = L L'``, ``F`` and ``E``: ``K^-1 = [[G, F], [F', E]]``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from setsquare._typing import Array, BoolArray
from setsquare.families import RowTerms
from setsquare.glm.dense_pass import equal_weight
from setsquare.glm.further_steps import far_units, take_further_steps
from setsquare.glm.kkt_inverse import Inverse, invert_at
from setsquare.glm.left_out_rows import SteeredRows, solve_rows
from setsquare.glm.left_out_shared import in_pieces, share
from setsquare.glm.left_out_sums import beside_constant, drift, mean_shift, of_whole_fit, reach_of_units, unit_sums
from setsquare.glm.left_out_systems import Seen, Shared, SteeredUnits, groups_of, solve_clusters
from setsquare.glm.newton import Iterate
from setsquare.glm.objective import Objective, spread_of
from setsquare.rows.blocks import Block
from setsquare.rows.parallel import Sums
from setsquare.rows.products import squares_and_products
from setsquare.rows.wide import pick_rows

#: Leverage above which products of a row are in float64.
LARGE = 0.01


class LeftOut(NamedTuple):
    """Leave-one-out results of some rows, in the order of their block.

    Attributes
    ----------
    eta : ndarray of shape (b, k)
        Linear predictors by the model without the row or its cluster.
    leverage : ndarray of shape (b,)
        Share of a row's own fit that rests on itself; the sum is the number of parameters in use.
    lost : ndarray of shape (b,)
        Rows whose prediction the other rows hardly determine: that of the intercept-only model, or at a cap.
    steered : SteeredRows, SteeredUnits or None
        Derivatives of the linear predictors by the target of the constraint.
    far : ndarray of shape (b,) or None
        Squared change of the fit without the row or its cluster, for few rows.
    drift : ndarray of shape (4 + k r,)
        Sums of :func:`~setsquare.glm.left_out_sums.drift`; empty with derivatives by a target.
    fitted : float
        Sum of the losses of the fit itself.
    narrower : ndarray of shape (b,) or None
        Spread of the predictions of the fit, relative to that of the fit without the row or its cluster; for few units.
    """

    eta: Array
    leverage: Array
    lost: BoolArray
    steered: SteeredRows | SteeredUnits | None
    far: Array | None
    drift: Array
    fitted: float
    narrower: Array | None = None


def leave_out(objective: Objective, shared: Shared, block: Block, Qt: Array) -> LeftOut:
    """Leave-one-out predictors of the rows of a block with the basis ``Qt`` (r, b)."""
    if block.group is None and objective.n_predictors == 1 and shared.spread is None:
        left = _leave_rows_out(objective, shared, block, Qt)
    else:
        left = _leave_units_out(objective, shared, block)
    out, lost, far = left.eta, left.lost, left.far
    if far is not None and id(block) in shared.known:
        picked = far_units(np.where(lost, 0.0, far), block.group)
        if picked is not None:
            further, known = take_further_steps(objective, shared, block, *picked)
            out[picked.rows[known]] = further[known]
    if lost.any():
        null = objective.start.theta.reshape(objective.n_predictors, -1)[:, 0]
        out[lost] = null if block.offset is None else null + block.offset[lost]
    capped = np.minimum(np.maximum(out, shared.low), shared.high)  # a fifth of the time of np.clip
    changed = capped != out
    lost |= changed[:, 0] if changed.shape[1] == 1 else changed.any(axis=1)
    return left._replace(eta=capped, lost=lost)


def _known(objective: Objective, shared: Shared, block: Block, eta: Array) -> tuple[Array, RowTerms]:
    """Linear predictors of a block and its terms of the Lagrangian; ``eta`` has those without an offset."""
    kept = shared.known.get(id(block))
    if kept is not None and kept.block is block:
        return kept.eta, kept.terms
    eta = eta if block.offset is None else eta + block.offset
    return eta, objective.terms_at(block, eta, shared.multipliers)


def _leave_rows_out(objective: Objective, shared: Shared, block: Block, Qt: Array) -> LeftOut:
    """Leave out rows with one linear predictor each; before caps."""
    Q, n_root = objective.basis(block), shared.project.shape[1] - objective.n_basis - len(shared.uu) - 1
    zz, projected = squares_and_products(block.Z, shared.project, n_root, single=shared.single)
    eta, terms = _known(objective, shared, block, projected[-1][:, None])
    controls = objective.controls(block) if len(shared.mean) > 1 else None
    share = equal_weight(block.weight)
    w = block.weight if share is None else share
    if shared.single:  # where a row decides its own prediction, differences of these products matter
        own = np.flatnonzero(~(np.abs(w * terms.curvature[:, 0, 0]) * zz <= LARGE))
        if len(own):
            zz[own], projected[:, own] = squares_and_products(pick_rows(block, own).Z, shared.project, n_root)
    found = solve_rows(shared, zz, projected[:-1], Qt, controls, terms, w)
    noise = np.zeros(0)
    if not shared.steer:
        score = terms.slope[:, 0] + terms.mean_slope[:, 0, 0] * found.price
        sizes = np.square(w * score)
        shift = sizes.sum() * np.sum(shared.centre**2) - (2.0 / shared.slope[0, 0]) * (
            sizes @ projected[objective.n_basis]
        )
        noise = drift(block, Q, score[:, None], float(sizes @ zz + shift), terms)
    out, fitted = eta + found.change[:, None], _fitted(shared, block, terms)
    return LeftOut(out, found.leverage, found.lost, found.steered, found.far, noise, fitted)


def _leave_units_out(objective: Objective, shared: Shared, block: Block) -> LeftOut:
    """Leave out clusters, or rows with several linear predictors; before caps."""
    Q, n, k = objective.basis(block), len(block.weight), objective.n_predictors
    projected = np.asarray(block.Z @ shared.project).reshape(n, k, -1)
    eta, terms = _known(objective, shared, block, projected[:, :, -1])
    seen = Seen.of(shared, projected[:, :, :-1], Q, objective.controls(block), terms, block.weight)
    change, leverage, lost = np.empty((n, k, shared.targets.shape[1])), np.empty(n), np.zeros(n, dtype=bool)
    far, narrower = np.empty(n), np.empty(n)
    for members in groups_of(block):
        part, rows = solve_clusters(shared, seen.at(members)), members.ravel()
        change[rows] = part.change.reshape(len(rows), k, -1)
        leverage[rows] = part.leverage.ravel()
        lost[rows], far[rows], narrower[rows] = (
            np.repeat(one, members.shape[1]) for one in (part.lost, part.far, part.narrower)
        )
    moved, noise = (SteeredUnits(seen.cross + change[:, :, 1:]) if shared.steer else None), np.zeros(0)
    if not shared.steer:
        score = seen.slope[:, :, 0]
        tangent = np.einsum("nks,nk->ns", seen.root - shared.centre.T, block.weight[:, None] * score)
        noise = drift(block, Q, score, reach_of_units(block, tangent), terms)
    out, fitted = eta + change[:, :, 0], _fitted(shared, block, terms)
    scale = None if shared.spread is None else narrower
    return LeftOut(out, leverage, lost, moved, None if shared.point is None else far, noise, fitted, scale)


def _fitted(shared: Shared, block: Block, terms: RowTerms) -> float:
    """Mean loss of the fit; 0 where a pass before this one has measured it."""
    return float(np.dot(block.weight, terms.loss)) if shared.loss is None else 0.0


class Tallied(NamedTuple):
    """Sums of leave-one-out quantities over the rows; predictions are relative to the intercept-only model.

    Attributes
    ----------
    c : ndarray of shape (r, k)
        Covariance of the leave-one-out predictions with the basis; for few units that of
        :func:`~setsquare.glm.left_out_sums.of_whole_fit`.
    total, square, fourth : ndarray of shape (k,)
        Mean of the predictions, of their squares and of their fourth powers.
    loss : ndarray of shape ()
        Mean leave-one-out loss.
    leverage, lost : ndarray of shape ()
        Sum of the leverages, and number of undetermined rows.
    steering : ndarray of shape (k r, k r)
        Derivatives of ``c`` by the target of the constraint: about the identity where features predict the protected
        columns well, about zero where they only seem to.
    moments : ndarray of shape (s, s), s = k r + r + 1
        Second moments over units (rows or clusters) of the sums of ``w h q``, ``w q`` and ``w``.
    carried : ndarray of shape (2, r)
        Sums over units of what a unit carries of a direction (its weight, times the sum of ``w q^2``), and of the
        square of it.
    drift : ndarray of shape (4 + k r,)
        Sums by which leave-one-out predictions depend on each other.
    excess : ndarray of shape ()
        Sum over units of the squared difference of their loss to that of the intercept-only model.
    constant : ndarray of shape (2, k, k)
        Second moments over units of the slopes of the intercept-only model's loss, and its curvature.
    fitted : ndarray of shape ()
        Mean loss of the fit itself, with its barrier; 0 where it is known already (``Shared.loss``).
    """

    c: Array
    total: Array
    square: Array
    fourth: Array
    loss: Array
    leverage: Array
    lost: Array
    steering: Array
    moments: Array
    carried: Array
    drift: Array
    excess: Array
    constant: Array
    fitted: Array

    @property
    def spread(self) -> float:
        """Standard deviation of the leave-one-out predictions."""
        return spread_of(self.total, self.square)

    @property
    def correlation(self) -> float:
        """Multiple correlation of the leave-one-out predictions with all protected columns; over all classes."""
        size = float(np.linalg.norm(self.c))
        return size / self.spread if self.spread > 0.0 else 0.0


def tally(objective: Objective, end: Iterate, inverse: Inverse, *, steer: bool = False) -> Tallied:
    """Add up leave-one-out quantities at a solution, in two passes over the rows.

    With derivatives by a target (``steer``) there are no moments, which only a bound needs, and no further steps.
    """
    return tally_shared(objective, share(objective, end, inverse, steer=steer))


def tally_shared(objective: Objective, shared: Shared) -> Tallied:
    """The second of these passes."""

    def kernel(block: Block) -> Sums:
        return _sums(objective, shared, block)[0]

    return Tallied(*objective.rows.reduce(in_pieces(kernel, shared.project.shape[1], objective.n_predictors)))


def _sums(objective: Objective, shared: Shared, block: Block) -> tuple[Sums, RowsLeftOut]:
    """Sums over the rows of a block, in the order of ``Tallied``, and the rows themselves."""
    Qt, w = np.ascontiguousarray(objective.basis(block).T), block.weight
    left = leave_out(objective, shared, block, Qt)
    loss, mean, steering = _values(objective, block, left, Qt)
    gap = np.ascontiguousarray((mean - objective.start.mean + mean_shift(objective, block)).T)
    weighted, squares = w * gap, gap * gap
    lean, own = (weighted, 0.0) if left.narrower is None else of_whole_fit(block, weighted, left.narrower)
    towards = own * shared.targets[:, 0].reshape(objective.n_predictors, -1).T
    sums = (
        Qt @ lean.T + towards,
        weighted.sum(axis=1),
        squares @ w,
        np.square(squares) @ w,
        np.asarray(w @ loss),
        np.asarray(left.leverage.sum()),
        np.asarray(float(np.count_nonzero(left.lost))),
        steering,
    )
    beyond = weighted
    if len(shared.mean) > 1:  # what the controls explain is no error
        beyond = weighted - w * (shared.mean[1:].T @ objective.controls(block)[:, 1:].T)
    units: Sums = (np.zeros(0),) * 5
    if not shared.steer:
        units = *unit_sums(block, Qt, beyond), left.drift, *beside_constant(objective, block, loss)
    return (*sums, *units, np.asarray(left.fitted)), RowsLeftOut(left.eta, mean, loss, left.leverage)


def _values(objective: Objective, block: Block, left: LeftOut, Qt: Array) -> Sums:
    """Losses, predictions, and the sum of ``w q h' d eta``, (k r, k r), all at the leave-one-out predictors."""
    if left.steered is None:
        return *objective.family.value_terms(block.y, left.eta), np.zeros((0, 0))
    terms = objective.family.terms(block.y, left.eta, np.zeros_like(left.eta))
    slopes = np.where(left.lost, 0.0, block.weight)[:, None, None] * terms.mean_slope
    return terms.loss, terms.mean, left.steered.total(Qt, slopes)


class RowsLeftOut(NamedTuple):
    """Leave-one-out results of each row, in the order of the objective's rows.

    Attributes
    ----------
    eta, mean : ndarray of shape (n, k)
        Linear predictors and predictions by the model without the row, or without its cluster.
    loss, leverage : ndarray of shape (n,)
    """

    eta: Array
    mean: Array
    loss: Array
    leverage: Array


def tally_rows(objective: Objective, end: Iterate, inverse: Inverse | None = None) -> tuple[Tallied, RowsLeftOut]:
    """As :func:`tally`, for rows in memory, with the leave-one-out results of each row from the same pass."""
    shared = share(objective, end, inverse or invert_at(objective, end))

    def kernel(block: Block) -> Sums:
        sums, rows = _sums(objective, shared, block)
        parts = np.empty(1, dtype=object)  # lists in an array: sums over blocks join them in order
        parts[0] = [rows]
        return *sums, parts

    *sums, parts = objective.rows.reduce(in_pieces(kernel, shared.project.shape[1], objective.n_predictors))
    return Tallied(*sums), RowsLeftOut(*map(np.concatenate, zip(*parts[0], strict=True)))
