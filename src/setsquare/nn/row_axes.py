"""What a row of a layer is: a sample, or each of its positions (tokens, pixels), some of which a mask leaves out."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from setsquare.errors import InputError
from setsquare.nn.functional import flatten, has_values, read_protected
from setsquare.tables.validation import check_choice

#: "samples": each position of (n, ...) is a unit of its own. "tokens": (n, ..., d), the last axis holds the units.
#: "pixels": (n, d, ...), the second axis holds the units. Positions share one correction per unit.
Rows: TypeAlias = Literal["samples", "tokens", "pixels"]


def check_rows(rows: str) -> None:
    """Refuse an unknown kind of rows."""
    check_choice("rows", rows, get_args(Rows))


def to_units(y: Tensor, rows: Rows) -> Tensor:
    """Bring a tensor (n, ...) to units (n_rows, d), in float32 or wider; the positions of a sample follow each other.

    Examples
    --------
    >>> import torch
    >>> images = torch.zeros(10, 3, 8, 8)
    >>> [tuple(to_units(images, rows).shape) for rows in ("samples", "tokens", "pixels")]
    [(10, 192), (240, 8), (640, 3)]
    """
    if rows == "samples":
        return flatten(y)
    if not isinstance(y, Tensor) or y.ndim < 3:
        layout = "(n, ..., units)" if rows == "tokens" else "(n, units, ...)"
        shape = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else f"type {type(y).__name__}"
        raise InputError(
            f'rows="{rows}" needs an output with positions, {layout}, not {shape}: use rows="samples" for this layer.'
        )
    return flatten(_channels_last(y, rows).flatten(0, -2))


def from_units(units: Tensor, y: Tensor, rows: Rows) -> Tensor:
    """Bring units (n_rows, d) back to the shape and dtype of ``y``."""
    if rows != "pixels":
        return units.to(y.dtype).reshape(y.shape)
    return units.to(y.dtype).reshape(_channels_last(y, rows).shape).movedim(-1, 1)


def read_rows(protected: Any, y: Tensor, rows: Rows, n_protected: int | None) -> Tensor:
    """Return the protected columns (n_rows, p): each position has those of its sample."""
    X = read_protected(protected, y, n_protected)
    return X if rows == "samples" else X.repeat_interleave(n_positions(y, rows), dim=0)


def select_rows(
    y: Tensor, protected: Any, mask: Any, rows: Rows, n_protected: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return units (n_rows, d) and protected columns (n_rows, p) of the rows that count."""
    units, X, counts = to_units(y, rows), read_rows(protected, y, rows, n_protected), read_mask(mask, y, rows)
    return (units, X) if counts is None else (units[counts], X[counts])


def n_positions(y: Tensor, rows: Rows) -> int:
    """Number of positions per sample."""
    return 1 if rows == "samples" else y[0].numel() // y.shape[-1 if rows == "tokens" else 1]


def read_mask(mask: Any, y: Tensor, rows: Rows) -> Tensor | None:
    """Return which rows count (n_rows,), or None if all do; ``mask`` is (n, positions), true where they count."""
    if mask is None:
        return None
    if rows == "samples":
        raise InputError('A mask leaves out positions, but with rows="samples" each position is a unit: pass rows=.')
    marks = _as_marks(mask, y)
    axes = tuple(_channels_last(y, rows).shape[:-1])
    if rows == "pixels" and marks.shape == (len(y), 1, *axes[1:]):
        marks = marks[:, 0]
    if tuple(marks.shape) != axes:
        raise InputError(
            f"The mask has shape {tuple(marks.shape)} and the layer {tuple(y.shape)}: pass one of shape {axes}, true "
            "for the positions that count."
        )
    counts = (marks != 0).reshape(-1)
    if not has_values(marks):
        return counts
    if bool(((marks != 0) & (marks != 1)).any()):
        raise InputError("The mask must be 1 or True for the positions that count, 0 or False for the others.")
    if not bool(counts.any()):
        raise InputError("The mask leaves out every position of the batch: pass a batch with at least one that counts.")
    return counts


def _as_marks(mask: Any, y: Tensor) -> Tensor:
    if isinstance(mask, Tensor):
        return mask.to(y.device)
    try:
        return torch.as_tensor(np.array(mask), device=y.device)  # np.array also reads tables
    except (TypeError, ValueError):
        shown = f"is {mask!r}" if isinstance(mask, str) else f"({type(mask).__name__}) has values that are not numbers"
        raise InputError(
            f"The mask {shown}: pass an array of shape (n, positions), true for the positions that count."
        ) from None


def _channels_last(y: Tensor, rows: Rows) -> Tensor:
    return y if rows == "tokens" else y.movedim(1, -1)
