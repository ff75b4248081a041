"""Leave out one row at a time, with one linear predictor per row: systems of three equations, by Cramer's rule.

The unknowns are the changes of ``z'theta``, ``q'lam`` and ``u'theta`` (see ``glm.left_out_systems``, which has the same
systems for clusters and classes). Every quantity here is a vector over the rows of a block, so that a pass over them
takes little more than the product of the features with the inverse.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from setsquare._typing import Array, BoolArray
from setsquare.families import RowTerms
from setsquare.glm.left_out_systems import UNDETERMINED, Shared


class SteeredRows(NamedTuple):
    """Derivatives of the leave-one-out linear predictors by the target: ``F'z a + E q b + U'F d c`` for each row.

    Attributes
    ----------
    cross, corner : ndarray of shape (r, n)
        ``F'z`` and ``E q``.
    uf : ndarray of shape (1 + s, r)
    controls : ndarray of shape (1 + s, n) or None
        ``d``; None stands for ones.
    a, b, c : ndarray of shape (n,)
    """

    cross: Array
    corner: Array
    uf: Array
    controls: Array | None
    a: Array
    b: Array
    c: Array

    def total(self, Qt: Array, slopes: Array) -> Array:
        """Sum over the rows of ``q slope d eta``, (r, r), for basis (r, n) and slopes (n, 1, 1)."""
        h = slopes[:, 0, 0]
        last = Qt * (h * self.c)
        along = last.sum(axis=1)[:, None] if self.controls is None else last @ self.controls.T
        return np.asarray((Qt * (h * self.a)) @ self.cross.T + (Qt * (h * self.b)) @ self.corner.T + along @ self.uf)


class LeftOutRows(NamedTuple):
    """Changes of the linear predictors (n,), leverages, rows that the others do not determine, and derivatives."""

    change: Array
    leverage: Array
    lost: BoolArray
    steered: SteeredRows | None


def solve_rows(shared: Shared, projected: Array, Qt: Array, D: Array, terms: RowTerms, w: Array) -> LeftOutRows:
    """Leave out each of n rows; ``projected`` (., n) has ``L'z``, ``F'z`` and ``U'G z``, ``Qt`` is (r, n)."""
    r, controls = len(Qt), None if D.shape[1] == 1 else np.ascontiguousarray(D.T)
    s = len(projected) - r - len(shared.uu)
    root, cross, zu = np.split(projected, [s, s + r])
    corner = shared.corner[0, :, 0].T @ Qt
    zz, zq, qq = (np.einsum("an,an->n", *pair) for pair in ((root, root), (cross, Qt), (corner, Qt)))
    qu, near, uu = shared.from_q[:, 0].T @ Qt, np.ones(1), shared.uu[0]
    if controls is None:
        zu, qu = zu[0], qu[0]
    else:
        zu, qu, near, uu = (np.einsum("sn,sn->n", part, controls) for part in (zu, qu, controls, shared.uu @ controls))
    price = shared.multipliers[:, 0] @ Qt
    bent, steep = w * terms.curvature[:, 0, 0], terms.mean_slope[:, 0, 0]
    slope = terms.slope[:, 0] + steep * price
    rest = w / (1.0 - w * near)
    tied = rest * steep
    first, second, third, lost = _cofactors((zz, zq, zu), (qq, qu, uu), bent, tied, rest)
    x0, x1, x2 = (
        first * zz + second * zq + third * zu,
        first * zq + second * qq + third * qu,
        first * zu + second * qu + third * uu,
    )
    mean = shared.mean[0, 0] if controls is None else shared.mean[:, 0] @ controls
    held = near * tied
    change = x0 * (w * (slope + held * price)) + rest * (x1 * (terms.mean[:, 0] - mean) - x2 * price)
    kappa = shared.targets[:, 0]
    if kappa.any():
        ut = shared.uf @ kappa
        along = ut[0] if controls is None else ut @ controls
        change -= w * (first * (kappa @ cross) + second * (kappa @ corner) + third * along)
    steered = None
    if shared.steer:
        steered = SteeredRows(
            cross,
            corner,
            shared.uf,
            controls,
            1.0 + x0 * bent + x1 * tied - w * first,
            x0 * (w * (steep + held)) - rest * x2 - w * second,
            -rest * x1 - w * third,
        )
    return LeftOutRows(change, zz * bent, lost, steered)


def _cofactors(
    z: tuple[Array, Array, Array], q: tuple[Array, Array, Array], bent: Array, tied: Array, rest: Array
) -> tuple[Array, Array, Array, BoolArray]:
    """First row of the inverse of ``1 - S C`` for each row, and the rows for which there is none."""
    (zz, zq, zu), (qq, qu, uu) = z, q
    a01, a11, a21 = zu * rest - zz * tied, 1.0 + qu * rest - zq * tied, uu * rest - zu * tied
    a02, a12, a22 = zq * rest, qq * rest, 1.0 + qu * rest
    first, second, third = a11 * a22 - a12 * a21, a02 * a21 - a01 * a22, a01 * a12 - a02 * a11
    determinant = (
        (1.0 - zz * bent - zq * tied) * first - (zq * bent + qq * tied) * second - (zu * bent + qu * tied) * third
    )
    lost = ~(np.abs(determinant) > UNDETERMINED)
    share = 1.0 / np.where(lost, np.inf, determinant)
    return first * share, second * share, third * share, lost
