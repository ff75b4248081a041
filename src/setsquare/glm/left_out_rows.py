"""Leave out one row at a time, with one linear predictor per row, by elimination.

Without a row, ``A`` changes along ``z`` and ``J`` by ``-w/(1-w) q p'`` with ``p = h' z - u`` (see
``glm.leave_one_out``). The unknowns are the changes of ``z'theta``, ``p'theta`` and ``q'lam``; the last two are
eliminated, which leaves one division. ``glm.left_out_systems`` solves the same systems for clusters and classes. Every
quantity here is a vector over the rows of a block, so that a pass over them takes little more than the product of the
features with the inverse.
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
        moved, last = self.cross * (h * self.a), h * self.c
        moved += self.corner * (h * self.b)
        along = (Qt @ last)[:, None] if self.controls is None else (Qt * last) @ self.controls.T
        return np.asarray(Qt @ moved.T + along @ self.uf)


class LeftOutRows(NamedTuple):
    """Changes of the linear predictors (n,), leverages, rows that the others do not determine, and derivatives.

    ``price`` is ``lam'q``. ``far`` is the squared change of the fit, in standard deviations of the linear predictor,
    where that is wanted.
    """

    change: Array
    leverage: Array
    lost: BoolArray
    steered: SteeredRows | None
    far: Array | None
    price: Array


def solve_rows(
    shared: Shared, zz: Array, projected: Array, Qt: Array, D: Array | None, terms: RowTerms, w: Array | float
) -> LeftOutRows:
    """Leave out each of n rows with controls ``D`` (n, 1 + s), None without any.

    ``zz`` (n,) is ``z'G z``, ``projected`` (., n) has ``F'z`` and ``U'G z``; ``Qt`` is (r, n). ``w`` are weights, or
    the weight of every row.
    """
    r, controls = len(Qt), None if D is None else np.ascontiguousarray(D.T)
    # Products of the basis with all small matrices at once: each alone would take about as long.
    small = np.concatenate([shared.corner[0, :, 0].T, shared.multipliers.T, shared.from_q[:, 0].T])
    products = small @ Qt if r > 1 else small * Qt
    cross, corner, price = projected[:r], products[:r], products[r]
    plain = price
    zq, qq = np.einsum("an,an->n", cross, Qt), np.einsum("an,an->n", corner, Qt)
    zu, qu, uu, mean, near = _centring(shared, projected[r:], products[r + 1 :], controls)
    steep, bent = terms.mean_slope[:, 0, 0], terms.curvature[:, 0, 0]
    gap, rest = terms.mean[:, 0] - mean, w / (1.0 - w * near)
    kappa, moved = shared.targets[:, 0], None
    if kappa.any():
        ut = shared.uf @ kappa
        moved = w * (kappa @ cross)
        gap -= steep * moved - w * (ut[0] if controls is None else ut @ controls)
        price = price - w * (kappa @ corner)
    zp = steep * zz - zu
    pp, inner = steep * (zp - zu) + uu, 1.0 - rest * (steep * zq - qu)
    rp, rq = rest * pp, rest * qq
    both = inner * inner - rp * rq
    share = rest / both
    by_gap, by_price = share * (inner * zq + rq * zp), share * (inner * zp + rp * zq)
    pull = w * (zz + zp * by_gap + zq * by_price)
    left = 1.0 - bent * pull
    lost = ~(np.abs(both * left) > UNDETERMINED)
    if lost.any():
        pull[lost], by_gap[lost], by_price[lost], left[lost] = 0.0, 0.0, 0.0, 1.0
    change = pull * terms.slope[:, 0]
    change += by_gap * gap
    change += by_price * price
    if moved is not None:
        change -= moved
    change /= left
    steered = None
    if shared.steer:
        by_gap, by_price = ((1.0 - w) * part / left for part in (by_gap, by_price))
        a = 1.0 + (bent * pull - w) / left + steep * by_gap
        steered = SteeredRows(cross, corner, shared.uf, controls, a, by_price, -by_gap)
    far = None
    if shared.point is not None:
        own = w * (terms.slope[:, 0] + bent * change)
        across, along = zp * own + gap, zq * own + price
        across, along = (inner * across + rp * along) * share, (inner * along + rq * across) * share
        normal = Qt * across - kappa[:, None] * w
        far = (own + steep * along) ** 2 * zz / shared.stiff + np.einsum("rn,rn->n", shared.ff @ normal, normal)
    return LeftOutRows(change, zz * bent * w, lost, steered, far, plain)


def _centring(shared: Shared, zu: Array, qu: Array, controls: Array | None) -> tuple[Array, Array, Array, Array, Array]:
    """``u'G z``, ``u'F q``, ``u'G u``, the mean prediction and ``d'd`` of each row; without controls d is 1.

    ``zu`` and ``qu`` have one row for the mean and each control.
    """
    if controls is None:
        return zu[0], qu[0], shared.uu[0], shared.mean[0], np.ones(1)
    zu, qu, uu, near = (np.einsum("sn,sn->n", part, controls) for part in (zu, qu, shared.uu @ controls, controls))
    return zu, qu, uu, shared.mean[:, 0] @ controls, near
