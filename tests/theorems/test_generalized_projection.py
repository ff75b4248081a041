"""THEORY §4: the generalised projection is exactly orthogonal, keeps the mean and never leaves the range."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import statsmodels.api as sm

from setsquare.families import Activation, activation, contrasts, family
from setsquare.projection import GeneralizedProjector, project_out

ACTIVATIONS = (
    activation("identity"),
    activation("sigmoid"),
    activation("exp"),
    activation("relu"),
    activation("tanh"),
    family("gamma", "canonical").activation,
    family("tweedie", "canonical", 1.5).activation,
    family("tweedie", "canonical", 3.0).activation,
    family("negative_binomial", "canonical", 2.0).activation,
)
each_activation = pytest.mark.parametrize("h", ACTIVATIONS, ids=lambda h: h.name)


def draw_units(h: Activation | None, n: int = 500, d: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pre-activations (n, d) in the domain of ``h`` that depend on protected columns of different scales."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.random(n) < 0.2, rng.normal(40.0, 10.0, n), rng.exponential(1e-3, n)]).astype(float)
    unit = (X - X.mean(0)) / X.std(0)
    eta = 0.7 * unit @ rng.normal(size=(3, d)) + rng.normal(size=(n, d))
    if h is not None and h.domain[1] < np.inf:
        eta = -np.exp(0.3 * eta)
    return eta, X


def correlations(out: np.ndarray, X: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    w = np.full(len(X), 1.0 / len(X)) if weight is None else weight / weight.sum()
    centred, rest = X - w @ X, out - w @ out
    scale = np.sqrt(w @ centred**2)[:, None] * np.sqrt(w @ rest**2)
    return centred.T @ (w[:, None] * rest) / scale


@each_activation
@pytest.mark.parametrize("weighted", [False, True], ids=["equal weights", "weighted"])
def test_orthogonal_mean_kept_and_in_range(h: Activation, weighted: bool) -> None:
    eta, X = draw_units(h)
    weight = np.random.default_rng(1).uniform(0.1, 2.0, len(X)) if weighted else None
    projector = GeneralizedProjector.fit(eta, X, h, weight)
    before, after = h(eta), projector.predict(eta, X)
    assert (np.abs(correlations(before, X, weight)).max(axis=0) > 0.05).all()
    assert np.abs(correlations(after, X, weight)).max() <= 1e-10
    np.testing.assert_allclose(
        np.average(after, axis=0, weights=weight), np.average(before, axis=0, weights=weight), rtol=1e-12
    )
    assert after.min() >= h.range[0] and after.max() <= h.range[1]
    assert projector.converged.all() and projector.residual.max() <= 1e-10 and projector.n_iter <= 20
    np.testing.assert_allclose(h(projector.apply(eta, X)), after, atol=0.0)


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("weighted", [False, True], ids=["equal weights", "weighted"])
def test_softmax_is_orthogonal_and_keeps_its_means(classes: int, weighted: bool) -> None:
    h = activation("softmax")
    eta, X = draw_units(h, d=classes)
    weight = np.random.default_rng(1).uniform(0.1, 2.0, len(X)) if weighted else None
    projector = GeneralizedProjector.fit(eta, X, "softmax", weight)
    before, after = h(eta), projector.predict(eta, X)
    assert np.abs(correlations(before, X, weight)).max() > 0.05
    assert np.abs(correlations(after, X, weight)).max() <= 1e-10
    np.testing.assert_allclose(
        np.average(after, axis=0, weights=weight), np.average(before, axis=0, weights=weight), atol=1e-12
    )
    np.testing.assert_allclose(after.sum(1), 1.0, atol=1e-14)
    assert after.min() >= 0.0 and projector.converged.all()


def test_two_classes_of_the_softmax_are_the_sigmoid() -> None:
    eta, X = draw_units(None, d=2)
    soft = GeneralizedProjector.fit(eta, X, "softmax").predict(eta, X)[:, 1]
    difference = eta[:, 1] - eta[:, 0]
    np.testing.assert_allclose(
        soft, GeneralizedProjector.fit(difference, X, "sigmoid").predict(difference, X), atol=1e-10
    )


@pytest.mark.parametrize(
    ("name", "glm"),
    [
        ("sigmoid", sm.families.Binomial()),
        ("exp", sm.families.Poisson()),
    ],
)
def test_it_is_a_glm_fit_with_offset_and_a_constant_response(name: str, glm) -> None:
    eta, X = draw_units(None, d=1)
    h = activation(name)
    design = sm.add_constant((X - X.mean(0)) / X.std(0))
    response = np.full(len(X), h(eta).mean())
    fit = sm.GLM(response, design, glm, offset=eta[:, 0]).fit(tol=1e-14, maxiter=100)
    ours = GeneralizedProjector.fit(eta[:, 0], X, name).predict(eta[:, 0], X)
    np.testing.assert_allclose(ours, fit.fittedvalues, atol=1e-10)
    assert np.abs(fit.params).max() > 0.1  # there was something to correct


def test_it_is_a_glm_fit_for_the_inverse_link_too() -> None:
    h = family("gamma", "canonical").activation
    eta, X = draw_units(h, d=1)
    design = sm.add_constant((X - X.mean(0)) / X.std(0))
    response = np.full(len(X), h(eta).mean())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the inverse power link does not respect the domain, statsmodels says
        glm = sm.families.Gamma(sm.families.links.InversePower())
        fit = sm.GLM(response, design, glm, offset=-eta[:, 0]).fit(tol=1e-14, maxiter=100)
    ours = GeneralizedProjector.fit(eta[:, 0], X, h).predict(eta[:, 0], X)
    np.testing.assert_allclose(ours, fit.fittedvalues, rtol=1e-9)


def test_the_identity_is_the_ordinary_projection() -> None:
    eta, X = draw_units(None)
    ours = GeneralizedProjector.fit(eta, X, "identity").predict(eta, X)
    np.testing.assert_allclose(ours, project_out(eta, X), atol=1e-12)


@each_activation
def test_the_derivative_of_the_convex_objective_is_the_condition(h: Activation) -> None:
    """Finite differences of ``sum H(eta - a - xb) + n m a`` are covariances and mean anywhere, zero at the solution."""
    eta, X = draw_units(h, d=1)
    eta = eta[:, 0]
    unit = (X - X.mean(0)) / X.std(0)
    D = np.column_stack([np.ones(len(X)), unit])
    m = h(eta).mean()

    def objective(b: np.ndarray) -> float:
        return float(np.mean(h.evaluate(eta - D @ b)[0]) + m * b[0])

    def condition(b: np.ndarray) -> np.ndarray:
        out = h(eta - D @ b)
        return np.concatenate([[m - out.mean()], -unit.T @ out / len(out)])

    projector = GeneralizedProjector.fit(eta, X, h)
    at_solution = np.linalg.lstsq(D, eta - projector.apply(eta, X), rcond=None)[0]
    for point in (np.zeros(4), 0.7 * at_solution, at_solution):
        step = 1e-5 * np.eye(4)
        slopes = [(objective(point + s) - objective(point - s)) / 2e-5 for s in step]
        np.testing.assert_allclose(slopes, condition(point), atol=1e-8)
    assert np.abs(condition(np.zeros(4))).max() > 1e-3
    assert np.abs(condition(at_solution)).max() < 1e-12
    rng = np.random.default_rng(4)
    others = [objective(at_solution + 0.05 * rng.normal(size=4)) for _ in range(20)]
    finite = np.asarray(others)[~np.isnan(others)]
    assert len(finite) and (finite > objective(at_solution)).all()  # convex: a minimum, and the only one


@each_activation
def test_many_units_at_once_equal_one_unit_at_a_time(h: Activation) -> None:
    eta, X = draw_units(h, d=12)
    tensor = eta.reshape(len(eta), 2, 3, 2)
    together = GeneralizedProjector.fit(tensor, X, h).predict(tensor, X)
    assert together.shape == tensor.shape
    for j in range(12):
        alone = GeneralizedProjector.fit(eta[:, j], X, h).predict(eta[:, j], X)
        np.testing.assert_allclose(together.reshape(len(eta), 12)[:, j], alone, rtol=1e-9, atol=1e-11)


def test_a_target_mean_is_reached() -> None:
    eta, X = draw_units(None)
    target = np.array([0.2, 0.5, 0.9])
    after = GeneralizedProjector.fit(eta, X, "sigmoid", target=target).predict(eta, X)
    np.testing.assert_allclose(after.mean(0), target, atol=1e-12)
    assert np.abs(correlations(after, X)).max() <= 1e-10


# ------------------------------------------------------------------------------------------------ extreme cases
EXTREME = ("sigmoid", "exp", "relu", "tanh")


@pytest.mark.parametrize("name", [*EXTREME, "softmax"])
@pytest.mark.parametrize("share", [0.01, 0.001])
def test_a_rare_group_is_corrected_too(name: str, share: float) -> None:
    rng = np.random.default_rng(2)
    n = 10_000
    group = (np.arange(n) < share * n).astype(float)
    eta = rng.normal(size=(n, 3)) + np.array([3.0, 1.0, -1.0]) * group[:, None]
    X = np.column_stack([group, rng.normal(size=n)])
    h = activation(name)
    before, after = h(eta), GeneralizedProjector.fit(eta, X, name).predict(eta, X)
    gap_before = before[group == 1].mean(0) - before[group == 0].mean(0)
    gap_after = after[group == 1].mean(0) - after[group == 0].mean(0)
    assert np.abs(gap_before).max() > 0.2
    assert np.abs(correlations(after, X)).max() <= 1e-10
    # the gap between group means is cov / var, and the group's variance is as small as its share
    assert np.abs(gap_after).max() <= 1e-10 / np.sqrt(share) + np.abs(correlations(after, X)).max() * 100


@pytest.mark.parametrize("name", [*EXTREME, "identity", "softmax"])
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_scale_of_the_protected_columns_does_not_matter(name: str, scale: float) -> None:
    eta, X = draw_units(None)
    plain = GeneralizedProjector.fit(eta, X, name).predict(eta, X)
    scaled = GeneralizedProjector.fit(eta, X * scale, name).predict(eta, X * scale)
    np.testing.assert_allclose(scaled, plain, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["relu", "identity"])
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_homogeneous_activations_carry_the_scale_of_the_units_through(name: str, scale: float) -> None:
    eta, X = draw_units(None)
    plain = GeneralizedProjector.fit(eta, X, name).predict(eta, X)
    scaled = GeneralizedProjector.fit(eta * scale, X, name).predict(eta * scale, X)
    np.testing.assert_allclose(scaled / scale, plain, atol=1e-9)


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
@pytest.mark.parametrize("scale", [1e-6, 1e3])
def test_tiny_and_saturated_pre_activations(name: str, scale: float) -> None:
    """Nearly every sigmoid is 0 or 1 to the last digit at the larger scale, nearly constant at the smaller."""
    eta, X = draw_units(None)
    h = activation(name)
    projector = GeneralizedProjector.fit(scale * eta, X, name)
    before, after = h(scale * eta), projector.predict(scale * eta, X)
    assert np.abs(correlations(before, X)).max() > 0.05
    assert projector.converged.all()
    assert np.abs(correlations(after, X)).max() <= 1e-10 + 1e-14 / after.std(0).min()
    np.testing.assert_allclose(after.mean(0), before.mean(0), atol=1e-12)


def test_large_counts() -> None:
    eta, X = draw_units(None)
    eta = eta + 20.0
    after = GeneralizedProjector.fit(eta, X, "exp").predict(eta, X)
    assert np.abs(correlations(np.exp(eta), X)).max() > 0.05
    assert np.abs(correlations(after, X)).max() <= 1e-10
    np.testing.assert_allclose(after.mean(0), np.exp(eta).mean(0), rtol=1e-12)


def test_dead_relu_units_stay_dead_and_harm_no_others() -> None:
    eta, X = draw_units(None)
    dead = np.column_stack([eta[:, 0], -1.0 - np.abs(eta[:, 1]), eta[:, 2]])
    projector = GeneralizedProjector.fit(dead, X, "relu")
    after = projector.predict(dead, X)
    assert np.isfinite(projector.coefficients).all() and projector.converged.all()
    assert (after[:, 1] == 0.0).all()
    assert np.abs(correlations(after[:, [0, 2]], X)).max() <= 1e-10
    alone = GeneralizedProjector.fit(dead[:, 0], X, "relu").predict(dead[:, 0], X)
    np.testing.assert_allclose(after[:, 0], alone, atol=1e-11)


def test_a_relu_unit_with_fewer_active_rows_than_unknowns() -> None:
    """Two active rows and three protected columns: mass must spread to other rows, and does."""
    eta, X = draw_units(None, d=1)
    eta = -1.0 - np.abs(eta[:, 0])
    eta[:2] = 1.0, 2.0
    projector = GeneralizedProjector.fit(eta, X, "relu")
    after = projector.predict(eta, X)
    assert projector.converged.all() and after.min() >= 0.0
    assert after.mean() == pytest.approx(3.0 / len(eta), rel=1e-12)
    assert np.abs(correlations(after[:, None], X)).max() <= 1e-10


def test_softmax_with_a_class_that_hardly_occurs() -> None:
    eta, X = draw_units(None)
    eta = eta + np.array([0.0, 1.0, -12.0])
    after = GeneralizedProjector.fit(eta, X, "softmax").predict(eta, X)
    before = activation("softmax")(eta)
    np.testing.assert_allclose(after.mean(0), before.mean(0), rtol=1e-8)
    covariance = (X - X.mean(0)).T @ after / len(X) / X.std(0)[:, None]
    assert np.abs(covariance).max() <= 1e-10 * after[:, 0].std()
    C = contrasts(3)
    shift = GeneralizedProjector.fit(eta, X, "softmax").coefficients
    np.testing.assert_allclose(shift @ C @ C.T, shift, atol=1e-12)  # only differences between classes are corrected
