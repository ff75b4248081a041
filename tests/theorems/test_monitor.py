"""Betting: the wealth of a fair game is a martingale, alarms are rare at every look, differences are found."""

from __future__ import annotations

import numpy as np
import pytest

from setsquare.auditing.monitoring.betting import place_bets, start_bets, wealth_path

ALPHA = 0.05


@pytest.mark.parametrize("kind", ["beta", "decisions", "skewed"])
def test_alarms_at_any_time_are_at_most_alpha(kind: str) -> None:
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(400):
        if kind == "beta":
            y = rng.beta(2.0, 2.0, (2, 2000))
        elif kind == "decisions":
            y = (rng.random((2, 2000)) < 0.1).astype(float)
        else:
            y = rng.beta(0.2, 2.0, (2, 2000))
        alarms += bool(wealth_path(y[0] - y[1]).max() >= -np.log(ALPHA))
    assert alarms <= 400 * ALPHA + 2.3 * np.sqrt(400 * ALPHA * (1.0 - ALPHA))


def test_the_mean_wealth_of_a_fair_game_is_one() -> None:
    rng = np.random.default_rng(2)
    final = [np.exp(wealth_path(rng.choice([-1.0, 1.0], 20))[-1]) for _ in range(20_000)]
    assert np.mean(final) == pytest.approx(1.0, abs=5.0 * np.std(final) / np.sqrt(len(final)))


def test_a_look_back_would_not_be_fair() -> None:
    """The bets use the past only: a bet that sees its own row has a mean wealth above one."""
    rng = np.random.default_rng(2)
    cheating = [np.prod(1.0 + 0.1 * np.sign(d) * d) for d in rng.choice([-1.0, 1.0], (200, 20))]
    assert np.mean(cheating) > 2.0


def test_confidence_sequences_hold_at_all_times() -> None:
    rng = np.random.default_rng(3)
    missed = 0
    for _ in range(120):
        y = rng.beta(2.0, 2.0, (2, 1000))
        bets = place_bets(start_bets(), 0.8 * y[0] - y[1], ALPHA)
        missed += not bets.low <= -0.1 <= bets.high  # ends are of all times so far
    assert missed <= 120 * ALPHA + 2.3 * np.sqrt(120 * ALPHA * (1.0 - ALPHA))


def test_a_difference_is_found_and_excluded() -> None:
    rng = np.random.default_rng(4)
    found = [place_bets(start_bets(), 0.9 * rng.beta(2, 2, 2000) - rng.beta(2, 2, 2000), ALPHA) for _ in range(20)]
    assert all(bets.alarm and bets.high < 0.0 for bets in found)


def test_the_path_and_the_state_agree_however_rows_are_divided() -> None:
    rng = np.random.default_rng(5)
    D = rng.uniform(-0.8, 1.0, 1700)
    bets = start_bets()
    for start in range(0, 1700, 37):
        bets = place_bets(bets, D[start : start + 37], ALPHA)
    whole = place_bets(start_bets(), D, ALPHA)
    path = wealth_path(D)
    assert bets.log_wealth == pytest.approx(path[-1], rel=1e-9)
    assert bets.alarm == whole.alarm == int(np.argmax(path >= -np.log(ALPHA))) + 1
    assert (bets.low, bets.high) == pytest.approx((whole.low, whole.high), abs=1e-12)


def test_a_difference_that_changed_has_no_interval() -> None:
    """The interval is one for a constant difference: where no constant fits, none is shown."""
    rng = np.random.default_rng(0)
    before, after = rng.uniform(-0.2, 0.2, 2000), rng.uniform(-0.3, 0.1, 2000)
    quiet = place_bets(start_bets(), before, 0.05)
    assert quiet.is_constant and not quiet.alarm
    changed = place_bets(quiet, after, 0.05)
    assert changed.alarm > 2000 and not changed.is_constant
    assert changed.high < changed.mean or changed.mean < changed.low
