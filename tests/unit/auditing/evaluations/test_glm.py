"""The generalised linear evaluation model: how it is named in verdicts and reports."""

import numpy as np
import pytest

import setsquare as sq
from setsquare.auditing.evaluations.glm import REGRESSIONS
from setsquare.families.distributions import FAMILIES


def test_every_family_has_an_ordinary_name():
    assert set(REGRESSIONS) == set(FAMILIES)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("gaussian", "linear regression"),
        ("binomial", "logistic regression"),
        ("poisson", "Poisson regression"),
        ("gamma", "gamma regression (log link)"),
        (sq.families.family("gaussian", "log"), "Gaussian regression (log link)"),
        (sq.families.family("binomial", "log"), "binomial regression (log link)"),
        (sq.families.family("tweedie", parameter=1.5), "Tweedie regression (power 1.5, log link)"),
        (sq.families.family("negative_binomial", parameter=2.0), "negative binomial regression (theta 2, log link)"),
    ],
    ids=str,
)
def test_a_verdict_names_the_regression_and_its_columns(family, name):
    rng = np.random.default_rng(0)
    sex = rng.integers(2, size=400)
    found = sq.audit(rng.uniform(0.1, 0.4, size=400) + 0.2 * sex, sex, family=family, evaluation="glm")
    assert found.evaluations[0].title == f"{name} of the predictions on x0, HC3 standard errors"
    assert found.statistics.endswith(f"Test: {name} of the predictions on x0, HC3 standard errors.")
