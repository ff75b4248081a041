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

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from setsquare._typing import Array, BoolArray
from setsquare.families import RowTerms
from setsquare.families.activations import IDENTITY
from setsquare.glm.dense_pass import equal_weight
from setsquare.glm.further_steps import FEW_ROWS, far_units, take_further_steps
from setsquare.glm.kkt_inverse import Inverse, invert
from setsquare.glm.left_out_rows import SteeredRows, solve_rows
from setsquare.glm.left_out_sums import beside_constant, drift, mean_shift, reach_of_units, unit_sums
from setsquare.glm.left_out_systems import Known, Point, Seen, Shared, SteeredUnits, groups_of, solve_clusters
from setsquare.glm.newton import Iterate
from setsquare.glm.objective import Objective, linear_predictor, spread_of
from setsquare.glm.solution import Status
from setsquare.rows.blocks import Block, cut, take_rows
from setsquare.rows.parallel import Sums, add_up
from setsquare.rows.products import squares_and_products, thin_product

#: Size of the products of rows that are left out at once: of single rows only sums are kept, so that more calls would
#: cost more than the cache saves; clusters and classes take a matrix each.
ROW_BYTES, UNIT_BYTES = 2**23, 2**21
#: Number of rows up to which the first of two passes keeps what the second needs of each row.
KNOWN_ROWS = 2**16


def share(objective: Objective, end: Iterate, inverse: Inverse, *, steer: bool = False) -> Shared:
    """Compute what the systems of all rows share, in one pass over the rows; ``steer`` adds derivatives by a target."""
    k, r, m = objective.n_predictors, objective.n_basis, objective.to_raw.shape[1]
    T = objective.to_raw if isinstance(objective.to_raw, np.ndarray) else objective.to_raw @ np.eye(m)
    raw, multipliers = objective.raw(end.theta), end.lam.reshape(k, -1).T
    known: dict[int, Known] = {}
    is_small = objective.rows.n_rows <= KNOWN_ROWS

    def kernel(block: Block) -> Sums:
        eta, w = linear_predictor(block, raw), block.weight
        terms = objective.terms_at(block, eta, multipliers)
        loss = objective.family.value_terms(block.y, eta)[0] if objective.barrier else terms.loss
        if is_small:
            known[id(block)] = Known(block, eta, terms)
        slopes, gap = w[:, None] * terms.mean_slope.reshape(len(w), -1), terms.mean - objective.start.mean
        if block.Q.shape[1] == r:
            return (w @ gap)[None], thin_product(block.Z, slopes), Ends.of(eta, w), np.dot(w, loss)
        D = objective.controls(block)  # then k is 1
        slopes = slopes * D
        return D.T @ (w[:, None] * gap), thin_product(block.Z, slopes), Ends.of(eta, w), np.dot(w, loss)

    mean, slopes, ends, loss = objective.rows.reduce(_in_pieces(kernel, m, k))
    mean[0] += objective.start.mean
    U = (T.T @ slopes).reshape(m, k, -1).transpose(1, 0, 2).reshape(k * m, -1)
    L, F = inverse.root.reshape(k * m, -1), inverse.cross.reshape(k * m, k * r)
    kappa = (np.zeros(k * r) if objective.target is None else objective.target)[:, None]
    if k == 1:
        L = L @ _reflection(T[0] @ L)
    along, uf = L.T @ U, U.T @ F
    slope = slopes[0].reshape(k, -1)[:, :k]
    parts = np.concatenate([L, F, L @ along, end.theta[:, None]], axis=1).reshape(k, m, -1)
    project = T @ parts[0] if k == 1 else np.concatenate([T @ part for part in parts], axis=1)
    if k == 1:
        project[0, 1 : L.shape[1]] = 0.0  # up to rounding error it is
    return Shared(
        raw,
        multipliers,
        project,
        inverse.corner,
        uf.T.reshape(k, r, -1).transpose(1, 0, 2),
        along.T @ along,
        uf,
        np.hstack([kappa, np.eye(k * r)]) if steer else kappa,
        mean,
        *_caps(objective, ends[0]),
        float(loss) + objective.ridge(end.theta),
        known,
        objective.start.curvature,
        F.T @ F,
        None if steer or len(mean) > 1 else _point(objective, end, inverse),
        slope,
        along[:, :k] @ np.linalg.pinv(slope),
    )


