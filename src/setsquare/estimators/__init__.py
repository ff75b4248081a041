"""scikit-learn estimators: corrected models, and corrections around any model."""

from setsquare.estimators.classifier import OrthogonalGLMClassifier
from setsquare.estimators.components import PrincipalComponents
from setsquare.estimators.group_thresholds import GroupThresholds
from setsquare.estimators.linear import LinearOrthogonalizer
from setsquare.estimators.prediction import PredictionOrthogonalizer
from setsquare.estimators.regressor import OrthogonalGLMRegressor
from setsquare.estimators.unconstrained import PlainGLMClassifier, PlainGLMRegressor

__all__ = [
    "GroupThresholds",
    "LinearOrthogonalizer",
    "OrthogonalGLMClassifier",
    "OrthogonalGLMRegressor",
    "PlainGLMClassifier",
    "PlainGLMRegressor",
    "PredictionOrthogonalizer",
    "PrincipalComponents",
]
