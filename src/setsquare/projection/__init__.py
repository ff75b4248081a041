"""Linear projection, generalised projection for any activation, and erasure of the protected columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from setsquare._lazy import names_by_module

if TYPE_CHECKING:
    from setsquare.projection.basis import Basis, basis_of_moments, check_rows, protected_basis
    from setsquare.projection.erasure import Eraser
    from setsquare.projection.generalized import GeneralizedProjector
    from setsquare.projection.identifiability import Identified, pho
    from setsquare.projection.linear import Projector, project_out
    from setsquare.projection.quadratic_erasure import fit_quadratic
    from setsquare.projection.transport import Transport

__all__ = [
    "Basis",
    "Eraser",
    "GeneralizedProjector",
    "Identified",
    "Projector",
    "Transport",
    "basis_of_moments",
    "check_rows",
    "fit_quadratic",
    "pho",
    "project_out",
    "protected_basis",
]
__getattr__ = names_by_module(
    __name__,
    {
        "basis": ("Basis", "basis_of_moments", "check_rows", "protected_basis"),
        "erasure": ("Eraser",),
        "generalized": ("GeneralizedProjector",),
        "identifiability": ("Identified", "pho"),
        "linear": ("Projector", "project_out"),
        "quadratic_erasure": ("fit_quadratic",),
        "transport": ("Transport",),
    },
)
