"""scikit-learn estimators: corrected models, and corrections around models of your own."""

from setsquare.estimators.classifier import OrthogonalGLMClassifier
from setsquare.estimators.components import PrincipalComponents
from setsquare.estimators.linear import LinearOrthogonalizer
from setsquare.estimators.plain import PlainGLMClassifier, PlainGLMRegressor
from setsquare.estimators.prediction import PredictionOrthogonalizer
from setsquare.estimators.regressor import OrthogonalGLMRegressor

__all__ = [
    "LinearOrthogonalizer",
    "OrthogonalGLMClassifier",
    "OrthogonalGLMRegressor",
    "PlainGLMClassifier",
    "PlainGLMRegressor",
    "PredictionOrthogonalizer",
    "PrincipalComponents",
]
