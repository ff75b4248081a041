"""Refuse protected columns with too many levels before they are coded."""

from __future__ import annotations

import numpy as np

from setsquare import tables
from setsquare._typing import Array, BoolArray, Matrix, Table
from setsquare.glm.freedom import is_early, mixing, refuse_bound
from setsquare.rows.blocks import mean_weight, row_slices
from setsquare.tables import Design
from setsquare.tables.frame import dense

#: Largest block of coded protected columns in bytes.
BLOCK = 2**25


def refuse_levels(weight: Array | None, Z: Matrix, protected: Design, source: Table, keep: BoolArray | None) -> None:
    """Refuse features (n, q) that leave no freedom under this many protected columns, without coding all rows at once.

    ``keep`` selects the rows of the weights.
    """
    (n, q), p = Z.shape, len(protected.names)
    if not is_early(n, q, p):
        return
    mixed, mix = np.empty((n, q + 5)), mixing(p, q)
    for rows in row_slices(n, p, BLOCK):
        inside = np.zeros(n, dtype=bool)
        inside[rows] = True
        mixed[rows] = dense(protected.apply(tables.filter_rows(source, inside)).values) @ mix
    counted = weight if weight is None or keep is None else weight[keep]
    refuse_bound(Z, mixed, mean_weight(n, counted), p)
