"""A report as text, Markdown and LaTeX; names from the user's data come out as text in all of them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from setsquare.auditing.render import WIDTH, grid, number, p_value

#: Control characters, those that turn the direction of what follows them, and halves of a character.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MARKDOWN = re.compile(r"([\\`*_\[\]|#~$!{}]|^[-+=>]|(?<=:)//|(?<=www)\.|@)")
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # after the end of a row it would be an argument
    "²": r"\textsuperscript{2}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def visible(words: object) -> str:
    r"""Text on one line, with spaces in place of line breaks and a sign in place of other control characters.

    Examples
    --------
    >>> print(visible("two\nlines"), len(visible("\x1b[31m")))
    two lines 5
    """
    return _UNSEEN.sub(lambda found: " " if found.group() in "\t\r\n\u2028\u2029" else "\ufffd", str(words))


def cell(value: Any, kind: str) -> str:
    """A value of a table in words.

    Examples
    --------
    >>> [cell(0.0312, "p"), cell(29170, "count"), cell(2.0, "plain"), cell(-0.5, "signed"), cell("Infinity", "number")]
    ['0.0312', '29,170', '2', '-0.5000', 'inf']
    """
    if value is None or kind == "text":
        return "-" if value is None else visible(value)
    if kind == "count":
        return f"{value:,}"
    if kind == "plain":
        return f"{float(value):g}"
    if kind == "signed" and float(value) and 1e-3 <= abs(float(value)) < 100.0:
        return f"{float(value):+.4f}"
    return p_value(float(value)) if kind == "p" else number(float(value))


def grid_of(table: Mapping[str, Any]) -> list[list[str]]:
    """Head and rows of a table in words."""
    kinds = [column["kind"] for column in table["columns"]]
    head = [visible(column["name"]) for column in table["columns"]]
    return [head, *([cell(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in table["rows"])]


def text(report: Mapping[str, Any]) -> str:
    """The report as plain text."""
    return "\n".join(_text_lines(report)) + "\n"


def _text_lines(report: Mapping[str, Any]) -> Iterator[str]:
    yield visible(report["title"])
    for each in report["verdicts"]:
        yield textwrap.fill(visible(f"{_lead(each)}{each['verdict'].upper()}. {each['sentence']}"), WIDTH)
    for section in report["sections"]:
        title = visible(section["title"])
        yield f"\n{title}\n{'-' * len(title)}"
        yield from (textwrap.fill(visible(paragraph), WIDTH) for paragraph in section["text"])
        for table in section["tables"]:
            yield f"\n{textwrap.fill(visible(table['caption']), WIDTH)}\n{grid(grid_of(table))}"
        for note in section["notes"]:
            yield textwrap.fill(visible(note), WIDTH, initial_indent="* ", subsequent_indent="  ")


def markdown(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    parts = [f"# {escape_markdown(report['title'])}"]
    for each in report["verdicts"]:
        verdict = escape_markdown(_lead(each) + each["verdict"] if each["model"] else _capital(each["verdict"]))
        parts.append(f"**{verdict}.** {escape_markdown(each['sentence'])}")
    for section in report["sections"]:
        parts.append(f"## {escape_markdown(section['title'])}")
        parts += map(escape_markdown, section["text"])
        for table in section["tables"]:
            head, *rows = [[escape_markdown(word) for word in row] for row in grid_of(table)]
            rule = ["---" if column["kind"] == "text" else "---:" for column in table["columns"]]
            lines = "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows])
            parts.append(f"{escape_markdown(table['caption'])}\n\n{lines}")
        parts += ["\n".join(f"* {escape_markdown(note)}" for note in section["notes"])] if section["notes"] else []
    return "\n\n".join(parts) + "\n"


def latex(sections: Sequence[Mapping[str, Any]]) -> str:
    r"""The tables of some sections as LaTeX; they need ``\usepackage{booktabs}``."""
    return "\n".join(_latex_table(table) for section in sections for table in section["tables"])


def _latex_table(table: Mapping[str, Any]) -> str:
    head, *rows = [" & ".join(map(escape_latex, row)) + r" \\" for row in grid_of(table)]
    places = "".join("l" if column["kind"] == "text" else "r" for column in table["columns"])
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{escape_latex(table['caption'])}}}"]
    lines += [rf"\begin{{tabular}}{{{places}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}", r"\end{table}", ""])


def escape_markdown(words: object) -> str:
    r"""Text that Markdown shows as it is: no tag, no emphasis, no link, no cell.

    Examples
    --------
    >>> print(escape_markdown("<b>|a_b|"))
    &lt;b>\|a\_b\|
    """
    escaped = _MARKDOWN.sub(r"\\\1", visible(words))
    return escaped.replace("&", "&amp;").replace("<", "&lt;")


def escape_latex(words: object) -> str:
    r"""Text that LaTeX sets as it is.

    Examples
    --------
    >>> print(escape_latex("50% & \\input{x}"))
    50\% \& \textbackslash{}input\{x\}
    """
    return "".join(_LATEX.get(sign, sign) for sign in visible(words))


def _lead(headline: Mapping[str, Any]) -> str:
    """Name of the model before its verdict."""
    return f"{headline['model']}: " if headline["model"] else ""


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
