"""Iterate at which R's ``glm`` computes its standard errors.

R iterates weighted least squares until the deviance changes by less than 1e-8 of itself, and computes standard errors
from the weights of its last step, which belong to the iterate *before* the last one. For a rare group the two differ in
the fourth digit, so reproducing R's numbers requires following its iterations.
"""

from __future__ import annotations

import numpy as np

from setsquare._typing import Array
from setsquare.families import Family
from setsquare.glm.objective import Objective, linear_predictor
from setsquare.rows.blocks import Block, Sums
from setsquare.rows.products import weighted_gram

EPSILON, MAX_ITER = 1e-8, 25


def start_mean(family: Family, y: Array) -> Array:
    """Starting values of R's fitted means."""
    if family.name == "binomial":
        return (y + 0.5) / 2.0
    if family.name in ("poisson", "tweedie"):
        return y + 0.1 if family.name == "poisson" else y + 0.1 * (y == 0.0)
    return y + (y == 0.0) / 6.0 if family.name == "negative_binomial" else y


def last_weights(objective: Objective, optimum: Array) -> Array:
    """Iterate of R's last weights; the optimum if R's iterations leave the domain or are not known."""
    family = objective.family
    if family.is_vector or family.name == "gaussian":
        return optimum
    theta, deviance = None, np.inf
    for _ in range(MAX_ITER):
        following = _step(objective, theta)
        if following is None or not np.isfinite(new := _deviance(objective, following)):
            return optimum
        if abs(new - deviance) < EPSILON * (abs(new) + 0.1):
            return optimum if theta is None else theta
        theta, deviance = following, new
    return optimum


def _step(objective: Objective, theta: Array | None) -> Array | None:
    """One weighted least-squares step, from the starting values if ``theta`` is None."""
    inverse, T = objective.family.activation.inverse, objective.to_raw
    assert inverse is not None  # every family has a link

    def kernel(block: Block) -> Sums:
        y = block.y
        eta = (
            inverse(start_mean(objective.family, y)) if theta is None else linear_predictor(block, objective.raw(theta))
        )
        zero = np.zeros_like(eta)
        terms = objective.family.terms(y, eta, zero)
        information = objective.family.terms(terms.mean, eta, zero).curvature[:, 0, 0]
        working = eta[:, 0] - (0.0 if block.offset is None else block.offset[:, 0])
        working = working + (y - terms.mean)[:, 0] / terms.mean_slope[:, 0, 0]
        weight = block.weight * information
        return weighted_gram(block.Z, weight), np.asarray(block.Z.T @ (weight * working))

    gram, right = objective.rows.reduce(kernel)
    if not (np.isfinite(gram).all() and np.isfinite(right).all()):
        return None
    return np.asarray(np.linalg.lstsq(T.T @ gram @ T, T.T @ right, rcond=1e-14)[0], dtype=np.float64)


def _deviance(objective: Objective, theta: Array) -> float:
    raw = objective.raw(theta)

    def kernel(block: Block) -> Sums:
        mean = objective.family.activation(linear_predictor(block, raw)[:, 0])
        with np.errstate(invalid="ignore", divide="ignore"):
            return (np.asarray(block.weight @ objective.family.unit_deviance(block.y[:, 0], mean)),)

    return float(objective.rows.reduce(kernel)[0]) * objective.rows.n_rows
