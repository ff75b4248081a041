"""ReLU layers: the paper's Theorem 5 (correct the pre-activation) fails, the generalised projection holds."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
sqnn = pytest.importorskip("setsquare.nn")


def draw(seed: int = 0) -> tuple:
    """Pre-activations (300, 3, 4) of three groups that differ in mean and in spread, and their dummy columns."""
    rng = np.random.default_rng(seed)
    group = torch.tensor(rng.integers(0, 3, 300))
    pre = torch.tensor(rng.normal(size=(300, 3, 4))) * (1.0 + group)[:, None, None] + 0.5 * group[:, None, None]
    return pre, torch.nn.functional.one_hot(group)


def gap(out: object, X: object) -> float:
    """Largest difference between two group means of a unit."""
    means = torch.einsum("nk,n...->k...", X.to(out.dtype) / X.sum(0), out)
    return float((means.amax(0) - means.amin(0)).max())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_group_means_agree_after_relu_and_did_not_before(dtype: object) -> None:
    pre, X = draw()
    pre = pre.to(dtype)
    corrected = torch.relu(sqnn.functional.generalized_project_out(pre, X, "relu"))
    assert gap(torch.relu(pre), X) > 0.5
    assert gap(corrected, X) < 1e-6 and float(corrected.min()) >= 0.0
    torch.testing.assert_close(corrected.mean(0), torch.relu(pre).mean(0))


@pytest.mark.parametrize("seed", range(3))
def test_correcting_the_pre_activation_leaves_a_leak(seed: int) -> None:
    """Theorem 5 fails: equal means before the ReLU, but unequal spreads, are unequal means after it."""
    pre, X = draw(seed)
    corrected = sqnn.Orthogonalize(3, "pre")(pre, X)
    assert gap(pre, X) > 0.5 and gap(corrected, X) < 1e-10  # what it promises
    assert gap(torch.relu(corrected), X) > 0.3  # what the theorem claims
    general = sqnn.Orthogonalize(3, "generalized", "relu")(pre, X)
    assert gap(torch.relu(general), X) < 1e-6


def test_the_counter_example_of_two_rows() -> None:
    X, pre = torch.tensor([[1.0], [-1.0]]).double(), torch.tensor([[1.0], [1.0]]).double()
    y = torch.relu(pre)
    assert float(X.T @ pre) == 0.0
    loss = [float((y - torch.relu(X * beta)).square().sum()) for beta in (0.0, 1.0)]
    assert loss == [2.0, 1.0], "an effect of one explains more than none, though the pre-activation is orthogonal"
