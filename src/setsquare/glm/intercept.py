"""Intercept-only model (plus offset): starting point of every fit, and baseline for its loss.

Without an offset the intercept is the link of the mean outcome. With a varying offset it is the maximum-likelihood
value, found by Newton's method in one unknown (K - 1 unknowns for K classes).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from setsquare._typing import Array
from setsquare.errors import InputError
from setsquare.families import Family, RowTerms, contrasts
from setsquare.rows.blocks import Block
from setsquare.rows.parallel import Sums

#: Maximum number of Newton steps, and predicted relative reduction of the loss at which they stop.
MOST_STEPS, SETTLED = 50, 1e-13


class Point(NamedTuple):
    """Intercept-only model at one value of the intercept, as means over the rows.

    Attributes
    ----------
    loss : float
    mean : ndarray of shape (k,)
        Mean prediction.
    gradient : ndarray of shape (k,)
    hessian : ndarray of shape (k, k)
    slope : float
        Mean norm of the rows' slopes. Unlike their root mean square, it is bounded by the outcome at the
        maximum-likelihood intercept: a row with a large offset does not inflate it.
    """

    loss: float
    mean: Array
    gradient: Array
    hessian: Array
    slope: float


def intercept_sums(family: Family, intercept: Array, block: Block) -> Sums:
    """Sums of :class:`Point` over a block; without an offset, terms shared by all rows are computed once."""
    eta = intercept[None] if block.offset is None else intercept + block.offset
    if not family.is_vector:
        return _plain_sums(family, eta[:, 0], block.y[:, 0], block.weight)
    terms, w = family.terms(block.y, eta, np.zeros_like(eta)), block.weight
    size = np.sqrt(np.einsum("nk,nk->n", terms.slope, terms.slope))
    return (
        np.asarray(w @ terms.loss),
        _total(w, terms.mean),
        w @ terms.slope,
        _total(w, terms.curvature),
        np.asarray(w @ size),
    )


def _plain_sums(family: Family, eta: Array, y: Array, w: Array) -> Sums:
    """The same for one linear predictor."""
    (loss, slope, curvature), (h, _, _) = family.evaluate(y, eta)
    return (
        np.asarray(np.dot(w, loss)),
        _total(w, h[:, None]),
        np.asarray([np.dot(w, slope)]),
        _total(w, curvature[:, None, None]),
        np.asarray(np.dot(w, np.abs(slope))),
    )


def _total(w: Array, values: Array) -> Array:
    """Weighted sum over the rows; a single row of ``values`` applies to all."""
    return np.asarray(np.tensordot(w, values, axes=1) if len(values) == len(w) else w.sum() * values[0])


def point_of(sums: Sums) -> Point:
    """Build a :class:`Point` from sums over all rows."""
    loss, mean, gradient, hessian, slope = sums
    return Point(float(loss), mean, gradient, hessian, float(slope))


def first_intercept(family: Family, average: Array, offset: Array | float, top: float) -> Array:
    """Link of the mean outcome (k,) minus the mean offset, shifted into the link's domain for the largest offset."""
    intercept = link_of(family, average) - offset
    limit = family.activation.domain[1]
    if top + intercept[0] >= limit:
        intercept = intercept - (top + intercept[0] - limit + 1.0)
    return intercept


def link_of(family: Family, average: Array) -> Array:
    """Linear predictors (k,) that give the mean outcome ``average`` (1,), or the class shares ``average`` (K,)."""
    if family.is_vector:
        return np.asarray(contrasts(len(average)).T @ np.log(average))
    inverse, (low, high) = family.activation.inverse, family.activation.range
    assert inverse is not None  # every family has a link
    if not low < average[0] < high:
        raise InputError(
            f"The mean of the outcome is {average[0]:g}, which is outside the range of the {family.name} family with "
            f"the {family.link} link: choose another link."
        )
    return np.asarray(inverse(average))


def steepness_at(family: Family, average: Array) -> float:
    """Slope of the activation where its value is the mean outcome, regardless of any offset."""
    eta = link_of(family, average)[None]
    return float(np.trace(family.terms(np.zeros_like(eta), eta, np.zeros_like(eta)).mean_slope[0]))


def fit_intercept(
    at: Callable[[Array], Point], family: Family, average: Array, first: Array, top: float
) -> tuple[Array, Point]:
    """Maximum-likelihood intercept (k,) of a model with an offset, and the model there.

    Parameters
    ----------
    at : callable
        Evaluates the model at an intercept, in one pass over the rows.
    family : Family
    average : ndarray
        Mean outcome, or share of each class.
    first : ndarray of shape (k,)
        Starting value.
    top : float
        Largest offset.
    """
    here, point = first, at(first)
    if not np.isfinite(point.loss):  # rows with an offset far above the mean can overflow
        here = link_of(family, average) - top
        point = at(here)
    here, point = _matched_mean(at, family, average, here, point)
    for _ in range(MOST_STEPS):
        if not np.isfinite(point.hessian).all() or not np.isfinite(point.loss):
            break
        step = _step(point)
        if -0.5 * float(point.gradient @ step) <= SETTLED * abs(point.loss):
            break
        for halvings in range(30):
            trial = here + 0.5**halvings * step
            found = at(trial)
            if found.loss < point.loss:
                break
        else:
            break
        here, point = trial, found
    return here, point


def _matched_mean(
    at: Callable[[Array], Point], family: Family, average: Array, here: Array, point: Point
) -> tuple[Array, Point]:
    """Shift the intercept so that the links of mean prediction and mean outcome agree; exact for a log link."""
    reached = point.mean if not family.is_vector else _shares(point.mean)
    low, high = family.activation.range
    if not ((low < reached) & (reached < high)).all():
        return here, point
    trial = here + link_of(family, average) - link_of(family, reached)
    found = at(trial)
    return (trial, found) if found.loss < point.loss else (here, point)


def _shares(mean: Array) -> Array:
    """Mean probability of each class, from contrasts."""
    return np.asarray(contrasts(len(mean) + 1) @ mean + 1.0 / (len(mean) + 1))


def _step(point: Point) -> Array:
    """Newton step, with the absolute values of the Hessian's eigenvalues."""
    values, vectors = np.linalg.eigh(point.hessian)
    size = np.maximum(np.abs(values), np.finfo(float).tiny)
    return np.asarray(-vectors @ ((vectors.T @ point.gradient) / size))


def null_sums(loss: float, terms: RowTerms, second: Array, zy: Array, zq: Array) -> Sums:
    """The sums of ``Objective.model`` if all rows have the same mean and curvature."""
    mean, mean_slope, curvature = terms.mean[0], terms.mean_slope[0], terms.curvature[0]
    zero = np.zeros_like(mean)  # no prediction differs from the mean
    J, H = mean_slope[:, :, None, None] * zq.T, curvature[:, :, None, None] * second
    g = np.outer(second[0], mean) - zy
    return np.asarray(loss), np.outer(zq[0], zero), zero, zero, np.trace(mean_slope), g, J, H
