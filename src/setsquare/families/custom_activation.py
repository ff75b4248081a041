"""Activations given by the user: any increasing function with its derivative."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from setsquare._typing import Array
from setsquare.errors import InputError
from setsquare.families.activations import Activation, Four

#: Points at which a function given by the user is checked: fine around zero, where activations bend.
CHECKED = np.unique(np.concatenate([np.linspace(-30.0, 30.0, 3001), np.linspace(-3.0, 3.0, 3001)]))
#: Step of the numerical derivative, and its largest relative error.
_STEP, _ERROR = 1e-5, 1e-4
#: Gauss-Legendre nodes and weights on [0, 1], for the antiderivative.
_POINTS, _SIZES = np.polynomial.legendre.leggauss(48)
NODES, WEIGHTS = 0.5 * (_POINTS + 1.0), 0.5 * _SIZES


def monotone_activation(
    name: str,
    h: Callable[[Array], Array],
    slope: Callable[[Array], Array],
    *,
    antiderivative: Callable[[Array], Array] | None = None,
    inverse: Callable[[Array], Array] | None = None,
    range: tuple[float, float] = (-np.inf, np.inf),
) -> Activation:
    """Make an activation of an increasing function; one that decreases anywhere is refused.

    The generalised projection minimises the antiderivative of the activation, which is convex only if the activation
    increases. It is checked on [-30, 30].

    Parameters
    ----------
    name : str
    h, slope : callable
        The function and its derivative, elementwise on arrays.
    antiderivative : callable, optional
        By default computed by quadrature.
    inverse : callable, optional
    range : tuple of float
        Ends of the values of ``h``.

    Examples
    --------
    >>> import numpy as np
    >>> from setsquare.projection import GeneralizedProjector
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 1))
    >>> eta = X[:, 0] + rng.normal(size=200)
    >>> cubic = monotone_activation("cubic", lambda u: u + u**3, lambda u: 1 + 3 * u**2)
    >>> corrected = GeneralizedProjector.fit(eta, X, cubic).predict(eta, X)
    >>> bool(abs(np.corrcoef(corrected, X[:, 0])[0, 1]) < 1e-9)
    True
    """
    check_increasing(name, h, slope)
    H = antiderivative or (lambda eta: eta * sum(w * h(t * eta) for t, w in zip(NODES, WEIGHTS, strict=True)))

    def evaluate(eta: Array) -> Four:
        bend = (slope(eta + _STEP) - slope(eta - _STEP)) / (2.0 * _STEP)
        return np.asarray(H(eta)), np.asarray(h(eta)), np.asarray(slope(eta)), np.asarray(bend)

    return Activation(name, evaluate, inverse, range=range)


def check_increasing(name: str, h: Callable[[Array], Array], slope: Callable[[Array], Array]) -> None:
    """Refuse a function that decreases, or whose slope is not its derivative."""
    with np.errstate(over="ignore", invalid="ignore"):
        values, slopes = np.asarray(h(CHECKED)), np.asarray(slope(CHECKED))
        numeric = (np.asarray(h(CHECKED + _STEP)) - np.asarray(h(CHECKED - _STEP))) / (2.0 * _STEP)
        falls = (np.diff(values) < -1e-12 * np.maximum(1.0, np.abs(values[1:]))) | (slopes[1:] < 0.0)
    finite = bool(np.isfinite(values).all())
    if not finite or falls.any():
        where = f"decreases at {CHECKED[1:][falls][0]:.3g}" if finite else "is not finite on [-30, 30]"
        raise InputError(
            f"The activation {name} {where}: the generalised projection needs an increasing function. Correct its "
            'output linearly instead (where="post").'
        )
    rounding = np.finfo(float).eps * np.abs(values) / _STEP
    wrong = np.abs(numeric - slopes) > _ERROR * np.maximum(1.0, np.abs(slopes)) + rounding
    if wrong.mean() > 0.01:  # a kink has no derivative
        raise InputError(f"The slope of the activation {name} is not its derivative, at {CHECKED[wrong][0]:.3g}.")
