"""Projections onto the complement of the protected columns: linear, generalised to any activation, and erasure."""

from setsquare.projection.basis import Basis, check_rows, protected_basis
from setsquare.projection.erasure import Eraser
from setsquare.projection.generalized import GeneralizedProjector
from setsquare.projection.linear import Projector, project_out

__all__ = ["Basis", "Eraser", "GeneralizedProjector", "Projector", "check_rows", "project_out", "protected_basis"]
