"""Formulas such as ``~ sex * race + bs(age, df=4)``, by way of formulaic (an optional package)."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from setsquare._extras import require
from setsquare._typing import Array
from setsquare.errors import InputError, UnseenLevelError, excerpt
from setsquare.tables.coders import Categorical, Coder, Numeric, SavedTerms, Unseen
from setsquare.tables.column import TableRows
from setsquare.tables.formula_check import check_expression, check_text, check_values, read_expression
from setsquare.tables.formula_program import Program, compile_spec, run_program
from setsquare.tables.frame import Frame
from setsquare.tables.learned_terms import LearnedTerms

#: Rows on which a formula as plain data is compared with what formulaic makes of it.
SAMPLE = 500
#: What functions in a formula raise for arguments that they cannot use.
_FAULTS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    StopIteration,
    SyntaxError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class Formula(Coder):
    """The columns of a formula, without its intercept.

    The variables go through the same coders as everywhere else, so that missing values and unseen levels follow the
    same rules; formulaic sees numbers and categoricals that are complete and known.

    Attributes
    ----------
    text : str
    variables : tuple of Numeric or Categorical
    spec : formulaic.ModelSpec
        Fitted state: levels, spline knots, centres.
    terms : tuple of (str, int)
        Source and number of columns of each term.
    program : tuple or None
        The same as plain data, for a model file, if it gives the same columns of the training rows.
    """

    text: str
    variables: tuple[Numeric | Categorical, ...]
    spec: Any
    terms: tuple[tuple[str, int], ...]
    program: Program | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Input columns needed."""
        return tuple(variable.name for variable in self.variables)

    @property
    def indicators(self) -> tuple[str, ...]:
        """Numeric variables with a column that marks missing values."""
        return tuple(v.name for v in self.variables if isinstance(v, Numeric) and v.indicator)

    @property
    def names(self) -> tuple[str, ...]:
        """Output column names, as formulaic writes them."""
        # Numbers go in as floats, lest powers of integers overflow; C(year)[T.2020.0] is then not what was meant.
        names = (re.sub(r"\[(T\.)?(-?\d+)\.0\]", r"[\1\2]", name) for name in self.spec.column_names[1:])
        return (*names, *(f"{name}[missing]" for name in self.indicators))

    @property
    def sources(self) -> tuple[str, ...]:
        """The variable(s) behind each output column, joined by a colon."""
        return (*(source for source, width in self.terms for _ in range(width)), *self.indicators)

    @property
    def constant(self) -> tuple[str, ...]:
        """Variables of terms that give no column."""
        return tuple(source for source, width in self.terms if not width)

    @property
    def saved(self) -> SavedTerms | LearnedTerms:
        """What a model file has of the formula."""
        if self.program is None:
            return SavedTerms(self.text, self.columns, self.names, self.sources, self.constant)
        variables = tuple(
            (v.name, v.fill, v.indicator) if isinstance(v, Numeric) else (v.name, v.levels) for v in self.variables
        )
        return LearnedTerms(self.text, variables, self.program, self.names, self.sources, self.constant)

    def encode(self, rows: TableRows, out: Array, unseen: Unseen) -> dict[str, int]:
        """Fill `out` and return the number of pooled rows by variable."""
        data, indicators, pooled = _tabulate(self.variables, rows, unseen)
        matrix = _materialize(self.spec, data, self.text)
        k = matrix.shape[1] - 1
        out[:, :k] = matrix[:, 1:]
        for j, missing in enumerate(indicators):
            out[:, k + j] = missing
        return pooled


def parse(text: str, frame: Frame) -> tuple[Any, tuple[str, ...]]:
    """Read a one-sided formula; return it with an intercept, and the columns that it needs."""
    check_text(text)
    formulaic = _formulaic()
    if not text.strip().startswith("~"):
        raise InputError(f"The formula {excerpt(text)!r} must start with '~' and have no left side.")
    try:
        # With an intercept, categoricals keep their reference level even if the formula says "0 +".
        parsed = formulaic.Formula.from_spec(
            f"{text} + 1", context={"__formulaic_variables_available__": list(frame.names)}
        )
        if not isinstance(parsed, formulaic.SimpleFormula):
            raise InputError(f"The formula {excerpt(text)!r} must have one part only: '~ a + b'.")
        factors = [factor for term in parsed for factor in term.factors]
        for factor in factors:
            if factor.eval_method.value == "python":
                check_expression(text, factor.expr, frame.names, formulaic.transforms.TRANSFORMS)
        asked = dict.fromkeys(name for factor in factors for name in _variables(factor))
    except (formulaic.errors.FormulaicError, *_FAULTS) as error:
        raise _unusable(text, error) from error
    needed = [name for name in asked if name in frame.names or name not in formulaic.transforms.TRANSFORMS]
    if not needed:
        raise InputError(f"The formula {excerpt(text)!r} names no column.")
    for name in needed:
        frame.position(name)
    return parsed, tuple(name for name in frame.names if name in needed)


