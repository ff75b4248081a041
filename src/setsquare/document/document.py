"""Document of a result as plain values: verdicts, and sections of paragraphs, notes, tables and figures.

A section is a dictionary with ``id``, ``title``, ``text`` (paragraphs), ``notes`` (a list), ``tables`` and ``figures``.
A table has a ``caption``, ``columns`` with a name and a kind, and ``rows`` of raw values; a figure has a ``kind``, a
``title``, a ``summary`` in words and the numbers that it is drawn from. Sections, tables and columns marked ``detail``
appear in the full document only: :meth:`Document.brief` omits them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from setsquare._extras import require
from setsquare.document import latex, markdown, notebook_html, text
from setsquare.errors import InputError

Section: TypeAlias = dict[str, Any]
#: Formats of a value: words, a number, a signed number, a p-value, a count, a number without trailing zeros, or an
#: estimate with its interval.
Kind: TypeAlias = Literal["text", "number", "signed", "p", "count", "plain", "interval"]
Form: TypeAlias = Literal["grid", "folded", "key"]


@dataclass(frozen=True, slots=True)
class Headline:
    """The verdict on one model.

    Attributes
    ----------
    model : str
        Name of the model; empty if there is only one.
    verdict : str
        "leak", "trace", "no leak found" or "inconclusive: n too small".
    sentence : str
        The answer in plain words.
    statistics : str
        Tests and bounds that it rests on.
    """

    model: str
    verdict: str
    sentence: str
    statistics: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """Verdicts, and the sections that explain them, in plain values.

    Attributes
    ----------
    title : str
        The question.
    verdicts : tuple of Headline
        The answer for each model, by name.
    sections : tuple of dict
        Sections with data; see the module docstring.

    Examples
    --------
    >>> import numpy as np
    >>> import setsquare as sq
    >>> from setsquare.report import Report, build
    >>> rng = np.random.default_rng(0)
    >>> sex = rng.choice(["female", "male"], 2000)
    >>> probability = 1 / (1 + np.exp(-rng.normal(size=2000) - 0.5 * (sex == "male")))
    >>> report = build(sq.audit(probability, sex), predictions=probability, protected=sex)
    >>> report.verdict, [section["id"] for section in report.sections]
    ('leak', ['summary', 'meaning', 'numbers', 'effects', 'levels', 'leakage', 'notes', 'method'])
    >>> Report.from_dict(report.to_dict()) == report
    True
    """

    title: str
    verdicts: tuple[Headline, ...]
    sections: tuple[Section, ...]

    @property
    def verdict(self) -> str:
        """The verdict on the last model, such as the corrected one."""
        return self.verdicts[-1].verdict

    @property
    def sentence(self) -> str:
        """The answer for the last model, in plain words."""
        return self.verdicts[-1].sentence

    def section(self, name: str) -> Section:
        """One of the sections, by its id."""
        for one in self.sections:
            if one["id"] == name:
                return one
        raise InputError(f"This report has no section {name!r}: it has {', '.join(s['id'] for s in self.sections)}.")

    def brief(self) -> Document:
        """Short version for terminals and notebooks, without title and details."""
        sections = (_without_details(one) for one in self.sections if not one["detail"])
        return replace(self, title="", sections=tuple(filter(has_content, sections)))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; unknown numbers are None and infinite ones "Infinity"."""
        return {
            "title": self.title,
            "verdicts": [asdict(each) for each in self.verdicts],
            "sections": list(self.sections),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Document:
        """Read the output of :meth:`to_dict`."""
        verdicts = tuple(Headline(**each) for each in values["verdicts"])
        return cls(values["title"], verdicts, tuple(values["sections"]))

    def to_json(self, path: str | Path | None = None) -> str:
        """JSON; also written to `path` if given, as in all methods below."""
        return _written(json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n", path)

    def to_text(self, path: str | Path | None = None) -> str:
        """Plain text, 100 characters wide except for wide tables."""
        return _written(text.render(self.to_dict()), path)

    def to_markdown(self, path: str | Path | None = None) -> str:
        """Markdown with pipe tables."""
        return _written(markdown.render(self.to_dict()), path)

    def to_latex(self, path: str | Path | None = None, *, sections: Sequence[str] | None = None) -> str:
        """LaTeX tables in booktabs style, of all sections or the named ones."""
        chosen = self.sections if sections is None else tuple(map(self.section, sections))
        return _written(latex.render(chosen), path)

    def to_html(self, path: str | Path | None = None) -> str:
        """Self-contained html page with figures."""
        require("A report page needs", "jinja2")
        from setsquare.document import html_page  # jinja2 is optional

        return _written(html_page.render(self.to_dict()), path)

    def to_docx(self, path: str | Path | None = None) -> bytes:
        """Word file with all sections; figures are given in words."""
        require("A Word file needs", "docx")
        from setsquare.document import word  # python-docx is optional

        content = word.render(self.to_dict())
        if path is not None:
            Path(path).write_bytes(content)
        return content

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return notebook_html.render(self.to_dict())


class Documented:
    """Base of results with a document: text, html for notebooks, an html page, and files to hand on."""

    __slots__ = ()

    def document(self) -> Document:
        """The document of this result, as plain values."""
        raise NotImplementedError

    def to_html(self, path: str | Path | None = None) -> str:
        """Self-contained html page; also written to `path` if given."""
        return self.document().to_html(path)

    def to_markdown(self, path: str | Path | None = None) -> str:
        """Markdown with pipe tables; also written to `path` if given."""
        return self.document().to_markdown(path)

    def to_latex(self, path: str | Path | None = None, *, sections: Sequence[str] | None = None) -> str:
        """LaTeX tables in booktabs style, of all sections or the named ones; also written to `path` if given."""
        return self.document().to_latex(path, sections=sections)

    def to_docx(self, path: str | Path | None = None) -> bytes:
        """Word file with all sections (needs python-docx); also written to `path` if given."""
        return self.document().to_docx(path)

    def __str__(self) -> str:
        return self.document().brief().to_text().rstrip("\n")

    def _repr_html_(self) -> str:
        return self.document().brief()._repr_html_()


def _written(content: str, path: str | Path | None) -> str:
    if path is not None:
        Path(path).write_text(content, encoding="utf-8")
    return content


def plain(value: Any) -> Any:
    """A value for JSON: NaN becomes None, infinity the string that JavaScript and Python parse as a number."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return None if value != value else value if abs(value) != float("inf") else f"{'-' * (value < 0)}Infinity"
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def table(
    caption: str,
    columns: Sequence[tuple[str, ...]],
    rows: Sequence[Sequence[Any]],
    *,
    detail: bool | Collection[str] = False,
    form: Form = "grid",
) -> dict[str, Any]:
    """A table of plain values; empty columns are omitted.

    ``columns`` are kinds, each followed by the names of its columns; ``detail`` marks the whole table, or the columns
    of these names. A page shows a table as a grid, folds it, or shows each row as a large number.
    """
    rows = plain(rows)
    flat = [(name, kind) for kind, *names in columns for name in names]
    used = [j for j in range(len(flat)) if j == 0 or any(row[j] not in (None, "") for row in rows)]
    fine = () if isinstance(detail, bool) else detail
    return {
        "caption": caption,
        "columns": [{"name": flat[j][0], "kind": flat[j][1], "detail": flat[j][0] in fine} for j in used],
        "rows": [[row[j] for j in used] for row in rows],
        "detail": detail is True,
        "form": form,
    }


def typed(value: Any, kind: Kind) -> dict[str, Any]:
    """A cell with a kind of its own."""
    return {"value": value, "kind": kind}


def section(
    name: str,
    title: str,
    *,
    text: Sequence[str] = (),
    notes: Sequence[str] = (),
    tables: Sequence[dict[str, Any]] = (),
    figures: Sequence[dict[str, Any]] = (),
    detail: bool = False,
) -> Section:
    """One part of a document."""
    return {
        "id": name,
        "title": title,
        "text": list(text),
        "notes": list(notes),
        "tables": [one for one in tables if one["rows"]],
        "figures": list(plain(figures)),
        "detail": detail,
    }


def has_content(part: Section) -> bool:
    """Whether a section has any content."""
    return any(part[key] for key in ("text", "notes", "tables", "figures"))


def _without_details(part: Section) -> Section:
    tables = [_without_columns(one) for one in part["tables"] if not one["detail"]]
    return {**part, "tables": [one for one in tables if one["rows"]], "figures": []}


def _without_columns(full: dict[str, Any]) -> dict[str, Any]:
    """A table without its detail columns, and without rows that then hold only words."""
    kept = [j for j, column in enumerate(full["columns"]) if not column["detail"]]
    if len(kept) == len(full["columns"]):
        return full
    numbers = [j for j in kept if full["columns"][j]["kind"] != "text"]
    rows = [[row[j] for j in kept] for row in full["rows"] if any(row[j] is not None for j in numbers)]
    return {**full, "columns": [full["columns"][j] for j in kept], "rows": rows}
