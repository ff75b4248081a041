"""Bad input of the options that change the constraint: each gets one sentence that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import setsquare as sq
from setsquare.errors import InputError

RNG = np.random.default_rng(0)
N = 120
X = RNG.normal(size=(N, 1))
Z = X + RNG.normal(size=(N, 3))
Y = (Z[:, 0] + RNG.normal(size=N) > 0.0).astype(int)
TABLE = pd.DataFrame(Z, columns=["a", "b", "c"]).assign(x=X[:, 0], twice=2.0 * X[:, 0])
MANY = pd.DataFrame({name: RNG.integers(0, 7, N).astype(str) for name in "pqr"})
GLM = sq.OrthogonalGLMClassifier

CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "given determines a protected column": (lambda: GLM("x", given="twice").fit(TABLE, Y), "nothing of the protected"),
    "the same in an audit": (lambda: sq.audit(Z[:, 0], X, given=2.0 * X), "nothing of the protected"),
    "the same around a model": (
        lambda: sq.PredictionOrthogonalizer(LogisticRegression(), protected="x", given="twice").fit(TABLE, Y),
        "nothing of the protected",
    ),
    "the outcome of rows to be corrected": (
        lambda: sq.PredictionOrthogonalizer(LogisticRegression(), given="outcome").fit(Z, Y, protected=X),
        "would need the outcome",
    ),
    "the outcome of features": (
        lambda: sq.LinearOrthogonalizer(given="outcome").fit(Z, protected=X),
        "would need the outcome",
    ),
    "a kernel of one value": (lambda: GLM(basis="kernel").fit(Z, Y, protected=np.ones(N)), "two distinct values"),
    "a kernel of one value in an audit": (
        lambda: sq.audit(Z[:, 0], np.ones((N, 1)), basis="kernel"),
        "two distinct values",
    ),
    "a basis wider than the rows": (
        lambda: GLM(basis="~ bs(x, df=200)").fit(TABLE, Y, protected=TABLE[["x"]]),
        "pass more rows than columns",
    ),
    "more cells than features": (lambda: GLM(basis="cells").fit(Z, Y, protected=MANY), "Only a constant prediction"),
    "a threshold that selects nobody": (lambda: GLM(threshold=0.9999).fit(Z, Y, protected=X), "selects nobody"),
    "a threshold above all scores": (lambda: sq.GroupThresholds(threshold=9.0).fit(Z[:, 0], Y), "selects nobody"),
    "a path of budgets with bounds": (lambda: sq.tradeoff(GLM(relax="box"), Z, Y, X), "leave out relax="),
    "a path of budgets of decisions": (lambda: sq.tradeoff(GLM(threshold=0.5), Z, Y, X), "use one of them"),
    "a path of budgets for new rows": (lambda: sq.tradeoff(GLM(orthogonal_on="new rows"), Z, Y, X), "training rows"),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_with_a_sentence(case: str) -> None:
    call, match = CASES[case]
    with pytest.raises(InputError, match=match):
        call()


@pytest.mark.parametrize("budget", [-0.1, 1.1, float("nan"), "a", None, True])
def test_budgets_outside_the_dial(budget: Any) -> None:
    with pytest.raises(InputError, match="budget must be between 0"):
        GLM(budget=budget).fit(Z, Y, protected=X)
