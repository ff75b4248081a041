"""Options of the linear correction that go beyond means: second moments, and columns to preserve."""

from __future__ import annotations

from typing import Any

import numpy as np

from setsquare._typing import Array, Table
from setsquare.errors import InputError
from setsquare.glm.given import OUTCOME
from setsquare.tables.frame import dense, open_table, resolve
from setsquare.tables.outcome import read_outcome
from setsquare.tables.roles import Reader
from setsquare.tables.validation import check_choice, check_moments


def check_erasure(estimator: Any) -> None:
    """Refuse options of a linear correction that do not go together."""
    check_choice("using", estimator.using, ("protected", "features"))
    check_choice("orthogonal_on", estimator.orthogonal_on, ("training rows", "new rows"))
    check_moments(estimator.moments)
    if estimator.using == "protected" and estimator.orthogonal_on == "new rows":
        raise InputError('orthogonal_on="new rows" corrects without the protected columns: pass using="features".')
    if estimator.orthogonal_on == "new rows" and (estimator.moments == 2 or estimator.preserve is not None):
        raise InputError('moments=2 and preserve= are exact on the training rows: pass orthogonal_on="training rows".')
    if estimator.using == "protected" and estimator.preserve is not None:
        raise InputError(
            'preserve= is for erasure: pass using="features". With using="protected" the protected columns of each row '
            "are known, and only their own effect is subtracted."
        )
    if estimator.moments == 2 and estimator.using == "protected":
        _check_cells(estimator)


def _check_cells(estimator: Any) -> None:
    if estimator.given is not None or not (isinstance(estimator.basis, str) and estimator.basis in ("linear", "cells")):
        raise InputError(
            'moments=2 with using="protected" makes cells of the protected columns themselves: leave out given=, and '
            'pass basis="linear".'
        )
    share = estimator.shrinkage
    if not (isinstance(share, str) and share == "auto") and not (isinstance(share, int | float) and 0 <= share <= 1):
        raise InputError(f'shrinkage must be "auto" or a number from 0 to 1, not {share!r}.')


def read_preserved(preserve: Any, reader: Reader, table: Table, Z: Array, y: Any) -> Array | None:
    """Columns (n, s) whose covariances with the features are to be kept; None without any."""
    if preserve is None:
        return None
    if isinstance(preserve, str) and preserve == OUTCOME:
        outcome = read_outcome(y, len(Z))
        # Classes, also numbered ones, have no order; a number with many values has one.
        classes = outcome.dtype.kind in "OUSb" or len(np.unique(outcome)) <= 2
        if not classes:
            return np.asarray(outcome, dtype=np.float64)[:, None]
        _, place = np.unique(outcome.astype(str) if outcome.dtype.kind == "O" else outcome, return_inverse=True)
        return np.asarray((place[:, None] == np.arange(1, place.max() + 1)).astype(np.float64))
    frame = open_table(reader.feature_table(table))
    asked = [frame.names[j] for j in resolve(frame, preserve)]
    assert reader.features is not None
    columns = [j for j, source in enumerate(reader.features.sources) if source in asked]
    return np.asarray(dense(Z)[:, columns], dtype=np.float64)
