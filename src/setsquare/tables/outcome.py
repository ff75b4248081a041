"""The outcome: how it is read, which of two classes is positive, and the guess of its family."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np

from setsquare.errors import InputError
from setsquare.families import Family, family
from setsquare.notes import Note, Option
from setsquare.tables.text_values import refuse_strays
from setsquare.tables.validation import check_same_rows, is_missing, refuse_missing_outcome, require_finite

#: More labels than this are an identifier.
MANY_CLASSES = 100


@dataclass(frozen=True, slots=True)
class Values:
    """Summary of the values that a family is guessed from."""

    low: float = np.nan
    high: float = np.nan
    n_levels: int | None = None  # distinct values; None if they were not counted
    is_text: bool = False  # whether the values are labels
    is_whole: bool = False  # whether all are whole numbers
    n_columns: int = 1  # of class probabilities
    lowest_prediction: float = np.inf  # of an outcome


def guess_family(values: Values, of: Literal["outcome", "predictions"] = "outcome") -> tuple[str, str]:
    """Guess a family, and give the reason; every guess in the library is made here.

    An outcome is drawn from the family; predictions are its means, which can be any positive number for counts.

    Examples
    --------
    >>> guess_family(Values(low=0.0, high=9.0, n_levels=10, is_whole=True))
    ('poisson', 'is a count (whole numbers from 0)')
    >>> guess_family(Values(low=0.2, high=0.9), "predictions")
    ('binomial', 'lie between 0 and 1')
    """
    labels = values.is_text or values.is_whole
    if labels and values.n_columns > 2:
        return "multinomial", f"has {values.n_columns} classes"
    if values.n_levels == 2 or (values.is_text and values.n_levels == 1):
        return "binomial", "has two values"
    if values.is_text:
        return "multinomial", f"has {values.n_levels} groups"
    if of == "predictions":
        shares = values.low >= 0.0 and values.high <= 1.0
        return ("binomial", "lie between 0 and 1") if shares else ("gaussian", "are numbers")
    if values.is_whole and values.low == 0.0:
        if values.lowest_prediction < 0.0:
            return "gaussian", "is a count, but predictions are negative"
        return "poisson", "is a count (whole numbers from 0)"
    return "gaussian", "is a number"


@dataclass(frozen=True, slots=True)
class Guess:
    """Family of an outcome, whether it is one of classes, and a note on the reason (None if it was asked for)."""

    family: Family
    is_classes: bool
    reason: Note | None = None


def read_family(
    outcome: np.ndarray[Any, Any],
    asked: Family | None = None,
    *,
    name: str = "",
    n_columns: int = 1,
    lowest_prediction: float = np.inf,
    is_category: bool = False,
) -> Guess:
    """Guess the family of an outcome by its values, or check the one that was asked for.

    Two classes are binomial, even where the multinomial family was asked for. ``outcome`` is (n,), ``name`` its name in
    messages; ``is_category`` means that the type of the column says that it holds groups.

    Examples
    --------
    >>> read_family(np.array(["no", "yes"]), name="income").reason
    "The outcome 'income' has two values, so the family is binomial: pass family= if it is another."
    >>> read_family(np.array([0, 3, 1])).family, read_family(np.array([1.5, 0.2, 7.1])).family
    (<family poisson>, <family gaussian>)
    """
    what = f"The outcome {name!r}" if name else "The outcome"
    text = outcome.dtype.kind in "OUSb"
    levels, counts = _levels(outcome, what)
    if len(levels) < 2:
        raise InputError(f"{what} is {levels[0]} in every row: there is nothing to predict.")
    if text and not is_category:
        refuse_strays(what, dict(zip(levels.tolist(), counts.tolist(), strict=True)))
    if text and len(levels) > MANY_CLASSES:
        raise InputError(f"{what} is text with {len(levels)} different values: give numbers or groups.")
    if asked is not None:
        if text:
            refuse_text(asked, what)
        if text and asked.name == "binomial" and len(levels) > 2:
            raise InputError(f"{what} has {len(levels)} groups: the binomial family takes two.")
        if asked.is_vector and len(levels) == 2 and n_columns <= 2:
            asked = family("binomial")
        return Guess(asked, asked.is_vector or (asked.name == "binomial" and len(levels) == 2))
    low, high = (np.nan, np.nan) if text else (float(levels[0]), float(levels[-1]))
    whole = not text and bool((levels == np.floor(levels)).all())
    kind, why = guess_family(Values(low, high, len(levels), text, whole, n_columns, lowest_prediction))
    sentence = "{what} {why}, so the family is {kind}: {family:pass} if it is another."
    reason = Note("family-guessed", sentence, what=what, why=why, kind=kind, family=Option("family"))
    return Guess(family(kind), kind in ("binomial", "multinomial"), reason)


def read_outcome(y: Any, n_rows: int) -> Any:
    """Outcome of an estimator as one column without missing values."""
    if y is None:
        raise InputError("The estimator requires y to be passed, but the target y is None.")
    if type(y) is not np.ndarray or y.ndim != 1:  # scikit-learn takes longer to find out that nothing is to be done
        from sklearn.utils.validation import column_or_1d  # heavy, and an audit does not need it

        y = column_or_1d(y, warn=True)
    if y.dtype.kind == "O":
        refuse_missing_outcome(sum(map(is_missing, y)))
    check_same_rows("The outcome has", len(y), "the features have", n_rows)
    if y.dtype.kind == "f":
        require_finite("The outcome (input y) has", y)
    return y


def _levels(outcome: np.ndarray[Any, Any], what: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    if outcome.dtype.kind not in "OUSbiuf":
        raise InputError(f"{what} is of type {outcome.dtype}: give numbers or groups.")
    missing = np.array([value is None for value in outcome]) if outcome.dtype.kind == "O" else outcome != outcome
    refuse_missing_outcome(int(missing.sum()), f"{what} has", Option("missing", "drop"))
    return np.unique(outcome.astype(str) if outcome.dtype.kind == "O" else outcome, return_counts=True)


def refuse_text(glm: Family, what: str = "The outcome") -> None:
    """Refuse labels for a family of numbers."""
    if glm.name not in ("binomial", "multinomial"):
        text = "{what} is text, which the {name} family cannot have: leave {family} out."
        raise InputError(Note("outcome-is-text", text, what=what, name=glm.name, family=Option("family")))


#: Words that a column of predictions may have beside the name of a class.
_BESIDE = frozenset(
    ("p", "pr", "prob", "proba", "probability", "score", "pred", "predict", "predicted", "prediction", "of", "is", "y")
)


def positive_class(
    classes: Sequence[str], asked: object = None, columns: Sequence[str] = (), *, otherwise: str | None = None
) -> str:
    """Choose the positive class of two, never by alphabet.

    It is the class that was asked for; else 1, True, "yes" or "y"; else the class that a column of predictions is named
    after; else `otherwise`, for models whose own order of classes decides. If none of these applies, it is refused.

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
    word, against = name.strip().casefold(), other.strip().casefold()
    if word in ("yes", "true") or (word, against) in (("y", "n"), ("t", "f")):
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
