"""Audit of a correction: whether removing the protected columns from the features leaks them to a learner."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from setsquare import tables
from setsquare._typing import Table
from setsquare.auditing.confound_leakage import ConfoundLeakage, confound_leakage
from setsquare.tables.frame import dense
from setsquare.tables.outcome import read_family, read_outcome
from setsquare.tables.validation import check_alignment, check_same_rows


def audit_correction(
    Z: Table,
    y: Any,
    protected: Table,
    estimator: Any = None,
    *,
    cv: int = 5,
    n_shuffles: int = 10,
    random_state: int = 0,
) -> ConfoundLeakage:
    """Test for confound leakage: information that the linear correction of features adds for a non-linear learner.

    Features are shuffled, so that they carry no information; if they predict the outcome once they are corrected, the
    correction encoded the protected columns in them (Hamdan et al., GigaScience 2023).

    Parameters
    ----------
    Z : dataframe or array of n rows
        Features; categorical ones are dummy-coded.
    y : array of n values
        Outcome.
    protected : dataframe or array of n rows
    estimator : scikit-learn estimator, optional
        The learner fitted to the corrected features; a random forest by default.
    cv, n_shuffles, random_state : int
        Folds, shuffles of the features, seed.

    Returns
    -------
    ConfoundLeakage
        With ``flagged``, a ``reason`` in words, and the scores.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> age = rng.normal(size=300)
    >>> y = age + 0.5 * rng.normal(size=300) > 0
    >>> symptoms = rng.integers(2, size=(300, 3))  # unrelated to age and outcome
    >>> audit_correction(symptoms, y, age, n_shuffles=5).flagged
    True
    """
    n = tables.n_rows(Z)
    outcome = read_outcome(y, n)
    check_same_rows("protected has", tables.n_rows(protected), "the features have", n)
    check_alignment(Z, protected, "protected")
    check_alignment(Z, y, "the outcome")
    classification = is_classifier(estimator) if estimator is not None else read_family(outcome).is_classes
    if estimator is None:
        forest = RandomForestClassifier if classification else RandomForestRegressor
        estimator = forest(n_estimators=50, min_samples_leaf=2)
    features, columns = (dense(tables.learn(table).apply(table).values) for table in (Z, protected))
    if classification:
        outcome = np.unique(outcome, return_inverse=True)[1]
    rng = np.random.default_rng(random_state)
    return confound_leakage(
        features,
        outcome.astype(np.float64),
        columns,
        estimator=estimator,
        classification=classification,
        cv=cv,
        n_shuffles=n_shuffles,
        rng=rng,
    )
