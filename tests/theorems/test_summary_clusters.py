"""Intervals of coefficients with few clusters: t quantiles cover more than normal ones; the table says what is left."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import setsquare as sq


def _draw(seed: int, n_clusters: int, each: int = 40):
    rng = np.random.default_rng([seed, n_clusters])
    unit = np.repeat(np.arange(n_clusters), each)
    x = (rng.random(n_clusters) < 0.5)[unit].astype(float)
    Z = np.sqrt(0.5) * (rng.normal(size=(len(unit), 4)) + rng.normal(size=(n_clusters, 4))[unit])
    Z[:, :2] += 0.5 * x[:, None]
    y = Z.sum(axis=1) + rng.normal(size=n_clusters)[unit] + rng.normal(size=len(unit))
    return Z, y, x, unit


def test_few_clusters_have_wider_intervals_than_normal_ones_which_cover_more() -> None:
    estimates, errors = [], []
    for seed in range(300):
        Z, y, x, unit = _draw(seed, 10)
        if len(np.unique(x)) < 2:
            continue
        model = sq.OrthogonalGLMRegressor().fit(Z, y, protected=x, cluster=unit)
        estimates.append(np.r_[model.intercept_, model.coef_.ravel()])
        errors.append(model.solution_.std_error.ravel())
    far = np.abs(np.array(estimates) - np.median(estimates, axis=0)) / np.array(errors)
    normal, wider = (np.mean(far < limit) for limit in (stats.norm.ppf(0.975), stats.t.ppf(0.975, 9)))
    assert normal < 0.90  # of 0.95: before
    assert wider > normal + 0.02 and wider > 0.85


@pytest.mark.parametrize("how", ["summary", "bootstrap"])
def test_intervals_and_p_values_have_one_degree_of_freedom_less_than_clusters(how: str) -> None:
    Z, y, x, unit = _draw(3, 12)
    model = sq.OrthogonalGLMRegressor().fit(Z, y, protected=x, cluster=unit)
    rows = (Z, y, x, None, None, unit)
    found = model.summary(refits=0) if how == "summary" else model.bootstrap(*rows, n_samples=10)
    table, t = found.table(), stats.t(11)
    np.testing.assert_allclose((table.ci_high - table.estimate) / table.std_error, t.ppf(0.975))
    np.testing.assert_allclose(table.p_value, 2.0 * t.sf(np.abs(table.statistic)))
    assert any("12 clusters are few" in sentence for sentence in found.about)


def test_without_clusters_and_with_many_nothing_is_said() -> None:
    Z, y, x, unit = _draw(3, 60)
    alone, many = (sq.OrthogonalGLMRegressor().fit(Z, y, protected=x, cluster=c) for c in (None, unit))
    assert alone.solution_.n_clusters is None and many.solution_.n_clusters == 60
    for model, half in ((alone, stats.norm.ppf(0.975)), (many, stats.t.ppf(0.975, 59))):
        found = model.summary(refits=0)
        table = found.table()
        np.testing.assert_allclose((table.ci_high - table.estimate) / table.std_error, half)
        assert not any("clusters are few" in sentence for sentence in found.about)


def test_the_number_of_clusters_is_saved(tmp_path) -> None:
    Z, y, x, unit = _draw(3, 12)
    model = sq.OrthogonalGLMRegressor().fit(Z, y, protected=x, cluster=unit)
    sq.save(model, tmp_path / "model.setsquare")
    assert sq.load(tmp_path / "model.setsquare").summary(refits=0).rows() == model.summary(refits=0).rows()
