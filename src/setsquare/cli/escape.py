"""Sentences as a terminal may show them, with the options of the command line."""

from __future__ import annotations

import shlex

from setsquare.notes import Note, Option, Surface

_SAME = ("family", "missing", "unseen", "method", "l2", "cluster", "positive", "confidence", "tolerance")
#: Options of the command line by the argument of Python that they are.
_OPTIONS = {"cv": "folds", **{name: name for name in _SAME}}


def as_option(option: Option, verb: str = "") -> str:
    """Name an argument as the command line has it.

    Examples
    --------
    >>> as_option(Option("missing", "drop"), "pass"), as_option(Option("family")), as_option(Option("vcov", "HC3"))
    ('pass --missing drop', '--family', "vcov='HC3'")
    """
    if option.name == "categorical":
        return "pass --categorical with its name"
    if option.name not in _OPTIONS:
        return format(option, verb)
    value = "" if option.value is None else f" {shlex.quote(str(option.value))}"
    return f"{verb} --{_OPTIONS[option.name]}{value}".strip()


def as_option_of_fit(option: Option, verb: str = "") -> str:
    """Name an argument that is decided when a model is fitted, for whoever applies the model."""
    return as_option(option, "fit the model with" if verb else "")


def phrase(sentence: str, surface: Surface = as_option) -> str:
    """A note in the words of the command line; other sentences stay as they are."""
    return sentence.phrase(surface) if isinstance(sentence, Note) else str(sentence)


def clean(text: object) -> str:
    r"""Write characters that steer a terminal (escapes, line breaks, changes of direction) as what they are.

    Examples
    --------
    >>> clean("a\x1b[31mb\nc")
    'a\\x1b[31mb\\nc'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
