"""Messages for a terminal: command-line options, and no control characters."""

from __future__ import annotations

import re
import shlex

from setsquare.tables.stray_values import AS_GROUPS


def as_options(text: str) -> str:
    """Replace arguments of Python in a message by options of the command line.

    Examples
    --------
    >>> as_options("pass missing='drop', or family= if it is another; add a small ridge (l2=1e-4)")
    'pass --missing drop, or --family if it is another; add a small ridge (--l2 1e-4)'
    """
    text = text.replace("coding='cells'", "--group-cells").replace(AS_GROUPS, "pass --categorical with its name")
    text = re.sub(r"\bpositive=('[^']*'|\"[^\"]*\")", lambda m: f"--positive {shlex.quote(m[1][1:-1])}", text)
    text = re.sub(r"\bcv=(\d+)", r"--folds \1", text)
    found = re.compile(r"""\b(family|missing|unseen|method|l2|cluster|confidence|tolerance)=["']?([\w.+-]*\w)?["']?""")
    return found.sub(lambda m: f"--{m[1]}" + (f" {m[2]}" if m[2] else ""), text)


def clean(text: str) -> str:
    r"""Escape control characters (escapes, line breaks, changes of direction).

    Examples
    --------
    >>> clean("a\x1b[31mb\nc")
    'a\\x1b[31mb\\nc'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
