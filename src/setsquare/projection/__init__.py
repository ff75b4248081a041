"""Projections onto the complement of the protected columns: linear, and generalised to any activation."""

from setsquare.projection.basis import Basis, basis_of_moments, check_rows, protected_basis
from setsquare.projection.generalized import GeneralizedProjector
from setsquare.projection.linear import Projector, project_out

__all__ = [
    "Basis",
    "GeneralizedProjector",
    "Projector",
    "basis_of_moments",
    "check_rows",
    "project_out",
    "protected_basis",
]
