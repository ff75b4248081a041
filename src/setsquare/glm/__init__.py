"""Constrained generalised linear models: problem, preparation, objective, solvers, solution and certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from setsquare._lazy import names_by_module

if TYPE_CHECKING:
    from setsquare.glm.certificate import Certificate
    from setsquare.glm.mdmm import Descent, searched_rates, solve_mdmm
    from setsquare.glm.new_rows_bound import NewRows
    from setsquare.glm.newton import Iterate, Settings
    from setsquare.glm.objective import Model, Objective, linear_predictor
    from setsquare.glm.preparation import Prepared, prepare
    from setsquare.glm.problem import Problem
    from setsquare.glm.ridge import choose_l2
    from setsquare.glm.solution import Solution, Status, Step
    from setsquare.glm.solver import solve
    from setsquare.glm.sqp import kkt_residual, solve_sqp

__all__ = [
    "Certificate",
    "Descent",
    "Iterate",
    "Model",
    "NewRows",
    "Objective",
    "Prepared",
    "Problem",
    "Settings",
    "Solution",
    "Status",
    "Step",
    "choose_l2",
    "kkt_residual",
    "linear_predictor",
    "prepare",
    "searched_rates",
    "solve",
    "solve_mdmm",
    "solve_sqp",
]

__getattr__ = names_by_module(
    __name__,
    {
        "certificate": ("Certificate",),
        "mdmm": ("Descent", "searched_rates", "solve_mdmm"),
        "new_rows_bound": ("NewRows",),
        "newton": ("Iterate", "Settings"),
        "objective": ("Model", "Objective", "linear_predictor"),
        "preparation": ("Prepared", "prepare"),
        "problem": ("Problem",),
        "ridge": ("choose_l2",),
        "solution": ("Solution", "Status", "Step"),
        "solver": ("solve",),
        "sqp": ("kkt_residual", "solve_sqp"),
    },
)
