"""Colours of verdicts, for screens, notebooks and pages."""

from __future__ import annotations

from typing import NamedTuple


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
