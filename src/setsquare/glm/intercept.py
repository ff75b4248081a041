"""The model with nothing but an intercept beside the offset: where every fit begins, and what its loss is compared to.

Without an offset the intercept is the link of the mean outcome. With one that varies it is the maximum-likelihood
value, found by Newton steps in one unknown (classes minus one of them).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from setsquare._typing import Array
from setsquare.errors import InputError
from setsquare.families import Family, contrasts
from setsquare.rows.blocks import Block, Sums

#: Newton steps at most; and the predicted reduction of the loss, as a share of it, at which they stop.
MOST_STEPS, SETTLED = 50, 1e-13


class Point(NamedTuple):
    """The intercept-only model at one intercept, in means over the rows.

    Attributes
    ----------
    loss : float
    mean : ndarray of shape (k,)
        Mean prediction.
    gradient : ndarray of shape (k,)
    hessian : ndarray of shape (k, k)
    slope : float
        Mean size of the rows' slopes. Unlike the root of their mean square, it is bounded by the outcome at the
        maximum-likelihood intercept: a row with a large offset does not inflate it.
    """

    loss: float
    mean: Array
    gradient: Array
    hessian: Array
    slope: float


def intercept_sums(family: Family, intercept: Array, block: Block) -> Sums:
    """Sums of :class:`Point` over a block; without an offset a row stands for all."""
    eta = intercept[None] if block.offset is None else intercept + block.offset
    terms, w = family.terms(block.y, eta, np.zeros_like(eta)), block.weight
    size = np.sqrt(np.einsum("nk,nk->n", terms.slope, terms.slope))
    return (
        np.asarray(w @ terms.loss),
        _total(w, terms.mean),
        w @ terms.slope,
        _total(w, terms.curvature),
        np.asarray(w @ size),
    )


def _total(w: Array, values: Array) -> Array:
    """Weighted sum over the rows, of which one may stand for all."""
    return np.asarray(np.tensordot(w, values, axes=1) if len(values) == len(w) else w.sum() * values[0])


def point_of(sums: Sums) -> Point:
    """Make a :class:`Point` of sums over all rows."""
    loss, mean, gradient, hessian, slope = sums
    return Point(float(loss), mean, gradient, hessian, float(slope))


def first_intercept(family: Family, average: Array, offset: Array | float, top: float) -> Array:
    """Link of the mean outcome (k,) less the mean offset, inside the domain of the link for the largest offset."""
    intercept = link_of(family, average) - offset
    limit = family.activation.domain[1]
    if top + intercept[0] >= limit:
        intercept = intercept - (top + intercept[0] - limit + 1.0)
    return intercept


def link_of(family: Family, average: Array) -> Array:
    """Linear predictors (k,) whose mean is ``average``, (1,), or the share of each class, (K,)."""
    if family.is_vector:
        return np.asarray(contrasts(len(average)).T @ np.log(average))
    inverse, (low, high) = family.activation.inverse, family.activation.range
    assert inverse is not None  # every family has a link
    if not low < average[0] < high:
        raise InputError(
            f"The outcome's mean is {average[0]:g}, which the {family.link} link of the {family.name} "
            "family cannot reach: choose another link."
        )
    return np.asarray(inverse(average))


def steepness_at(family: Family, average: Array) -> float:
    """Slope of the activation where its value is the mean outcome, whatever an offset makes of single rows."""
    eta = link_of(family, average)[None]
    return float(np.trace(family.terms(np.zeros_like(eta), eta, np.zeros_like(eta)).mean_slope[0]))


def fit_intercept(
    at: Callable[[Array], Point], family: Family, average: Array, first: Array, top: float
) -> tuple[Array, Point]:
    """Maximum-likelihood intercept (k,) beside an offset, and the model there.

    Parameters
    ----------
    at : callable
        The model at an intercept: one reading of the rows.
    family : Family
    average : ndarray
        Mean outcome, or share of each class.
    first : ndarray of shape (k,)
        Where to begin.
    top : float
        Largest offset.
    """
    here, point = first, at(first)
    if not np.isfinite(point.loss):  # the mean of the offset says little about rows far above it
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
    """Move by what the link of the mean prediction lacks: with a log link the means then agree, however far it was."""
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
    """A Newton step; where the loss bends downwards, with the size of its curvature."""
    values, vectors = np.linalg.eigh(point.hessian)
    size = np.maximum(np.abs(values), np.finfo(float).tiny)
    return np.asarray(-vectors @ ((vectors.T @ point.gradient) / size))
