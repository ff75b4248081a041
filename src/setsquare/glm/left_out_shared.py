"""What the leave-one-out systems of all rows share: sums at the solution, and products with the inverse KKT matrix."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from setsquare._typing import Array
from setsquare.families.activations import IDENTITY
from setsquare.glm.further_steps import FEW_ROWS
from setsquare.glm.kkt_inverse import Inverse, pseudo_inverse
from setsquare.glm.left_out_sums import firsts
from setsquare.glm.left_out_systems import Known, Point, Shared, Spread
from setsquare.glm.newton import Iterate
from setsquare.glm.objective import MANY_ROWS, Objective, linear_predictor
from setsquare.glm.overall import Ends, Overall, RowsAt, wrapped
from setsquare.glm.solution import Status
from setsquare.rows.blocks import Block, BlockRows, cut, quietly, take_rows
from setsquare.rows.parallel import Sums, add_up
from setsquare.rows.products import LEAST_STEP, thin_product

#: Size of the products of rows that are left out at once: of single rows only sums are kept, so that more calls would
#: cost more than the cache saves; clusters and classes take a matrix each.
ROW_BYTES, UNIT_BYTES = 2**23, 2**21
#: Size of the terms of a product, relative to the product, up to which single precision leaves it five digits.
MOST_TERMS = 100.0
#: Number of rows or clusters up to which the spread of each leave-one-out fit is known. It changes mean correlations on
#: new rows by a tenth of their sampling error with 50 clusters and 20 features, and by less than that with more units.
FEW_UNITS = 256


def share(objective: Objective, end: Iterate, inverse: Inverse, *, steer: bool = False) -> Shared:
    """Compute what the systems of all rows share; ``steer`` adds derivatives by a target.

    The pass over the rows that ended at the solution may have gathered their sums; otherwise it takes one more.
    """
    k, r, m = objective.n_predictors, objective.n_basis, objective.to_raw.shape[1]
    T = objective.to_raw if isinstance(objective.to_raw, np.ndarray) else objective.to_raw @ np.eye(m)
    raw, multipliers = objective.raw(end.theta), end.lam.reshape(k, -1).T
    known: dict[int, Known] = {}
    overall, loss = end.model.overall, None
    if not isinstance(overall, Overall):
        rows = overall if overall is not None and overall.are_current() else None
        overall, loss = _gather(objective, raw, multipliers, known, rows)
        loss = end.model.loss if rows is not None else loss + objective.ridge(end.theta)
    mean, slopes = overall.gap.copy(), overall.slopes
    mean[0] += objective.start.mean
    U = (T.T @ slopes).reshape(m, k, -1).transpose(1, 0, 2).reshape(k * m, -1)
    L, F = inverse.root.reshape(k * m, -1), inverse.cross.reshape(k * m, k * r)
    kappa = (np.zeros(k * r) if objective.target is None else objective.target)[:, None]
    is_turned = k == 1 and (L.shape[1] >= 2 * LEAST_STEP or objective.rows.n_rows > MANY_ROWS)
    if is_turned:  # so that the entries of L'z take fewer and fewer features; lengths stay the same
        turn, triangular = np.linalg.qr((T @ L).T)
        L = L @ turn
    along, uf = L.T @ U, U.T @ F
    slope = slopes[0].reshape(k, -1)[:, :k]
    parts = np.concatenate([L, F, L @ along, end.theta[:, None]], axis=1).reshape(k, m, -1)
    project = T @ parts[0] if k == 1 else np.concatenate([T @ part for part in parts], axis=1)
    if is_turned:
        project[:, : L.shape[1]] = triangular.T
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
        *_caps(objective, overall.ends),
        loss,
        known,
        objective.start.curvature,
        F.T @ F,
        None if steer or len(mean) > 1 else _point(objective, end, inverse),
        slope,
        along[:, :k] @ pseudo_inverse(slope),
        _may_be_single(objective, project),
        _spread(objective, raw, mean, L, F, along) if _has_few_units(objective) else None,
    )


def _has_few_units(objective: Objective) -> bool:
    """Whether at most ``FEW_UNITS`` rows or clusters are left out; clusters are in memory."""
    rows = objective.rows
    groups = [block.group for block in rows.blocks] if isinstance(rows, BlockRows) else []
    n_units = sum(len(firsts(group)) for group in groups if group is not None) or rows.n_rows
    return n_units <= FEW_UNITS


def _spread(objective: Objective, raw: Array, mean: Array, L: Array, F: Array, along: Array) -> Spread | None:
    """Variance of the predictions and its gradient, in a pass over the rows; None with controls, or for a constant."""
    if len(mean) > 1:
        return None

    def kernel(block: Block) -> Sums:
        terms = objective.family.terms(block.y, eta := linear_predictor(block, raw), np.zeros_like(eta))
        gap = block.weight[:, None] * (terms.mean - mean[0])
        pull = np.einsum("na,nab->nb", gap, terms.mean_slope)
        return np.asarray(np.vdot(gap, terms.mean - mean[0])), thin_product(block.Z, pull)

    variance, gradient = objective.rows.reduce(in_pieces(kernel, 1, objective.n_predictors))
    v = (objective.to_raw.T @ gradient).T.ravel()
    root = L.T @ v
    return Spread(float(variance), root, F.T @ v, along.T @ root) if variance > 0.0 else None


def _may_be_single(objective: Objective, project: Array) -> bool:
    """Whether single precision is enough for products of many rows: they change predictions by features / rows only.

    Its rounding error, relative to a product, is that of its terms; nearly collinear features have large terms.
    """
    white = objective.whitening
    if white is None or objective.rows.n_rows <= MANY_ROWS or objective.n_predictors > 1:
        return False
    P = project[white.rows, :-1]
    own = np.sqrt(np.einsum("ij,ij->j", P, white.gram @ P))
    return bool((np.sqrt(white.gram.diagonal()) @ np.abs(P) <= MOST_TERMS * own).all())


def _gather(
    objective: Objective, raw: Array, multipliers: Array, known: dict[int, Known], rows: RowsAt | None
) -> tuple[Overall, float]:
    """Sums over the rows and loss at a solution, in a pass that keeps what is ``known`` of few rows.

    The ``rows`` of a single block were kept by the pass that ended there, and their loss is that of the model.
    """
    is_small = objective.rows.n_rows <= MANY_ROWS

    def kernel(block: Block) -> Sums:
        w = block.weight
        if rows is not None:
            eta, terms = rows.eta[:, None], rows.terms(np.dot(objective.basis(block), multipliers[:, 0]))
            loss = np.zeros(())
        else:
            eta = linear_predictor(block, raw)
            terms = objective.terms_at(block, eta, multipliers)
            loss = np.dot(w, objective.family.value_terms(block.y, eta)[0] if objective.barrier else terms.loss)
        if is_small:
            known[id(block)] = Known(block, eta, terms)
        slopes, gap = w[:, None] * terms.mean_slope.reshape(len(w), -1), terms.mean - objective.start.mean
        if block.Q.shape[1] == objective.n_basis:
            sums = Overall((w @ gap)[None], thin_product(block.Z, slopes), Ends.of(eta, w))
        else:
            D = objective.controls(block)  # then k is 1
            sums = Overall(D.T @ (w[:, None] * gap), thin_product(block.Z, slopes * D), Ends.of(eta, w))
        return wrapped(sums), loss

    m = objective.to_raw.shape[1]
    if rows is not None:
        (overall,), loss = quietly(kernel, rows.block)
    else:
        (overall,), loss = objective.rows.reduce(in_pieces(kernel, m, objective.n_predictors))
    return overall, float(loss)


def _point(objective: Objective, end: Iterate, inverse: Inverse) -> Point | None:
    """The solution, for further steps; None for many rows, where one step is exact, and where the loss is flat."""
    exact = objective.family.activation is IDENTITY
    if exact or end.status is not Status.CONVERGED or objective.barrier or objective.rows.n_rows > FEW_ROWS:
        return None
    M, R = objective.n_parameters, objective.n_constraints
    return Point(
        end.theta, end.lam, (inverse.root.reshape(M, -1), inverse.cross.reshape(M, R), inverse.corner.reshape(R, R))
    )


def _caps(objective: Objective, ends: Ends) -> tuple[Array, Array]:
    """Range of leave-one-out linear predictors: that of the fit, and one standard deviation more.

    Beyond it a Newton step says little, and with a log link a single row would decide everything. Where the predictor
    is the mean the step is exact, and needs no cap.
    """
    if objective.family.activation is IDENTITY:
        return np.full_like(ends.low, -np.inf), np.full_like(ends.high, np.inf)
    spread = np.sqrt(np.maximum(ends.square - ends.total**2, 0.0))
    return ends.low - spread, np.minimum(ends.high + spread, 0.5 * (ends.high + objective.edge))


def in_pieces(kernel: Callable[[Block], Sums], width: int, n_predictors: int) -> Callable[[Block], Sums]:
    """Call a kernel with some rows at a time, whose products are ``width`` numbers each."""

    def pieces(block: Block) -> Sums:
        alone = block.group is None and n_predictors == 1
        step = max(100, (ROW_BYTES if alone else UNIT_BYTES) // (8 * width))
        if len(block.weight) <= 2 * step:
            return kernel(block)
        return add_up(kernel(take_rows(block, rows)) for rows in cut(len(block.weight), step, block.group))

    return pieces