def _point(objective: Objective, end: Iterate, inverse: Inverse) -> Point | None:
    """The solution, for further steps; None for many rows, where one step is exact, and where the loss is flat."""
    exact = objective.family.activation is IDENTITY
    if exact or end.status is not Status.CONVERGED or objective.barrier or objective.rows.n_rows > FEW_ROWS:
        return None
    M, R = objective.n_parameters, objective.n_constraints
    return Point(
        end.theta, end.lam, (inverse.root.reshape(M, -1), inverse.cross.reshape(M, R), inverse.corner.reshape(R, R))
    )


def _reflection(v: Array) -> Array:
    """Orthogonal matrix H with ``v'H`` zero but for its first entry: the intercept then enters one product only."""
    normal = v.copy()
    normal[:1] += np.copysign(np.linalg.norm(v), v[:1])
    size = float(normal @ normal)
    return np.eye(len(v)) - np.outer(normal, normal) * (2.0 / size) if size > 0.0 else np.eye(len(v))


def _in_pieces(kernel: Callable[[Block], Sums], width: int, n_predictors: int) -> Callable[[Block], Sums]:
    """Call a kernel with some rows at a time, whose products are ``width`` numbers each."""

    def pieces(block: Block) -> Sums:
        alone = block.group is None and n_predictors == 1
        step = max(100, (ROW_BYTES if alone else UNIT_BYTES) // (8 * width))
        if len(block.weight) <= 2 * step:
            return kernel(block)
        return add_up(kernel(take_rows(block, rows)) for rows in cut(len(block.weight), step, block.group))

    return pieces


class Ends(NamedTuple):
    """Smallest and largest linear predictors, and their weighted sums and squares; can be added. All are (k,)."""

    low: Array
    high: Array
    total: Array
    square: Array

    @classmethod
    def of(cls, eta: Array, w: Array) -> Array:
        """Wrap in an array, so that sums over blocks add it up."""
        wrapped = np.empty(1, dtype=object)
        wrapped[0] = cls(eta.min(axis=0), eta.max(axis=0), w @ eta, w @ np.square(eta))
        return wrapped

    def __add__(self, other: Ends) -> Ends:  # type: ignore[override]
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return Ends(low, high, self.total + other.total, self.square + other.square)


def _caps(objective: Objective, ends: Ends) -> tuple[Array, Array]:
    """Range of leave-one-out linear predictors: that of the fit, and one standard deviation more.

    Beyond it a Newton step says little, and with a log link a single row would decide everything. Where the predictor
    is the mean the step is exact, and needs no cap.
    """
    if objective.family.activation is IDENTITY:
        return np.full_like(ends.low, -np.inf), np.full_like(ends.high, np.inf)
    spread = np.sqrt(np.maximum(ends.square - ends.total**2, 0.0))
    return ends.low - spread, np.minimum(ends.high + spread, 0.5 * (ends.high + objective.edge))


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
    """

    eta: Array
    leverage: Array
    lost: BoolArray
    steered: SteeredRows | SteeredUnits | None
    far: Array | None
    drift: Array


def leave_out(objective: Objective, shared: Shared, block: Block) -> LeftOut:
    """Leave-one-out predictors of the rows of a block."""
    if block.group is None and objective.n_predictors == 1:
        out, leverage, lost, steered, far, noise = _leave_rows_out(objective, shared, block)
    else:
        out, leverage, lost, steered, far, noise = _leave_units_out(objective, shared, block)
    if far is not None and id(block) in shared.known:
        picked = far_units(np.where(lost, 0.0, far), block.group)
        if picked is not None:
            further, known = take_further_steps(objective, shared, block, *picked)
            out[picked.rows[known]] = further[known]
    if lost.any():
        null = objective.start.theta.reshape(objective.n_predictors, -1)[:, 0]
        out[lost] = null if block.offset is None else null + block.offset[lost]
    capped = np.clip(out, shared.low, shared.high)
    changed = capped != out
    lost |= changed[:, 0] if changed.shape[1] == 1 else changed.any(axis=1)
    return LeftOut(capped, leverage, lost, steered, far, noise)


def _known(objective: Objective, shared: Shared, block: Block, eta: Array) -> tuple[Array, RowTerms]:
    """Linear predictors of a block and its terms of the Lagrangian; ``eta`` has those without an offset."""
    kept = shared.known.get(id(block))
    if kept is not None and kept.block is block:
        return kept.eta, kept.terms
    eta = eta if block.offset is None else eta + block.offset
    return eta, objective.terms_at(block, eta, shared.multipliers)


def _leave_rows_out(objective: Objective, shared: Shared, block: Block) -> LeftOut:
    """Leave out rows with one linear predictor each; before caps."""
    Q, n_root = objective.basis(block), shared.project.shape[1] - objective.n_basis - len(shared.uu) - 1
    zz, projected = squares_and_products(block.Z, shared.project, n_root)
    eta, terms = _known(objective, shared, block, projected[-1][:, None])
    controls = objective.controls(block) if len(shared.mean) > 1 else None
    share = equal_weight(block.weight)
    w = block.weight if share is None else share
    found = solve_rows(shared, zz, projected[:-1], np.ascontiguousarray(Q.T), controls, terms, w)
    noise = np.zeros(0)
    if not shared.steer:
        score = terms.slope[:, 0] + terms.mean_slope[:, 0, 0] * (Q @ shared.multipliers)[:, 0]
        near = zz - (2.0 / shared.slope[0, 0]) * projected[objective.n_basis] + float(np.sum(shared.centre**2))
        noise = drift(block, Q, score[:, None], float(np.square(w * score) @ near), terms)
    return LeftOut(eta + found.change[:, None], found.leverage, found.lost, found.steered, found.far, noise)


def _leave_units_out(objective: Objective, shared: Shared, block: Block) -> LeftOut:
    """Leave out clusters, or rows with several linear predictors; before caps."""
    Q, n, k = objective.basis(block), len(block.weight), objective.n_predictors
    projected = np.asarray(block.Z @ shared.project).reshape(n, k, -1)
    eta, terms = _known(objective, shared, block, projected[:, :, -1])
    seen = Seen.of(shared, projected[:, :, :-1], Q, objective.controls(block), terms, block.weight)
    change, leverage, lost = np.empty((n, k, shared.targets.shape[1])), np.empty(n), np.zeros(n, dtype=bool)
    far = np.empty(n)
    for members in groups_of(block):
        part, rows = solve_clusters(shared, seen.at(members)), members.ravel()
        change[rows] = part.change.reshape(len(rows), k, -1)
        leverage[rows] = part.leverage.ravel()
        lost[rows], far[rows] = (np.repeat(one, members.shape[1]) for one in (part.lost, part.far))
    moved, noise = (SteeredUnits(seen.cross + change[:, :, 1:]) if shared.steer else None), np.zeros(0)
    if not shared.steer:
        score = seen.slope[:, :, 0]
        tangent = np.einsum("nks,nk->ns", seen.root - shared.centre.T, block.weight[:, None] * score)
        noise = drift(block, Q, score, reach_of_units(block, tangent), terms)
    return LeftOut(eta + change[:, :, 0], leverage, lost, moved, None if shared.point is None else far, noise)


class Tallied(NamedTuple):
    """Sums of leave-one-out quantities over the rows; predictions are relative to the intercept-only model.

    Attributes
    ----------
    c : ndarray of shape (r, k)
        Covariance of the leave-one-out predictions with the basis.
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
    columns : ndarray of shape (r, p)
        Covariance of the basis with the protected columns.
    drift : ndarray of shape (4 + k r,)
        Sums by which leave-one-out predictions depend on each other.
    excess : ndarray of shape ()
        Sum over units of the squared difference of their loss to that of the intercept-only model.
    constant : ndarray of shape (2, k, k)
        Second moments over units of the slopes of the intercept-only model's loss, and its curvature.
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
    columns: Array
    drift: Array
    excess: Array
    constant: Array

    @property
    def spread(self) -> float:
        """Standard deviation of the leave-one-out predictions."""
        return spread_of(self.total, self.square)

    @property
    def correlation(self) -> float:
        """Multiple correlation of the leave-one-out predictions with all protected columns; over all classes."""
        size = float(np.linalg.norm(self.c))
        return size / self.spread if self.spread > 0.0 else 0.0


def tally(objective: Objective, end: Iterate, inverse: Inverse, mean_x: Array, *, steer: bool = False) -> Tallied:
    """Add up leave-one-out quantities at a solution, in two passes over the rows; ``mean_x`` centres the columns.

    With derivatives by a target (``steer``) there are no moments, which only a bound needs, and no further steps.
    """
    return tally_shared(objective, share(objective, end, inverse, steer=steer), mean_x)


def tally_shared(objective: Objective, shared: Shared, mean_x: Array) -> Tallied:
    """The second of these passes."""

    def kernel(block: Block) -> Sums:
        return _sums(objective, shared, block, mean_x)[0]

    return Tallied(*objective.rows.reduce(_in_pieces(kernel, shared.project.shape[1], objective.n_predictors)))


def _sums(objective: Objective, shared: Shared, block: Block, mean_x: Array) -> tuple[Sums, RowsLeftOut]:
    """Sums over the rows of a block, in the order of ``Tallied``, and the rows themselves."""
    left = leave_out(objective, shared, block)
    loss, mean, steering = _values(objective, block, left)
    Qt, w = np.ascontiguousarray(objective.basis(block).T), block.weight
    gap = np.ascontiguousarray((mean - objective.start.mean + mean_shift(objective, block)).T)
    weighted, squares = w * gap, gap * gap
    sums = (
        Qt @ weighted.T,
        weighted.sum(axis=1),
        squares @ w,
        np.square(squares) @ w,
        np.asarray(w @ loss),
        np.asarray(left.leverage.sum()),
        np.asarray(float(left.lost.sum())),
        steering,
    )
    beyond = weighted
    if len(shared.mean) > 1:  # what the controls explain is no error
        beyond = weighted - w * (shared.mean[1:].T @ objective.controls(block)[:, 1:].T)
    units: Sums = (np.zeros(0),) * 6
    if not shared.steer:
        units = *unit_sums(block, Qt, beyond, mean_x), left.drift, *beside_constant(objective, block, loss)
    return (*sums, *units), RowsLeftOut(left.eta, mean, loss, left.leverage)


def _values(objective: Objective, block: Block, left: LeftOut) -> Sums:
    """Losses, predictions, and the sum of ``w q h' d eta``, (k r, k r), all at the leave-one-out predictors."""
    if left.steered is None:
        return *objective.family.value_terms(block.y, left.eta), np.zeros((0, 0))
    terms = objective.family.terms(block.y, left.eta, np.zeros_like(left.eta))
    slopes = np.where(left.lost, 0.0, block.weight)[:, None, None] * terms.mean_slope
    return terms.loss, terms.mean, left.steered.total(np.ascontiguousarray(objective.basis(block).T), slopes)


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


def tally_rows(
    objective: Objective, end: Iterate, inverse: Inverse | None = None, mean_x: Array | None = None
) -> tuple[Tallied, RowsLeftOut]:
    """As :func:`tally`, for rows in memory, with the leave-one-out results of each row from the same pass."""
    shared = share(objective, end, inverse or invert(objective, end.model))
    centre = np.zeros(1) if mean_x is None else mean_x

    def kernel(block: Block) -> Sums:
        sums, rows = _sums(objective, shared, block, centre)
        parts = np.empty(1, dtype=object)  # lists in an array: sums over blocks join them in order
        parts[0] = [rows]
        return *sums, parts

    *sums, parts = objective.rows.reduce(_in_pieces(kernel, shared.project.shape[1], objective.n_predictors))
    return Tallied(*sums), RowsLeftOut(*map(np.concatenate, zip(*parts[0], strict=True)))
