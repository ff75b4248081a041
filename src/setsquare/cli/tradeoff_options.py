"""Options of ``setsquare tradeoff``: those of ``correct`` without the ones that a path of budgets does not have."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path  # noqa: F401 - annotations of inherited fields are read in this module
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from setsquare.cli.options import Family, Fitting, Options  # noqa: F401
from setsquare.errors import InputError

HIDDEN = Parameter(show=False)
#: Options that are not listed in the help, and why they are refused.
AUDIT, PREDICTING = "A trade-off makes no audit", "A trade-off predicts no file"
REFUSED = {
    "method": "A trade-off needs --method constrained, the other corrections have no budget",
    "budget": "A trade-off has all budgets",
    "orthogonal_on": "A path of budgets is one on the training rows",
    "unseen": PREDICTING,
    "folds": AUDIT,
    "seed": AUDIT,
    "positive": AUDIT,
    "evaluation": AUDIT,
    "tolerance": AUDIT,
    "group_tolerance": AUDIT,
    "shape_tolerance": AUDIT,
    "fail_on_leak": "A trade-off looks for no leak",
}


@dataclass(frozen=True, slots=True)
class TradeoffFitting(Fitting):
    """How the models of a path are fitted."""

    method: Annotated[Literal["constrained", "generalized", "linear"], HIDDEN] = "constrained"
    orthogonal_on: Annotated[Literal["training-rows", "new-rows"], HIDDEN] = "training-rows"
    max_correlation: float | None = None
    """Recommend the budget with the smallest loss whose correlation on new rows has an upper bound (at the level of
    --confidence) of at most this; by default the budget one standard error from the smallest loss."""
    budget: Annotated[float, HIDDEN] = 0.0
    unseen: Annotated[Literal["error", "pool"], HIDDEN] = "error"
    folds: Annotated[int, HIDDEN] = 5
    seed: Annotated[int, HIDDEN] = 0
    positive: Annotated[str | None, HIDDEN] = None


@dataclass(frozen=True, slots=True)
class TradeoffOptions(Options):
    """How files are read, and what is written."""

    evaluation: Annotated[tuple[str, ...], HIDDEN] = ()
    tolerance: Annotated[float, HIDDEN] = 0.05
    group_tolerance: Annotated[float, HIDDEN] = 0.1
    shape_tolerance: Annotated[float, HIDDEN] = 0.2
    fail_on_leak: Annotated[bool, HIDDEN] = False


def refuse_unused(*records: Any) -> None:
    """Refuse options of `setsquare correct` that would have no effect."""
    for record in records:
        for field in fields(record):
            if field.name in REFUSED and getattr(record, field.name) != field.default:
                raise InputError(f"{REFUSED[field.name]}: leave out --{field.name.replace('_', '-')}.")
