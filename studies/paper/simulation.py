"""One draw of the paper's simulation: fitted with and without corrections, evaluated on seen and on new rows.

Each setting is drawn with twice as many rows: models are fitted on the first half, where the paper also evaluates them,
and evaluated once more on the second half, which they have not seen. The linear correction promises something for the
linear predictor, so it is evaluated before the activation, as in the paper, and after it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from scipy import stats

from setsquare import Problem, Solution, solve
from setsquare.auditing import Protected, fit_glm
from setsquare.datasets import SyntheticFamily, make_synthetic
from setsquare.families import Family, family
from setsquare.projection import Projector
from studies.arrays import Array
from studies.paper.catalogue import targets
from studies.paper.names import CLASSICAL, CONSTRAINED, MDMM, WITHOUT

SEED = 2024
#: Corrections, evaluated after the activation h unless they say otherwise.
BEFORE, PLAIN = f"{WITHOUT}, before h", WITHOUT
LINEAR_BEFORE, LINEAR = f"{CLASSICAL}, before h", CLASSICAL
EXACT = CONSTRAINED
SEEN, NEW = "training rows", "new rows"


@dataclass(frozen=True, slots=True)
class Setting:
    """One draw of the simulation."""

    family: SyntheticFamily
    rho: int
    p: int
    q: int
    n: int
    repeat: int

    @property
    def rng(self) -> np.random.Generator:
        """A stream of its own, so that no draw depends on which others were made before."""
        code = ("binomial", "poisson").index(self.family)
        return np.random.default_rng([SEED, code, self.rho, self.p, self.q, self.n, self.repeat])


def settings(*, quick: bool) -> list[Setting]:
    """Grid of the paper; or its corners up to 1000 rows, once."""
    grid = targets()["simulation"]
    if quick:
        grid = grid | {"rho": [0, 2], "n": [200, 1000], "repeats": 1}
    return [
        Setting(*values)
        for values in product(*(grid[key] for key in ("families", "rho", "p", "q", "n")), range(grid["repeats"]))
    ]


def measure(setting: Setting, mdmm_steps: int = 0) -> dict[str, Any]:
    """Fit and evaluate all models of one draw; or, given a number of steps, that of the paper's optimiser alone."""
    start, n, glm = time.perf_counter(), setting.n, family(setting.family)
    data = make_synthetic(setting.family, 2 * n, setting.p, setting.q, setting.rho, setting.rng)
    Z, X, y, h = data.Z, data.X, data.y[:n], glm.activation
    fits: dict[str, Solution] = {}
    predictions: dict[str, tuple[Array, Family]] = {}
    if not mdmm_steps:
        projected = Projector.fit(Z[:n], X[:n]).apply(Z, X)
        for before, name, features in ((BEFORE, PLAIN, Z), (LINEAR_BEFORE, LINEAR, projected)):
            fits[name] = solve(Problem(features[:n], y, family=glm))
            eta = _eta(fits[name], features)
            predictions |= {before: (eta, family("gaussian")), name: (h(eta), glm)}
    if setting.q > setting.p:
        name, solver, limit = (MDMM, "mdmm", mdmm_steps) if mdmm_steps else (EXACT, "sqp", None)
        fits[name] = solve(Problem(Z[:n], y, X[:n], family=glm), solver, max_iter=limit)
        predictions[name] = h(_eta(fits[name], Z)), glm
    return {
        "status": {name: fit.status.name.lower() for name, fit in fits.items()},
        "correlation": {name: fit.certificate.max_correlation for name, fit in fits.items() if name in (EXACT, MDMM)},
        "loss": {name: fit.certificate.loss for name, fit in fits.items()},
        "found": {
            name: {SEEN: _evaluate(values[:n], X[:n], model), NEW: _evaluate(values[n:], X[n:], model)}
            for name, (values, model) in predictions.items()
        },
        "seconds": time.perf_counter() - start,
    }


def _eta(fit: Solution, Z: Array) -> Array:
    return np.asarray(fit.intercept[0] + Z @ fit.coef[0])


def _evaluate(predictions: Array, X: Array, glm: Family) -> dict[str, list[float | None]]:
    """Effects with the p-values of model-based and of robust errors; None where the data do not determine one."""
    names = tuple(f"x{j}" for j in range(X.shape[1]))
    fits = {vcov: fit_glm(predictions, Protected(X, names, names), glm, vcov) for vcov in ("model", "HC3")}
    values = {"effect": fits["model"].coef[0]}
    for vcov, fit in fits.items():
        values[vcov] = 2.0 * stats.t.sf(np.abs(fit.coef[0]) / np.sqrt(np.diag(fit.cov)), fit.df)
    return {key: [float(v) if np.isfinite(v) else None for v in found] for key, found in values.items()}


@dataclass(frozen=True, slots=True)
class Draw:
    """A setting and what was measured."""

    setting: Setting
    result: dict[str, Any]


def pool(draws: Iterable[Draw], method: str, rows: str, measured: str) -> Array:
    """All values of a measure that are known, absolute ones for effects."""
    found = [draw.result["found"][method][rows][measured] for draw in draws if method in draw.result["found"]]
    return np.abs(np.asarray([value for values in found for value in values if value is not None], dtype=np.float64))


def share(p_values: Array) -> float:
    """Share of the p-values below 0.05."""
    return float(np.mean(p_values < 0.05))


def median(values: Array) -> float:
    """Median as a plain number."""
    return float(np.median(values))
