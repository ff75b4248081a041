"""Where neighbouring libraries left leaks without a word: each of their cases is corrected here to 1e-8."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fairlearn.preprocessing import CorrelationRemover

from setsquare.glm.problem import Problem
from setsquare.glm.solver import solve
from setsquare.projection import GeneralizedProjector, project_out, protected_basis

N = 2000


def means_and_scales(rng: np.random.Generator) -> np.ndarray:
    """Fairlearn before 0.15 centred these on one grand mean."""
    return rng.normal(size=(N, 3)) * np.array([1.0, 30.0, 1e-3]) + np.array([0.0, 500.0, -7.0])


def rare_group(share: float) -> Callable[[np.random.Generator], np.ndarray]:
    """concept-erasure 0.2.4 left a group of 1 % where it was."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        return np.column_stack([np.arange(N) < share * N, rng.random(N) < 0.5]).astype(float)

    return draw


def scaled(factor: float) -> Callable[[np.random.Generator], np.ndarray]:
    """concept-erasure 0.2.4 left a concept scaled by 0.01 where it was."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        return np.column_stack([rng.random(N) < 0.4, rng.normal(size=N)]) * factor

    return draw


def duplicated_and_constant(rng: np.random.Generator) -> np.ndarray:
    a, b = rng.normal(size=N), (rng.random(N) < 0.3).astype(float)
    return np.column_stack([a, np.full(N, 3.0), b, a, 1.0 - b, 2.0 * a - 5.0 * b])


def correlated(rng: np.random.Generator) -> np.ndarray:
    """Twenty columns that share one factor, correlations about 0.99."""
    return rng.normal(size=(N, 1)) + 0.1 * rng.normal(size=(N, 20))


def uncentred(rng: np.random.Generator) -> np.ndarray:
    """A mean far from zero: scikit-lego's InformationFilter does not centre."""
    return rng.normal(size=(N, 2)) + np.array([1e4, -50.0])


CASES = {
    "different means and scales": means_and_scales,
    "group of 1 %": rare_group(0.01),
    "group of 0.1 %": rare_group(0.001),
    "scaled by 0.01": scaled(0.01),
    "scaled by 1e-6": scaled(1e-6),
    "scaled by 1e6": scaled(1e6),
    "duplicated and constant": duplicated_and_constant,
    "20 correlated": correlated,
    "far from zero": uncentred,
}
each_case = pytest.mark.parametrize("case", CASES)


def draw_case(case: str, q: int = 25) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """Features that know every protected column, and these."""
    rng = np.random.default_rng(11)
    X = CASES[case](rng)
    spread = np.where(X.std(0) > 1e-12 * np.abs(X).max(0), X.std(0), np.inf)
    unit = (X - X.mean(0)) / spread
    return unit @ rng.normal(size=(X.shape[1], q)) + rng.normal(size=(N, q)), X, rng


def correlations(out: np.ndarray, X: np.ndarray) -> np.ndarray:
    """Every protected column that varies with every output."""
    varies = X.std(0) > 1e-12 * np.abs(X).max(0)
    centred = X[:, varies] - X[:, varies].mean(0)
    rest = out - out.mean(0)
    return np.abs(centred.T @ rest) / np.linalg.norm(centred, axis=0)[:, None] / np.linalg.norm(rest, axis=0)


@each_case
def test_projector(case: str) -> None:
    Z, X, _ = draw_case(case)
    assert (correlations(Z, X).max(axis=1) > 0.05).all()
    assert correlations(project_out(Z, X), X).max() <= 1e-8


@each_case
@pytest.mark.parametrize("name", ["sigmoid", "relu", "exp", "softmax"])
def test_generalized_projector(case: str, name: str) -> None:
    Z, X, _ = draw_case(case, q=4)
    Z = Z / Z.std(0)
    projector = GeneralizedProjector.fit(Z, X, name)
    assert projector.converged.all()
    assert (correlations(projector.activation(Z), X).max(axis=1) > 0.02).all()
    assert correlations(projector.predict(Z, X), X).max() <= 1e-8


@each_case
@pytest.mark.parametrize("name", ["gaussian", "binomial", "poisson"])
def test_solve(case: str, name: str) -> None:
    Z, X, rng = draw_case(case)
    signal = Z[:, :5].sum(1) / Z[:, :5].sum(1).std()
    draws = {
        "gaussian": signal + rng.normal(size=N),
        "binomial": (signal + rng.logistic(size=N) > 0.0).astype(float),
        "poisson": rng.poisson(np.exp(0.5 * signal)).astype(float),
    }
    mean = {"gaussian": lambda e: e, "binomial": lambda e: 1.0 / (1.0 + np.exp(-e)), "poisson": np.exp}[name]
    before, after = (solve(Problem(Z, draws[name], protected, name)) for protected in (None, X))
    yhat = {key: mean(s.intercept + Z @ s.coef[0])[:, None] for key, s in (("before", before), ("after", after))}
    assert correlations(yhat["before"], X).max() > 0.03
    assert correlations(yhat["after"], X).max() <= 1e-8
    assert after.certificate.is_orthogonal and after.certificate.is_optimal
    assert after.certificate.loss < after.certificate.loss_null


def test_every_column_of_a_rare_group_counts_as_a_direction_of_its_own() -> None:
    for case, rank in (("group of 0.1 %", 2), ("scaled by 1e-6", 2), ("20 correlated", 20)):
        assert protected_basis(draw_case(case)[1]).rank == rank


def test_dropped_columns_are_named() -> None:
    names = ("a", "one", "b", "copy", "not b", "mix")
    basis = protected_basis(draw_case("duplicated and constant")[1], names=names)
    assert basis.rank == 2
    assert basis.constant == ("one",) and basis.collinear == ("copy", "not b", "mix")
    assert basis.dropped == ("one", "copy", "not b", "mix")


@pytest.mark.parametrize("p", [1, 3])
def test_a_well_posed_case_equals_fairlearn(p: int) -> None:
    rng = np.random.default_rng(12)
    X = rng.normal(size=(500, p)) * np.arange(1, p + 1) + 10.0
    Z = X @ rng.normal(size=(p, 4)) + rng.normal(size=(500, 4))
    table = np.column_stack([X, Z])
    theirs = CorrelationRemover(sensitive_feature_ids=list(range(p))).fit_transform(table)
    np.testing.assert_allclose(project_out(Z, X), theirs, atol=1e-11)
    assert correlations(Z, X).max() > 0.5


def test_integer_class_codes_are_not_taken_for_a_quantity_when_coded_as_dummies() -> None:
    """Three groups coded 0, 1, 2 as one number: the means still differ; as dummies they do not."""
    rng = np.random.default_rng(13)
    group = rng.integers(0, 3, N)
    Z = np.array([0.0, 2.0, 0.5])[group] + rng.normal(size=N)
    as_number = project_out(Z, group[:, None].astype(float))
    as_dummies = project_out(Z, np.eye(3)[group])
    gaps = [np.ptp([out[group == g].mean() for g in range(3)]) for out in (Z, as_number, as_dummies)]
    assert gaps[0] > 1.5 and gaps[1] > 0.5 and gaps[2] < 1e-13
