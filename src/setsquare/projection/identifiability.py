"""Post-hoc orthogonalisation for identifiability (PHO): structured effects of a semi-structured model.

A semi-structured model predicts ``eta = intercept + X beta + u`` with a flexible part ``u``, such as a network. If
``u`` can express linear functions of ``X``, ``beta`` is not identified: any part of ``X beta`` can move to ``u``. PHO
gives the part of ``u`` that is linear in ``X`` to ``beta`` and leaves the predictions as they are,

    beta <- beta + (Xc' W Xc)^-1 Xc' W u,        u <- u - its regression on [1, X],

so that ``beta`` is what a regression of ``eta`` on ``X`` gives. Reference: Rügamer, "A New PHO-rmula for Improved
Performance of Semi-Structured Networks", ICML 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from setsquare._typing import Array
from setsquare.errors import InputError


@dataclass(frozen=True, slots=True)
class Identified:
    """A semi-structured model with identified effects.

    Attributes
    ----------
    intercept : float
    coef : ndarray of shape (p,)
        Effects of the structured columns.
    flexible : ndarray of shape (n,)
        The other part, uncorrelated with the columns and of mean zero.
    std_error : ndarray of shape (p,) or None
        HC3 standard errors of ``coef``, given outcomes.
    """

    intercept: float
    coef: Array
    flexible: Array
    std_error: Array | None


def pho(
    structured: Array,
    flexible: Array,
    coef: Array | None = None,
    intercept: float = 0.0,
    *,
    sample_weight: Array | None = None,
    y: Array | None = None,
) -> Identified:
    """Identify the effects of structured columns beside a flexible part, without changing the predictions.

    Parameters
    ----------
    structured : ndarray of shape (n, p)
        Columns ``X`` without a constant, of full rank.
    flexible : ndarray of shape (n,)
        What the flexible part adds to the linear predictor.
    coef : ndarray of shape (p,), optional
        Effects before; zero by default.
    intercept : float
    sample_weight : ndarray of shape (n,), optional
        Weights of the projection: of the rows, or the working weights of a generalised linear model.
    y : ndarray of shape (n,), optional
        Outcomes on the scale of the linear predictor (the working response of a generalised linear model). With them,
        standard errors are computed, given the flexible part: HC3 of the weighted regression on ``[1, X]`` with the
        residuals of the whole model.

    Returns
    -------
    Identified

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> network = np.sin(3 * X[:, 0]) + 2 * X[:, 1]  # has taken the effect of the second column
    >>> found = pho(X, network, coef=[1.0, 0.0])
    >>> found.coef.round(2)
    array([1.05, 1.95])
    >>> before = X @ [1.0, 0.0] + network
    >>> bool(np.allclose(found.intercept + X @ found.coef + found.flexible, before))
    True
    """
    X, u = np.asarray(structured, dtype=np.float64), np.asarray(flexible, dtype=np.float64).ravel()
    if X.ndim != 2 or len(X) != len(u):
        raise InputError(
            f"The structured columns have the shape {X.shape} and the flexible part {len(u)} rows: pass (n, p) and "
            "(n,)."
        )
    w = np.ones(len(u)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    root = np.sqrt(w)[:, None]
    D = np.column_stack([np.ones(len(X)), X])
    Q, R = np.linalg.qr(root * D)
    size = np.abs(np.diag(R))
    if len(X) < D.shape[1] or size.min() <= 1e-10 * size.max():
        raise InputError("The structured columns are constant or linear combinations of others: drop those.")
    moved = solve_triangular(R, Q.T @ (root[:, 0] * u))
    start = np.concatenate([[intercept], np.zeros(X.shape[1]) if coef is None else np.asarray(coef, dtype=np.float64)])
    rest = u - D @ moved
    found = start + moved
    errors = None if y is None else _standard_errors(Q, R, root[:, 0], np.asarray(y) - D @ found - rest)
    return Identified(float(found[0]), found[1:], rest, errors)


def _standard_errors(Q: Array, R: Array, root: Array, residual: Array) -> Array:
    """HC3 standard errors of the columns behind the constant, from the QR of the weighted design."""
    leverage = np.einsum("ij,ij->i", Q, Q)
    scaled = root * residual / np.maximum(1.0 - leverage, 1e-12)
    inverse = solve_triangular(R, (Q * scaled[:, None]).T)
    errors: Array = np.sqrt(np.einsum("ij,ij->i", inverse, inverse))[1:]
    return errors
