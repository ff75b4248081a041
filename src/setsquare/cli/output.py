"""Reports and JSON of what a command found, as the bytes of their files."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from setsquare._extras import require
from setsquare.auditing import AuditResult, Comparison
from setsquare.cli.files import Source
from setsquare.cli.shared_options import Options
from setsquare.document import Document, plain
from setsquare.storage import check_targets


def check_outputs(options: Options, *inputs: str | None, more: Sequence[Path | None] = ()) -> None:
    """Say before any work what cannot be written here."""
    paths = [path for path in (*options.outputs, *more) if path is not None]
    check_targets(paths, [Path(name) for name in inputs if name not in (None, "-")])
    if options.html is not None:
        require("A report page needs", "jinja2")


def render_results(
    options: Options,
    source: Source,
    found: AuditResult | Comparison,
    page: Callable[..., Document],
    more: dict[str, Any] | None = None,
) -> dict[Path, bytes]:
    """Contents of the files that were asked for; `page` makes the document, `more` are further entries of the JSON."""
    contents: dict[Path, bytes] = {}
    data = {"file": source.name, "sha256": source.sha256}
    if options.html is not None:
        contents[options.html] = page(command=command_line(), data=data).to_html().encode()
    if options.json is not None:
        tree = {"command": command_line(), "data": data, **found.to_dict(), **(more or {})}
        text = json.dumps(plain(tree), ensure_ascii=False, indent=2, allow_nan=False)
        contents[options.json] = f"{text}\n".encode()
    return contents


def command_line() -> str:
    """The command as it was given."""
    return shlex.join(["setsquare", *sys.argv[1:]])
