"""Golden masters of families and activations; closed forms and derivatives are tested in tests/unit/families."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from tests.conftest import GLMS

from setsquare.errors import SetsquareError
from setsquare.families import FAMILIES, activation, contrasts, family, monotone_activation
from setsquare.families.activations import (
    ACTIVATIONS,
    boundary_distances,
    log_sum_exp,
    parametric_activation,
    scores_of,
    sigmoid_sum,
    softmax,
)
from setsquare.families.barrier import add_barrier, barrier_loss
from setsquare.families.custom_activation import CHECKED, NODES, WEIGHTS

#: Zero, small, ordinary and large values of both signs.
POINTS = np.array([-800.0, -40.0, -3.7, -1.0, -0.74, -0.3, -1e-9, 0.0, 1e-9, 0.2, 0.9, 1.0, 2.6, 19.0, 38.0, 750.0])
INNER = np.array([0.03, 0.25, 0.5, 0.8, 0.999])
EVERY = (*ACTIVATIONS, "power:1.5", "power:2.0", "power:2.7", "negative-binomial:0.7")
MORE_GLMS = (*GLMS, family("tweedie", "log", 2.5), family("tweedie", "canonical", 3.0), family("gamma"))


def find(name: str):
    kind, _, parameter = name.partition(":")
    return parametric_activation(kind, float(parameter)) if parameter else activation(name)


@pytest.mark.parametrize("name", EVERY)
def test_activations(golden, name):
    h = find(name)
    eta = POINTS.reshape(4, 4) if name == "softmax" else POINTS
    values = {
        "far": h.evaluate(eta[:2]),
        "near": h.evaluate(eta[1:3] if name == "softmax" else POINTS[2:13]),
        "call": h(eta / 40.0),
        "range": [float(v) for v in (*h.domain, *h.range)],
        "names": [h.name, repr(h), pickle.loads(pickle.dumps(h)) == h, h == activation("tanh"), h == h.name],
        "inverse": None if h.inverse is None else h.inverse(INNER),
        "ends": None if h.inverse is None or name in ("tanh", "softplus") else h.inverse(np.array([0.0, 1.0])),
    }
    if h.inverse is not None:
        values["distances"] = [
            boundary_distances(np.array([0.0, 0.2, 0.7, 1.0]), h),
            boundary_distances(np.zeros(5), h),
            boundary_distances(np.array([0.3, 1.0 - 1e-16]), h),
        ]
        values["scores"] = scores_of(np.array([[0.0, 0.5], [0.2, 1.0], [0.3, 0.6]]), h, (0.1, 0.2))
    with np.errstate(all="ignore"):
        golden(values)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
def test_sums_of_the_sigmoid(golden, n):
    golden(sigmoid_sum(np.linspace(-30.0, 33.0, n)))


@pytest.mark.parametrize("glm", MORE_GLMS, ids=str)
def test_losses(golden, glm):
    eta = -np.array([0.02, 0.3, 0.7, 1.1, 2.9]) if glm.activation.domain[1] < np.inf else np.linspace(-2.0, 1.6, 5)
    y = np.array([0.0, 1.0, 0.4, 0.0, 1.0]) + (0.05 if glm.open_below else 0.0)
    if glm.name not in ("binomial", "multinomial"):
        y = 3.0 * y
    v, mu = np.linspace(-1.0, 2.0, 5)[:, None], np.array([0.1, 0.3, 0.5, 0.7, 0.9])
    outside = np.array([0.0, 0.5, 900.0])
    with np.errstate(all="ignore"):
        values = {
            "losses": glm.row_losses(y, eta),
            "terms": glm.terms(y[:, None], eta[:, None], v),
            "value": glm.value_terms(y[:, None], eta[:, None]),
            "outside": glm.evaluate(np.ones(3), outside)[0][0],
            "low": glm.evaluate(np.array([0.0, 0.5, 1.0]), np.array([-900.0, -800.0, -30.0])),
            "units": glm.unit_deviance(y, mu),
            "deviance": [glm.deviance(y, mu), glm.deviance(y, mu, np.arange(5.0))],
            "is": [glm.is_vector, glm.is_convex, glm.open_below, str(glm), repr(glm), glm.parameter],
            "same": pickle.loads(pickle.dumps(glm)) == glm,
            "range": list(glm.outcome_range),
        }
    golden(values)


@pytest.mark.parametrize("n_classes", [2, 3, 5])
def test_the_multinomial_family(golden, n_classes):
    rng = np.random.default_rng(n_classes)
    C, glm = contrasts(n_classes), family("multinomial")
    eta, v = 2.0 * rng.normal(size=(6, n_classes - 1)), rng.normal(size=(6, n_classes - 1))
    y = np.eye(n_classes)[rng.integers(0, n_classes, 6)]
    y[0] = 1.0 / n_classes
    scores = np.vstack([eta @ C.T, 900.0 * C.T[0]])
    golden(
        {
            "contrasts": C,
            "terms": glm.terms(y @ C, eta, v),
            "value": glm.value_terms(y @ C, eta),
            "softmax": [softmax(scores), log_sum_exp(scores)],
            "deviance": glm.deviance(y, softmax(eta @ C.T), np.arange(6.0)),
            "is": [glm.is_vector, glm.is_convex],
        }
    )


@pytest.mark.parametrize("edge", [0.0, 0.4])
def test_barriers(golden, edge):
    y, eta = np.array([[1.0], [0.0], [0.3]]), np.array([[-0.5], [-0.02], [-2.0]])
    plain = family("binomial", "log").terms(y, eta, np.zeros((3, 1)))
    outside = np.array([[-1.0], [edge], [edge + 0.1]])
    golden([add_barrier(plain, eta, edge, 0.03), barrier_loss(outside, edge, 0.2)])


def test_activations_of_users(golden):
    plain = monotone_activation("cubic", lambda u: u + u**3, lambda u: 1 + 3 * u**2)
    given = monotone_activation(
        "half",
        lambda u: 0.5 * u,
        lambda u: 0.5 + 0.0 * u,
        antiderivative=lambda u: 0.25 * u * u,
        inverse=lambda mu: 2.0 * mu,
        range=(-9.0, 9.0),
    )
    eta = np.linspace(-4.0, 4.5, 9)
    again = [one.name for one in (plain, given)]
    values = [plain.evaluate(eta), given.evaluate(eta), given.inverse(eta), plain.inverse, given.range, plain.range]
    golden([values, again, CHECKED, NODES, WEIGHTS])


MISTAKES = {
    "family": lambda: family("gauss"),
    "link": lambda: family("gaussian", "logit"),
    "link of tweedie": lambda: family("tweedie", "probit"),
    "canonical only": lambda: family("multinomial", "log"),
    "no parameter": lambda: family("poisson", parameter=2.0),
    "power 1": lambda: family("tweedie", parameter=1.0),
    "power inf": lambda: family("tweedie", parameter=np.inf),
    "power nan": lambda: family("tweedie", parameter=np.nan),
    "theta 0": lambda: family("negative_binomial", parameter=0.0),
    "theta inf": lambda: family("negative_binomial", parameter=np.inf),
    "activation": lambda: activation("swish"),
    "binomial": lambda: family("binomial").check_outcome(np.array([0.0, 1.0, 1.1, -0.2])),
    "poisson": lambda: family("poisson").check_outcome(np.array([0.0, 7.0, -1.0]), "count"),
    "gamma": lambda: family("gamma").check_outcome(np.array([0.0, 7.0, 1.0]), "cost"),
    "decreasing": lambda: monotone_activation("sine", np.sin, np.cos),
    "slope": lambda: monotone_activation("line", lambda u: u, lambda u: 2.0 + 0.0 * u),
    "not finite": lambda: monotone_activation("log", np.log, lambda u: 1.0 / u),
    "small fall": lambda: monotone_activation("dip", lambda u: u - 1e-2 * (u > 1.0), lambda u: 1.0 + 0.0 * u),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(golden, name):
    with pytest.raises(SetsquareError) as caught, np.errstate(all="ignore"):
        MISTAKES[name]()
    golden([type(caught.value).__name__, str(caught.value)])


def test_what_is_accepted_at_the_limits():
    family("binomial").check_outcome(np.array([0.0, 1.0, 0.5]))
    family("poisson").check_outcome(np.array([0.0, 1e9]))
    family("gamma").check_outcome(np.array([1e-300]))
    family("tweedie", parameter=1.9).check_outcome(np.array([0.0]))
    family("tweedie", parameter=1.0 + 1e-9)
    family("negative_binomial", parameter=1e-9)
    # a kink has no derivative there, and is no mistake
    monotone_activation("kink", lambda u: np.where(u > 0.0, u, 0.5 * u), lambda u: np.where(u > 0.0, 1.0, 0.5))
    assert [family(name).link for name in FAMILIES] == ["canonical"] * 4 + ["log"] * 3
    assert family("poisson", "log") is family("poisson")
    assert family("tweedie").parameter == 1.5 and family("negative_binomial").parameter == 1.0
    assert family("tweedie", parameter=2.0) == family("gamma")
    assert [family("tweedie", "log", p).is_convex for p in (1.1, 1.9, 2.0, 2.1)] == [True, True, True, False]
    assert not family("gaussian", "log").is_convex and family("gaussian").is_convex
    assert len({family("gamma"), family("tweedie", parameter=2.0), family("gamma", "canonical")}) == 2
    assert activation(family("binomial")) is activation("sigmoid") is activation(activation("binomial"))
