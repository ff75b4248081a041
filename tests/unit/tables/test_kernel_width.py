"""The width of a kernel basis: narrower with more rows, wider where few features predict."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from setsquare import tables


def learned(n: int, room: float) -> tuple[float, int]:
    """Width in standard deviations, and the number of functions."""
    x = np.random.default_rng(0).normal(size=n)
    (coder,) = tables.learn(pd.DataFrame({"x": x}), basis="kernel", room=room).coders
    return coder.scales[0] / float(x.std()), len(coder.shift)


@pytest.mark.parametrize(("n", "width"), [(100, 1.0), (243, 1.0), (1000, 0.243**0.2)])
def test_a_kernel_is_three_times_as_wide_as_scotts_rule(n: int, width: float) -> None:
    assert learned(n, np.inf)[0] == pytest.approx(width, rel=1e-12)


def test_a_kernel_is_widened_until_its_functions_leave_room_for_two_thirds_of_the_features() -> None:
    widths = [min(1.0, 0.243**0.2 * 1.25**k) for k in range(3)]
    (_, most), (_, fewest) = learned(1000, np.inf), learned(1000, 1.0)
    assert fewest < most
    counts = {}
    for room in (3 * most, 3 * most - 1, 3 * fewest + 1, 3 * fewest, 1.0):
        width, count = learned(1000, room)
        assert any(width == pytest.approx(one, rel=1e-12) for one in widths)
        assert count <= room / 3 or width == pytest.approx(1.0)
        counts[room] = (round(width, 9), count)
    assert counts[3 * most] == (round(widths[0], 9), most) and counts[1.0] == (1.0, fewest)
    assert counts[3 * most - 1][0] == round(widths[1], 9) and counts[3 * most - 1][1] < most
