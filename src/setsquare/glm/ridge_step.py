"""Ridge penalty chosen by leave-one-out losses that all come from one decomposition, at a pilot fit.

Around the pilot the loss is quadratic and the constraint linear. Over the coefficients that meet the constraint, one
decomposition diagonalises the Hessian and the penalty together; fits and leverages for any penalty are then products.
Without row i its linear predictor changes by ``(a_i s_i + b_i (h_i - mean)) / (1 - a_i v_i - b_i h'_i)``, ``a_i`` and
``b_i`` being its leverages in the loss and in the constraint: the formulas of ``leave_one_out`` without the change of
the multipliers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh

from setsquare._typing import Array
from setsquare.glm.products import Pilot
from setsquare.glm.sqp import SINGULAR

#: Penalties that are tried, in units of the outcome's curvature times the median variance of the features: up to the
#: first, and larger ones if the largest of these is the best.
PATH = 10.0 ** np.arange(-5.0, 2.25, 0.5)
FIRST = 9
#: Losses, summed over the rows, that differ by less are equal in practice; those that differ by more never are.
SAME = (1.0, 3.0)
#: Smallest share of a row's own prediction that must rest on the other rows.
OTHERS = 0.05


class Step(NamedTuple):
    """A penalty, and the intercept (1,) and coefficients (1, q) one Newton step from the pilot."""

    l2: float
    intercept: Array
    coef: Array


def choose_penalty(Z: Array, pilot: Pilot) -> Step:
    """Penalty of the features Z (n, q) by the leave-one-out loss, for one linear predictor.

    The largest penalty is taken whose loss exceeds the smallest by at most the standard error of the difference, which
    counts as 1 to 3 in the sum over the rows: such losses are equal in practice, and fits with a larger penalty take
    fewer steps. ``Z`` may have more columns than the pilot's features.

    Examples
    --------
    >>> from setsquare.glm.problem import Problem
    >>> from setsquare.glm.products import fit_pilot
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 1))
    >>> Z = X + rng.normal(size=(100, 20))
    >>> y = Z[:, 0] + 3.0 * rng.normal(size=100)
    >>> choose_penalty(Z, fit_pilot(Problem(Z, y, X))).l2 > 0.0
    True
    """
    path = _Path(Z, pilot)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        rows = path.losses(PATH[:FIRST])
        losses = path.w @ rows
        if not np.argmin(losses) < FIRST - 1 or not np.isfinite(losses).all():
            rows = np.column_stack([rows, path.losses(PATH[FIRST:])])
            losses = path.w @ rows
        losses = np.where(np.isfinite(losses), losses, np.inf)
        lowest = int(np.argmin(losses))
        error = np.sqrt(path.w**2 @ (rows - rows[:, [lowest]] - (losses - losses[lowest])) ** 2)
    near = losses <= losses[lowest] + np.fmax(np.fmin(error, SAME[1] / len(Z)), SAME[0] / len(Z))
    best = float(PATH[np.flatnonzero(near).max()])
    theta = path.theta(best)
    return Step(best * path.unit, theta[:1], theta[None, 1:])


class _Path:
    """One decomposition for all penalties, which are in units."""

    def __init__(self, Z: Array, pilot: Pilot) -> None:
        rows, Q = pilot.rows, pilot.basis
        self.pilot, self.y, self.w = pilot, rows.y, rows.weight
        self.offset = 0.0 if rows.offset is None else rows.offset[:, 0]
        self.W, eta = pilot.weight[:, 0], pilot.eta[:, 0] - self.offset
        self.steep = pilot.family.terms(rows.y, pilot.eta, np.zeros_like(pilot.eta)).mean_slope[:, 0, 0]
        self.target, self.mean = eta + pilot.effects[:, 0], self._means(pilot.eta[:, 0])
        variance = np.maximum(self.w @ Z**2 - (self.w @ Z) ** 2, 0.0)
        self.unit = pilot.curvature * float(np.median(variance[variance > 0.0])) if variance.any() else 1.0
        D = np.column_stack([np.ones(len(Z)), Z])
        rooted = D * np.sqrt(self.W)[:, None]
        gram, J = rooted.T @ rooted, (Q * (self.w * self.steep)[:, None]).T @ D
        aim = Q.T @ (self.w * (self.steep * eta - self.mean))
        self.R = np.full(D.shape[1], self.unit)
        self.R[0] = 0.0
        gram[np.diag_indices_from(gram)] += PATH[0] * self.R + 1e-12 * np.trace(gram) / len(gram)
        pinv, N = _split(J)
        self.rho, V = eigh(N.T @ (self.R[:, None] * N), N.T @ gram @ N)
        self.free, self.fixed = N @ V, pinv @ aim
        self.pull = self.free.T @ (D.T @ (self.W * self.target) - gram @ self.fixed)
        self.pull_more = -self.free.T @ (self.R * self.fixed)
        self.bent, self.bent_more = self.free.T @ (gram @ pinv), self.free.T @ (self.R[:, None] * pinv)
        # Of each row only its prediction and leverages are needed, for which single precision is enough.
        self.U = D.astype(np.float32) @ self.free.astype(np.float32)
        self.eta_fixed, self.steering = D @ self.fixed, D @ pinv

    def _means(self, eta: Array) -> Array:
        return np.asarray(self.pilot.family.activation(eta[:, None]))[:, 0]

    def theta(self, step: float) -> Array:
        """Intercept and coefficients."""
        more = step - PATH[0]
        return np.asarray(self.fixed + self.free @ ((self.pull + more * self.pull_more) / (1.0 + more * self.rho)))

    def losses(self, steps: Array) -> Array:
        """Leave-one-out losses (n, s) of the rows for each penalty."""
        Q, more, s = self.pilot.basis, steps - PATH[0], len(steps)
        shrunk = 1.0 / (1.0 + np.outer(self.rho, more))  # (m, s)
        bent = self.bent[:, :, None] + self.bent_more[:, :, None] * more
        sides = np.concatenate([self.pull[:, None, None] + np.outer(self.pull_more, more)[:, None], bent], axis=1)
        sides *= shrunk[:, None]
        along = (self.U @ sides.reshape(len(sides), -1).astype(np.float32)).astype(np.float64)
        eta = self.eta_fixed[:, None] + along[:, :s]
        leverage = self.W[:, None] * (self.U**2 @ shrunk.astype(np.float32))
        held = np.zeros_like(eta)
        for j, column in enumerate(Q.T, start=1):
            held += (self.w * column)[:, None] * (self.steering[:, j - 1, None] - along[:, j * s : (j + 1) * s])
        mean = np.column_stack([self._means(column + self.offset) for column in eta.T])
        change = leverage * (eta - self.target[:, None]) + held * (mean - self.w @ mean)
        out = eta + change / np.maximum(1.0 - leverage - held * self.steep[:, None], OTHERS)
        spread = np.sqrt(np.maximum(self.w @ eta**2 - (self.w @ eta) ** 2, 0.0))
        out = np.clip(out, eta.min(axis=0) - spread, eta.max(axis=0) + spread)
        values = [self.pilot.family.value_terms(self.y, (column + self.offset)[:, None])[0] for column in out.T]
        return np.column_stack(values)


def _split(J: Array) -> tuple[Array, Array]:
    """Pseudoinverse of the constraint's Jacobian (r, m), and a basis of the coefficients that do not change it."""
    left, sizes, right = np.linalg.svd(J)
    rank = int(np.count_nonzero(sizes > SINGULAR * sizes.max(initial=0.0)))
    return (right[:rank].T / sizes[:rank]) @ left[:, :rank].T, right[rank:].T
