"""A thousand random problems of every kind: the guarantee holds in each of them, or a sentence says why not."""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np
import pytest
from tests.conftest import GLMS

from setsquare.errors import InputError
from setsquare.families import Family
from setsquare.glm.problem import Problem
from setsquare.glm.solver import Status, solve


def draw_problem(rng: np.random.Generator, draw_outcome, glm: Family) -> Problem:
    """Few or many rows, rare groups, collinear and badly scaled columns, weights, offsets and ridges."""
    n, q, p = int(rng.integers(30, 600)), int(rng.integers(2, 12)), int(rng.integers(1, 5))
    X = rng.normal(size=(n, p)) * 10.0 ** rng.integers(-4, 5, size=p)
    if rng.random() < 0.5:
        X[:, 0] = rng.random(n) < rng.uniform(0.01, 0.5)
    unit = (X - X.mean(0)) / np.where(X.std(0) > 0, X.std(0), 1.0)
    Z = unit @ rng.normal(size=(p, q)) * rng.uniform(0.0, 2.0) + rng.normal(size=(n, q))
    if rng.random() < 0.3:
        Z[:, -1] = Z[:, 0] + Z[:, 1]
    signal = Z @ rng.normal(size=q) / np.sqrt(q) + 0.5 * unit[:, 0]
    y = draw_outcome(glm, signal, Z, 3, rng)
    return Problem(
        Z * 10.0 ** rng.integers(-3, 4, size=q),
        y,
        X,
        glm,
        weight=rng.integers(0, 4, size=n).astype(float) if rng.random() < 0.3 else None,
        l2=float(rng.choice([0.0, 0.0, 1e-6, 1e-2])),
    )


@pytest.mark.parametrize(("name", "number"), [("tweedie(1.5)", 34), ("negative_binomial(2)", 70)])
def test_a_run_worse_than_no_features_is_not_chosen(draw_outcome, name, number):
    """There the other run meets the constraint by few rows; the certificate says so, and the loss is an optimum."""
    rng = np.random.default_rng(2024)
    glm = next(family for family in GLMS if str(family) == name)
    problems = []
    for _ in range(number + 1):
        try:
            problems.append(draw_problem(rng, draw_outcome, glm))
        except InputError:
            continue
    certificate = solve(problems[-1]).certificate
    assert certificate.is_orthogonal
    assert certificate.loss < certificate.loss_null


@pytest.mark.slow
def test_the_guarantee_holds_in_a_thousand_random_problems(glm, draw_outcome):
    rng = np.random.default_rng(2024)
    ends: Counter[str] = Counter()
    for _ in range(100):
        try:
            problem = draw_problem(rng, draw_outcome, glm)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = solve(problem)
        except InputError:
            ends["refused"] += 1
            continue
        certificate = found.certificate
        ends[found.status.name] += 1
        assert certificate.is_orthogonal, (found, problem)
        assert certificate.loss <= certificate.loss_null * (1.0 + 1e-9 * np.sign(certificate.loss_null)) + 1e-9
        if found.status in (Status.CONVERGED, Status.FLAT):
            assert certificate.is_optimal, found
    assert ends["refused"] < 50
    if glm.name == "binomial" and glm.link == "log":
        return  # its optimum often lies on the edge of the domain, and the status says so
    # A canonical link that is defined for negative predictors only is hard; the default log link is not.
    allowed = 15 if glm.activation.domain[1] < np.inf else 3
    assert ends["STALLED"] + ends["MAX_ITER"] <= allowed, ends
