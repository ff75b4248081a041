"""Covariance of the coefficients of a generalised linear model: model-based, HC0 to HC3, cluster-robust.

All computations use the whitened coordinates of :mod:`setsquare.glm.objective`, in one or two passes over the rows. The
bread of the sandwich is the observed information, the exact Hessian of the loss; ``model`` takes the expected one where
R takes it.

R iterates weighted least squares until the deviance changes by less than 1e-8 of itself, and computes standard errors
from the weights of its last step, which belong to the iterate *before* the last one. For a rare group the two differ in
the fourth digit, so reproducing R's numbers requires following its iterations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array, IntArray
from setsquare.auditing.bounds import cluster_sums
from setsquare.errors import InputError
from setsquare.families import Family
from setsquare.glm.objective import Objective, linear_predictor
from setsquare.rows.blocks import Block, BlockRows
from setsquare.rows.parallel import Sums
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


KINDS = ("HC0", "HC1", "HC2", "HC3", "model", "cluster")
#: A row with more leverage than this determines an effect alone, which leaves it no residual.
ALONE = 1.0 - 1e-9
#: Families whose dispersion is 1 by definition; R estimates that of the others.
FIXED_DISPERSION = ("binomial", "multinomial", "poisson", "negative_binomial")


@dataclass(frozen=True, slots=True)
class Covariance:
    """Covariance of ``theta``, and the degrees of freedom of its t and F tests (infinite: normal, chi-squared).

    ``dispersion`` is that of the model; 1 in a sandwich.
    """

    values: Array
    df: float
    dispersion: float = 1.0


def covariance(
    objective: Objective,
    theta: Array,
    kind: str,
    *,
    total_weight: float,
    cluster: IntArray | None = None,
    cells_of: int | None = None,
) -> Covariance:
    """Covariance of ``theta`` at the optimum.

    Parameters
    ----------
    objective : Objective
    theta : ndarray of shape (k * m,)
    kind : {"HC0", "HC1", "HC2", "HC3", "model", "cluster"}
    total_weight : float
        Sum of the weights as given; model-based standard errors treat them as frequencies.
    cluster : integer ndarray of shape (n,), optional
        Codes 0, 1, ...; for ``kind="cluster"``.
    cells_of : int, optional
        Number of rows of equal weight, if those of the objective stand for cells of them; for the HC kinds.
    """
    k = objective.n_predictors
    n, m = cells_of or objective.rows.n_rows, objective.n_parameters
    df = float(max(n - m // k, 1))
    if kind == "model":
        inverse = _inverse(_expected_information(objective, last_weights(objective, theta)))
        fixed = objective.family.name in FIXED_DISPERSION
        dispersion = 1.0 if fixed else _pearson(objective, theta) * total_weight / df
        return Covariance(inverse * (dispersion / total_weight), math.inf if fixed else df, dispersion)
    inverse = _inverse(objective.unconstrained().model(theta, np.zeros(0)).H)
    if kind == "cluster":
        assert cluster is not None
        n_clusters = int(cluster.max()) + 1
        if n_clusters < 2:
            raise InputError("Cluster-robust standard errors need at least two clusters: check the cluster column.")
        meat = _cluster_meat(objective, theta, cluster)
        factor = n_clusters / (n_clusters - 1) * (n - 1) / max(n - m // k, 1)
        return Covariance(factor * (inverse @ meat @ inverse), float(n_clusters - 1))
    factor = n / max(n - m // k, 1) if kind == "HC1" else 1.0
    power = {"HC2": 0.5, "HC3": 1.0}.get(kind, 0.0)
    meat = _meat(objective, theta, inverse, power, None if cells_of is None else 1.0 / cells_of)
    return Covariance(factor * (inverse @ meat @ inverse), df)


def _inverse(A: Array) -> Array:
    values, vectors = np.linalg.eigh(A)
    # A direction without curvature (separation) has no finite variance; the caller handles it.
    values = np.where(np.abs(values) > 1e-14 * np.abs(values).max(), values, np.inf)
    return np.asarray((vectors / values) @ vectors.T)


def _expected_information(objective: Objective, theta: Array) -> Array:
    raw, T, k = objective.raw(theta), objective.to_raw, objective.n_predictors

    def kernel(block: Block) -> Sums:
        C = _expected_curvature(objective, block, linear_predictor(block, raw))
        pairs = [(a, b) for a in range(k) for b in range(k)]
        return (np.stack([weighted_gram(block.Z, block.weight * C[:, a, b]) for a, b in pairs]),)

    grams = T.T @ objective.rows.reduce(kernel)[0] @ T
    m = T.shape[1]
    return np.asarray(grams.reshape(k, k, m, m).transpose(0, 2, 1, 3).reshape(k * m, k * m))


def _expected_curvature(objective: Objective, block: Block, eta: Array) -> Array:
    """Expected information of each row, (b, k, k): the observed one is linear in y, so set ``y = mu``."""
    mean = objective.family.terms(block.y, eta, np.zeros_like(eta)).mean
    return objective.family.terms(mean, eta, np.zeros_like(eta)).curvature


def _pearson(objective: Objective, theta: Array) -> float:
    """Weighted mean of ``(y - mu)^2 / V(mu)``; the information is ``h'^2 / V``."""
    raw = objective.raw(theta)

    def kernel(block: Block) -> Sums:
        eta = linear_predictor(block, raw)
        terms = objective.family.terms(block.y, eta, np.zeros_like(eta))
        C = _expected_curvature(objective, block, eta)
        ratio = (block.y - terms.mean)[:, 0] / terms.mean_slope[:, 0, 0]
        return (np.asarray(block.weight @ (ratio * ratio * C[:, 0, 0])),)

    return float(objective.rows.reduce(kernel)[0])


