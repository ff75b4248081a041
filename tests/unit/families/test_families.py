"""Families and activations: derivatives, limits, deviances, messages."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import statsmodels.api as sm
from sklearn.metrics import log_loss, mean_gamma_deviance, mean_poisson_deviance, mean_tweedie_deviance

from setsquare.errors import InputError, OutcomeRangeError
from setsquare.families import (
    FAMILIES,
    Activation,
    Family,
    activation,
    contrasts,
    family,
    gamma,
    negative_binomial,
    tweedie,
)
from setsquare.families.activations import boundary_distances, scores_of

ACTIVATIONS = (
    *(activation(name) for name in ("identity", "sigmoid", "exp", "relu", "tanh", "exp-below-one")),
    family("gamma", "canonical").activation,
    tweedie(1.5, "canonical").activation,
    tweedie(3.0, "canonical").activation,
    negative_binomial(2.0, "canonical").activation,
)
each_activation = pytest.mark.parametrize("h", ACTIVATIONS, ids=lambda h: h.name)
EXTRA = (tweedie(1.2), tweedie(3.0), tweedie(3.0, "canonical"), negative_binomial(0.5))


def points(h: Activation, n: int = 41) -> np.ndarray:
    """Points of the domain, none of them at a kink."""
    return np.linspace(-6.05, min(h.domain[1] - 0.15, 5.95), n)


def outcomes(glm: Family, n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    low, high = glm.outcome_range
    if high == 1.0:
        return np.concatenate([[0.0, 1.0], rng.random(n - 2)])
    if low == 0.0:
        y = rng.gamma(2.0, 1.0, n)
        y[:2] = (0.5, 3.0) if glm.open_below else (0.0, 3.0)
        return y
    return rng.normal(size=n)


def central(f, eta: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """Fourth-order central difference."""
    return (8.0 * (f(eta + step) - f(eta - step)) - (f(eta + 2 * step) - f(eta - 2 * step))) / (12.0 * step)


# ------------------------------------------------------------------------------------------------- activations
@each_activation
def test_each_derivative_of_an_activation_is_that_of_the_one_before(h: Activation) -> None:
    eta = points(h)
    values = h.evaluate(eta)
    for order in range(3):
        slope = central(lambda e, order=order: h.evaluate(e)[order], eta)
        np.testing.assert_allclose(values[order + 1], slope, rtol=1e-7, atol=1e-8)


@each_activation
def test_activations_increase_and_stay_in_their_range(h: Activation) -> None:
    values = h(points(h))
    assert (np.diff(values) >= 0.0).all() and values[-1] > values[0]
    assert values.min() >= h.range[0] and values.max() <= h.range[1]
    assert (h.evaluate(points(h))[2] >= 0.0).all()


@each_activation
def test_the_inverse_undoes_the_activation(h: Activation) -> None:
    if h.name == "relu":
        assert h.inverse is None
        return
    eta = points(h)
    np.testing.assert_allclose(h.inverse(h(eta)), eta, rtol=1e-8, atol=1e-10)


def test_the_inverse_of_softmax_undoes_it_up_to_a_constant() -> None:
    h = activation("softmax")
    scores = np.random.default_rng(0).normal(size=(20, 4))
    back = h.inverse(h(scores))
    np.testing.assert_allclose(back - back.mean(1, keepdims=True), scores - scores.mean(1, keepdims=True), atol=1e-13)


def test_the_antiderivative_of_softmax_has_it_as_its_gradient() -> None:
    h = activation("softmax")
    scores = np.random.default_rng(0).normal(size=(20, 4))
    H, p, slope, second = h.evaluate(scores)
    assert H.shape == (20,)
    for j in range(4):
        step = 1e-5 * np.eye(4)[j]
        np.testing.assert_allclose(
            (h.evaluate(scores + step)[0] - h.evaluate(scores - step)[0]) / 2e-5, p[:, j], atol=1e-9
        )
        for lower, upper in ((1, slope), (2, second)):
            difference = (h.evaluate(scores + step)[lower] - h.evaluate(scores - step)[lower])[:, j] / 2e-5
            np.testing.assert_allclose(difference, upper[:, j], atol=1e-9)


@pytest.mark.parametrize(
    ("name", "at_minus", "at_plus"),
    [
        ("identity", (320000.0, -800.0, 1.0, 0.0), (320000.0, 800.0, 1.0, 0.0)),
        ("sigmoid", (0.0, 0.0, 0.0, 0.0), (800.0, 1.0, 0.0, 0.0)),
        ("exp", (0.0, 0.0, 0.0, 0.0), (np.inf, np.inf, np.inf, np.inf)),
        ("relu", (0.0, 0.0, 0.0, 0.0), (320000.0, 800.0, 1.0, 0.0)),
        ("tanh", (800.0 - np.log(2.0), -1.0, 0.0, 0.0), (800.0 - np.log(2.0), 1.0, 0.0, 0.0)),
    ],
)
def test_limits_of_activations_at_800(name: str, at_minus: tuple, at_plus: tuple) -> None:
    for eta, limits in ((-800.0, at_minus), (800.0, at_plus)):
        for value, limit in zip(activation(name).evaluate(np.array([eta])), limits, strict=True):
            np.testing.assert_allclose(value, limit, rtol=1e-15, atol=1e-300)


def test_limits_of_softmax_at_800() -> None:
    H, p, slope, second = activation("softmax").evaluate(np.array([[800.0, -800.0, 0.0], [-800.0, -800.0, -800.0]]))
    np.testing.assert_allclose(H, [800.0, -800.0 + np.log(3.0)], rtol=1e-15)
    np.testing.assert_allclose(p, [[1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]], atol=1e-16)
    assert np.isfinite(slope).all() and np.isfinite(second).all()


@pytest.mark.parametrize(
    ("h", "mean"),
    [
        (gamma("canonical").activation, 1.0 / 800.0),
        (tweedie(1.5, "canonical").activation, 400.0**-2),
        (negative_binomial(2.0, "canonical").activation, 0.0),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_restricted_domains_have_limits_inside_and_no_mean_outside(h: Activation, mean: float) -> None:
    inside = h.evaluate(np.array([-800.0]))
    assert inside[1] == pytest.approx(mean, rel=1e-14, abs=1e-300)
    assert all(np.isfinite(part).all() for part in inside)
    assert np.isnan(h(np.array([0.5, 800.0]))).all()
    close = h(np.array([-1e-12]))
    assert close[0] > 1e6


def test_an_eta_outside_the_domain_has_the_mean_nan_for_the_log_binomial_too() -> None:
    """A probability of exp(1) is none; the module promises NaN outside the domain."""
    h = family("binomial", "log").activation
    assert h(np.array([-1.0]))[0] == pytest.approx(np.exp(-1.0))
    assert np.isnan(h(np.array([1.0])))[0]


def test_sigmoids_lose_no_digit_in_their_tails() -> None:
    H, mu, slope, _ = activation("sigmoid").evaluate(np.array([-50.0, 50.0]))
    np.testing.assert_allclose([H[0], mu[0], slope[0], slope[1]], np.exp(-50.0), rtol=1e-14)


# ---------------------------------------------------------------------------------------------------- families
ALL = (
    *(family(name, link) for name in ("gaussian", "binomial", "gamma") for link in ("canonical", "log")),
    family("poisson"),
    *(tweedie(1.5, link) for link in ("canonical", "log")),
    *(negative_binomial(2.0, link) for link in ("canonical", "log")),
    *EXTRA,
)
each_family = pytest.mark.parametrize("glm", ALL, ids=str)


@each_family
def test_slope_and_curvature_of_the_loss(glm: Family) -> None:
    eta = points(glm.activation)
    y = outcomes(glm, len(eta))
    _, slope, curvature = glm.row_losses(y, eta)
    scale = 1.0 + np.abs(curvature)
    np.testing.assert_allclose(slope / scale, central(lambda e: glm.row_losses(y, e)[0], eta) / scale, atol=1e-7)
    np.testing.assert_allclose(curvature / scale, central(lambda e: glm.row_losses(y, e)[1], eta) / scale, atol=1e-7)


@each_family
def test_terms_hold_mean_slopes_and_the_curvature_of_the_lagrangian(glm: Family) -> None:
    eta = points(glm.activation)
    rng = np.random.default_rng(1)
    y, v = outcomes(glm, len(eta)), rng.normal(size=len(eta))
    terms = glm.terms(y[:, None], eta[:, None], v[:, None])
    loss, slope, curvature = glm.row_losses(y, eta)
    _, h, dh, d2h = glm.activation.evaluate(eta)
    np.testing.assert_allclose(terms.loss, loss, rtol=1e-14)
    np.testing.assert_allclose(terms.slope[:, 0], slope, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(terms.mean[:, 0], h, rtol=1e-14)
    np.testing.assert_allclose(terms.mean_slope[:, 0, 0], dh, rtol=1e-14)
    np.testing.assert_allclose(terms.curvature[:, 0, 0], curvature + v * d2h, rtol=1e-11, atol=1e-13)

    def lagrangian_slope(e: np.ndarray) -> np.ndarray:
        return glm.row_losses(y, e)[1] + v * glm.activation.evaluate(e)[2]

    scale = 1.0 + np.abs(terms.curvature[:, 0, 0])
    np.testing.assert_allclose(terms.curvature[:, 0, 0] / scale, central(lagrangian_slope, eta) / scale, atol=1e-7)


@each_family
def test_value_terms_agree_with_terms(glm: Family) -> None:
    eta = points(glm.activation)[:, None]
    y = outcomes(glm, len(eta))[:, None]
    loss, mean = glm.value_terms(y, eta)
    terms = glm.terms(y, eta, np.zeros_like(eta))
    np.testing.assert_allclose(loss, terms.loss, rtol=1e-14)
    np.testing.assert_allclose(mean, terms.mean, rtol=1e-14)


@each_family
def test_the_loss_is_half_the_deviance_up_to_a_constant(glm: Family) -> None:
    """And the deviance is zero where the mean is the outcome."""
    eta = points(glm.activation, 9)
    y = np.full_like(eta, {1.0: 0.3}.get(glm.outcome_range[1], 1.7))
    halves = 0.5 * np.array([glm.deviance(y[:1], glm.activation(e[None])) for e in eta])
    losses = glm.row_losses(y, eta)[0]
    np.testing.assert_allclose(losses - losses[0], halves - halves[0], rtol=1e-9, atol=1e-9 * np.abs(losses).max())
    assert glm.deviance(y, y) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_softmax_terms_by_finite_differences(classes: int) -> None:
    glm, k, n = family("multinomial"), classes - 1, 15
    rng = np.random.default_rng(classes)
    C = contrasts(classes)
    y = C[rng.integers(0, classes, n)]
    eta, v = rng.normal(size=(n, k)), rng.normal(size=(n, k))
    terms = glm.terms(y, eta, v)
    loss, mean = glm.value_terms(y, eta)
    np.testing.assert_allclose(loss, terms.loss, rtol=1e-14)
    np.testing.assert_allclose(mean, terms.mean, rtol=1e-14)

    def lagrangian(e: np.ndarray) -> np.ndarray:
        value, average = glm.value_terms(y, e)
        return value + np.einsum("nk,nk->n", v, average)

    def lagrangian_slope(e: np.ndarray) -> np.ndarray:
        parts = glm.terms(y, e, v)
        return parts.slope + np.einsum("nab,na->nb", parts.mean_slope, v)

    for j in range(k):
        step = 1e-5 * np.eye(k)[j]

        def difference(f, step: np.ndarray = step) -> np.ndarray:
            return (f(eta + step) - f(eta - step)) / 2e-5

        np.testing.assert_allclose(difference(lambda e: glm.value_terms(y, e)[0]), terms.slope[:, j], atol=1e-9)
        np.testing.assert_allclose(difference(lambda e: glm.value_terms(y, e)[1]), terms.mean_slope[:, :, j], atol=1e-9)
        np.testing.assert_allclose(difference(lagrangian), lagrangian_slope(eta)[:, j], atol=1e-9)
        np.testing.assert_allclose(difference(lagrangian_slope), terms.curvature[:, :, j], atol=1e-9)


def test_softmax_loss_is_the_log_loss() -> None:
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 4, 50)
    scores = rng.normal(size=(50, 4))
    C = contrasts(4)
    loss, mean = family("multinomial").value_terms(C[classes], scores @ C)
    p = activation("softmax")(scores)
    assert loss.mean() == pytest.approx(log_loss(classes, p), rel=1e-13)
    np.testing.assert_allclose(mean, p @ C, atol=1e-15)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_contrasts_are_orthonormal_and_sum_to_zero(classes: int) -> None:
    C = contrasts(classes)
    np.testing.assert_allclose(C.T @ C, np.eye(classes - 1), atol=1e-15)
    np.testing.assert_allclose(C.sum(0), 0.0, atol=1e-15)


@pytest.mark.parametrize("eta", [-800.0, 800.0])
@each_family
def test_losses_at_800_are_never_nan_and_never_warn(glm: Family, eta: float) -> None:
    y = outcomes(glm, 20)
    loss, mean = glm.value_terms(y[:, None], np.full((20, 1), eta))
    assert not np.isnan(loss).any()
    assert (loss > -np.inf).all()
    if eta > glm.activation.domain[1]:
        assert (loss == np.inf).all()
    else:
        assert not np.isnan(mean).any()
        assert not any(np.isnan(part).any() for part in glm.row_losses(y, np.full(20, eta)))
    if np.isfinite(mean).all():  # behind an infinite mean the derivatives say nothing
        terms = glm.terms(y[:, None], np.full((20, 1), eta), np.ones((20, 1)))
        assert not any(np.isnan(part).any() for part in terms)


@pytest.mark.parametrize(
    ("name", "y", "eta", "loss"),
    [
        ("binomial", 1.0, 800.0, 0.0),
        ("binomial", 0.0, 800.0, 800.0),
        ("binomial", 1.0, -800.0, 800.0),
        ("binomial", 0.0, -800.0, 0.0),
        ("poisson", 0.0, -800.0, 0.0),
        ("poisson", 2.0, -800.0, 1600.0),
        ("poisson", 2.0, 800.0, np.inf),
    ],
)
def test_limits_of_losses(name: str, y: float, eta: float, loss: float) -> None:
    assert family(name).row_losses(np.array([y]), np.array([eta]))[0] == pytest.approx(loss, abs=1e-300)


@pytest.mark.parametrize(
    "glm",
    [family("binomial", "log"), gamma("canonical"), tweedie(1.5, "canonical"), negative_binomial(2.0, "canonical")],
    ids=str,
)
def test_outside_the_domain_of_the_link_the_loss_is_infinite(glm: Family) -> None:
    y = np.full(3, 0.5)
    loss = glm.row_losses(y, np.array([-0.1, 0.0, 0.1]))[0]
    assert np.isfinite(loss[0])
    assert (loss[1:] == np.inf).all()


# -------------------------------------------------------------------------------------------------- deviances
def reference_deviance(glm: Family, y: np.ndarray, mu: np.ndarray) -> float:
    table = {
        "gaussian": sm.families.Gaussian,
        "binomial": sm.families.Binomial,
        "poisson": sm.families.Poisson,
        "gamma": sm.families.Gamma,
        "tweedie": lambda: sm.families.Tweedie(var_power=glm.parameter),
        "negative_binomial": lambda: sm.families.NegativeBinomial(alpha=1.0 / (glm.parameter or 1.0)),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # statsmodels takes logarithms of zero on its way
        return float(table[glm.name]().deviance(y, mu))


@each_family
def test_deviance_agrees_with_statsmodels(glm: Family) -> None:
    rng = np.random.default_rng(2)
    y = outcomes(glm, 40)
    mu = rng.uniform(0.05, 0.95, 40)
    if glm.name == "binomial":
        y = np.round(y)
    assert glm.deviance(y, mu) == pytest.approx(reference_deviance(glm, y, mu), rel=1e-9)


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0, 3.0])
def test_deviance_agrees_with_sklearn(power: float) -> None:
    rng = np.random.default_rng(3)
    y, mu, weight = rng.gamma(2.0, 1.0, 40), rng.gamma(2.0, 1.0, 40), rng.random(40)
    glm = family("poisson") if power == 1.0 else tweedie(power)
    theirs = mean_tweedie_deviance(y, mu, sample_weight=weight, power=power)
    assert glm.deviance(y, mu, weight) == pytest.approx(weight.sum() * theirs, rel=1e-12)
    named = {1.0: mean_poisson_deviance, 2.0: mean_gamma_deviance}.get(power)
    assert named is None or glm.deviance(y, mu) == pytest.approx(40.0 * named(y, mu), rel=1e-12)


def test_deviances_at_the_boundary_are_finite_where_they_should_be() -> None:
    assert family("binomial").deviance(np.array([0.0, 1.0]), np.array([0.0, 1.0])) == 0.0
    assert family("binomial").deviance(np.array([0.0]), np.array([1.0])) == np.inf
    assert family("poisson").deviance(np.array([0.0]), np.array([0.0])) == 0.0
    assert tweedie(1.5).deviance(np.array([0.0]), np.array([2.0])) == pytest.approx(4.0 * np.sqrt(2.0))


def test_the_multinomial_deviance_of_one_hot_rows_is_twice_the_log_loss() -> None:
    rng = np.random.default_rng(4)
    classes = rng.integers(0, 3, 30)
    p = activation("softmax")(rng.normal(size=(30, 3)))
    assert family("multinomial").deviance(np.eye(3)[classes], p) == pytest.approx(
        60.0 * log_loss(classes, p), rel=1e-12
    )


# ------------------------------------------------------------------------------------------- names and messages
@pytest.mark.parametrize(
    ("glm", "value", "wanted"),
    [
        (family("binomial"), 2.0, "values between 0 and 1"),
        (family("binomial"), -1.0, "values between 0 and 1"),
        (family("poisson"), -3.0, "values of 0 or more"),
        (family("gamma"), 0.0, "positive values"),
        (tweedie(3.0), 0.0, "positive values"),
        (tweedie(1.5), -0.5, "values of 0 or more"),
        (negative_binomial(1.0), -1.0, "values of 0 or more"),
    ],
    ids=str,
)
def test_an_outcome_outside_the_range_is_one_sentence_with_the_reason(glm: Family, value: float, wanted: str) -> None:
    y = np.array([0.5, value, value, 0.5])
    with pytest.raises(OutcomeRangeError) as caught:
        glm.check_outcome(y, "income")
    message = str(caught.value)
    assert message.startswith("Income has 2 value(s)") and f"such as {value:g}" in message
    assert wanted in message and glm.name in message
    assert "\n" not in message and message.endswith(".")


@each_family
def test_an_outcome_inside_the_range_passes(glm: Family) -> None:
    glm.check_outcome(outcomes(glm, 30))


@each_family
def test_families_survive_pickling(glm: Family) -> None:
    again = pickle.loads(pickle.dumps(glm))
    assert (again.name, again.link, again.parameter, str(again)) == (glm.name, glm.link, glm.parameter, str(glm))
    eta = points(glm.activation)
    y = outcomes(glm, len(eta))
    for ours, theirs in zip(again.row_losses(y, eta), glm.row_losses(y, eta), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert again == glm and hash(again) == hash(glm)


@pytest.mark.parametrize("h", [*ACTIVATIONS, activation("softmax")], ids=lambda h: h.name)
def test_activations_survive_pickling(h: Activation) -> None:
    again = pickle.loads(pickle.dumps(h))
    np.testing.assert_array_equal(again(points(h)), h(points(h)))
    assert (again.name, again.domain, again.range) == (h.name, h.domain, h.range)
    assert again == h


def test_families_by_name() -> None:
    for name in FAMILIES:
        assert family(name).name == name
    assert family("gamma").link == family("tweedie").link == family("negative_binomial").link == "log"
    assert all(family(name).link == "canonical" for name in ("gaussian", "binomial", "multinomial", "poisson"))
    assert family("tweedie").parameter == 1.5 and family("negative_binomial", parameter=3.0).parameter == 3.0
    assert tweedie(2.0).name == "gamma"
    assert family(family("poisson")) is family("poisson")
    assert activation("poisson") is activation("exp") and activation(family("binomial")) is activation("sigmoid")


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: family("normal"), "Unknown family 'normal'"),
        (lambda: family("binomial", "probit"), "Unknown link 'probit'"),
        (lambda: tweedie(0.5), "above 1"),
        (lambda: tweedie(np.nan), "above 1"),
        (lambda: tweedie(1.5, "inverse"), "Unknown link"),
        (lambda: negative_binomial(0.0), "positive number"),
        (lambda: negative_binomial(np.inf), "positive number"),
        (lambda: activation("swish"), "Unknown activation 'swish'"),
        (lambda: family("gaussian", parameter=2.0), "parameter"),
        (lambda: family("gamma", parameter=2.0), "parameter"),
        (lambda: family("multinomial", "log"), "link"),
    ],
)
def test_unknown_names_are_one_clear_sentence(call, part: str) -> None:
    with pytest.raises(InputError, match=part) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_activations_and_families_are_equal_by_name_and_parameter() -> None:
    sigmoid, exponential = activation("sigmoid"), activation("exp")
    assert sigmoid != exponential and sigmoid == activation("binomial") and sigmoid != "sigmoid"
    assert hash(sigmoid) == hash(activation("binomial")) != hash(exponential)
    assert tweedie(1.5) == family("tweedie") != tweedie(1.6) and tweedie(1.5) != tweedie(1.5, "canonical")
    assert tweedie(1.5, "canonical").activation != tweedie(1.6, "canonical").activation
    assert len({tweedie(1.5), family("tweedie", "log", 1.5), gamma(), family("gamma")}) == 2


def test_distances_from_the_boundary_are_half_of_the_nearest_mean() -> None:
    sigmoid, means = activation("sigmoid"), np.array([[0.0], [0.1], [0.6], [1.0]])
    assert boundary_distances(means, sigmoid) == pytest.approx((0.05, 0.2), rel=1e-14)
    eta, count = scores_of(means, sigmoid, (0.05, 0.2))
    np.testing.assert_allclose(sigmoid(eta), [[0.05], [0.1], [0.6], [0.8]], rtol=1e-14)
    assert count == 2
    two = np.array([[0.0, 1.0], [0.0, 0.5], [0.3, 0.7]])  # a row counts once, whichever of its means it is
    assert scores_of(two, sigmoid, (0.1, 0.1))[1] == 2
    assert boundary_distances(np.array([[0.0], [1.0]]), sigmoid) == (0.25, 0.25)  # nothing in between: 0.5 / rows
    assert boundary_distances(np.array([[0.0], [4.0]]), activation("exp")) == (2.0, 0.0)
    assert boundary_distances(np.array([[-3.0], [4.0]]), activation("identity")) == (0.0, 0.0)
    near = np.array([[1.0 - 1e-16], [0.5]])
    assert boundary_distances(near, sigmoid)[1] == np.finfo(float).epsneg


def test_which_losses_are_convex() -> None:
    convex = [family("gaussian"), family("binomial", "log"), family("poisson"), gamma(), family("multinomial")]
    convex += [family("gamma", "log"), family("negative_binomial", "log", 2.0), family("tweedie", "log", 1.5)]
    convex += [family("tweedie", "canonical", 1.5)]
    assert all(one.is_convex for one in convex)
    assert not any(one.is_convex for one in (family("gaussian", "log"), family("tweedie", "log", 3.0)))


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("identity", (-np.inf, np.inf)),
        ("sigmoid", (0.0, 1.0)),
        ("exp", (0.0, np.inf)),
        ("relu", (0.0, np.inf)),
        ("tanh", (-1.0, 1.0)),
        ("leaky_relu", (-np.inf, np.inf)),
        ("softplus", (0.0, np.inf)),
        ("elu", (-1.0, np.inf)),
    ],
)
def test_ranges_and_inverses_of_activations(name: str, ends: tuple[float, float]) -> None:
    found, eta = activation(name), np.array([-3.0, -0.5, 0.0, 0.5, 3.0])
    assert found.range == ends
    if found.inverse is not None:
        np.testing.assert_allclose(found.inverse(found(eta)), eta, atol=1e-12)
