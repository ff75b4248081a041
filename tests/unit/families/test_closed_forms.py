"""Losses, activations and barriers against their formulas, over their whole domain and without a warning."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy import integrate, special

from setsquare.errors import InputError
from setsquare.families import Activation, activation, family, gamma, monotone_activation, negative_binomial, tweedie
from setsquare.families.activations import (
    LEAK,
    SIGMOID,
    boundary_distances,
    log_sum_exp,
    scores_of,
    sigmoid_sum,
    softmax,
    softplus,
)
from setsquare.families.barrier import add_barrier, barrier_loss
from setsquare.families.custom_activation import CHECKED, check_increasing
from setsquare.families.softmax import contrasts, softmax_terms

MU = np.array([0.05, 0.3, 0.5, 0.8, 0.97])
LOSSES = {
    "gaussian": (family("gaussian"), lambda y, m: 0.5 * (y - m) ** 2),
    "gaussian log": (family("gaussian", "log"), lambda y, m: 0.5 * (y - m) ** 2),
    "binomial": (family("binomial"), lambda y, m: -y * np.log(m) - (1 - y) * np.log1p(-m)),
    "binomial log": (family("binomial", "log"), lambda y, m: -y * np.log(m) - (1 - y) * np.log1p(-m)),
    "poisson": (family("poisson"), lambda y, m: m - y * np.log(m)),
    "gamma": (gamma("canonical"), lambda y, m: y / m + np.log(m)),
    "gamma log": (gamma(), lambda y, m: y / m + np.log(m)),
    "tweedie 1.3": (tweedie(1.3), lambda y, m: y * m**-0.3 / 0.3 + m**0.7 / 0.7),
    "tweedie 1.3 canonical": (tweedie(1.3, "canonical"), lambda y, m: y * m**-0.3 / 0.3 + m**0.7 / 0.7),
    "tweedie 3": (tweedie(3.0), lambda y, m: y * m**-2 / 2 - 1 / m),
    "tweedie 3 canonical": (tweedie(3.0, "canonical"), lambda y, m: y * m**-2 / 2 - 1 / m),
    "negative binomial": (negative_binomial(3.0), lambda y, m: (y + 3) * np.log(m + 3) - y * np.log(m)),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("y", [0.25, 1.0])
def test_a_loss_is_the_negative_log_likelihood_of_its_mean(name: str, y: float) -> None:
    glm, formula = LOSSES[name]
    assert glm.activation.inverse is not None
    eta, outcome = glm.activation.inverse(MU), np.full(5, y)
    np.testing.assert_allclose(glm.row_losses(outcome, eta)[0], formula(outcome, MU), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(glm.activation(eta), MU, rtol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_no_linear_predictor_of_whatever_size_makes_a_loss_warn(name: str) -> None:
    """Squares and powers overflow before the mean does."""
    glm = LOSSES[name][0]
    eta = np.array([-1e5, -745.0, -400.0, -1e-5, -1e-200, -1e-310, 0.0, 1e-9, 30.0, 360.0, 709.0, 1e5])
    for y in (0.0, 1.0) if glm.open_below is False else (1e-300, 1.0):
        loss = glm.row_losses(np.full(12, y), eta)[0]
        assert not np.isnan(loss).any()


# ------------------------------------------------------------------------------------------------- activations
@pytest.mark.parametrize("name", ["leaky_relu", "softplus", "elu", "gelu", "tanh", "relu", "sigmoid"])
def test_antiderivatives_are_integrals(name: str) -> None:
    h = activation(name)
    for low, high in ((-0.7, 0.4), (0.5, 2.0)) + (((-6.0, -0.7),) if name != "gelu" else ()):
        ends = h.evaluate(np.array([low, high]))[0]
        area = integrate.quad(lambda u: float(h(np.array([u]))[0]), low, high, points=[0.0] if low < 0 < high else None)
        assert ends[1] - ends[0] == pytest.approx(area[0], rel=1e-8)


def test_values_of_further_activations() -> None:
    u = np.array([-800.0, -30.0, -2.0, -0.5, 0.0, 0.5, 2.0, 30.0, 800.0])
    H, h, slope, bend = activation("softplus").evaluate(u)
    np.testing.assert_allclose(h, np.logaddexp(0.0, u), rtol=1e-14)
    np.testing.assert_allclose(slope, special.expit(u), rtol=1e-14)
    np.testing.assert_allclose(bend, special.expit(u) * special.expit(-u), rtol=1e-13)
    np.testing.assert_allclose(H[[0, -1]], [0.0, 320000.0 + np.pi**2 / 6.0], rtol=1e-15)
    assert H[4] == pytest.approx(np.pi**2 / 12.0, rel=1e-14)
    np.testing.assert_allclose(softplus(u), h, rtol=0.0)

    H, h, slope, bend = activation("elu").evaluate(u)
    np.testing.assert_allclose(h, np.where(u > 0, u, np.expm1(np.minimum(u, 0))), rtol=1e-15)
    np.testing.assert_allclose(slope, np.where(u > 0, 1.0, np.exp(np.minimum(u, 0))), rtol=1e-15)
    np.testing.assert_allclose(bend, np.where(u > 0, 0.0, np.exp(np.minimum(u, 0))), rtol=1e-15)
    np.testing.assert_allclose(H, np.where(u > 0, u * u / 2, np.expm1(np.minimum(u, 0)) - u), rtol=1e-14, atol=1e-300)

    H, h, slope, bend = activation("leaky_relu").evaluate(u)
    assert LEAK == 0.01  # torch's
    np.testing.assert_allclose(h, np.where(u > 0, u, 0.01 * u), rtol=1e-15)
    np.testing.assert_allclose(H, np.where(u > 0, u * u / 2, 0.005 * u * u), rtol=1e-14)
    np.testing.assert_array_equal(slope, np.where(u > 0, 1.0, 0.01))
    assert not bend.any()

    H, h, slope, bend = activation("gelu").evaluate(u)
    low = u < -0.7517915
    assert all(np.isnan(part[low]).all() for part in (H, h, slope, bend))
    inner = u[~low]
    np.testing.assert_allclose(h[~low], inner * special.ndtr(inner), rtol=1e-14)
    assert np.isfinite(np.stack([H, h, slope, bend])[:, ~low]).all()
    assert slope[-1] == 1.0 and bend[-1] == 0.0 and H[-1] == pytest.approx((800.0**2 - 1.0) / 2.0, rel=1e-15)


def test_gelu_begins_where_its_slope_is_zero_and_tells_its_domain() -> None:
    gelu = activation("gelu")
    lowest = gelu.domain[0]
    assert gelu.domain[1] == np.inf and gelu.range[0] == pytest.approx(lowest * special.ndtr(lowest), abs=2e-4)
    assert abs(gelu.evaluate(np.array([lowest + 1e-12]))[2][0]) < 1e-10
    assert np.isnan(gelu(np.array([lowest])))[0] and gelu.inverse is None


def test_a_single_number_is_activated_too() -> None:
    for ours, theirs in zip(SIGMOID.evaluate(np.array(0.7)), SIGMOID.evaluate(np.array([0.7])), strict=True):
        assert np.ndim(ours) == 0 and ours == theirs[0]
    assert SIGMOID(0.7) == special.expit(0.7)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000])
def test_the_sum_of_the_antiderivative_for_any_number_of_rows(n: int) -> None:
    eta = np.random.default_rng(n).normal(scale=20.0, size=n)
    total, *rest = sigmoid_sum(eta)
    H, *parts = SIGMOID.evaluate(eta)
    assert total == pytest.approx(H.sum(), rel=1e-14) and isinstance(total, float)
    for ours, theirs in zip(rest, parts, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(SIGMOID(eta), parts[0])
    np.testing.assert_allclose(H, np.logaddexp(0.0, eta), rtol=1e-15)


def test_softmax_works_along_the_last_axis() -> None:
    scores = np.random.default_rng(0).normal(size=(2, 3, 4))
    np.testing.assert_allclose(softmax(scores), special.softmax(scores, axis=2), rtol=1e-14)
    np.testing.assert_allclose(log_sum_exp(scores), special.logsumexp(scores, axis=2), rtol=1e-14)
    huge = np.array([[1000.0, -1000.0], [-1000.0, -999.0]])
    np.testing.assert_allclose(log_sum_exp(huge), special.logsumexp(huge, axis=1), rtol=1e-15)


def test_contrasts_cannot_be_changed_and_compare_with_the_classes_before() -> None:
    C = contrasts(4)
    with pytest.raises(ValueError, match="read-only"):
        C[0, 0] = 1.0
    for j in range(3):  # class j + 1 against the mean of classes 0 to j
        assert C[j + 1, j] > 0.0 and not C[j + 2 :, j].any()
        np.testing.assert_allclose(C[: j + 1, j], -C[j + 1, j] / (j + 1))


def test_curvature_of_a_softmax_without_multipliers_is_the_covariance() -> None:
    rng = np.random.default_rng(0)
    eta, C = rng.normal(size=(6, 2)), contrasts(3)
    terms = softmax_terms(C[[0, 1, 2, 0, 1, 2]], eta, np.zeros((6, 2)))
    for i, p in enumerate(special.softmax(eta @ C.T, axis=1)):
        np.testing.assert_allclose(terms.curvature[i], C.T @ (np.diag(p) - np.outer(p, p)) @ C, atol=1e-14)
        np.testing.assert_allclose(terms.slope[i], C.T @ (p - np.eye(3)[i % 3]), atol=1e-14)


def test_activations_and_families_say_what_they_are() -> None:
    assert repr(SIGMOID) == "<activation sigmoid>" and repr(tweedie(1.5)) == "<family tweedie(1.5), log link>"
    assert str(gamma("canonical")) == "gamma" and str(family("gaussian", "log")) == "gaussian, log link"
    assert family("binomial") != "binomial" and family("binomial") != SIGMOID


def square_root(u: np.ndarray) -> np.ndarray:
    return np.sign(u) * np.sqrt(np.abs(u))


def test_an_activation_of_the_user_is_pickled_with_its_domain_and_range() -> None:
    own = Activation("own", square_root, np.sinh, domain=(-4.0, 4.0), range=(-2.0, 2.0))  # type: ignore[arg-type]
    again = pickle.loads(pickle.dumps(own))
    assert (again.name, again.domain, again.range, again.inverse) == ("own", (-4.0, 4.0), (-2.0, 2.0), np.sinh)
    assert again.evaluate is square_root


# ------------------------------------------------------------------------------------------- functions of the user
def test_what_a_user_leaves_out_is_computed() -> None:
    u = np.array([-25.0, -2.0, -0.3, 0.0, 0.3, 2.0, 25.0])
    arctan = monotone_activation("arctan", np.arctan, lambda v: 1.0 / (1.0 + v * v))
    H, h, slope, bend = arctan.evaluate(u)
    np.testing.assert_allclose(H, u * np.arctan(u) - 0.5 * np.log1p(u * u), rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(h, np.arctan(u))
    np.testing.assert_allclose(slope, 1.0 / (1.0 + u * u), rtol=1e-15)
    np.testing.assert_allclose(bend, -2.0 * u / (1.0 + u * u) ** 2, rtol=1e-6, atol=1e-10)
    assert arctan.inverse is None and arctan.range == (-np.inf, np.inf) and arctan.name == "arctan"
    whole = monotone_activation(
        "arctan", np.arctan, lambda v: 1.0 / (1.0 + v * v), antiderivative=np.cosh, inverse=np.tan, range=(-1.6, 1.6)
    )
    assert whole.inverse is np.tan and whole.range == (-1.6, 1.6)
    np.testing.assert_array_equal(whole.evaluate(u)[0], np.cosh(u))


def one(v: np.ndarray) -> np.ndarray:
    return np.ones_like(v)


def test_kinks_and_flat_parts_are_no_fall() -> None:
    check_increasing("clipped", lambda v: np.clip(v, -1.0, 1.0), lambda v: (np.abs(v) < 1.0).astype(float))
    check_increasing("constant", lambda v: 0.0 * v, lambda v: 0.0 * v)
    check_increasing("a million", lambda v: 1e6 + 0.0 * v, lambda v: 0.0 * v)
    steep = 1e6
    check_increasing("steep", lambda v: steep * v, lambda v: steep * one(v))
    assert CHECKED[0] == -30.0 and CHECKED[-1] == 30.0 and len(CHECKED) > 5000


def test_a_rounding_error_of_a_large_value_is_no_fall() -> None:
    for size in (1.0, 1e6):
        check_increasing("last digit", lambda v, m=size: np.where(v > 0.0, np.nextafter(m, 0.0), m), np.zeros_like)
    with pytest.raises(InputError, match="decreases at"):
        check_increasing("digits", lambda v: np.where(v > 0.0, 1e6 - 1e-5, 1e6), np.zeros_like)


@pytest.mark.parametrize("size", [1e9, -1e10])
def test_a_slope_may_be_wrong_by_the_rounding_of_large_values(size: float) -> None:
    check_increasing("far from zero", lambda v: size + np.tanh(v / 9.0), lambda v: (1.0 - np.tanh(v / 9.0) ** 2) / 9.0)
    with pytest.raises(InputError, match="is not its derivative"):
        check_increasing("wrong", lambda v: size + np.tanh(v / 9.0), lambda v: 9.0 * one(v))


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_a_slope_may_be_wrong_by_what_differences_are(scale: float) -> None:
    check_increasing("near", lambda v: scale * v, lambda v: scale * (1.0 + 5e-5) * one(v))
    for wrong in (1.0 + 1.5e-4, 1.0 - 1.5e-4):
        with pytest.raises(InputError, match="wrong is not its derivative, at -30"):
            check_increasing("wrong", lambda v: scale * v, lambda v, wrong=wrong: scale * wrong * one(v))


def test_a_small_slope_is_compared_absolutely() -> None:
    check_increasing("small", lambda v: 1e-3 * v, lambda v: (1e-3 + 5e-5) * one(v))
    with pytest.raises(InputError, match="is not its derivative"):
        check_increasing("small", lambda v: 1e-3 * v, lambda v: (1e-3 + 2e-4) * one(v))


@pytest.mark.parametrize(("share", "passes"), [(0.006, True), (0.015, False)])
def test_kinks_are_a_hundredth_of_the_points_at_most(share: float, passes: bool) -> None:
    edge = np.quantile(CHECKED, 1.0 - share)

    def slope(v: np.ndarray) -> np.ndarray:
        return np.where(v > edge, 2.0, 1.0)

    if passes:
        check_increasing("bent", lambda v: v, slope)
    else:
        with pytest.raises(InputError, match=f"at {edge:.2g}"):
            check_increasing("bent", lambda v: v, slope)


def test_where_a_function_falls_is_named() -> None:
    with pytest.raises(InputError, match=r"hill decreases at 20[\d.]*: .*where=\"post\""):
        check_increasing("hill", lambda v: np.minimum(v, 40.0 - v), lambda v: np.where(v < 20.0, 1.0, 0.0))
    with pytest.raises(InputError, match="says decreases at 10"):  # by its slope
        check_increasing("says", lambda v: v, lambda v: np.where(v > 10.0, -1.0, 1.0))
    with pytest.raises(InputError, match=r"tangent is not finite on \[-30, 30\]"):
        check_increasing("tangent", lambda v: np.where(v == 30.0, np.inf, v), one)
    with pytest.raises(InputError, match="wave decreases at"):  # by little, but more than rounding
        check_increasing("wave", lambda v: -1e-9 * v, lambda v: 0.0 * v)


# ---------------------------------------------------------------------------------------------------- barrier
def test_a_barrier_has_its_derivatives_and_no_value_outside() -> None:
    glm, y, v = family("binomial", "log"), np.array([[0.0], [1.0], [0.4]]), np.full((3, 1), 0.3)
    eta, step = np.array([[-2.0], [-0.1], [-0.7]]), 1e-6

    def with_barrier(e: np.ndarray):
        return add_barrier(glm.terms(y, e, v), e, 0.25, 0.05)

    terms, plain = with_barrier(eta), glm.terms(y, eta, v)
    up, down = with_barrier(eta + step), with_barrier(eta - step)
    np.testing.assert_allclose(terms.loss - plain.loss, -0.05 * np.log(0.25 - eta[:, 0]), rtol=1e-12)
    np.testing.assert_allclose(terms.slope[:, 0], (up.loss - down.loss) / (2 * step), rtol=1e-7)
    np.testing.assert_allclose((terms.curvature - plain.curvature)[:, 0, 0], 0.05 / (0.25 - eta[:, 0]) ** 2, rtol=1e-12)
    np.testing.assert_array_equal(terms.mean, plain.mean)
    edge = barrier_loss(np.array([[0.2], [0.25], [0.3]]), 0.25, 0.05)
    assert edge[0] == pytest.approx(-0.05 * np.log(0.05)) and list(edge[1:]) == [np.inf, np.inf]


def test_distances_from_ends_that_are_not_0_and_1() -> None:
    means = np.array([[-1.0], [-0.5], [0.8], [1.0]])
    assert boundary_distances(means, activation("tanh")) == pytest.approx((0.25, 0.1), rel=1e-14)
    wide = Activation("wide", square_root, np.sinh, range=(0.0, 1024.0))  # type: ignore[arg-type]
    near = np.array([[1024.0 - 2.0**-43], [512.0]])
    assert boundary_distances(near, wide) == (256.0, np.finfo(float).epsneg * 1024.0)
    assert scores_of(near, activation("exp"), (0.5, 0.0))[1] == 0


def test_the_deviance_of_a_negative_binomial_family_depends_on_its_parameter() -> None:
    y, mu = np.array([0.0, 3.0]), np.array([1.0, 2.0])
    for theta in (0.5, 2.0):
        zero = 2.0 * theta * np.log((1.0 + theta) / theta)
        three = 2.0 * (3.0 * np.log(1.5) - (3.0 + theta) * np.log((3.0 + theta) / (2.0 + theta)))
        assert negative_binomial(theta).deviance(y, mu) == pytest.approx(zero + three)
