"""Golden masters: numbers that were recorded once, so that any change of the code that changes a number is noticed.

A golden master says that a number changed, never that it is right: theorems, references and closed forms in the other
folders say that. Record only what they cover, and look at the difference before you record again:

    REFRESH_GOLDEN=1 python -m pytest -q -n 0 tests/golden/test_AREA.py     # whole files only
    git diff tests/golden/AREA.json

Numbers are compared within 1e-6 of their size, so that another processor or another BLAS makes no difference, while
another sign, operator or constant does. An array of more than six numbers is kept as three sums with fixed weights
and the sum of its absolute values.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
#: Arrays of at most so many numbers are kept as they are.
SHORT = 6
#: Relative and absolute differences that count as equal; they are multiplied by the size of the whole array.
RELATIVE, ABSOLUTE = 1e-6, 1e-9
#: Whole numbers from which on they are compared like other numbers.
LARGEST_COUNT = 10**7
#: Zero in a text: a rounding error on one machine can be exactly zero on another.
NOTHING = re.compile(r" *\b(tiny|0\.000)\b")
_refreshed: set[str] = set()


class About(int):
    """A count, such as that of iterations, that may differ by one on another machine."""


def describe(value: Any) -> Any:
    """A value as JSON: records and mappings by their fields, arrays as few numbers."""
    if isinstance(value, About):
        return f"about {int(value)}"
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field.name for field in dataclasses.fields(value) if not field.name.startswith("_"))
        return {name: describe(getattr(value, name)) for name in fields}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: describe(getattr(value, name)) for name in value._fields}
    if isinstance(value, Mapping):
        return {str(key): describe(one) for key, one in value.items()}
    if isinstance(value, enum.Enum):
        return value.name
    if hasattr(value, "toarray"):
        value = value.toarray()
    if value is None or isinstance(value, str | bool | np.bool_):
        return bool(value) if isinstance(value, np.bool_) else value
    if isinstance(value, int | np.integer):  # a large number of rows is a rounded one, and rests on the last digits
        return int(value) if abs(int(value)) < LARGEST_COUNT else _number(float(value))
    if isinstance(value, float | np.floating):
        return _number(float(value))
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return _array(np.asarray(value))
    if isinstance(value, np.ndarray | list | tuple):
        parts = value.tolist() if isinstance(value, np.ndarray) else list(value)
        return _array(np.array(parts)) if _are_numbers(parts) else [describe(one) for one in parts]
    return str(value)


def _are_numbers(parts: list[Any]) -> bool:
    return len(parts) > 0 and all(
        isinstance(one, int | float | np.number) and not isinstance(one, About) for one in parts
    )


def _number(value: float) -> float | str:
    return float(f"{value:.7g}") if math.isfinite(value) else str(value)


def _array(values: np.ndarray) -> str:
    """An array as text: "#" and its shape, then its numbers, or "~" and its sums."""
    flat = np.ravel(values).astype(np.float64)
    name = "#" + "x".join(map(str, values.shape))
    if len(flat) <= SHORT:
        return " ".join([name, *(f"{one:.7g}" for one in flat)])
    used, places = np.where(np.isfinite(flat), flat, 0.0), np.arange(len(flat))
    weights = (np.ones(len(flat)), np.cos(1.0 + 1.7 * places), np.sin(2.0 + 2.9 * places), np.sign(used))
    sums = [f"{float(weight @ used):.7g}" for weight in weights]
    odd = [places[test(flat)] + 1 for test in (np.isnan, np.isposinf, np.isneginf)]
    return " ".join(
        [name, "~", *sums, *(["!" + ",".join(str(int(one.sum())) for one in odd)] if any(map(len, odd)) else [])]
    )


def differences(old: Any, new: Any, where: str = "", relative: float = RELATIVE) -> list[str]:
    """Places where two described values differ, each in one line."""
    absent = object()
    if isinstance(old, dict) and isinstance(new, dict):
        names = [*old, *(name for name in new if name not in old)]
        parts = [(f"{where}.{name}", old.get(name, absent), new.get(name, absent)) for name in names]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        parts = [(f"{where}[{k}]", a, b) for k, (a, b) in enumerate(zip(old, new, strict=True))]
    else:
        return [] if _is_same(old, new, relative) else [f"{where}: {old!r}, now {new!r}"]
    return [line for name, a, b in parts for line in differences(a, b, name, relative)]


def _is_same(old: Any, new: Any, relative: float) -> bool:
    if isinstance(old, str) and isinstance(new, str) and old.startswith("#") and new.startswith("#"):
        return _are_near(old.split(" "), new.split(" "), relative)
    if all(isinstance(one, str) and re.fullmatch(r"about \d+", one) for one in (old, new)):
        return abs(int(old[6:]) - int(new[6:])) <= 1
    numbers = [isinstance(one, float | int) and not isinstance(one, bool) for one in (old, new)]
    if all(numbers) and float in (type(old), type(new)):
        return abs(old - new) <= relative * max(abs(old), abs(new)) + ABSOLUTE
    if isinstance(old, str) and isinstance(new, str):
        return NOTHING.sub(" tiny", old) == NOTHING.sub(" tiny", new)
    return type(old) is type(new) and bool(old == new)


def _are_near(old: list[str], new: list[str], relative: float) -> bool:
    """Whether the numbers among the words of two arrays are equal within the size of the array."""
    if len(old) != len(new):
        return False
    different = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
    if any(not _is_number(word) for pair in different for word in pair):
        return False
    size = max((abs(float(word)) for word in (*old, *new) if _is_number(word)), default=0.0)
    limit = relative * size + ABSOLUTE * max(1.0, size)
    return all(abs(float(a) - float(b)) <= limit for a, b in different)


def _is_number(word: str) -> bool:
    return word[:1] in "-0123456789" and word != "-inf"


@cache
def load(area: str) -> dict[str, Any]:
    """Recorded values of an area by the name of their test."""
    path = FOLDER / f"{area}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def compare(area: str, case: str, values: Any, relative: float = RELATIVE) -> None:
    """Compare values with those that were recorded, or record them if ``REFRESH_GOLDEN`` is set."""
    new = json.loads(json.dumps(describe(values)))
    if os.environ.get("REFRESH_GOLDEN"):
        known = load(area)
        if area not in _refreshed:
            known.clear()
            _refreshed.add(area)
        assert case not in known, "one set of values for each test"
        known[case] = new
        lines = [f"{json.dumps(name)}: {json.dumps(known[name], separators=(',', ':'))}" for name in sorted(known)]
        (FOLDER / f"{area}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return
    assert case in load(area), f"nothing was recorded for {case}: see tests/golden/recorder.py"
    found = differences(load(area)[case], new, relative=relative)
    assert not found, "changed: " + "; ".join(found[:10])
