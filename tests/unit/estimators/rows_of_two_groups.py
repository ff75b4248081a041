"""Rows of two groups, for models that promise something about new rows."""

from __future__ import annotations

import numpy as np


def useful(n: int = 400, q: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Half of the features that the outcome depends on are independent of the protected column."""
    rng = np.random.default_rng(seed)
    x = (rng.random(n) < 0.5).astype(float)
    Z = rng.normal(size=(n, q))
    Z[:, :4] += 0.8 * x[:, None]
    y = (rng.random(n) < 1 / (1 + np.exp(1.0 - 0.4 * Z[:, :8].sum(axis=1)))).astype(float)
    return Z, y, x


def useless(n: int = 200, q: int = 20, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The outcome depends on the protected column alone, and so do the features."""
    rng = np.random.default_rng(seed)
    x = (rng.random(n) < 0.5).astype(float)
    Z = rng.normal(size=(n, q)) + 0.8 * x[:, None]
    y = (rng.random(n) < 1 / (1 + np.exp(1 - 2 * x))).astype(float)
    return Z, y, x
