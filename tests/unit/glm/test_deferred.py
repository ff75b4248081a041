"""The unconstrained loss: computed when it is read, and what happens to the rows until then."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

import setsquare as sq
from setsquare.glm import held_rows
from setsquare.glm.deferred import Deferred


def draw(n: int = 400, q: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    Z = 0.5 * X @ rng.normal(size=(2, q)) + rng.normal(size=(n, q))
    y = (rng.logistic(size=n) < Z.sum(axis=1) / 2.0).astype(float)
    return Z, y, X


def test_a_number_is_computed_once_also_by_many_threads() -> None:
    calls = []
    number = Deferred(lambda: calls.append(1) or 0.5)
    threads = [threading.Thread(target=lambda: number.value) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert number.value == 0.5 and len(calls) == 1
    assert Deferred(0.5).is_known and Deferred(0.5) == number and hash(Deferred(0.5)) == hash(number)


@pytest.mark.parametrize("solver", ["sqp", "large"])
def test_the_loss_is_that_of_the_fit_without_protected_columns(solver: str) -> None:
    Z, y, X = draw()
    certificate = sq.solve(sq.Problem(Z, y, X, family="binomial"), solver).certificate
    assert not certificate.unconstrained.is_known
    free = sq.solve(sq.Problem(Z, y, family="binomial")).certificate
    assert free.unconstrained.is_known and free.cost == 0.0
    assert certificate.loss_unconstrained == pytest.approx(free.loss, rel=1e-6)
    assert certificate.loss > certificate.loss_unconstrained and 0.0 < certificate.cost < 1.0


def test_one_solution_at_a_time_holds_large_data(monkeypatch: pytest.MonkeyPatch) -> None:
    Z, y, X = draw()
    small = sq.solve(sq.Problem(Z, y, X, family="binomial")).certificate
    monkeypatch.setattr(held_rows, "MOST_KEPT", 1000)
    first = sq.solve(sq.Problem(Z, y, X, family="binomial"))
    assert not first.certificate.unconstrained.is_known and first.errors is not None and not first.errors.is_known
    second = sq.solve(sq.Problem(Z, y, X, family="binomial"))
    assert first.certificate.unconstrained.is_known and first.certificate.left_out.is_known and first.errors.is_known
    assert first.std_error is None and second.std_error is not None, "a large fit does not compute what nobody read"
    assert not second.certificate.unconstrained.is_known and not small.unconstrained.is_known
    assert first.certificate.loss_unconstrained == small.loss_unconstrained
    monkeypatch.undo()
    sq.solve(sq.Problem(Z, y, X, family="binomial"))
    assert not second.certificate.unconstrained.is_known  # small rows do not matter


def test_large_data_of_a_solution_that_is_gone_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_rows, "MOST_KEPT", 1000)
    Z, y, X = draw()
    sq.solve(sq.Problem(Z, y, X, family="binomial"))
    gc.collect()
    monkeypatch.setattr(held_rows.Deferred, "value", property(lambda self: pytest.fail("was computed")))
    held_rows.settle_large()


@pytest.mark.parametrize(
    "read",
    [
        *(pickle.dumps, copy.deepcopy),
        lambda s: (s.certificate.cost, s.certificate.new_rows, s.std_error),
        lambda s: (str(s), s.std_error),
    ],
)
def test_rows_are_released_when_everything_is_read(read: Callable[[sq.Solution], object]) -> None:
    Z, y, X = draw()
    problem = sq.Problem(Z, y, X, family="binomial")
    solution = sq.solve(problem)
    rows = weakref.ref(problem.rows.y.base if problem.rows.y.base is not None else problem.rows.y)
    del problem, Z, y, X
    gc.collect()
    assert rows() is not None  # until now it is held
    read(solution)
    gc.collect()
    assert rows() is None and solution.certificate.unconstrained.is_known


def test_pickled_saved_and_cloned_models(tmp_path: Path) -> None:
    Z, y, X = draw()
    model = sq.OrthogonalGLMClassifier().fit(Z, y, protected=X)
    again = pickle.loads(pickle.dumps(model))
    sq.save(model, tmp_path / "model.setsquare")
    loaded = sq.load(tmp_path / "model.setsquare")
    for other in (again, loaded):
        assert other.solution_.certificate.unconstrained.is_known
        assert other.solution_.certificate == model.solution_.certificate
    assert not hasattr(clone(model), "solution_")


@pytest.mark.parametrize("part", [0, 1])
def test_arrays_that_were_overwritten_after_the_fit_are_noticed(part: int) -> None:
    given = draw()
    certificate = sq.solve(sq.Problem(*given, family="binomial")).certificate
    given[part][:] = given[part][::-1].copy()
    if part == 0 and not math.isnan(certificate.loss_unconstrained):  # the fit has a copy of the features
        Z, y, _ = draw()
        free = sq.solve(sq.Problem(Z, y, family="binomial")).certificate
        assert certificate.loss_unconstrained == pytest.approx(free.loss, rel=1e-6)
        return
    assert math.isnan(certificate.loss_unconstrained) and math.isnan(certificate.cost)
    assert "overwritten after the fit" in str(certificate)
