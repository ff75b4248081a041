"""Outcomes that are a column of a stream: numbers, or classes that only all batches together name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from setsquare import families
from setsquare._typing import Array
from setsquare.errors import InputError
from setsquare.families import Family, contrasts
from setsquare.glm.streamed_problem import Outcomes
from setsquare.tables import Level
from setsquare.tables.column import Column, Levels
from setsquare.tables.validation import check_classes, refuse_missing_outcome

#: More numbers than this are no classes.
MANY_CLASSES = 1000


class Outcome(Protocol):
    """How a column becomes the outcome of a problem."""

    def see(self, column: Column, weight: Array | None, offset: Array | None) -> Seen:
        """Look at the column of a batch."""
        ...

    def settle(self, seen: Seen) -> tuple[Family, Outcomes, Outcome, Any]:
        """Family, summary, the way to code batches, and the classes if there are any, once all batches were seen."""
        ...

    def code(self, column: Column) -> Array:
        """Outcome (b, k) of a batch."""
        ...


@dataclass(frozen=True, slots=True)
class Seen:
    """A summary of the outcomes, and for classes the weight of each level."""

    outcomes: Outcomes
    weights: Mapping[Level, float]

    def merge(self, other: Seen) -> Seen:
        """What the rows of both say."""
        return Seen(
            self.outcomes.merge(other.outcomes),
            {
                level: self.weights.get(level, 0.0) + other.weights.get(level, 0.0)
                for level in {**self.weights, **other.weights}
            },
        )


@dataclass(frozen=True, slots=True)
class Numbers:
    """An outcome that is a number."""

    family: Family

    def see(self, column: Column, weight: Array | None, offset: Array | None) -> Seen:
        """Look at the column of a batch; refuse values that the family cannot produce."""
        y = self.code(column)[:, 0]
        self.family.check_outcome(y if weight is None else y[weight > 0.0])
        return Seen(Outcomes.of(y, weight, offset), {})

    def settle(self, seen: Seen) -> tuple[Family, Outcomes, Outcome, Any]:
        """Family, summary, the way to code batches, and no classes."""
        return self.family, seen.outcomes, self, None

    def code(self, column: Column) -> Array:
        """Outcome (b, 1) of a batch."""
        _refuse_missing(column)
        if isinstance(column, Levels):
            raise InputError("The outcome must be numbers: convert it, or use OrthogonalGLMClassifier.")
        return column.values[:, None]


@dataclass(frozen=True, slots=True)
class Classes:
    """An outcome that is a class; `names` are known once all batches were seen."""

    names: tuple[Level, ...] = ()

    def see(self, column: Column, weight: Array | None, offset: Array | None) -> Seen:
        """Look at the column of a batch."""
        _refuse_missing(column)
        if isinstance(column, Levels):
            found, codes = column.levels, column.codes
        else:
            values, codes = np.unique(column.values, return_inverse=True)
            found = tuple(values.tolist())
        if len(found) > MANY_CLASSES:
            raise InputError("The outcome has too many values to be classes: use OrthogonalGLMRegressor.")
        weights = np.bincount(codes, weight, minlength=len(found))
        return Seen(Outcomes.of(np.zeros(len(codes)), weight, offset), dict(zip(found, weights.tolist(), strict=True)))

    def settle(self, seen: Seen) -> tuple[Family, Outcomes, Outcome, Any]:
        """Family, summary, the way to code batches, and the classes."""
        names = tuple(sorted(seen.weights))  # type: ignore[type-var]
        weights = np.array([seen.weights[name] for name in names])
        check_classes(names, bool(weights.all()))
        family = families.binomial if len(names) == 2 else families.multinomial
        if family.is_vector and seen.outcomes.offset is not None:
            raise InputError("An offset for more than two classes needs the rows in memory: leave it out.")
        sums = weights if family.is_vector else weights[1:]
        whole = all(isinstance(name, float) and name == int(name) for name in names)
        classes = np.array([int(name) for name in names] if whole else names)  # type: ignore[arg-type]
        return family, replace(seen.outcomes, first=sums, second=sums, low=0.0, high=1.0), Classes(names), classes

    def code(self, column: Column) -> Array:
        """Outcome (b, k) of a batch: 0 or 1, or contrasts of the class."""
        _refuse_missing(column)
        place = {name: i for i, name in enumerate(self.names)}
        found, codes = (
            (column.levels, column.codes)
            if isinstance(column, Levels)
            else (self.names, np.searchsorted(np.array(self.names), column.values))
        )
        number = np.array([place[name] for name in found], dtype=np.int64)[codes]
        return contrasts(len(self.names))[number] if len(self.names) > 2 else number[:, None].astype(np.float64)


def _refuse_missing(column: Column) -> None:
    refuse_missing_outcome(int(column.missing.sum()))


__all__ = ["Classes", "Numbers", "Outcome", "Seen"]
