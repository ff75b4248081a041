"""A start at which features are uncorrelated with the protected columns, as after a correction of the features."""

from __future__ import annotations

import numpy as np
from scipy.linalg import lapack

from setsquare.glm.objective import Model

#: Correlation of features with protected columns at the start up to which it says nothing about the constraint: that of
#: corrected features in single precision. Correlations by chance are larger with any number of rows up to 1e9.
UNCORRELATED = 1e-5


def ignore_uncorrelated(model: Model) -> Model:
    """The model of a start without those rows of the Jacobian, in any rotation, that are rounding error.

    At the start predictions are constant and the constraint holds. The Jacobian is the covariance of the features with
    the protected columns, and where that is rounding error, multipliers of its size would dominate the Lagrangian.
    After the first step slopes differ between rows, and the Jacobian no longer vanishes.
    """
    if not model.J.size:
        return model
    gram = model.J @ model.J.T
    gram.flat[:: len(gram) + 1] -= (UNCORRELATED * model.steepness) ** 2
    if not lapack.dpotrf(gram)[1]:  # all singular values are larger: this takes a tenth of the time
        return model
    U, s, Vt = np.linalg.svd(model.J, full_matrices=False)
    told = s > UNCORRELATED * model.steepness
    return model if told.all() else model._replace(J=(U[:, told] * s[told]) @ Vt[told])
