"""Inverse of the KKT matrix at a solution, from one factorisation of the reduced Hessian."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack

from setsquare._typing import Array
from setsquare.glm.newton import Iterate
from setsquare.glm.objective import Model, Objective
from setsquare.glm.sqp import SINGULAR, frame_of, null_space

#: Distance of its point, in standard deviations of the linear predictor, up to which a Hessian stands for that of a
#: solution: standard errors and leave-one-out predictions have four digits.
EXACT = 1e-4


class Inverse(NamedTuple):
    """Blocks of the inverse of the KKT matrix in whitened coordinates, for k predictors of m coordinates each.

    Attributes
    ----------
    root : ndarray of shape (k, m, s)
        ``L``: the inverse of the reduced Hessian is ``L L'``.
    cross : ndarray of shape (k, m, k, r)
        ``F``.
    corner : ndarray of shape (k, r, k, r)
        ``E``.
    """

    root: Array
    cross: Array
    corner: Array


def invert(objective: Objective, model: Model) -> Inverse:
    """Invert the KKT matrix at a point; a Hessian that is an operator is formed first."""
    if not isinstance(model.H, np.ndarray):
        model = model._replace(H=model.H.dense())
    k, r = objective.n_predictors, objective.n_basis
    frame = frame_of(model)
    N, pinv = null_space(frame), frame.pinv
    L = N @ _inverse_root(N.T @ model.H @ N)
    bent = model.H @ pinv
    inner = L.T @ bent
    cross, corner = pinv - L @ inner, inner.T @ inner - pinv.T @ bent
    m = len(L) // k
    return Inverse(L.reshape(k, m, L.shape[1]), cross.reshape(k, m, k, r), corner.reshape(k, r, k, r))


def invert_at(objective: Objective, end: Iterate) -> Inverse:
    """Invert the KKT matrix at a solution."""
    return invert(objective, model_at(objective, end))


def model_at(objective: Objective, end: Iterate) -> Model:
    """Model at a solution; a Hessian that was reused from too far away is computed again."""
    return end.model if end.model.apart <= EXACT else objective.model(end.theta, end.lam)


def _inverse_root(A: Array) -> Array:
    """``R`` with ``R R' = A^-1`` for a positive definite matrix; eigenvalues near zero or below are lifted."""
    if not len(A):
        return A
    upper, failed = lapack.dpotrf(A)
    pivots = upper.diagonal()
    if not failed and pivots.min() ** 2 > SINGULAR * pivots.max() ** 2:
        return np.asarray(lapack.dtrtri(np.triu(upper))[0])
    values, vectors = np.linalg.eigh(A)
    return np.asarray(vectors / np.sqrt(np.maximum(values, SINGULAR * np.abs(values).max() + np.finfo(float).tiny)))


def pseudo_inverse(A: Array) -> Array:
    """Pseudo-inverse of a symmetric matrix; of a single number without a decomposition.

    Examples
    --------
    >>> import numpy as np
    >>> pseudo_inverse(np.array([[4.0]])), pseudo_inverse(np.zeros((1, 1)))
    (array([[0.25]]), array([[0.]]))
    """
    if A.size == 1:
        return np.full((1, 1), 1.0 / A[0, 0] if A[0, 0] else 0.0)
    return np.asarray(np.linalg.pinv(A, hermitian=True))
