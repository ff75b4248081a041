"""The paper's optimiser: the basic and the modified differential multiplier method (Platt and Barr 1987).

As printed in the paper (appendix "Details and Derivation of Corollary 4"), step t is

    gamma <- gamma - nu_t grad E_P(gamma, lambda),      lambda <- lambda + nu_t A(gamma),
    E_P = loss + lambda A + zeta/2 A^2,                 A = |Xc' mu|^2,

with one learning rate ``nu`` for both, and damping ``zeta``: 1 is MDMM, 0 is BDMM. The text adds ``zeta A`` to the
descent direction; the gradient of the printed objective is ``zeta A grad A``, which is what is done here.

Scaling. The loss is the mean over the rows, ``Xc`` an orthonormal basis of the protected columns with unit variances,
and ``A = |Xc' mu|^2 / n``: the printed sums divided by n, with standardised protected columns. The features are
whitened, too (``glm.preparation``), which the paper does not do: it takes the method tens of times fewer steps than raw
columns, on which it depends on their units and their collinearity.

The constraint is squared so that one multiplier suffices. The gradient of ``A`` vanishes on the feasible set, so no
finite multiplier solves the problem: ``lambda`` grows without end, ever more slowly, and with it the curvature of
``lambda A``. Each constant rate is unstable after enough steps, and the correlation never reaches zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from setsquare._typing import Array
from setsquare.errors import InputError
from setsquare.glm.newton import Iterate, Settings, kkt_residual
from setsquare.glm.objective import Model, Objective
from setsquare.glm.solution import Status, Step

#: Solvers that descend and ascend, with their damping.
MULTIPLIER_METHODS = {"mdmm": 1.0, "bdmm": 0.0}
#: Factor between the rates that the search tries, and the number of rates.
NEXT_RATE, MOST_RATES = 10.0**-0.5, 12
#: Gradient steps per row of the trace, and steps for which a rate must be stable, or the run starts again.
TRACE_EVERY, PROBATION = 100, 1000
#: A run stops at this relative gradient of the Lagrangian and this largest correlation with the basis; the paper has no
#: rule. The tolerances of the other solvers are out of reach.
ENOUGH_KKT, ENOUGH_CORRELATION = 1e-4, 1e-3


@dataclass(frozen=True, slots=True)
class Descent:
    """Parameters of the multiplier methods ``solver="mdmm"`` and ``"bdmm"``.

    Parameters
    ----------
    rate : float, optional
        Learning rate ``nu`` for coefficients and multiplier, constant. By default it is searched for: the first rate is
        one over the largest curvature of the loss. A rate at which the loss rises above that of the intercept-only
        model, which no useful run exceeds, is divided by the root of 10. The run then starts again, or, after 1000
        steps, goes on from where it was up to 100 steps before.
    schedule : callable, optional
        Maps the step (from 0) to a factor on the rate; by default the rate is constant.
    damping : float, optional
        ``zeta``; by default 1 for "mdmm" and 0 for "bdmm".

    Examples
    --------
    >>> import numpy as np
    >>> from setsquare import Problem, solve
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 1))
    >>> Z = X + rng.normal(size=(500, 3))
    >>> y = (Z[:, 0] + rng.logistic(size=500) > 0).astype(float)
    >>> solution = solve(Problem(Z, y, X, "binomial"), "mdmm", descent=Descent(0.05), max_iter=10_000)
    >>> exact = solve(Problem(Z, y, X, "binomial"))
    >>> bool(solution.certificate.max_correlation < 0.01 and solution.certificate.loss < exact.certificate.loss + 1e-3)
    True
    """

    rate: float | None = None
    schedule: Callable[[int], float] | None = None
    damping: float | None = None

    def __post_init__(self) -> None:
        if self.rate is not None and not 0.0 < self.rate < np.inf:
            raise InputError(f"The learning rate must be a positive number, got {self.rate!r}.")
        if self.damping is not None and not 0.0 <= self.damping < np.inf:
            raise InputError(f"The damping must be a nonnegative number, got {self.damping!r}.")


class _State(NamedTuple):
    """Where a run is: coefficients, their model, multiplier, and number of steps."""

    theta: Array
    model: Model
    multiplier: float
    iteration: int


def solve_mdmm(
    objective: Objective,
    theta: Array | None,
    settings: Settings,
    *,
    descent: Descent | None = None,
    damping: float = MULTIPLIER_METHODS["mdmm"],
) -> Iterate:
    """Run gradient descent and ascent from ``theta``, by default from the intercept-only model."""
    descent = descent or Descent()
    damping = damping if descent.damping is None else descent.damping
    theta = objective.start.theta if theta is None else theta
    first = objective.model(theta, np.zeros(objective.n_constraints))
    n, start = objective.rows.n_rows, _State(theta, first, 0.0, 0)
    state, kept, limit = start, start, _limit(objective, first)
    rates = [descent.rate] if descent.rate is not None else searched_rates(float(np.linalg.eigvalsh(first.H)[-1]))
    k, trace, status = 0, [_step(objective, start, rates[0])], Status.MAX_ITER
    while state.iteration < settings.max_iter:
        rate = rates[k] * (1.0 if descent.schedule is None else descent.schedule(state.iteration))
        state = _advance(objective, state, rate, n, damping)
        if not state.model.loss <= limit:
            k += 1
            state = start if kept.iteration < PROBATION else kept
            if k == len(rates):
                status = Status.STALLED
                break
            trace = [step for step in trace if step.iteration <= state.iteration]
        elif state.iteration % TRACE_EVERY == 0 or state.iteration == settings.max_iter:
            kept = state
            trace.append(_step(objective, state, rate))
            if trace[-1].kkt <= ENOUGH_KKT and trace[-1].constraint <= ENOUGH_CORRELATION * state.model.spread:
                status = Status.CONVERGED
                break
    lam = _multipliers(state.model)
    return Iterate(state.theta, lam, objective.model(state.theta, lam), status, tuple(trace))


def searched_rates(steepest: float) -> list[float]:
    """Rates that the search tries, largest first.

    Examples
    --------
    >>> [round(rate, 4) for rate in searched_rates(2.0)[:3]]
    [0.5, 0.1581, 0.05]
    """
    return [NEXT_RATE**k / steepest for k in range(MOST_RATES)]


def _advance(objective: Objective, state: _State, rate: float, n: int, damping: float) -> _State:
    """One step: descend in the coefficients, ascend in the multiplier."""
    c, J = state.model.c, state.model.J
    A = n * float(c @ c)
    slope = state.model.g + (state.multiplier + damping * A) * 2.0 * n * (J.T @ c)
    theta = state.theta - rate * slope
    return _State(theta, objective.model(theta, None), state.multiplier + rate * A, state.iteration + 1)


def _limit(objective: Objective, first: Model) -> float:
    """Loss above which a run has diverged: that of the start and of the intercept-only model, which is feasible."""
    null = max(objective.start.loss, first.loss)
    return null + 1e-6 * abs(null)


def _step(objective: Objective, state: _State, rate: float) -> Step:
    kkt = kkt_residual(objective, state.model, _multipliers(state.model))
    gap = float(np.abs(state.model.c).max(initial=0.0))
    return Step(state.iteration, state.model.loss, gap, kkt, rate, False)


def _multipliers(model: Model) -> Array:
    return np.asarray(np.linalg.lstsq(model.J.T, -model.g, rcond=None)[0], dtype=np.float64)
