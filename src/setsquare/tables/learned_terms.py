"""Columns of a formula that a model file holds as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from setsquare._typing import Array
from setsquare.tables.coders import Categorical, Coder, Numeric, Unseen
from setsquare.tables.column import TableRows
from setsquare.tables.formula_check import check_values
from setsquare.tables.formula_program import Program, run_program


@dataclass(frozen=True, slots=True)
class LearnedTerms(Coder):
    """The columns of a formula as plain data: nothing is evaluated, and formulaic is not needed.

    Attributes
    ----------
    text : str
        The formula, for messages.
    variables : tuple of (name, fill, indicator) or (name, levels)
        Numeric variables and categories.
    program : tuple
        See :mod:`setsquare.tables.formula_program`.
    names, sources, constant : tuple of str
        As learned.

    Examples
    --------
    >>> age = ("age", None, False)
    >>> program = ((("log", ("column", "age")),),)
    >>> LearnedTerms("~ log(age)", (age,), program, ("log(age)",), ("age",), ()).columns
    ('age',)
    """

    text: str
    variables: tuple[tuple[Any, ...], ...]
    program: Program
    names: tuple[str, ...] = field()  # not the properties of the base
    sources: tuple[str, ...] = field()
    constant: tuple[str, ...] = field()

    @property
    def columns(self) -> tuple[str, ...]:
        """Input columns needed."""
        return tuple(variable[0] for variable in self.variables)

    @property
    def coders(self) -> tuple[Numeric | Categorical, ...]:
        """Coders of the variables."""
        return tuple(Categorical(*one) if len(one) == 2 else Numeric(*one) for one in self.variables)

    def encode(self, rows: TableRows, out: Array, unseen: Unseen) -> dict[str, int]:
        """Fill `out` and return the number of pooled rows by variable."""
        numbers, codes, indicators, pooled = {}, {}, list[Any](), dict[str, int]()
        for coder in self.coders:
            if isinstance(coder, Numeric):
                numbers[coder.name], missing, count = coder.values(rows, unseen)
                indicators += [missing] if coder.indicator else []
            else:
                codes[coder.name], count = coder.codes(rows, unseen)
            if count:
                pooled[coder.name] = count
        k = out.shape[1] - len(indicators)
        run_program(self.program, numbers, codes, out[:, :k])
        for j, missing in enumerate(indicators):
            out[:, k + j] = missing
        check_values(self.text, out, self.names)
        return pooled
