"""Synthetic data of the paper: protected columns that are correlated with the features and affect the outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from scipy.special import expit

from setsquare._typing import Array
from setsquare.errors import InputError

SyntheticFamily: TypeAlias = Literal["binomial", "poisson"]

#: The authors draw the features' coefficients with a tenth of the protected columns' standard deviation.
FEATURE_SPREAD = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class SyntheticData:
    """Synthetic features, protected columns and outcome, with the true coefficients.

    Attributes
    ----------
    Z : array of shape (n, q)
        Features.
    X : array of shape (n, p)
        Protected columns.
    y : array of shape (n,)
        Outcome as float64: 0 and 1, or counts.
    coefficients : array of shape (q,)
        Effect of `Z` on the linear predictor.
    protected_coefficients : array of shape (p,)
        Effect of `X` on the linear predictor, which a model of `y` on `Z` omits.
    family : {"binomial", "poisson"}
        Family of the outcome, with its canonical link.
    """

    Z: Array
    X: Array
    y: Array
    coefficients: Array
    protected_coefficients: Array
    family: SyntheticFamily

    @property
    def linear_predictor(self) -> Array:
        """``Z @ coefficients + X @ protected_coefficients``, shape (n,)."""
        return self.Z @ self.coefficients + self.X @ self.protected_coefficients


def make_synthetic(
    family: SyntheticFamily = "binomial",
    n: int = 1000,
    p: int = 5,
    q: int = 10,
    rho: float = 1.0,
    random_state: int | np.random.Generator | None = None,
    *,
    signal: float = 1.0,
) -> SyntheticData:
    r"""Draw data as in the paper's simulation (appendix "Synthetic Data").

    With :math:`m = \min(p, q)` and independent standard normal :math:`Z` (n × q) and :math:`E` (n × p),

    .. math:: X_{[:, 1:m]} = \rho\, Z_{[:, 1:m]} + E_{[:, 1:m]}, \qquad X_{[:, m+1:p]} = E_{[:, m+1:p]},

    .. math:: y_i \sim \mathrm{family}\bigl(h(z_i^\top b + x_i^\top c)\bigr).

    For j ≤ m, column j of `X` thus has the correlation :math:`\rho / \sqrt{1 + \rho^2}` with column j of `Z`, and 0
    with the other columns. The paper prints :math:`Z_{[:, 1:q]}` and :math:`\dim E = \dim Z`, which matches its shapes
    only for p = q; its code uses the first p columns of `Z` and an effect of `X` on the outcome, as here.

    The entries of b are drawn from :math:`N(0, 0.1^2)` and those of c from :math:`N(0, 1)`, as in the paper's code;
    then both are multiplied by one number so that the linear predictor has the standard deviation `signal` over the
    distribution of `Z` and `X`. Poisson rates therefore have the mean :math:`\exp(\mathrm{signal}^2 / 2)`, 1.65 by
    default, whatever p, q and rho.

    Parameters
    ----------
    family : {"binomial", "poisson"}, default "binomial"
        Family of the outcome, with its canonical link.
    n, p, q : int
        Numbers of rows, protected columns and features, each at least 1.
    rho : float, default 1.0
        Coefficient of the features in the protected columns; the paper uses 0, 1 and 2.
    random_state : int or numpy.random.Generator, optional
        Seed or generator; by default, a seed from the operating system.
    signal : float, default 1.0
        Standard deviation of the linear predictor, between 0 and 5.

    Examples
    --------
    >>> data = make_synthetic("poisson", n=200, p=5, q=10, rho=2.0, random_state=0)
    >>> data.Z.shape, data.X.shape, data.y.shape
    ((200, 10), (200, 5), (200,))
    """
    _check(family, {"n": n, "p": p, "q": q}, rho, signal)
    rng = np.random.default_rng(random_state)
    Z = rng.standard_normal((n, q))
    X = rng.standard_normal((n, p))
    m = min(p, q)
    X[:, :m] += rho * Z[:, :m]
    b, c = _coefficients(rng, p, q, rho, signal)
    eta = Z @ b + X @ c
    draw = rng.binomial(1, expit(eta)) if family == "binomial" else rng.poisson(np.exp(eta))
    return SyntheticData(Z, X, draw.astype(np.float64), b, c, family)


def _coefficients(rng: np.random.Generator, p: int, q: int, rho: float, signal: float) -> tuple[Array, Array]:
    """Draw coefficients of Z (q,) and X (p,) that give the linear predictor the standard deviation `signal`."""
    b = FEATURE_SPREAD * rng.standard_normal(q)
    c = rng.standard_normal(p)
    m = min(p, q)
    # Z b + X c = Z (b + rho c) + E c, and the columns of Z and E are independent with unit variance.
    through_Z = b.copy()
    through_Z[:m] += rho * c[:m]
    scale = signal / np.sqrt(through_Z @ through_Z + c @ c)
    return scale * b, scale * c


def _check(family: str, sizes: dict[str, int], rho: float, signal: float) -> None:
    """Raise an :class:`~setsquare.errors.InputError` for invalid arguments."""
    if family not in ("binomial", "poisson"):
        raise InputError(f'family must be "binomial" or "poisson", not {family!r}.')
    for name, size in sizes.items():
        if not isinstance(size, int | np.integer) or size < 1:
            raise InputError(f"{name} must be a whole number of at least 1, not {size!r}.")
    if not np.isfinite(rho):
        raise InputError(f"rho must be finite, not {rho!r}.")
    if not 0 <= signal <= 5:
        raise InputError(f"signal must lie between 0 and 5, not {signal!r}.")
