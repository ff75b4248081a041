r"""Tables of a document as LaTeX, in booktabs style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from setsquare.document.formats import grid_of, visible

_SIGNS = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # would be read as an argument after the end of a row
    "²": r"\textsuperscript{2}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def render(sections: Sequence[Mapping[str, Any]]) -> str:
    r"""Write the tables of some sections; they need ``\usepackage{booktabs}``."""
    return "\n".join(_table(table) for section in sections for table in section["tables"])


def _table(table: Mapping[str, Any]) -> str:
    head, *rows = [" & ".join(map(escape, row)) + r" \\" for row in grid_of(table)]
    places = "".join("l" if column["kind"] == "text" else "r" for column in table["columns"])
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{escape(table['caption'])}}}"]
    lines += [rf"\begin{{tabular}}{{{places}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}", r"\end{table}", ""])


def escape(words: object) -> str:
    r"""Escape text for LaTeX.

    Examples
    --------
    >>> print(escape("50% & \\input{x}"))
    50\% \& \textbackslash{}input\{x\}
    """
    return "".join(_SIGNS.get(sign, sign) for sign in visible(words))
