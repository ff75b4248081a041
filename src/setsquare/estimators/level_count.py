"""Refuse protected columns with too many levels before they are coded."""

from __future__ import annotations

import numpy as np

from setsquare import tables
from setsquare._typing import Array, BoolArray, Matrix, Table
from setsquare.glm.freedom import is_early, mixing, refuse_bound
from setsquare.rows.blocks import ArrayRows, mean_weight
from setsquare.rows.parallel import row_slices
from setsquare.tables import Design
from setsquare.tables.frame import dense

#: Largest block of coded protected columns in bytes.
BLOCK = 2**25


def refuse_levels(weight: Array | None, Z: Matrix, protected: Design, source: Table, keep: BoolArray | None) -> None:
    """Refuse more protected columns than features (n, q) can be orthogonal to, without coding all rows at once.

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
    nothing = np.zeros((n, 0))
    refuse_bound(ArrayRows(Z, nothing, nothing, mean_weight(n, counted), X=mixed), q, p)
