"""The generalised projection for further activations, in numpy and torch, and for functions given by the user."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from setsquare.errors import InputError
from setsquare.families import activation, monotone_activation
from setsquare.projection import GeneralizedProjector

NAMES = ("leaky_relu", "softplus", "elu", "gelu")


def rows(name: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.random(400) < 0.3, rng.normal(size=400)]).astype(float)
    eta = 0.8 * X[:, :1] + 0.6 * X[:, 1:] + rng.normal(size=(400, 3))
    return (np.abs(eta) + 1.5 if name == "gelu" else eta), X


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_and_antiderivative_belong_together(name: str) -> None:
    u = np.linspace(-0.7, 4.0, 301) if name == "gelu" else np.linspace(-8.0, 8.0, 401)
    H, h, slope, bend = activation(name).evaluate(u)
    step = 1e-5
    up, down = activation(name).evaluate(u + step), activation(name).evaluate(u - step)
    smooth = np.abs(u) > 2 * step
    for value, k in ((h, 0), (slope, 1), (bend, 2)):
        numeric = (up[k] - down[k]) / (2 * step)
        np.testing.assert_allclose(value[smooth], numeric[smooth], atol=1e-6)
    assert np.isfinite(H).all() and (slope >= 0.0).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_output_is_orthogonal_and_was_not(name: str) -> None:
    eta, X = rows(name)
    h = activation(name)
    after = GeneralizedProjector.fit(eta, X, name).predict(eta, X)
    before = np.abs(np.corrcoef(h(eta).T, X.T)[:3, 3:]).max()
    assert before > 0.1 and np.abs(np.corrcoef(after.T, X.T)[:3, 3:]).max() < 1e-9
    np.testing.assert_allclose(after.mean(0), h(eta).mean(0), atol=1e-10)
    assert after.min() >= h.range[0]


@pytest.mark.parametrize("name", NAMES)
def test_torch_finds_the_same_and_its_gradient_is_right(name: str) -> None:
    torch = pytest.importorskip("torch")
    from setsquare.nn.functional import generalized_project_out

    eta, X = rows(name)
    eta, X = eta[:60, :1], X[:60]
    pre = torch.tensor(eta, requires_grad=True)
    corrected = generalized_project_out(pre, torch.tensor(X), name)
    np.testing.assert_allclose(corrected.detach(), GeneralizedProjector.fit(eta, X, name).apply(eta, X), atol=1e-8)
    weight = torch.linspace(-1.0, 1.0, 60, dtype=torch.float64)[:, None]
    (weight * corrected).sum().backward()
    for i in (0, 7):
        moved = [eta.copy(), eta.copy()]
        moved[0][i] += 1e-5
        moved[1][i] -= 1e-5
        ends = [
            float((weight * generalized_project_out(torch.tensor(one), torch.tensor(X), name)).sum()) for one in moved
        ]
        assert float(pre.grad[i, 0]) == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-4)


def test_gelu_is_refused_where_it_decreases() -> None:
    torch = pytest.importorskip("torch")
    from setsquare.nn.functional import generalized_project_out

    eta, X = rows("elu")
    with pytest.raises(InputError, match="gelu has no finite value or decreases"):
        GeneralizedProjector.fit(eta, X, "gelu")
    with pytest.raises(InputError, match="GELU decreases below"):
        generalized_project_out(torch.tensor(eta), torch.tensor(X), "gelu")


def test_a_function_of_the_user_works_and_can_be_pickled_if_its_parts_can() -> None:
    eta, X = rows("elu")
    bent = monotone_activation("arcsinh", np.arcsinh, lambda u: 1.0 / np.sqrt(1.0 + u * u), inverse=np.sinh)
    after = GeneralizedProjector.fit(eta, X, bent).predict(eta, X)
    assert np.abs(np.corrcoef(np.arcsinh(eta).T, X.T)[:3, 3:]).max() > 0.1
    assert np.abs(np.corrcoef(after.T, X.T)[:3, 3:]).max() < 1e-9
    assert pickle.loads(pickle.dumps(activation("elu"))) is activation("elu")


@pytest.mark.parametrize(
    ("h", "slope", "message"),
    [
        (np.sin, np.cos, "decreases at"),
        (lambda u: u / (1.0 + np.exp(-u)), lambda u: np.gradient(u / (1.0 + np.exp(-u)), u), "decreases at"),
        (np.arctan, lambda u: np.ones_like(u), "is not its derivative"),
        (lambda u: np.log(u), lambda u: 1.0 / u, "is not finite"),
    ],
    ids=["sine", "swish", "wrong slope", "log"],
)
def test_functions_that_are_not_monotone_are_refused(h: object, slope: object, message: str) -> None:
    with np.errstate(all="ignore"), pytest.raises(InputError, match=message):
        monotone_activation("wrong", h, slope)  # type: ignore[arg-type]


def test_a_registered_activation_works_in_a_layer_and_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    import setsquare.nn as sqnn
    from setsquare.nn.activations import ACTIVATIONS

    monkeypatch.setitem(ACTIVATIONS, "arctan", ACTIVATIONS["relu"])  # registered below, and gone after the test
    sqnn.register_activation("arctan", torch.atan, lambda u: 1.0 / (1.0 + u * u))
    eta, X = rows("elu")
    layer = sqnn.Orthogonalize(2, activation="arctan")
    out = torch.atan(layer(torch.tensor(eta), torch.tensor(X))).numpy()
    assert (
        np.abs(np.corrcoef(out.T, X.T)[:3, 3:]).max()
        < 1e-6
        < 0.1
        < np.abs(np.corrcoef(np.arctan(eta).T, X.T)[:3, 3:]).max()
    )
    for name, h, slope in (("relu", torch.relu, torch.ones_like), ("sine", torch.sin, torch.cos)):
        with pytest.raises(InputError):
            sqnn.register_activation(name, h, slope)
