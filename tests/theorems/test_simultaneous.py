"""Simultaneous intervals hold for all groups at once, and pointwise ones do not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from setsquare.auditing.groups.audited import number_groups
from setsquare.auditing.groups.critical_values import covariance, critical_value
from setsquare.auditing.groups.intervals import single
from setsquare.auditing.groups.partitions import partition_rows
from setsquare.auditing.groups.rates import Rows


@pytest.mark.parametrize("k", [2, 6, pytest.param(20, marks=pytest.mark.slow)])
def test_rates_are_covered_at_once(k: int) -> None:
    truth = np.linspace(0.1, 0.6, k)
    held = alone = 0
    for seed in range(200):
        rng = np.random.default_rng([seed, k])
        group = rng.integers(k, size=50 * k)
        d = (rng.random(50 * k) < truth[group]).astype(float)
        found = number_groups(Rows(d, d), partition_rows(group.astype(str).astype(object), min_group=1), seed=seed)
        order = [int(one.name) for one in found.groups]
        rates = found.measures.columns["selection_rate"]
        held += bool(((rates.low <= truth[order]) & (truth[order] <= rates.high)).all())
        low, high = single(found.numbers["selection_rate"].estimates, 1.96)
        alone += bool(((low <= truth[order]) & (truth[order] <= high)).all())
    assert held >= 200 * 0.95 - 2.6 * np.sqrt(200 * 0.05 * 0.95)
    if k == 20:
        assert alone < 120


def test_the_critical_value_of_independent_numbers_is_sidaks() -> None:
    found = critical_value(np.eye(10), np.arange(10), None, 0.95, np.random.default_rng(0), 200_000)
    assert found == pytest.approx(norm.ppf(0.5 + 0.5 * 0.95 ** (1 / 10)), abs=0.01)


def test_equal_numbers_need_no_correction() -> None:
    found = critical_value(np.ones((10, 10)), np.arange(10), None, 0.95, np.random.default_rng(0), 200_000)
    assert found == pytest.approx(norm.ppf(0.975), abs=0.02)


def test_covariances_equal_those_of_dense_influences_with_and_without_clusters() -> None:
    rng = np.random.default_rng(0)
    codes = [rng.integers(-1, 3, 200), rng.integers(-1, 4, 200)]
    psi = [rng.normal(size=200), rng.normal(size=200)]
    dense = np.column_stack([a * (c == g) for a, c, k in zip(psi, codes, (3, 4), strict=True) for g in range(k)])
    for cluster in (None, rng.integers(40, size=200)):
        sums = dense if cluster is None else np.array([dense[cluster == g].sum(axis=0) for g in range(40)])
        units = (sums != 0.0).sum(axis=0)
        factor = np.sqrt(units / (units - 1.0))
        expected = sums.T @ sums * factor * factor[:, None]
        np.testing.assert_allclose(covariance(psi, codes, [3, 4], cluster), expected, atol=1e-10)
