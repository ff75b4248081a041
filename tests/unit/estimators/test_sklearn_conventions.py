"""scikit-learn's own checks of every estimator, with the first feature as the protected one."""

from __future__ import annotations

import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

import setsquare as sq


class Classifier(sq.OrthogonalGLMClassifier):
    """One of the two features that the checks score on is protected, so the accuracy they ask for is out of reach."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags


class Corrected(sq.PredictionOrthogonalizer):
    """As above."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        if tags.classifier_tags is not None:
            tags.classifier_tags.poor_score = True
        return tags


ESTIMATORS = [
    sq.LinearOrthogonalizer(protected=[0]),
    sq.PrincipalComponents(),
    sq.PrincipalComponents(1, center=False),
    Classifier(protected=[0], use_protected=True, l2=1e-3),
    sq.OrthogonalGLMRegressor(protected=[0], use_protected=True),
    sq.OrthogonalGLMRegressor("poisson", protected=[0], use_protected=True, l2=1e-3),
    Corrected(LogisticRegression(), protected=[0], use_protected=True),
    Corrected(LinearRegression(), protected=[0], use_protected=True),
    Corrected(LinearRegression(), "linear", protected=[0], use_protected=True),
]


@pytest.mark.filterwarnings("ignore::setsquare.errors.SetsquareWarning")
@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_check(estimator, check):
    check(estimator)
