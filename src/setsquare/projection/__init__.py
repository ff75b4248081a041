"""Linear projection, generalised projection for any activation, and erasure of the protected columns."""

from setsquare.projection.basis import Basis, basis_of_moments, check_rows, protected_basis
from setsquare.projection.erasure import Eraser
from setsquare.projection.generalized import GeneralizedProjector
from setsquare.projection.linear import Projector, project_out

__all__ = [
    "Basis",
    "Eraser",
    "GeneralizedProjector",
    "Projector",
    "basis_of_moments",
    "check_rows",
    "project_out",
    "protected_basis",
]
