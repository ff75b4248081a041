"""The relaxed constraint of the corrected GLMs (``relax="box"``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from setsquare.errors import InputError
from setsquare.glm.certificate import NEW_ROWS

#: Name of the relaxed constraint.
BOX = "box"


def read_relax(model: Any) -> float | None:
    """Factor of the box, or None without one; options that a relaxed fit does not have are refused."""
    factor = _factor(model.relax)
    if factor is None:
        return None
    refused = {
        "given=": model.given is not None,
        'expand="auto"': model.expand is not None,
        'l2="auto"': isinstance(model.l2, str),
        'orthogonal_on="new rows"': model.orthogonal_on == NEW_ROWS,
        "max_correlation=": model.max_correlation is not None,
        "use_protected=True": model.use_protected,
        "budget=": bool(model.budget),
        "threshold=": model.threshold is not None,
    }
    for option, asked in refused.items():
        if asked:
            raise InputError(f'relax="box" bounds correlations on the training rows only: leave out {option}.')
    return factor


def refuse_relaxed_stream(relax: Any) -> None:
    """Refuse rows that are read in batches."""
    if relax is not None:
        raise InputError('relax="box" needs the rows in memory: read them into a table.')


def _factor(relax: Any) -> float | None:
    if relax is None:
        return None
    if isinstance(relax, str) and relax == BOX:
        return 1.0
    if isinstance(relax, Mapping) and list(relax) == [BOX]:
        factor = relax[BOX]
        if isinstance(factor, int | float) and not isinstance(factor, bool) and 0.0 < factor < float("inf"):
            return float(factor)
    raise InputError(f'relax must be None, "box" or {{"box": factor}} with a positive factor, not {relax!r}.')
