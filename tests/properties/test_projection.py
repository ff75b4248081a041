"""What holds for every projection, whatever the columns."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from setsquare.errors import InputError
from setsquare.projection import GeneralizedProjector, project_out, protected_basis

NAMES = st.sampled_from(["identity", "sigmoid", "exp", "relu", "tanh"])
SEEDS = st.integers(0, 2**32 - 1)
quick = settings(deadline=None, max_examples=60)


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Outputs (n, d), protected columns (n, p) of many kinds and scales, and perhaps weights."""
    rng = np.random.default_rng(draw(SEEDS))
    n, p, d = draw(st.integers(12, 80)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    columns = []
    for _ in range(p):
        kind = draw(st.sampled_from(["normal", "group", "rare", "count", "copy", "constant"]))
        column = {
            "normal": rng.normal(size=n),
            "group": (rng.random(n) < 0.4).astype(float),
            "rare": (np.arange(n) == rng.integers(n)).astype(float),
            "count": rng.poisson(2.0, n).astype(float),
            "copy": columns[0] / np.abs(columns[0]).max() if columns else rng.normal(size=n),
            "constant": np.ones(n),
        }[kind]
        columns.append(10.0 ** draw(st.integers(-6, 6)) * (column + draw(st.sampled_from([0.0, 5.0, -100.0]))))
    X = np.column_stack(columns)
    spread = np.where(X.std(0) > 1e-10 * np.abs(X).max(0), X.std(0), np.inf)
    Y = (X - X.mean(0)) / spread @ rng.normal(size=(p, d)) + rng.normal(size=(n, d))
    weight = rng.uniform(0.2, 2.0, n) if draw(st.booleans()) else None
    assume(np.isfinite(spread).any())
    return Y, X, weight


def left(Y: np.ndarray, X: np.ndarray, weight: np.ndarray | None) -> float:
    """Largest covariance with a standardised protected column that varies."""
    w = np.full(len(X), 1.0 / len(X)) if weight is None else weight / weight.sum()
    Xc = X - w @ X
    spread = np.sqrt(w @ Xc**2)
    varies = spread > 1e-10 * np.abs(X).max(0)
    return float(np.abs((Xc[:, varies] / spread[varies]).T @ (w[:, None] * (Y - w @ Y))).max())


@given(tables())
@quick
def test_projections_are_orthogonal_and_keep_the_mean(table) -> None:
    Y, X, weight = table
    out = project_out(Y, X, weight)
    assert left(out, X, weight) <= 1e-10
    np.testing.assert_allclose(
        np.average(out, axis=0, weights=weight), np.average(Y, axis=0, weights=weight), atol=1e-10
    )


@given(tables())
@quick
def test_projections_are_idempotent(table) -> None:
    Y, X, weight = table
    once = project_out(Y, X, weight)
    np.testing.assert_allclose(project_out(once, X, weight), once, atol=1e-10)


@given(tables())
@quick
def test_projections_never_add_variance(table) -> None:
    Y, X, weight = table
    w = np.full(len(X), 1.0 / len(X)) if weight is None else weight / weight.sum()
    out = project_out(Y, X, weight)
    assert (w @ (out - w @ out) ** 2 <= (w @ (Y - w @ Y) ** 2) * (1.0 + 1e-10)).all()


@given(tables(), SEEDS)
@quick
def test_affine_maps_of_the_protected_columns_change_nothing(table, seed: int) -> None:
    Y, X, weight = table
    spread = np.where(X.std(0) > 1e-10 * np.abs(X).max(0), X.std(0), 1.0)
    unit = (X - X.mean(0)) / spread
    rng = np.random.default_rng(seed)
    A = np.linalg.qr(rng.normal(size=(X.shape[1], X.shape[1])))[0] * rng.uniform(0.5, 2.0, X.shape[1])
    mapped = unit @ A + rng.normal(size=X.shape[1])
    assert protected_basis(mapped, weight).rank == protected_basis(X, weight).rank
    np.testing.assert_allclose(project_out(Y, mapped, weight), project_out(Y, X, weight), atol=1e-9)


@given(tables(), SEEDS)
@quick
def test_the_order_of_rows_changes_nothing(table, seed: int) -> None:
    Y, X, weight = table
    order = np.random.default_rng(seed).permutation(len(X))
    permuted = project_out(Y[order], X[order], None if weight is None else weight[order])
    np.testing.assert_allclose(permuted, project_out(Y, X, weight)[order], atol=1e-9)


@given(tables(), NAMES)
@quick
def test_generalised_projections_are_orthogonal_keep_the_mean_and_the_range(table, name: str) -> None:
    Y, X, weight = table
    projector = GeneralizedProjector.fit(Y, X, name, weight)
    before, out = projector.activation(Y), projector.predict(Y, X)
    assert projector.converged.all()
    size = max(1.0, float(np.abs(before).max()))
    assert left(out, X, weight) <= 1e-9 * size
    np.testing.assert_allclose(
        np.average(out, axis=0, weights=weight), np.average(before, axis=0, weights=weight), atol=1e-10 * size
    )
    low, high = projector.activation.range
    assert out.min() >= low and out.max() <= high


@given(tables(), NAMES)
@quick
def test_generalised_projections_are_idempotent(table, name: str) -> None:
    Y, X, weight = table
    once = GeneralizedProjector.fit(Y, X, name, weight)
    pre = once.apply(Y, X)
    again = GeneralizedProjector.fit(pre, X, name, weight).predict(pre, X)
    np.testing.assert_allclose(again, once.predict(Y, X), rtol=1e-7, atol=1e-8)


@given(st.integers(1, 5), st.integers(1, 3), SEEDS)
@quick
def test_any_shape_of_rows_is_corrected_or_refused(n: int, p: int, seed: int) -> None:
    """As few rows as there are: either nothing is left to tell, or an error says why not."""
    rng = np.random.default_rng(seed)
    X, Y = rng.normal(size=(n, p)), rng.normal(size=(n, 2))
    try:
        out = project_out(Y, X)
    except InputError:
        return
    assert left(out, X, None) <= 1e-10
