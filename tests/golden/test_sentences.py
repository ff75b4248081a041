"""Golden sentences: every warning and refusal of a fit, on both sides of the limits from which it is said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.golden.outcomes import outcome

from setsquare.estimators import warn
from setsquare.glm.solver import Status

USUAL: dict[str, Any] = {
    "is_kept": True,
    "is_optimal": True,
    "budget": 0.0,
    "box": None,
    "kkt_residual": 3e-4,
    "constant_protected": (),
    "collinear_protected": (),
    "determined_protected": (),
    "label_share": 0.1,
    "rests_on_few_rows": False,
    "n_left_out": 3,
    "n_rows": 200,
    "correlation_without": 0.34,
    "reach": 7.5,
    "flat_features": (),
    "orthogonal_on": "training rows",
    "new_rows": None,
    "covariance_share": 0.75,
    "max_correlation": 0.0123,
    "rank_features": 5,
    "n_features": 6,
    "aliased_features": (),
}
FOUND = {"by_cluster": False, "n_units": 40, "n_parameters": 17.6, "correlation": 0.234, "upper": 0.6}
LEAK: dict[str, Any] = {"is_kept": False, "orthogonal_on": "new rows"}
NAMES = tuple(f"x{j}" for j in range(12))
CASES: dict[str, dict[str, Any]] = {
    "usual": {},
    "not optimal": {"is_optimal": False},
    "not optimal, budget": {"is_optimal": False, "budget": 0.2},
    "not optimal, box": {"is_optimal": False, "box": 1.0, "budget": 0.2},
    "constant": {"constant_protected": ("a",)},
    "collinear": {"collinear_protected": ("a", "b")},
    "both": {"constant_protected": ("a",), "collinear_protected": ("b",)},
    "determined": {"determined_protected": ("a", "b")},
    "ten determined": {"determined_protected": NAMES[:10]},
    "many determined": {"determined_protected": NAMES[:11]},
    "half of the outcome": {"label_share": 0.5},
    "less than half of the outcome": {"label_share": 0.4999},
    "few rows": {"rests_on_few_rows": True},
    "few rows, nothing left": {"rests_on_few_rows": True, "correlation_without": None},
    "flat": {"flat_features": NAMES[:6]},
    "one flat": {"flat_features": NAMES[:1]},
    "leak": {"is_kept": False},
    "leak with a budget": {"is_kept": False, "budget": 0.25},
    "leak on new rows": LEAK | {"new_rows": FOUND},
    "leak on new rows of clusters": LEAK | {"new_rows": FOUND | {"by_cluster": True}},
    "no bound": LEAK | {"new_rows": FOUND | {"upper": 1.0}, "rank_features": 0},
    "nothing known of new rows": LEAK,
    "training rows": {"is_kept": False, "new_rows": FOUND},
}


def solution(status: Status = Status.CONVERGED, solver: str = "sqp", **changed: Any) -> Any:
    """A fit of which some values are unusual."""
    values = USUAL | changed
    found = values["new_rows"]
    values["new_rows"] = None if found is None else SimpleNamespace(**found)
    certificate = SimpleNamespace(**values)
    return SimpleNamespace(status=status, solver=solver, certificate=certificate, n_iter=9, coef=np.eye(2, 12))


@pytest.mark.parametrize("name", CASES)
def test_judgements(golden, name):
    golden([outcome(lambda c=c: warn.judge(solution(**CASES[name]), coefficients=c)) for c in (True, False)])


def test_other_judgements(golden):
    kept = [
        outcome(lambda: warn.judge(solution(Status.INFEASIBLE))),
        outcome(lambda: warn.judge(solution(Status.INFEASIBLE, is_kept=False, budget=0.3))),
        outcome(lambda: warn.judge(solution(solver="mdmm", is_kept=False))),
        outcome(lambda: warn.judge(solution(), ("only",))),
        outcome(lambda: warn.judge(solution(constant_protected=("a",)), ("only", "one"))),
    ]
    rows = outcome(lambda: warn.judge(solution(Status.NO_INFORMATION, **LEAK, new_rows=FOUND)))
    golden([*kept, rows])


def test_features_that_are_left_out(golden):
    some = solution(aliased_features=("x3", "x5", "x0"))
    many, ten = solution(aliased_features=NAMES), solution(aliased_features=NAMES)
    ten.coef = np.ones((2, 12)) * (np.arange(12) < 2)
    golden([outcome(lambda s=s: warn.warn_left_out(s, NAMES)) for s in (some, many, ten, solution())])


def eraser(**values: Any) -> Any:
    return SimpleNamespace(
        **{"left": 0.5, "before": 0.8, "n_rows": 60.0, "loadings": np.zeros((2, 7)), "squares": 0.05} | values
    )


def test_what_erasure_leaves(golden):
    limit = warn.LEFT_ON_NEW_ROWS
    lefts = [{"left": limit}, {"left": 1.001 * limit}, {"left": np.nan, "before": np.nan}, {"n_rows": 3.0}]
    on = ("new rows", "training rows")
    found = [outcome(lambda o=o, w=w: warn.warn_new_rows(eraser(**o), w)) for o in lefts for w in on]
    sizes = (np.nan, warn.EXACT_SQUARES, 1.5 * warn.EXACT_SQUARES, warn.LEFT_OF_SQUARES, 1.01 * warn.LEFT_OF_SQUARES)
    squares = [outcome(lambda s=s: warn.warn_squares(eraser(squares=s, squares_before=0.3))) for s in sizes]
    named = outcome(lambda: warn.warn_squares(eraser(squares_before=0.4), "inference"))
    golden([found, squares, named, [outcome(lambda k=k: warn.warn_erased(k, 3)) for k in (2, 3)]])


def test_counts(golden):
    golden(
        [
            [outcome(lambda k=k: warn.warn_unknown_cells(k, 9)) for k in (0, 1)],
            [outcome(lambda s=s: warn.warn_label_share(s)) for s in (0.499, 0.5, 0.9)],
            [outcome(lambda k=k: warn.warn_hardly_observed(k, 100)) for k in (5, 6)],
            [outcome(lambda p=p: warn.warn_pooled(p)) for p in ({}, {"a": 1}, {"a": 1, "b": 22})],
            [outcome(lambda o=o: warn.warn_no_offset(o)) for o in (False, True)],
            outcome(lambda: warn.warn_unweighted("Tree")),
            [outcome(lambda s=s, a=a: warn.warn_training_rows(s, a)) for s in ("", "why") for a in (False, True)],
            [outcome(lambda k=k: warn.warn_boundary(k, 9, 0.00123)) for k in (0, 1)],
            [outcome(lambda k=k: warn.warn_outside(k, 9)) for k in (0, 1)],
        ]
    )


def test_warnings_name_the_line_that_called():
    with pytest.warns(UserWarning, match="fitted with an offset") as caught:
        warn.warn_no_offset(True)
    assert caught[0].filename == __file__
