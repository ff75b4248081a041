"""R's random numbers: the Mersenne Twister with ``set.seed``, normal draws by inversion, and Bernoulli draws.

The authors' figures draw their data in R. With this the same rows are drawn here.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import norm

from studies.arrays import Array

#: R draws a normal variable from 2^27 cells, and a second uniform number inside one.
_CELLS = 134_217_728


class RRandom:
    """R's default generator after ``set.seed(seed)``.

    Examples
    --------
    >>> RRandom(1).normal(3).round(7)
    array([-0.6264538,  0.1836433, -0.8356286])
    """

    def __init__(self, seed: int) -> None:
        for _ in range(50):
            seed = (69069 * seed + 1) % 2**32
        key = np.empty(625, dtype=np.uint64)
        for j in range(625):
            seed = (69069 * seed + 1) % 2**32
            key[j] = seed
        self._bits = np.random.MT19937()
        self._bits.state = {"bit_generator": "MT19937", "state": {"key": key[1:].astype(np.uint32), "pos": 624}}

    def uniform(self, n: int) -> Array:
        """``runif(n)``."""
        return np.asarray(self._bits.random_raw(n) * 2.3283064365386963e-10)

    def normal(self, n: int) -> Array:
        """``rnorm(n)``."""
        u = self.uniform(2 * n).reshape(n, 2)
        return np.asarray(norm.ppf((np.floor(_CELLS * u[:, 0]) + u[:, 1]) / _CELLS))

    def bernoulli(self, p: Array) -> Array:
        """``rbinom(n, 1, p)``: R draws the rarer outcome."""
        rare = np.minimum(p, 1.0 - p)
        drawn = self.uniform(len(p)) >= 1.0 - rare
        return np.where(p > 0.5, ~drawn, drawn).astype(np.float64)
