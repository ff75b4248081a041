"""Any dataframe or array → named float64 matrices.

A table is read once by :func:`learn`, which returns a :class:`Design`: an immutable record of levels, references and
fills. :meth:`Design.apply` then turns that table, or any later one with the same columns, into an :class:`Encoded`
matrix whose columns have a name (``race[Black]``) and a source (``race``). Replacing the protected columns by a
richer basis (all cells, splines) is what extends every guarantee beyond a linear evaluation model.
"""

from __future__ import annotations

from setsquare.tables.coders import Categorical, Cells, Coder, Numeric
from setsquare.tables.column import Level
from setsquare.tables.column import complete_rows as complete
from setsquare.tables.design import Design, Encoded
from setsquare.tables.formula import Formula
from setsquare.tables.frame import check_column, column_names, dense, drop, filter_rows, n_rows, select, slice_rows
from setsquare.tables.learn import learn, settle
from setsquare.tables.summary import TableSeen, observe

__all__ = [
    "Categorical",
    "Cells",
    "Coder",
    "Design",
    "Encoded",
    "Formula",
    "Level",
    "Numeric",
    "TableSeen",
    "check_column",
    "column_names",
    "complete",
    "dense",
    "drop",
    "filter_rows",
    "learn",
    "n_rows",
    "observe",
    "select",
    "settle",
    "slice_rows",
]
