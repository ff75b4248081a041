"""The README's examples run, and print what it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(
    r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", README.read_text(encoding="utf-8"), flags=re.DOTALL
)


def settled(text: str) -> str:
    """Rounding errors differ between machines: 5.1e-16 and 3e-15 are both nothing."""
    return re.sub(r"\d(\.\d)?e-1\d", "~0", text).strip()


@pytest.mark.parametrize(("code", "printed"), BLOCKS)
def test_the_example_prints_what_the_readme_says(code, printed):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, str(README), "exec"), {})
    assert printed
    assert settled(out.getvalue()) == settled(printed)


def test_there_is_an_example():
    assert BLOCKS
