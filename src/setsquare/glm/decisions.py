"""Decisions at a threshold, orthogonal to the protected columns: a constraint on a smoothed indicator.

A score that is uncorrelated with the protected columns can select groups at different rates. What is decided is
``eta >= t``, with ``t`` the logit of the threshold. Its smooth version ``sigma((eta - t) / s)`` takes the place of the
probability in the constraint, while the loss stays the logistic one:

    min over gamma   loss     subject to   sum_i w_i q_i sigma((eta_i - t) / s) = 0.

At ``s = 1`` and a threshold of one half this is the ordinary constraint. ``s`` is then halved, each fit starting at the
one before, as long as the constraint can be met and enough rows are near the threshold. The smaller ``s``, the closer
the constraint is to that of the decisions themselves; what is left of it is measured on the decisions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logit

from setsquare._typing import Array
from setsquare.errors import InputError
from setsquare.families import Family, binomial
from setsquare.families.activations import SIGMOID, Activation, Four
from setsquare.glm.certificate import TRAINING_ROWS
from setsquare.glm.deferred import Deferred
from setsquare.glm.problem import Problem
from setsquare.glm.solution import Solution, Status
from setsquare.rows.blocks import Block
from setsquare.rows.parallel import Sums

#: Widths of the smoothed indicator, from wide to narrow, in standard deviations of the linear predictor of the first.
WIDTHS = tuple(0.5**k for k in range(9))
#: Share of the weight near the threshold that an indicator must have: with less, the constraint is fitted to the noise
#: of few rows, and the correlation of the decisions on new rows grows again (500 to 20 000 rows of compas, adult and
#: bank, four splits). A share, and not a number of rows: weights are then numbers of copies, on any scale.
LEAST_NEAR = 0.05
#: Amount by which a correlation must be smaller to count so: equal decisions differ by rounding.
SMALLER = 1e-9
#: Share of the smaller side of the decisions of the first fit that must be left.
KEPT = 0.5


class Decided(NamedTuple):
    """A fit whose decisions are orthogonal.

    Attributes
    ----------
    solution : Solution
        Solution for the narrowest indicator.
    width : float
        ``s``.
    correlation : float
        Multiple correlation of the decisions themselves with the protected columns, on the training rows.
    rate : float
        Share of the training rows that is selected.
    """

    solution: Solution
    width: float
    correlation: float
    rate: float


def certify_decisions(decided: Decided, threshold: float) -> Solution:
    """The solution, with a certificate about the decisions; leave-one-out quantities of these are not known."""
    certificate = replace(
        decided.solution.certificate,
        threshold=threshold,
        decision_correlation=decided.correlation,
        selection_rate=decided.rate,
        correlation_without=None,
        left_out=Deferred(None),
    )
    return replace(decided.solution, certificate=certificate, errors=Deferred(None))


def check_threshold(threshold: object) -> float:
    """Raise unless a threshold is a probability that some scores can exceed."""
    known = isinstance(threshold, int | float | np.number) and not isinstance(threshold, bool)
    if not known or not 0.0 < float(threshold) < 1.0:  # type: ignore[arg-type]
        raise InputError(f"threshold must be a probability above 0 and below 1, not {threshold!r}.")
    return float(threshold)  # type: ignore[arg-type]


def check_decisions(
    problem: Problem, threshold: float, orthogonal_on: str, budget: float, max_correlation: float | None
) -> None:
    """Raise if decisions cannot be made orthogonal with these options."""
    check_threshold(threshold)
    if problem.family != binomial:
        raise InputError("threshold= needs an outcome of two classes: with more there is no single decision.")
    if not len(problem.protected_names):
        raise InputError("threshold= needs protected columns: it makes the decisions orthogonal to them.")
    others = {
        f'orthogonal_on="{orthogonal_on}"': orthogonal_on != TRAINING_ROWS,
        "budget=": bool(budget),
        "max_correlation=": max_correlation is not None,
    }
    for other in (name for name, asked in others.items() if asked):
        raise InputError(f"{other} is about the probabilities, and threshold= about the decisions: use one of them.")


def solve_decisions(problem: Problem, threshold: float, solve: Callable[..., Solution]) -> Decided:
    """Fit along a path of narrower and narrower indicators; ``solve`` takes a problem and a start.

    Of these fits, the one whose decisions have the smallest correlation is returned. With a very narrow indicator, the
    cheapest way to meet the constraint can be to select almost nobody (or everybody); the path ends before. It also
    ends at a fit that has not converged: what comes behind it would depend on rounding.
    """
    at = float(logit(threshold))
    first = solve(problem, start=None)
    if not first.certificate.is_orthogonal:
        return Decided(first, 1.0, *measure_decisions(problem, first, at))
    fewest = _fewer(problem, first, at, threshold)
    unit = _spread(problem, first)
    best, found = None, first
    for width in (step * unit for step in WIDTHS):
        if best is not None and _near(problem, found, at, width) < LEAST_NEAR:
            break
        found = solve(with_family(problem, decision_family(at, width)), start=(found.intercept, found.coef))
        decided = Decided(found, width, *measure_decisions(problem, found, at))
        ended = found.status in (Status.CONVERGED, Status.FLAT) and found.certificate.is_orthogonal
        if not ended or min(decided.rate, 1.0 - decided.rate) < KEPT * fewest:
            best = best or decided
            break
        best = decided if best is None or decided.correlation < best.correlation - SMALLER else best
    assert best is not None
    return best


def _fewer(problem: Problem, first: Solution, at: float, threshold: float) -> float:
    """Share of the smaller side of the decisions of the first fit."""
    _, rate = measure_decisions(problem, first, at)
    if not 1e-12 < rate < 1.0 - 1e-12:
        who, other = ("nobody", "lower") if rate < 0.5 else ("everybody", "higher")
        raise InputError(
            f"The threshold {threshold:g} selects {who}, so there are no decisions to correct: choose a {other} one."
        )
    return min(rate, 1.0 - rate)


def decision_family(at: float, width: float) -> Family:
    """Binomial family whose constraint is on ``sigma((eta - at) / width)``."""

    def evaluate(eta: Array) -> Four:
        H, d, slope, bend = SIGMOID.evaluate((eta - at) / width)
        return width * H, d, slope / width, bend / width**2

    def loss(y: Array, eta: Array) -> tuple[Array, Array, Array]:
        return binomial.row_losses(y, eta)

    # The inverse gives the intercept-only model its intercept, which the loss determines, not the indicator.
    h = Activation(f"decision:{width!r}", evaluate, logit, range=(0.0, 1.0))
    return Family("binomial", "decision", h, binomial.unit_deviance, (0.0, 1.0), own_loss=loss, parameter=width)


def with_family(problem: Problem, family: Family) -> Problem:
    """The same problem with another family."""
    other = copy.copy(problem)
    object.__setattr__(other, "family", family)
    return other


def _predictor(solution: Solution) -> Callable[[Block], Array]:
    """Linear predictor of the rows of a block as they were given."""

    def eta(block: Block) -> Array:
        Z: Any = block.Z
        q = solution.coef.shape[1]
        own: Array = np.asarray((Z[:, -q:] if Z.shape[1] > q else Z) @ solution.coef[0]) + solution.intercept[0]
        return own if block.offset is None else own + block.offset[:, 0]

    return eta


def _spread(problem: Problem, solution: Solution) -> float:
    eta = _predictor(solution)

    def kernel(block: Block) -> Sums:
        values = eta(block)
        return np.asarray(block.weight @ values), np.asarray(block.weight @ values**2)

    mean, square = problem.rows.reduce(kernel)
    return float(np.sqrt(max(float(square) - float(mean) ** 2, 0.0)))


def _near(problem: Problem, solution: Solution, at: float, width: float) -> float:
    """Share of the weight near the threshold: a row counts by the slope of the indicator, relative to its largest."""
    eta = _predictor(solution)

    def kernel(block: Block) -> Sums:
        d = SIGMOID((eta(block) - at) / width)
        return (np.asarray(block.weight @ (4.0 * d * (1.0 - d))),)

    return float(problem.rows.reduce(kernel)[0])


def measure_decisions(problem: Problem, solution: Solution, at: float) -> tuple[float, float]:
    """Multiple correlation of the decisions with the protected columns, and the share that is selected."""
    eta = _predictor(solution)

    def kernel(block: Block) -> Sums:
        d = (eta(block) >= at).astype(np.float64)
        X, w = np.asarray(block.X), block.weight
        A = np.column_stack([X, d])
        return w @ A, (A * w[:, None]).T @ A

    mean, second = problem.rows.reduce(kernel)
    scatter = second - np.outer(mean, mean)
    own, cross, total = scatter[:-1, :-1], scatter[:-1, -1], float(scatter[-1, -1])
    if not total > 0.0:
        return 0.0, float(mean[-1])
    explained = float(cross @ np.linalg.lstsq(own, cross, rcond=1e-10)[0])
    return float(np.sqrt(max(explained, 0.0) / total)), float(mean[-1])
