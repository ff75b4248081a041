"""A document as a self-contained html page, with a content security policy that blocks all requests."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from setsquare.document import figures
from setsquare.document.formats import answer, cell, page_style, tone_name, typed, visible


def render(report: Mapping[str, Any]) -> str:
    """Write the page."""
    style, script, template = (_read(name) for name in ("page.css", "page.js", "page.html"))
    style += page_style()
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )
    environment.filters["flow"] = _flow
    environment.filters["answer"] = answer
    environment.filters["cell"] = lambda value, kind: _cell(*typed(value, kind))
    environment.globals["draw"] = _draw
    environment.globals["colour"] = figures.colour
    page = environment.from_string(template).render(
        report=report,
        first=_first_figure(report),
        kinds=[tone_name(each["verdict"]) for each in report["verdicts"]],
        style=Markup(style),
        script=Markup(script),
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; "
        "form-action 'none'",
    )
    return page + "\n"


def _first_figure(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The figure whose legend the verdicts are, if there are several."""
    figures_ = [figure for part in report["sections"][:1] for figure in part.get("figures", ()) if "sides" in figure]
    return figures_[0] if figures_ and len(report["verdicts"]) > 1 else {"sides": ()}


def _cell(value: Any, kind: str) -> str | Markup:
    """A cell; an interval stands below its estimate."""
    estimate, bracket, ends = cell(value, kind).partition(" [") if kind == "interval" else (cell(value, kind), "", "")
    return Markup('{} <span class="ends">[{}</span>').format(estimate, ends) if bracket else estimate


def _flow(words: object) -> str:
    """A sentence without line breaks inside "5 %" and "17-27"."""
    return re.sub(r"(?<=\d)-(?=\d)", "\u2060-\u2060", re.sub(r"(?<=\d) (?=%)", "\u00a0", visible(words)))


def _draw(figure: Mapping[str, Any], name: str, *, wide: bool) -> Markup:
    return Markup(figures.draw(figure, name, figures.WIDE if wide else figures.NARROW))


def _shown(value: Any) -> Any:
    """Text without control characters; existing markup is kept."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _read(name: str) -> str:
    return files("setsquare.document").joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
