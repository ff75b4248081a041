"""The positive class of two: the one that is named, never the last by alphabet."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from setsquare.errors import InputError
from setsquare.notes import Note, Option

#: Words that a column of predictions may have beside the name of a class.
_BESIDE = frozenset(
    ("p", "pr", "prob", "proba", "probability", "score", "pred", "predict", "predicted", "prediction", "of", "is", "y")
)


def positive_class(
    classes: Sequence[str], asked: object = None, columns: Sequence[str] = (), *, otherwise: str | None = None
) -> str:
    """Choose the positive class of two, never by alphabet.

    It is the class that was asked for; else 1, True or "yes"; else the class that a column of predictions is named
    after; else `otherwise`, for models whose own order of classes decides. If none of these applies, it is refused.

    Parameters
    ----------
    classes : sequence of two str
    asked : object, optional
    columns : sequence of str
        Names of columns with the probability of a class.
    otherwise : str, optional

    Examples
    --------
    >>> positive_class(["No", "Yes"]), positive_class(["approved", "denied"], columns=["p_approved"])
    ('Yes', 'approved')
    """
    if asked is not None:
        return _find(classes, asked)
    affirmed = [name for j, name in enumerate(classes) if _affirms(name, classes[1 - j])]
    if len(affirmed) == 1:
        return affirmed[0]
    borne = {name for name in classes for column in columns if bears(column, name)}
    if len(borne) == 1:
        return borne.pop()
    if otherwise is not None and not borne:
        return otherwise
    first, second = map(repr, classes)
    if borne:
        raise InputError(
            f"Some predictions are named after {first} and some after {second}: give the probability of one class "
            "in all."
        )
    numbers = ", or {gaussian} if these are numbers" if all(map(_is_number, classes)) else ""
    text = (
        "It is unclear which of the classes {first!r} and {second!r} is the positive one, whose probability the "
        f"predictions give: {{one:pass}} or {{other}}{numbers}."
    )
    one, other = (Option("positive", name) for name in classes)
    gaussian = Option("family", "gaussian")
    fields = {"first": classes[0], "second": classes[1], "one": one, "other": other, "gaussian": gaussian}
    raise InputError(Note("positive-class-unknown", text, severity="info", **fields))


def _find(classes: Sequence[str], asked: object) -> str:
    """The class that was asked for: by its name, whatever its case, or by its number."""
    name = class_name(asked)
    for same in (str, str.casefold, _number):
        found = [one for one in classes if same(one) == same(name)]
        if len(found) == 1:
            return found[0]
    text = "{positive} is not one of the classes {classes}: name one of them."
    known = ", ".join(map(repr, classes))
    raise InputError(Note("positive-class-unknown", text, positive=Option("positive", name), classes=known))


def refuse_positive(asked: object) -> NoReturn:
    """Refuse a positive class where there are not two classes."""
    text, positive = "{positive} belongs to two classes: leave it out here.", Option("positive", class_name(asked))
    raise InputError(Note("positive-class-unused", text, positive=positive))


def class_name(value: object) -> str:
    """Name of a class: whole numbers without a decimal point."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool | np.bool_)
    return f"{value:.15g}" if is_number else str(value)


def _number(name: str) -> object:
    try:
        return float(name)
    except ValueError:
        return name


def _is_number(name: str) -> bool:
    return isinstance(_number(name), float)


def _affirms(name: str, other: str) -> bool:
    """Whether a class means yes; neither of the codes 1 and 2 does."""
    if name.strip().casefold() in ("yes", "true"):
        return True
    return _number(name) == 1.0 and (not _is_number(other) or _number(other) in (0.0, -1.0))


def bears(column: str, name: str) -> bool:
    """Whether a column is named after a class: ``approved``, ``p_approved``, ``probability[approved]``, ``p1``.

    Examples
    --------
    >>> bears("P(approved)", "approved"), bears("not approved", "approved")
    (True, False)
    """
    words, own = (Counter(re.findall(r"[^\W\d_]+|\d+", text.casefold())) for text in (column, name))
    plain = Counter({word: count for word, count in words.items() if word not in _BESIDE})
    return bool(own) and own in (words, plain)
