"""scikit-learn estimators: corrected models, and corrections around models of your own."""

from setsquare.estimators.glm import OrthogonalGLMClassifier, OrthogonalGLMRegressor
from setsquare.estimators.linear import LinearOrthogonalizer
from setsquare.estimators.prediction import PredictionOrthogonalizer

__all__ = [
    "LinearOrthogonalizer",
    "OrthogonalGLMClassifier",
    "OrthogonalGLMRegressor",
    "PredictionOrthogonalizer",
]