def learn_formula(text: str, parsed: Any, variables: tuple[Numeric | Categorical, ...], rows: TableRows) -> Formula:
    """Fit the state of a formula (levels, knots) to the training rows."""
    data, _, _ = _tabulate(variables, rows, "error")
    matrix = _materialize(parsed, data, text)
    spec = matrix.model_spec
    known = {variable.name for variable in variables}
    terms = tuple((_source(term, known), part.stop - part.start) for term, part in spec.term_slices.items())
    program = _program(spec, variables, data[:SAMPLE], np.asarray(matrix[:SAMPLE, 1:]))
    return Formula(text, variables, spec, tuple(term for term in terms if term[0]), program)


def _program(spec: Any, variables: tuple[Numeric | Categorical, ...], data: Any, expected: Array) -> Program | None:
    """The formula as plain data, if that gives the same columns."""
    levels = {v.name: len(v.levels) for v in variables if isinstance(v, Categorical)}
    numbers = {name: data[name].to_numpy() for name in data if name not in levels}
    program = compile_spec(spec, tuple(numbers), levels)
    if program is None:
        return None
    found = np.empty_like(expected)
    run_program(program, numbers, {name: data[name].cat.codes.to_numpy() for name in levels}, found)
    return program if np.allclose(found, expected, rtol=1e-9, atol=1e-9) else None


def _tabulate(
    variables: tuple[Numeric | Categorical, ...], rows: TableRows, unseen: Unseen
) -> tuple[Any, list[Any], dict[str, int]]:
    import pandas as pd

    data: dict[str, Any] = {}
    indicators = []
    pooled = {}
    for variable in variables:
        if isinstance(variable, Numeric):
            data[variable.name], missing, count = variable.values(rows, unseen)
            if variable.indicator:
                indicators.append(missing)
        else:
            codes, count = variable.codes(rows, unseen)
            levels = ["missing" if level is None else level for level in variable.levels]
            data[variable.name] = pd.Categorical.from_codes(codes, pd.Index(levels))
        if count:
            pooled[variable.name] = count
    return pd.DataFrame(data), indicators, pooled


def _materialize(spec: Any, data: Any, text: str) -> Any:
    formulaic = _formulaic()
    options: Mapping[str, Any] = {"output": "numpy", "na_action": "ignore", "context": {}}
    try:
        with warnings.catch_warnings(record=True) as caught, np.errstate(all="ignore"):
            warnings.simplefilter("always")
            matrix = spec.get_model_matrix(data, **options)
    except (formulaic.errors.FormulaicError, *_FAULTS) as error:
        raise _unusable(text, error) from error
    for warning in caught:
        # Only C(number) gets here: the levels of text and categorical columns are checked before.
        if issubclass(warning.category, formulaic.errors.DataMismatchWarning):
            raise UnseenLevelError(
                f"In the formula {excerpt(text)!r}: {warning.message} Convert the column to text to choose another "
                "rule."
            )
    check_values(text, np.asarray(matrix), matrix.model_spec.column_names)
    return matrix


def _source(term: Any, known: set[str]) -> str:
    names = dict.fromkeys(name for factor in term.factors for name in _variables(factor))
    return ":".join(name for name in names if name in known)


def _variables(factor: Any) -> list[str]:
    """List the names that a factor uses, but for the functions that it calls, in their order.

    formulaic's own ``required_variables`` is empty for ``bs(age)`` until a matrix was made.
    """
    if factor.eval_method.value != "python":
        return [factor.expr] if factor.eval_method.value == "lookup" else []
    tree, quoted = read_expression(factor.expr)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called]
    found.sort(key=lambda node: (node.lineno, node.col_offset))
    return [quoted.get(node.id, node.id) for node in found]


def _unusable(text: str, error: Exception) -> InputError:
    if isinstance(error, InputError):
        return error
    why = (str(error).splitlines() or [type(error).__name__])[0]
    return InputError(f"The formula {excerpt(text)!r} cannot be used: {excerpt(why)}")


def _formulaic() -> Any:
    require("Formulas need", "formulaic")
    import formulaic
    import formulaic.errors
    import formulaic.transforms

    return formulaic
