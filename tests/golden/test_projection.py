"""Golden masters of projections and erasures; that they leave no correlation is tested in tests/theorems.

Signs and rotations of singular vectors depend on the BLAS, so maps are recorded instead of their factors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from setsquare.errors import SetsquareError
from setsquare.projection import (
    Eraser,
    GeneralizedProjector,
    Projector,
    Transport,
    basis_of_moments,
    fit_quadratic,
    generalized,
    isotropic,
    pho,
    project_out,
    protected_basis,
    ridge_erasure,
    sampled_erasure,
    single_precision,
    transport,
)
from setsquare.projection import basis as bases
from setsquare.projection.cells import find_cells
from setsquare.projection.coded_linear import effects_of_rows, fit_coded
from setsquare.projection.controls import controls_of, fit_controls
from setsquare.projection.linear import coordinates, subtract_product
from setsquare.projection.moments import Moments, Ranges, _sample
from setsquare.projection.oblique import find_oblique
from setsquare.projection.whitening import whiten
from setsquare.rows.blocks import ArrayRows, Block
from setsquare.tables.mixed_matrix import join

N = 120
ACTIVATIONS = ("identity", "sigmoid", "exp", "relu", "leaky_relu", "softplus", "elu", "tanh", "gelu", "softmax")


def draw(q: int = 5, n: int = N, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features (n, q), protected columns (n, 3) of different scales, weights (n,) of which some are zero."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.random(n) < 0.4, rng.normal(40.0, 9.0, n), 1e-3 * rng.normal(size=n)]).astype(float)
    unit = (X - X.mean(0)) / X.std(0)
    Z = 3.0 + 0.6 * unit @ rng.normal(size=(3, q)) + rng.normal(size=(n, q)) * np.geomspace(0.5, 4.0, q)
    return Z, X, np.where(np.arange(n) % 7 == 3, 0.0, rng.random(n) + 0.2)


def eraser(found: Eraser, Z: np.ndarray) -> dict[str, Any]:
    """Everything about an eraser that does not depend on signs."""
    numbers = (found.rank, found.explained, found.removed, found.n_rows, found.overlap, found.kept)
    squares = (found.squares, found.squares_before, found.n_kept, found.before, found.left)
    maps = found.directions @ found.loadings
    order = np.sort(found.correlations)
    return {"map": [found.mean, maps, order], "n": list(numbers), "squares": list(squares), "to": found.apply(Z)}


@pytest.mark.parametrize("weighted", [False, True])
def test_moments(golden, weighted):
    Z, X, w = draw()
    weight = w if weighted else None
    one, two = Moments.of(Z[:50], None if weight is None else w[:50]), Moments.of(Z[50:], 2.0 * w[50:])
    block = Block(Z, np.zeros((N, 0)), np.zeros((N, 1)), w)
    ranges = [Ranges.of(Block(np.round(A), np.zeros((len(A), 0)), np.zeros((len(A), 1)), w[: len(A)])) for A in (Z, X)]
    golden(
        {
            "of": Moments.of(Z, weight),
            "several": Moments.of([X, Z[:, :1]], weight),
            "merged": one.merge(two),
            "far": Moments.of(1e8 + Z, weight).scatter,
            "ranges": Ranges.of(block),
            "together": ranges[0].merge(Ranges.of(block)),
            "whole": ranges[1],
        }
    )


def test_samples_of_first_rows():
    assert _sample(slice(0, 512), None)[0] == slice(0, 512, 1)
    assert _sample(slice(0, 1024), None)[0] == slice(0, 1024, 2)
    assert _sample(slice(3, 1530), None) == (slice(3, 1530, 2), slice(None))
    weight = np.zeros(20)
    assert _sample(slice(0, 20), weight) == (slice(0, 20), slice(None))
    weight[[4, 6]] = 1.0
    some, counted = _sample(slice(0, 10), weight)
    assert some == slice(0, 10, 1) and np.flatnonzero(counted).tolist() == [4, 6]
    assert _sample(slice(0, 20), weight + 1.0)[1] == slice(None)
    many = np.zeros(2048)
    many[5] = 1.0  # every fourth row misses it
    some, counted = _sample(slice(0, 2048), many)
    assert some == slice(0, 2048) and np.flatnonzero(counted).tolist() == [5]


@pytest.mark.parametrize("weighted", [False, True])
def test_bases(golden, weighted):
    _, X, w = draw()
    weight = w if weighted else None
    plain = protected_basis(X, weight)
    wide = np.column_stack([X, X[:, 0] + X[:, 1], np.full(N, 7.0), X[:, 1] * (1.0 + 1e-7 * np.sin(np.arange(N)))])
    odd = protected_basis(wide, weight, tuple("abcdef"))
    of_moments = basis_of_moments(Moments.of(wide[:, :5], weight), tuple("abcde"))
    block = Block(X, np.zeros((N, 0)), np.zeros((N, 1)), w / w.sum(), X=X)
    rows = ArrayRows(X, np.zeros((N, 1)), np.zeros((N, 0)), w / w.sum(), X=X)
    low, high = X.min(axis=0), X.max(axis=0)
    golden(
        {
            "plain": plain,
            "apply": plain.apply(X[:9]),
            "odd": [odd.mean, odd.rank, odd.dropped, odd.constant, odd.collinear],
            "moments": [of_moments.rank, of_moments.dropped, of_moments.apply(wide[:, :5])],
            "reach": plain.reach(low, high),
            "leverage": [bases.leverages(plain, block), bases.largest_leverage(plain, rows)],
            "columns": [ridge_erasure.column_coordinates(plain), ridge_erasure.column_coordinates(of_moments)],
        }
    )


def test_what_a_basis_keeps_at_its_limits():
    x = np.random.default_rng(0).normal(size=N)
    x -= x.mean()
    for factor, rank in ((3.0, 2), (0.3, 1)):  # shares outside the span of the first column
        other = np.cos(np.arange(N))
        other -= other.mean()
        other -= x * (x @ other) / (x @ x)
        second = x + factor * bases.COLLINEAR * other * np.linalg.norm(x) / np.linalg.norm(other)
        assert protected_basis(np.column_stack([x, second])).rank == rank
    spread = x.std()
    assert bases.keeps_all(np.array([1.0]), np.array([[3.0 * bases.CONSTANT]])) is True
    assert bases.keeps_all(np.array([1.0]), np.array([[1e-6]])) is True
    assert bases.keeps_all(np.array([1.0]), np.array([[0.5 * bases.CONSTANT]])) is False
    R = np.array([[spread, spread], [0.0, spread * bases.COLLINEAR]])
    assert not bases.keeps_all(np.zeros(2), R * np.array([[1.0, 1.0], [1.0, 0.5]]))
    assert bases.keeps_all(np.zeros(2), R * np.array([[1.0, 1.0], [1.0, 3.0]]))
    gram = np.array([[1.0, 1.0 - 1e-5], [1.0 - 1e-5, 1.0]])
    assert bases.cholesky_factor(gram) is not None
    assert bases.cholesky_factor(gram, 1e-2) is None
    assert bases.cholesky_factor(np.diag([1.0, 0.0])) is None
    assert bases.cholesky_factor(np.array([[1.0, 2.0], [2.0, 1.0]])) is None


@pytest.mark.parametrize("weighted", [False, True])
def test_linear_corrections(golden, weighted):
    Z, X, w = draw(6)
    weight = w if weighted else None
    fit = Projector.fit(Z, X, weight)
    joint = Projector.of_moments(Moments.of([X, Z], weight), ("a", "b", "c"))
    inside = np.asfortranarray(Z)
    fit.apply(inside, X, out=inside)
    tensor = Projector.fit(Z.reshape(N, 3, 2), X, weight)
    single = fit.apply(Z.astype(np.float32), X)
    whole = fit.apply((10 * Z).astype(int), X)
    product = np.zeros((N, 6), order="F")
    subtract_product(Z, X, np.ones((3, 6)), np.empty(N * 6), product)
    golden(
        {
            "fit": [fit.coefficients, joint.coefficients, tensor.coefficients],
            "apply": [fit.apply(Z, X), joint.apply(Z, X), inside, tensor.apply(Z.reshape(N, 3, 2), X)],
            "types": [str(single.dtype), str(whole.dtype), single.sum(dtype=float), whole],
            "vector": project_out(Z[:, 0], X, weight),
            "product": product,
            "coordinates": coordinates(fit.basis, X[:4]),
        },
        relative=3e-6,
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_corrections_by_coded_categories(golden, weighted):
    Z, X, w = draw()
    weight = w if weighted else None
    codes = np.arange(N) * 7 % 11 % 5
    coded = join(X[:, :2], [codes, np.arange(N) % 3], [5, 3], [False, True, False, True])
    names = tuple(f"x{j}" for j in range(coded.shape[1]))
    basis, effects = fit_coded(Z, coded, weight, names)
    fit = Projector.fit(Z, coded, weight)
    same = join(X[:, :2], [codes, codes], [5, 5], [False, True, False, True])  # the second is collinear with the first
    again = Projector.fit(Z, same, weight)
    golden(
        {
            "effects": [basis.mean, basis.transform @ effects, basis.rank],
            "rows": effects_of_rows(basis, effects, coded)(slice(3, 17)),
            "apply": fit.apply(Z, coded),
            "same": [again.basis.rank, again.apply(Z, same), len(again.basis.dropped)],
        }
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_controls(golden, weighted):
    Z, X, w = draw()
    weight = w if weighted else None
    C = Z[:, :2]
    fit = fit_controls(X, C, weight, ("a", "b", "c"), ("u", "v"))
    partly = np.column_stack([X, C @ [1.0, 2.0] + 3.0, np.full(N, 2.0)])
    some = fit_controls(partly, C, weight, tuple("abcde"))
    flat = fit_controls(X, np.ones((N, 1)), weight, tuple("abc"))
    of = controls_of(Moments.of([C, X], weight), 2, tuple("abc"), ("u", "v"))
    golden(
        {
            "fit": [fit.mean, fit.centre, fit.coef, fit.free, of.coef],
            "residual": [fit.residual(X, C), some.residual(partly, C), flat.residual(X, np.ones((N, 1)))],
            "names": [some.names(tuple("abcde")), flat.transform.shape],
            "basis": fit.basis(C),
        }
    )


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("kind", ["plain", "weights and target"])
def test_generalised_projections(golden, name, kind):
    Z, X, w = draw(3)
    eta = (Z - Z.mean(0)) / 3.0 + (1.2 if name == "gelu" else 0.0)
    eta = np.maximum(eta, -0.6) if name == "gelu" else eta
    target = None
    if kind != "plain":
        target = np.array([0.3, 0.2, 0.5]) if name == "softmax" else 0.4
    fit = GeneralizedProjector.fit(eta, X, name, None if kind == "plain" else w, target=target)
    values = [fit.coefficients, fit.converged, fit.residual < 1e-9, fit.predict(eta, X), fit.apply(eta, X)]
    golden([*values, min(fit.n_iter, 4)])


@pytest.mark.parametrize("max_iter", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["exp", "relu", "softmax"])
def test_steps_of_generalised_projections(golden, name, max_iter):
    Z, X, _ = draw(3)
    fit = GeneralizedProjector.fit(Z / 2.0 - 1.0, X, name, max_iter=max_iter)
    golden([fit.coefficients, np.minimum(fit.residual, 1e6), fit.converged, fit.n_iter], relative=1e-5)


def test_states_of_generalised_projections(golden):
    Z, X, w = draw(3)
    basis = protected_basis(X)
    Q, share, B = basis.apply(X), w / w.sum(), 0.1 * np.arange(12.0).reshape(4, 3)
    h, mean = generalized.activation("softplus"), np.array([0.0, 0.5, -2.0])
    state = generalized._unit_sums(Z, Q, share, h, mean, B, slice(None))
    one = generalized._unit_sums(Z, Q, share, h, mean, B[:, 1:2], np.array([1]))
    soft = generalized._softmax_sums(Z[:, :2], Q, share, mean[:2], np.arange(8.0)[:, None] / 10.0, slice(None))
    damping = np.array([0.0, 0.3, 5.0])
    step, slope = generalized._damped_step(state, damping)
    trial = generalized._unit_sums(Z, Q, share, h, mean, B + step, slice(None))
    better = np.array([True, True, False])
    flat = state._replace(spread=np.array([0.0, 1e-13, 1.0]), size=np.array([1.0, 1.0, np.inf]))
    golden(
        {
            "units": state,
            "one": one,
            "softmax": soft,
            "left": [state.gap, state.left, flat.left, state.take(better)],
            "step": [step, slope, generalized._is_better(state, trial, slope)],
            "damping": [generalized._next_damping(state, damping, step, b) for b in (better, ~better)],
        }
    )


def test_when_a_step_is_better():
    ones = np.ones(6)
    state = generalized._ProblemState(ones, np.ones((1, 6)), np.ones((6, 1, 1)), ones, ones, ones, ones)
    value = np.array([1.0 - 2e-4, 1.0 - 0.5e-4, 1.0, 1.0 + 5e-14, 1.0 + 5e-13, np.nan])
    gap = np.array([[5.0, 0.5, 0.89, 0.5, 0.5, 0.5]])
    trial = state._replace(value=value, gradient=gap)
    assert generalized._is_better(state, trial, -ones).tolist() == [True, False, True, True, False, False]
    high = trial._replace(value=ones, gradient=np.array([[0.91, 0.89, -0.89, -0.91, 1.0, 0.0]]))
    assert generalized._is_better(state, high, -ones).tolist() == [False, True, True, False, False, True]


ERASERS = ["plain", "weights", "clusters", "preserve", "collinear", "collinear, preserve", "new rows", "new, clusters"]


@pytest.mark.parametrize("kind", ERASERS)
def test_erasers(golden, kind):
    Z, X, w = draw(6)
    if "collinear" in kind:
        Z = np.column_stack([Z, Z[:, 0] - Z[:, 1]])
    basis, cluster = protected_basis(X, w if kind == "weights" else None), np.arange(N) % 17 % 11
    preserve = (Z[:, :2] + np.sin(np.arange(2 * N)).reshape(N, 2)) if "preserve" in kind else None
    if kind.startswith("new"):
        found = Eraser.fit_for_new_rows(Z, basis, X, w, cluster if "clusters" in kind else None)
    else:
        group = cluster if kind == "clusters" else None
        found = Eraser.fit(Z, basis, X, w if kind == "weights" else None, None, group, preserve)
    later = found.adapt(Z[:60] + 0.3, w[:60])
    strided = np.empty((2 * N, Z.shape[1]))[::2]
    found.apply(Z, out=strided)
    columns = found.apply(np.asfortranarray(Z))
    golden(
        [eraser(found, Z), eraser(later, Z[:5]), columns, strided, found.apply(Z.astype(np.float32)).sum(dtype=float)]
    )


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_erasers_of_other_units(golden, scale):
    Z, X, w = draw(5)
    Z[:, 2] = 3.0  # a feature that does not vary
    basis = protected_basis(scale * X, w)
    found = [Eraser.fit(scale * Z, basis, scale * X, w), Eraser.fit_for_new_rows(scale * Z, basis, scale * X, w)]
    moved = Transport.fit(scale * Z, scale * X[:, :1], w)
    linear = Projector.fit(scale * Z, scale * X, w).apply(scale * Z, scale * X)
    own = [[one.rank, one.explained, one.removed, one.apply(scale * Z) / scale] for one in found]
    golden([own, moved.apply(scale * Z, scale * X[:, :1]) / scale, linear / scale], relative=1e-5)


def test_erasers_of_one_direction_and_of_few_rows(golden):
    Z, X, w = draw(20, 40)
    basis = protected_basis(X[:, :1], w)
    golden(
        [
            eraser(Eraser.fit(Z, basis, X[:, :1], w), Z),
            eraser(Eraser.fit_for_new_rows(Z[:15], protected_basis(X[:15]), X[:15]), Z),
            eraser(Eraser.fit(Z[:22], protected_basis(X[:22]), X[:22]), Z),
        ]
    )


@pytest.mark.parametrize("cluster", [False, True])
def test_ridge_predictions(golden, cluster):
    Z, X, w = draw(7)
    Z[:, 6] = 1.0
    basis, codes = protected_basis(X, w), np.arange(N) % 13 % 9
    data = ridge_erasure.LabelledRows(Z, X, basis, w / w.sum(), codes if cluster else None)
    moments = Moments.of([basis.apply(X), Z], w)
    mean, S = moments.mean[3:], moments.scatter / moments.weight
    scale = np.array([1.0, 1.0, 2.0, 2.0, 3.0, 3.0, np.inf])
    fit = ridge_erasure.fit_ridge(data, mean, S[3:, 3:], S[3:, :3], scale)
    values = [fit.directions @ fit.loadings, np.sort(fit.correlations), fit.explained, fit.predicted]
    T = np.array([[0.9, 0.1], [0.2, 0.3], [0.0, 0.4]])
    parts = [ridge_erasure.unbiased_gram(T, n) for n in (4.9, 5.0, 5.1, 30.0)]
    batches = [[A.shape, A, B, C] for A, B, C in data.by_cluster()] if cluster else []
    whitening = np.eye(7)[:, :4] / 3.0
    shrunk = np.array([[1.0, 0.9, 0.5], [1.0, 0.8, 0.3], [1.0, 0.6, 0.1], [1.0, 0.2, 0.05]])
    leave = ridge_erasure._leave_cluster_out if cluster else ridge_erasure._leave_one_out
    sums = leave(data, mean[:4] / 3.0, whitening, S[3:7, :3], shrunk)
    rows = ridge_erasure.independent_rows(data, mean[:4] / 3.0, whitening)
    golden([values, fit.rank, fit.n_rows, fit.error, parts, batches, sums, rows, ridge_erasure.PENALTIES])


def test_rows_that_decide_their_own_prediction():
    Z, X, _ = draw(2)
    basis, share = protected_basis(X), np.full(N, 1e-12)
    share[0] = 1.0 - share[1:].sum()
    data = ridge_erasure.LabelledRows(Z, X, basis, share)
    moments = Moments.of([basis.apply(X), Z])
    S = moments.scatter / N
    with pytest.raises(SetsquareError, match="One row or cluster has nearly all the weight"):
        ridge_erasure.fit_ridge(data, moments.mean[3:], S[3:, 3:], S[3:, :3], np.ones(2))


@pytest.mark.parametrize("shrinkage", [None, 0.0, 0.3, 1.0])
def test_transport(golden, shrinkage):
    Z, X, w = draw(3, 200)
    X = X[:, :2]
    found = Transport.fit(Z, X, w if shrinkage != 0.0 else None, None, shrinkage)
    far = np.array([[0.5, 40.0], [1.0, 90.0], [3.0, 12.0]])
    values = [found.n_rows, found.shrinkage, found.cells, found.unknown(far), found.mean]
    single = found.apply(Z[:9].astype(np.float32), X[:9])
    golden([values, found.apply(Z, X), found.apply(Z[:3], far), str(single.dtype), single.astype(float)], relative=1e-5)


def test_parts_of_transport(golden):
    W, _, w = draw(3)
    place = np.arange(N) % 5 % 4
    place[0], w[0], w[place == 2] = 4, 1.0, 0.0
    summary = transport._summarise(W, place, w / w.sum(), 5)
    maps = transport._maps(summary.covariances[[0, 1, 3]] + 0.1 * np.eye(3), np.array([0.5, 0.2, 0.3]))
    roots = [transport._root(summary.covariances[0]), transport._root(summary.covariances[0], -0.5)]
    golden([summary, transport._shrink(summary, None), transport._shrink(summary, 0.25), maps, roots])


@pytest.mark.parametrize("n_features", [1, 14, 15, 16, 40])
def test_cells(golden, n_features):
    _, X, _ = draw(1, 400)
    X = np.column_stack([X[:, :2], np.arange(400) % 8, np.arange(400) % 9])
    cells = [find_cells(X[:, columns], n_features) for columns in ([0], [1], [2], [3], [0, 1], [1, 3], [0, 2])]
    new = np.array([[0.5, 44.0], [0.0, -9.0], [1.0, 99.0]])
    golden([cells, cells[4].of(new), cells[4].split(new)])


@pytest.mark.parametrize("turn_only", [False, True])
def test_whitening(golden, turn_only):
    Z, X, w = draw(4)
    Z = np.column_stack([Z, Z[:, 0] + Z[:, 1], np.full(N, 5.0)])
    own = whiten(Z, w, (X,), turn_only=turn_only)
    plain = whiten(Z[:, :4], turn_only=turn_only)
    same = [one.transform @ one.loadings for one in (own, plain)]
    squares = [one.transform @ one.transform.T for one in (own, plain)]
    spread = np.abs(own.loadings).sum(axis=1)
    golden(
        [own.mean, own.rank, own.n_rows, own.sides, same, squares, spread, np.abs(plain.apply(Z[:5, :4])), plain.share]
    )


@pytest.mark.parametrize("preserve", [False, True])
def test_erasure_of_second_moments(golden, preserve):
    Z, X, w = draw(9, 300)
    Z[:, :3] *= 1.0 + X[:, :1]
    X = X[:, :2]
    Y = Z[:, 3:5] + 0.3 * np.sin(np.arange(600.0)).reshape(300, 2) if preserve else None
    found = fit_quadratic(Z, protected_basis(X, w), X, w, Y)
    golden(eraser(found, Z) | {"exact": found.squares < 1e-8}, relative=1e-4)


def test_forms_that_vanish_together(golden):
    rng = np.random.default_rng(3)
    M = rng.normal(size=(2, 9, 9))
    M = M + np.swapaxes(M, 1, 2)
    found = isotropic.find_isotropic(M, np.eye(9))
    rigid = isotropic.find_isotropic(M, np.eye(9), 1)
    definite = isotropic.find_isotropic(np.diag([3.0, 1.0, 2.0, 5.0])[None], np.eye(4))
    small = [isotropic.find_isotropic(np.diag(d)[None], np.eye(len(d))) for d in ([1.0, -2.0], [0.0, 1.0], [-1.0])]
    none = isotropic.find_isotropic(np.zeros((1, 0, 0)), np.zeros((0, 0)))
    H, lam = M @ np.eye(9)[:, :2], rng.normal(size=(2, 2, 2))
    solved = isotropic._solve(H, np.array([0.5, 1.0]), lam + np.swapaxes(lam, 1, 2), 0.3)
    flat = [[one.residual, one.exact, one.W.shape] for one in (definite, *small, none)]
    settled = isotropic._settle(M, np.eye(9)[:, :3], 1, 2.0)
    projections = [one.W @ one.W.T for one in (found, rigid, settled)]
    tilt = isotropic._tilt(np.eye(5)[:, :2])
    ends = [[one.residual < 1e-9, one.exact] for one in (found, rigid)]
    golden([projections, ends, flat, solved, settled.exact, tilt @ tilt.T], relative=1e-5)


@pytest.mark.parametrize("n_preserved", [0, 1, 2])
def test_oblique_directions(golden, n_preserved):
    rng = np.random.default_rng(5)
    protected, preserved = rng.normal(size=(6, 2)), rng.normal(size=(6, n_preserved))
    protected = np.column_stack([protected, protected.sum(axis=1)])  # a rank of two
    if n_preserved == 2:
        preserved[:, 1] = 0.0
    found = find_oblique(protected, preserved)
    golden([found.variates @ found.left.T, found.correlations, found.overlap, found.kept])


def test_overlap_at_its_limit():
    for overlap, fine in ((0.9985, True), (0.9995, False)):
        protected, preserved = np.array([[1.0], [0.0]]), np.array([[overlap], [np.sqrt(1.0 - overlap**2)]])
        if fine:
            assert abs(find_oblique(protected, preserved).overlap - overlap) < 1e-12
        else:
            with pytest.raises(SetsquareError, match=r"correlate with 0\.9995"):
                find_oblique(protected, preserved)


class Columns:
    """Protected columns that are read by slices."""

    def __init__(self, Q: np.ndarray) -> None:
        self.Q, self.shape = Q, Q.shape

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self.Q[rows]


@pytest.mark.parametrize("weighted", [False, True])
def test_single_precision(golden, weighted, monkeypatch):
    monkeypatch.setattr(single_precision, "MOST_ROWS", 100)
    monkeypatch.setattr(single_precision, "PIECE_BYTES", 0)
    monkeypatch.setattr(single_precision, "LEAST_PIECE", 16)
    Z, X, w = draw(5, 250)
    weight, Q, single = (w if weighted else None), Columns(protected_basis(X).apply(X)), Z.astype(np.float32)
    moments = single_precision.single_moments(Q, single, weight)
    cross = single_precision.single_cross(Q, single, weight)
    monkeypatch.setattr(single_precision, "MANY_COLUMNS", 2)
    again = single_precision.single_moments(Q, single, weight)
    S = moments.scatter[3:, 3:] / moments.weight
    limit = [single_precision.is_enough(A, np.linalg.cholesky(A).T) for A in (S, np.diag([1.0, 1e-9]))]
    golden([moments, cross, again.scatter, limit], relative=1e-5)


def test_infinite_features_show_in_sums_of_single_precision():
    Z, X, w = draw(5)
    odd = Z.astype(np.float32)
    odd[7, 2] = np.inf
    Q = Columns(protected_basis(X).apply(X))
    assert not np.isfinite(single_precision.single_moments(Q, odd, w).scatter).all()
    mean, cross = single_precision.single_cross(Q, odd, w)
    assert np.isfinite(mean[:2]).all() and not np.isfinite(mean[2]) and not np.isfinite(cross[2]).any()


def test_when_single_precision_is_enough():
    for share, enough in ((0.3, False), (3.0, True)):  # the smallest eigenvalue of two correlations
        gap = share * single_precision.ENOUGH * 2**0.5
        S = np.array([[1.0, 1.0 - gap], [1.0 - gap, 1.0]])
        scale = np.diag([1.0, 100.0])
        assert single_precision.is_enough(scale @ S @ scale, np.linalg.cholesky(S).T @ scale) is enough


@pytest.mark.parametrize("weighted", [False, True])
def test_sampled_erasure(golden, weighted, monkeypatch):
    monkeypatch.setattr(sampled_erasure, "WORTH", 1.0)
    Z, X, w = draw(6, 900)
    weight, basis, single = (w if weighted else None), protected_basis(X), Z.astype(np.float32)
    Q = Columns(basis.apply(X))
    found = sampled_erasure.find_directions(Q, single, weight)
    covariances, directions, loadings = found.whiten()
    product = sampled_erasure._covariance_times(
        single, weight, found.mean, np.column_stack([np.eye(6)[:, 0], np.zeros(6)])
    )
    data = ridge_erasure.LabelledRows(Z, X, basis, np.full(900, 1.0 / 900))
    erased = Eraser._fit_sampled(data, found)
    golden(
        {
            "found": [found.mean, found.cross],
            "near": np.round(found.directions, 2),
            "whitened": [
                covariances @ covariances.T @ np.ones(6) * 0.0 + np.abs(covariances).sum(),
                directions @ loadings,
            ],
            "product": product,
            "erased": [erased.rank, np.sort(erased.correlations), erased.explained, erased.n_rows],
        },
        relative=1e-4,
    )


def test_when_a_sample_is_worth_it(monkeypatch):
    Z, X, _ = draw(4, 200)
    single, Q = Z.astype(np.float32), Columns(protected_basis(X).apply(X))
    assert sampled_erasure.find_directions(Q, single, None) is None  # few multiplications
    monkeypatch.setattr(sampled_erasure, "WORTH", 200 * 16.0)
    assert sampled_erasure.find_directions(Q, single, None) is not None
    monkeypatch.setattr(sampled_erasure, "WORTH", 200 * 16.0 + 1.0)
    assert sampled_erasure.find_directions(Q, single, None) is None
    monkeypatch.setattr(sampled_erasure, "WORTH", 1.0)
    assert sampled_erasure.find_directions(Columns(Q.Q[:48]), single[:48], None) is not None
    assert sampled_erasure.find_directions(Columns(Q.Q[:47]), single[:47], None) is None  # 15 rows for 4 features
    odd = single.copy()
    odd[1, 0] = np.nan  # outside of the sample
    assert sampled_erasure.find_directions(Q, odd, None) is None
    odd[1, 0], odd[0, 0] = 0.0, np.nan
    assert sampled_erasure.find_directions(Q, odd, None) is None
    monkeypatch.setattr(sampled_erasure, "MOST_PRODUCTS", 0)
    assert sampled_erasure.find_directions(Q, single, None) is None


@pytest.mark.parametrize("kind", ["plain", "weights", "outcome"])
def test_identified_effects(golden, kind):
    Z, X, w = draw(2)
    u, weight = np.sin(Z[:, 0]) + X[:, 0], (w + 0.1 if kind != "plain" else None)
    found = pho(X, u, [1.0, 0.5, -2.0], 0.7, sample_weight=weight, y=Z[:, 1] if kind == "outcome" else None)
    golden([found, pho(X, u).coef], relative=1e-5)


def refuse_wide_transport() -> None:
    transport._check_size(2**20, 2**8)


MISTAKES = {
    "rows": lambda Z, X: protected_basis(X[:3]),
    "constant": lambda Z, X: protected_basis(0.0 * X),
    "missing": lambda Z, X: protected_basis(np.where(X[0] == X, np.nan, X), None, ("a", "b", "c")),
    "missing moments": lambda Z, X: basis_of_moments(Moments(2.0, np.zeros(2), np.diag([1.0, np.inf]))),
    "lengths": lambda Z, X: Projector.fit(Z, X[:9]),
    "lengths of apply": lambda Z, X: Projector.fit(Z, X).apply(Z[:3], X),
    "not finite": lambda Z, X: Projector.fit(np.where(Z > 4.0, np.inf, Z), X),
    "coded": lambda Z, X: Projector.fit(Z[:4], join(X[:4], [np.arange(4)], [4], [False, False, False, True])),
    "determined": lambda Z, X: fit_controls(X, X @ np.eye(3), None, tuple("abc"), tuple("uvwxy")),
    "determined by controls": lambda Z, X: fit_controls(X, 2.0 * X, None, tuple("abc")),
    "too few": lambda Z, X: Eraser.fit(Z[:5], protected_basis(X[:5]), X[:5]),
    "constant features": lambda Z, X: Eraser.fit(0.0 * Z + 1.0, protected_basis(X), X),
    "infinite features": lambda Z, X: Eraser.fit(np.where(Z > 4.0, np.inf, Z), protected_basis(X), X),
    "whiten": lambda Z, X: whiten(Z[:5]),
    "whiten constant": lambda Z, X: whiten(0.0 * Z + 1.0),
    "whiten infinite": lambda Z, X: whiten(np.where(Z > 4.0, np.nan, Z)),
    "overflow": lambda Z, X: GeneralizedProjector.fit(1000.0 * Z, X, "exp"),
    "domain": lambda Z, X: GeneralizedProjector.fit(Z - 9.0, X, "gelu"),
    "not finite eta": lambda Z, X: GeneralizedProjector.fit(Z * np.nan, X, "relu"),
    "rows of eta": lambda Z, X: GeneralizedProjector.fit(Z[:4], X, "relu"),
    "small cells": lambda Z, X: Transport.fit(Z[:40], X[:40], None, None, 0.0),
    "large maps": lambda Z, X: refuse_wide_transport(),
    "pho": lambda Z, X: pho(X, Z[:3, 0]),
    "pho one axis": lambda Z, X: pho(X[:, 0], Z[:, 0]),
    "pho collinear": lambda Z, X: pho(np.column_stack([X, X[:, 0]]), Z[:, 0]),
    "pho rows": lambda Z, X: pho(X[:3], Z[:3, 0]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(golden, name):
    Z, X, _ = draw()
    with pytest.raises(SetsquareError) as caught:
        MISTAKES[name](Z, X)
    golden([type(caught.value).__name__, str(caught.value)])


def test_sizes_of_maps_at_their_limit():
    transport._check_size(2**12, 2**8)  # exactly 2 GB
    with pytest.raises(SetsquareError):
        transport._check_size(2**12 + 1, 2**8)
    bases.check_rows(4, 3)
    pho(np.eye(4)[:, :3], np.arange(4.0))
