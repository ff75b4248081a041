"""Tests and confidence sequences by betting on differences between -1 and 1 (Waudby-Smith and Ramdas 2024).

If the mean of the differences D_t given the past is m, then for every predictable ``lambda_t`` the wealth
``W_t = W_{t-1} (1 + lambda_t (D_t - m))`` is a martingale that starts at 1 and stays positive. By Ville's inequality
the probability that it ever reaches 1/alpha is at most alpha, so one may look after every row. Half of the wealth is
bet on a larger mean and half on a smaller one. The confidence sequence holds every m whose wealth has never reached
1/alpha; the alarm is raised when that of m = 0 does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array

#: Distance of the candidate differences of a confidence sequence.
STEP = 0.0025
#: Largest share of the wealth that a single difference can lose.
STAKE = 0.75
#: Rows that are computed at once.
CHUNK = 512


@dataclass(frozen=True, slots=True)
class Bets:
    """State of one sequence of differences.

    Attributes
    ----------
    n : int
        Number of differences.
    total, squares : float
        Their sum, and the sum of their squared distances from the running mean.
    grid : ndarray of shape (m,)
        Candidate differences that were never excluded, and 0.
    up, down : ndarray of shape (m,)
        Log wealth of the bets on a larger and on a smaller difference than each candidate.
    low, high : float
        Ends of the confidence sequence, over all times so far.
    alarm : int
        Number of differences at the alarm; 0 if there was none.
    """

    n: int
    total: float
    squares: float
    grid: Array
    up: Array
    down: Array
    low: float = -1.0
    high: float = 1.0
    alarm: int = 0

    @property
    def mean(self) -> float:
        """Mean difference."""
        return self.total / self.n if self.n else float("nan")

    @property
    def is_constant(self) -> bool:
        """Whether one difference can explain all rows so far; otherwise it changed, and there is no interval for it."""
        return self.n == 0 or self.low <= self.mean <= self.high

    @property
    def log_wealth(self) -> float:
        """Log wealth against a difference of 0."""
        zero = int(np.argmin(np.abs(self.grid)))
        return float(np.logaddexp(self.up[zero], self.down[zero]) - np.log(2.0))


def start_bets() -> Bets:
    """State before the first difference."""
    grid = np.round(np.arange(-1.0, 1.0 + 0.5 * STEP, STEP), 12)
    return Bets(0, 0.0, 0.0, grid, np.zeros(len(grid)), np.zeros(len(grid)))


def place_bets(bets: Bets, differences: Array, alpha: float) -> Bets:
    """State after more differences; it does not depend on how they are divided into calls.

    Parameters
    ----------
    bets : Bets
    differences : ndarray of shape (n,)
        Between -1 and 1.
    alpha : float
        Probability of a false alarm, and of a confidence sequence that ever fails.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> after = place_bets(start_bets(), rng.uniform(-0.8, 1.0, 2000), 0.05)
    >>> after.alarm > 0, after.low < 0.1 < after.high
    (True, True)
    """
    for start in range(0, len(differences), CHUNK):
        bets = _place(bets, differences[start : start + CHUNK], alpha)
    return bets


def wealth_path(differences: Array) -> Array:
    """Log wealth against a difference of 0 after each row, (n,)."""
    means, variances, _ = _running(0, 0.0, 0.0, differences)
    up, down = _log_steps(differences, means, variances, np.zeros(1))
    return np.asarray(np.logaddexp(np.cumsum(up), np.cumsum(down)) - np.log(2.0))


def _place(bets: Bets, D: Array, alpha: float) -> Bets:
    means, variances, squares = _running(bets.n, bets.total, bets.squares, D)
    up, down = _log_steps(D, means, variances, bets.grid)
    up, down = bets.up + np.cumsum(up, axis=0), bets.down + np.cumsum(down, axis=0)
    wealth = np.logaddexp(up, down) - np.log(2.0)
    limit = -np.log(alpha)
    zero = int(np.argmin(np.abs(bets.grid)))
    alarm = bets.alarm
    if not alarm and (over := np.flatnonzero(wealth[:, zero] >= limit)).size:
        alarm = bets.n + int(over[0]) + 1
    inside = (bets.grid >= bets.low) & (bets.grid <= bets.high)
    left = bets.grid[inside & (wealth.max(axis=0) < limit)]
    # Ends are those of the next candidate outwards, so that nothing between two of them is lost.
    low = bets.low if not len(left) else max(bets.low, float(left[0]) - STEP)
    high = bets.high if not len(left) else min(bets.high, float(left[-1]) + STEP)
    kept = (bets.grid >= low) & (bets.grid <= high)
    kept[zero] = True
    return Bets(
        bets.n + len(D),
        bets.total + float(D.sum()),
        squares,
        bets.grid[kept],
        up[-1, kept],
        down[-1, kept],
        low,
        high,
        alarm,
    )


def _running(n: int, total: float, squares: float, D: Array) -> tuple[Array, Array, float]:
    """Mean and variance before each row, shrunk towards 0 and 1, and the new sum of squares."""
    count = n + np.arange(1, len(D) + 1)
    means = (total + np.cumsum(D)) / (count + 1.0)
    sums = squares + np.cumsum((D - means) ** 2)
    before = np.concatenate([[total / (n + 1.0)], means[:-1]])
    variances = (1.0 + np.concatenate([[squares], sums[:-1]])) / count
    return before, variances, float(sums[-1]) if len(D) else squares


def _log_steps(D: Array, means: Array, variances: Array, m: Array) -> tuple[Array, Array]:
    """Logarithms of the factors of the two wealths, (n, len(m)), with the bets of "aGRAPA"."""
    gap = means[:, None] - m
    bet = gap / (variances[:, None] + gap**2)
    excess = D[:, None] - m
    # No difference lies beyond -1 or 1, so the bets there are bounded by their own formula.
    above, below = (STAKE / np.maximum(room, 1e-9) for room in (1.0 + m, 1.0 - m))
    return np.log1p(np.clip(bet, 0.0, above) * excess), np.log1p(np.clip(bet, -below, 0.0) * excess)
