"""What the main loop of sequential quadratic programming asks of the linear algebra of a step."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from setsquare._typing import Array
from setsquare.glm.objective import Model


class Frame(NamedTuple):
    """Right inverse ``pinv`` (m, r) of the Jacobian, and an orthonormal ``basis`` of its rows (in a metric)."""

    pinv: Array
    basis: Array


class Direction(NamedTuple):
    """A step with its multipliers and the predictions of the quadratic model.

    Attributes
    ----------
    step : ndarray of shape (m,)
    lam : ndarray of shape (r,)
    bend : float
        ``step' H step``.
    reduction, curvature : float
        Predicted reduction of the loss, and curvature of the Lagrangian along the tangent part.
    corrected : bool
        Whether the Hessian was indefinite and had to be corrected.
    """

    step: Array
    lam: Array
    bend: float
    reduction: float
    curvature: float
    corrected: bool


class Algebra(Protocol):
    """Linear algebra of a step."""

    def frame(self, model: Model) -> Frame:
        """Decompose the Jacobian."""
        ...

    def residual(self, model: Model, frame: Frame) -> float:
        """Gradient of the Lagrangian relative to the slopes of the intercept-only model."""
        ...

    def direction(self, model: Model, frame: Frame) -> Direction:
        """Find a step."""
        ...

    def opened(self, model: Model, frame: Frame, step: Array) -> Array:
        """Part of a step along directions of almost no curvature; zero if they are unknown."""
        ...

    def lowest(self, model: Model, frame: Frame) -> tuple[float, Array]:
        """Smallest curvature on the tangent space relative to the intercept-only model, and its direction.

        If it is clearly positive, a lower bound of 0 and any vector will do: nothing follows that direction.
        """
        ...
