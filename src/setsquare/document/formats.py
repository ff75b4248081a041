"""Formats of numbers, p-values, table cells and verdicts, and their colours, shared by all renderers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

#: Control characters, bidirectional controls and lone surrogates.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def number(value: float) -> str:
    """A number with about four significant digits."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e5):
        return f"{value:.2e}"
    return f"{value:.3f}" if size < 100 else f"{value:.1f}"


def signed(value: float) -> str:
    """A difference, with its sign.

    Examples
    --------
    >>> signed(0.25), signed(-0.00067), signed(3e-7), signed(0.0)
    ('+0.2500', '-0.0007', '+3.00e-07', '0.000')
    """
    if 1e-4 <= abs(value) < 100.0:
        return f"{value:+.4f}"
    return f"{'+' * (value > 0.0)}{number(value)}"


def p_value(p: float) -> str:
    """A p-value.

    Examples
    --------
    >>> p_value(0.0312), p_value(3e-20), p_value(0.0)
    ('0.0312', '3.0e-20', '<1e-300')
    """
    if math.isnan(p):
        return "-"
    if p < 1e-300:
        return "<1e-300"
    return f"{p:.1e}" if p < 1e-4 else f"{p:.4f}"


def percent(confidence: float) -> str:
    """A confidence."""
    return f"{100.0 * confidence:g} %"


def joined(names: Sequence[str], most: int = 4) -> str:
    """Names in a sentence.

    Examples
    --------
    >>> joined(["age", "race", "sex"]), joined(list("abcdef"))
    ('age, race and sex', 'a, b, c, d and 2 more')
    """
    shown = [*names[:most], f"{len(names) - most} more"] if len(names) > most + 1 else list(names)
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def term_name(term: str, source: str) -> str:
    """Name of a coded column for readers: its column and group.

    Examples
    --------
    >>> term_name("race[Black]", "race"), term_name("age", "age")
    ('race: Black', 'age')
    """
    group = term.removeprefix(f"{source}[")
    return f"{source}: {group[:-1]}" if group != term and group.endswith("]") else term


def capital(words: str) -> str:
    """The text with a capital first letter."""
    return words[:1].upper() + words[1:]


def visible(words: object) -> str:
    r"""Text on one line, with spaces for line breaks and a replacement sign for other control characters.

    Examples
    --------
    >>> print(visible("two\nlines"), len(visible("\x1b[31m")))
    two lines 5
    """
    return _UNSEEN.sub(lambda found: " " if found.group() in "\t\r\n\u2028\u2029" else "\ufffd", str(words))


def cell(value: Any, kind: str, show: Callable[[object], str] = visible) -> str:
    """Format a table cell; ``show`` formats text.

    Examples
    --------
    >>> [cell(0.0312, "p"), cell(29170, "count"), cell(2.0, "plain"), cell(-0.5, "signed"), cell("Infinity", "number")]
    ['0.0312', '29,170', '2', '-0.5000', 'inf']
    >>> cell([0.71, 0.68, 0.74], "interval"), cell([0.71, None, None], "interval")
    ('0.710 [0.680, 0.740]', '0.710')
    >>> cell([0.0006, 0.0, 0.005], "interval"), cell([-0.0006, -0.02, 0.02], "interval")
    ('0.0006 [0.0000, 0.0050]', '-0.001 [-0.020, 0.020]')
    >>> cell([-0.0002, -0.011, 0.011], "interval")
    '0.000 [-0.011, 0.011]'
    """
    if value is None or kind == "text":
        return "-" if value is None else show(value)
    if kind == "interval":
        numbers = [math.nan if v is None else float(v) for v in value]
        digits = _digits(numbers)
        estimate, *ends = (f"{v:{digits}}" if digits and not math.isnan(v) else number(v) for v in numbers)
        return estimate if "-" in ends else f"{estimate} [{', '.join(ends)}]"
    if kind == "count":
        return f"{value:,}"
    if kind == "plain":
        return f"{float(value):g}"
    return {"p": p_value, "signed": signed}.get(kind, number)(float(value))


def _digits(values: Sequence[float]) -> str:
    """Format of an estimate and its ends: as many decimals as the largest needs; none for very small or large ones."""
    largest = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
    if largest < 1e-3 or not abs(values[0]) < 100.0:
        return ""
    return "z.3f" if largest >= 0.01 else "z.4f"  # without a sign where it rounds to zero


def grid_of(table: Mapping[str, Any], show: Callable[[object], str] = visible) -> list[list[str]]:
    """Header and rows of a table as text; a cell may have its own kind, ``{"value": …, "kind": …}``."""
    kinds = [column["kind"] for column in table["columns"]]
    head = [show(column["name"]) for column in table["columns"]]
    rows = ([cell(*typed(v, kind), show) for v, kind in zip(row, kinds, strict=True)] for row in table["rows"])
    return [head, *rows]


def typed(value: Any, kind: str) -> tuple[Any, str]:
    """Value and kind of a cell: its own, or that of its column."""
    return (value["value"], value["kind"]) if isinstance(value, Mapping) else (value, kind)


def headline(each: Mapping[str, Any]) -> str:
    """Name of a model, its verdict and the reason."""
    verdict = f"{each['verdict'].upper()}. " if each["verdict"] else ""
    return f"{lead(each)}{verdict}{each['sentence']}"


def lead(each: Mapping[str, Any]) -> str:
    """Name of the model before its verdict."""
    return f"{each['model']}: " if each["model"] else ""


#: Verdicts in words for readers who do not know the terms.
_ANSWERS = {
    "leak": "dependence found",
    "trace": "slight dependence found",
    "no leak found": "no dependence found",
    "inconclusive: n too small": "too few rows to tell",
}


def answer(verdict: str) -> str:
    """A verdict in words that need no explanation.

    Examples
    --------
    >>> answer("leak"), answer("alarm")
    ('dependence found', 'alarm')
    """
    return _ANSWERS.get(verdict, verdict)


class Tone(NamedTuple):
    """Colours of a verdict: on a light page, on a dark one, in print; its tint in a notebook; on a terminal."""

    light: str
    dark: str
    printed: str
    tint: str
    terminal: str


TONES = {
    "leak": Tone("#9f2219", "#ff958a", "#8a1a12", "#fbeceb", "red"),
    "none": Tone("#17633f", "#74d0a2", "#0f5132", "#eaf6f0", "green"),
    "unsure": Tone("#7d5000", "#e6b555", "#6b4400", "#fdf4e3", "yellow"),
}


def tone_name(verdict: str) -> str:
    """Name of a verdict's tone.

    Examples
    --------
    >>> tone_name("no leak found"), tone_name("trace")
    ('none', 'unsure')
    """
    return {"leak": "leak", "no leak found": "none"}.get(verdict, "unsure")


def page_style() -> str:
    """CSS rules of a page: light, dark and print."""
    light, dark, printed = (
        " ".join(f".{name} {{ color: {tone[k]}; }}" for name, tone in TONES.items()) for k in range(3)
    )
    return f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n@media print {{ {printed} }}\n"


def fragment_style() -> str:
    """CSS rules of an html fragment in a notebook."""
    return "".join(f".sq .{name}{{border-color:{t.light};background:{t.tint}}}" for name, t in TONES.items())