def _meat(objective: Objective, theta: Array, inverse: Array, power: float, each: float | None) -> Array:
    """Sum of squared scores, each divided by ``(1 - leverage)^power``; rows have the weight ``each``, or their own."""
    raw, T, k = objective.raw(theta), objective.to_raw, objective.n_predictors
    m = T.shape[1]

    def kernel(block: Block) -> Sums:
        own = block.weight if each is None else np.full(len(block.weight), each)
        slope, w = _adjusted_slopes(objective, block, raw, inverse, power, own), block.weight * own
        grams = [weighted_gram(block.Z, w * slope[:, a] * slope[:, b]) for a in range(k) for b in range(k)]
        return (np.stack(grams),)

    grams = T.T @ objective.rows.reduce(kernel)[0] @ T
    return np.asarray(grams.reshape(k, k, m, m).transpose(0, 2, 1, 3).reshape(k * m, k * m))


def _adjusted_slopes(objective: Objective, block: Block, raw: Array, inverse: Array, power: float, own: Array) -> Array:
    eta = linear_predictor(block, raw)
    terms = objective.family.terms(block.y, eta, np.zeros_like(eta))
    if power == 0.0:
        return terms.slope
    leverage = _leverage(objective, block, terms.curvature, inverse, own)
    if objective.n_predictors == 1:
        rest = 1.0 - leverage
        return terms.slope / np.where(rest > 1.0 - ALONE, rest, np.inf) ** power
    values, vectors = np.linalg.eig(leverage)  # similar to a symmetric matrix, so the eigenvalues are real
    rest = 1.0 - values.real
    factor = 1.0 / np.where(rest > 1.0 - ALONE, rest, np.inf) ** power
    inside = np.linalg.solve(vectors, terms.slope[:, :, None].astype(vectors.dtype))[:, :, 0]
    return np.asarray(np.einsum("nab,nb->na", vectors, factor * inside).real)


def _leverage(objective: Objective, block: Block, curvature: Array, inverse: Array, w: Array) -> Array:
    """Leverage of each row: (b, 1), or (b, k, k) for classes."""
    k = objective.n_predictors
    m = objective.to_raw.shape[1]
    Zt = np.asarray(block.Z @ objective.to_raw)
    blocks = inverse.reshape(k, m, k, m)
    G = np.empty((len(w), k, k))
    for a in range(k):
        for b in range(a + 1):
            G[:, a, b] = G[:, b, a] = np.einsum("nm,nm->n", Zt @ blocks[a, :, b], Zt)
    return w[:, None] * curvature[:, 0] * G[:, 0] if k == 1 else w[:, None, None] * (curvature @ G)


def _cluster_meat(objective: Objective, theta: Array, cluster: IntArray) -> Array:
    """Sum over clusters of the squared sums of their scores."""
    raw, T = objective.raw(theta), objective.to_raw
    assert isinstance(objective.rows, BlockRows)  # clusters extend over several blocks, so the rows must be in memory
    blocks = objective.rows.blocks
    scores = np.concatenate([_scores(objective, block, raw, T) for block in blocks], axis=1)
    sums = cluster_sums(scores, cluster)
    return np.asarray(sums @ sums.T)


def _scores(objective: Objective, block: Block, raw: Array, T: Array) -> Array:
    """Scores of the rows of a block, (k * m, b)."""
    slope = _adjusted_slopes(objective, block, raw, np.empty(0), 0.0, block.weight) * block.weight[:, None]
    Zt = np.asarray(block.Z @ T)
    return np.asarray(slope.T[:, None, :] * Zt.T[None, :, :]).reshape(-1, len(slope))
