"""What a report is: verdicts, and sections of plain values that every format is written from.

A section is a dictionary with ``id``, ``title``, ``text`` (paragraphs), ``notes`` (a list), ``tables`` and ``figures``.
A table has a ``caption``, ``columns`` with a name and a kind, and ``rows`` of raw values; a figure has a ``kind``, a
``title``, a ``summary`` in words and the numbers that it is drawn from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from setsquare._extras import require
from setsquare.errors import InputError
from setsquare.report import writing

Section: TypeAlias = dict[str, Any]
#: How a value is written: words, a number, one with its sign, a p-value, a number of rows, or without zeros.
Kind: TypeAlias = Literal["text", "number", "signed", "p", "count", "plain"]


@dataclass(frozen=True, slots=True)
class Headline:
    """The verdict on one model.

    Attributes
    ----------
    model : str
        Its name; empty where there is a single one.
    verdict : str
        "leak", "trace", "no leak found" or "inconclusive: n too small".
    sentence : str
        The answer, with the numbers.
    """

    model: str
    verdict: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Report:
    """Verdicts, and everything that a reader needs to judge them, in plain values; made by :func:`build`.

    Attributes
    ----------
    title : str
        The question.
    verdicts : tuple of Headline
        The answer for each model, by name.
    sections : tuple of dict
        What there are data for; see this module's docstring.

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
    ('leak', ['summary', 'meaning', 'effects', 'leakage', 'levels', 'method', 'reproduce'])
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
        """The answer for the last model, with the numbers."""
        return self.verdicts[-1].sentence

    def section(self, name: str) -> Section:
        """One of the sections, by its id."""
        for section in self.sections:
            if section["id"] == name:
                return section
        raise InputError(f"This report has no section {name!r}: it has {', '.join(s['id'] for s in self.sections)}.")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; unknown numbers are None and infinite ones "Infinity"."""
        return {
            "title": self.title,
            "verdicts": [asdict(each) for each in self.verdicts],
            "sections": list(self.sections),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Report:
        """Read what :meth:`to_dict` wrote."""
        verdicts = tuple(Headline(**each) for each in values["verdicts"])
        return cls(values["title"], verdicts, tuple(values["sections"]))

    def to_json(self, path: str | Path | None = None) -> str:
        """JSON; also written to `path` where one is given, as in all methods below."""
        return _written(json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n", path)

    def to_text(self, path: str | Path | None = None) -> str:
        """Plain text, 100 characters wide but for wider tables."""
        return _written(writing.text(self.to_dict()), path)

    def to_markdown(self, path: str | Path | None = None) -> str:
        """Markdown with pipe tables."""
        return _written(writing.markdown(self.to_dict()), path)

    def to_latex(self, path: str | Path | None = None, *, sections: Sequence[str] | None = None) -> str:
        """Tables for a paper, in the style of the package booktabs; of all sections, or of those named."""
        chosen = self.sections if sections is None else tuple(map(self.section, sections))
        return _written(writing.latex(chosen), path)

    def to_html(self, path: str | Path | None = None) -> str:
        """One page with figures that needs no network."""
        require("A report page needs", "jinja2")
        from setsquare.report import page  # jinja2 is optional

        return _written(page.render(self.to_dict()), path)

    def __str__(self) -> str:
        return self.to_text()


def _written(content: str, path: str | Path | None) -> str:
    if path is not None:
        Path(path).write_text(content, encoding="utf-8")
    return content


def plain(value: Any) -> Any:
    """A value as JSON has it: NaN is None, infinity the word that JavaScript and Python read as a number."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return None if value != value else value if abs(value) != float("inf") else f"{'-' * (value < 0)}Infinity"
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def table(caption: str, columns: Sequence[tuple[str, Kind]], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """A table of plain values; columns in which no row has a value are left out."""
    used = [j for j in range(len(columns)) if j == 0 or any(row[j] not in (None, "") for row in plain(rows))]
    return {
        "caption": caption,
        "columns": [{"name": columns[j][0], "kind": columns[j][1]} for j in used],
        "rows": [[plain(row[j]) for j in used] for row in rows],
    }


def section(
    name: str,
    title: str,
    *,
    text: Sequence[str] = (),
    notes: Sequence[str] = (),
    tables: Sequence[dict[str, Any]] = (),
    figures: Sequence[dict[str, Any]] = (),
) -> Section:
    """One part of a report."""
    return {
        "id": name,
        "title": title,
        "text": list(text),
        "notes": list(notes),
        "tables": [one for one in tables if one["rows"]],
        "figures": list(plain(figures)),
    }
