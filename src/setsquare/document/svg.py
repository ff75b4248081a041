"""Elements of SVG figures: tags, scales, axes and marks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from setsquare.document.formats import visible

#: Approximate width of a letter in figures, in pixels.
LETTER = 6.6


def tag(name: str, *children: str, **attributes: object) -> str:
    """An element; children are elements or :func:`words`, attributes are escaped (``class_`` is class, ``_`` is ``-``).

    Examples
    --------
    >>> tag("text", words("a < b"), x=1.25, class_="tick")
    '<text x="1.2" class="tick">a &lt; b</text>'
    """
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{_value(v)}"' for key, v in attributes.items())
    return f"<{name}{written}>{''.join(children)}</{name}>" if children else f"<{name}{written}/>"


def words(text: object) -> str:
    """Text of an element."""
    return escape(visible(text))


def _value(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else escape(visible(value))


def shorten(text: str, width: float) -> str:
    """Text of at most `width` pixels, cut in its middle; the tooltip and the table have the full text."""
    most = max(int(width / LETTER + 1e-9), 4)  # a width of six letters has room for six, despite rounding
    text = visible(text)
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - (most - 1) // 2 :]}"


@dataclass(frozen=True, slots=True)
class Scale:
    """Linear scale from [`low`, `high`] to pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Position of a number, clipped to the scale."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round tick values.

        Examples
        --------
        >>> Scale(-0.13, 0.32, 0.0, 400.0).ticks()
        [-0.1, 0.0, 0.1, 0.2, 0.3]
        """
        # Labels are closer vertically, and on a narrow page.
        length = self.end - self.start
        most = max(length / 75.0, -length / 40.0, min(length / 35.0, 4.0), 2.0)
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * k for k in (1.0, 2.0, 5.0, 10.0) if power * k >= rough * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(k * step, 12) for k in range(first, last + 1)]


def make_scale(values: Sequence[float | None], start: float, end: float, *, zero: bool = False) -> Scale:
    """Scale that includes all finite values, and zero if required, with a margin."""
    known = [v for v in values if isinstance(v, float | int) and math.isfinite(v)] + ([0.0] if zero else [])
    low, high = min(known, default=0.0), max(known, default=1.0)
    margin = 0.04 * (high - low) or 0.5 * abs(high) or 0.5
    return Scale(
        low if zero and low == 0.0 else low - margin, high if zero and high == 0.0 else high + margin, start, end
    )


def label(value: float) -> str:
    """Label of a tick."""
    return f"{value:g}".replace("-", "\N{MINUS SIGN}")


def bottom_axis(scale: Scale, top: float, bottom: float, title: str) -> str:
    """Grid lines, ticks and a title below."""
    parts = []
    for tick in scale.ticks():
        x = scale(tick)
        parts.append(tag("line", x1=x, x2=x, y1=top, y2=bottom, class_="grid"))
        parts.append(tag("text", words(label(tick)), x=x, y=bottom + 16.0, class_="tick mid"))
    middle = (scale.start + scale.end) / 2.0
    return "".join(parts) + tag("text", words(title), x=middle, y=bottom + 34.0, class_="tick mid")


def left_axis(scale: Scale, left: float, right: float) -> str:
    """Grid lines and ticks to the left."""
    parts = []
    for tick in scale.ticks():
        y = scale(tick)
        parts.append(tag("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", words(label(tick)), x=left - 6.0, y=y + 4.0, class_="tick end"))
    return "".join(parts)


def mark(about: str, *shapes: str, class_: str = "") -> str:
    """Shapes with a tooltip, accessible by keyboard and screen reader."""
    return tag("g", tag("title", words(about)), *shapes, class_=f"mark {class_}".strip(), role="img", tabindex="-1")


def drawing(name: str, title: str, about: str, width: float, height: float, *parts: str) -> str:
    """The whole figure, with a title and a description."""
    return tag(
        "svg",
        tag("title", words(title), id=f"{name}-title"),
        tag("desc", words(about), id=f"{name}-desc"),
        *parts,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=f"{width:.0f}",
        height=f"{height:.0f}",
        role="group",
        aria_labelledby=f"{name}-title",
        aria_describedby=f"{name}-desc",
    )
