"""Colours of verdicts, for screens, notebooks and pages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tone:
    """Colours of a verdict: on a light page, its tint, on a dark page, in print, and on a terminal."""

    light: str
    tint: str
    dark: str
    printed: str
    terminal: str


TONES = {
    "leak": Tone("#9f2219", "#fbeceb", "#ff958a", "#8a1a12", "red"),
    "none": Tone("#17633f", "#eaf6f0", "#74d0a2", "#0f5132", "green"),
    "unsure": Tone("#7d5000", "#fdf4e3", "#e6b555", "#6b4400", "yellow"),
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
    """Rules of a page: light, dark and printed."""
    rules = {
        part: " ".join(f".{name} {{ color: {getattr(tone, part)}; }}" for name, tone in TONES.items())
        for part in ("light", "dark", "printed")
    }
    dark, printed = (f"@media {when} {{ {rules[part]} }}" for when, part in _MEDIA)
    return f"{rules['light']}\n{dark}\n{printed}\n"


_MEDIA = (("(prefers-color-scheme: dark)", "dark"), ("print", "printed"))


def fragment_style() -> str:
    """Rules of a piece of html in a notebook."""
    return "".join(f".sq .{name}{{border-color:{tone.light};background:{tone.tint}}}" for name, tone in TONES.items())
