"""Constrained generalised linear models: problem, preparation, objective, solvers, solution and certificate."""

from __future__ import annotations

from setsquare.glm.mdmm import solve_mdmm
from setsquare.glm.newton import Iterate, Settings
from setsquare.glm.objective import Model, Objective, linear_predictor
from setsquare.glm.preparation import Prepared, prepare
from setsquare.glm.problem import Problem
from setsquare.glm.solution import Certificate, Solution, Status, Step
from setsquare.glm.solver import solve
from setsquare.glm.sqp import kkt_residual, solve_sqp

__all__ = [
    "Certificate",
    "Iterate",
    "Model",
    "Objective",
    "Prepared",
    "Problem",
    "Settings",
    "Solution",
    "Status",
    "Step",
    "kkt_residual",
    "linear_predictor",
    "prepare",
    "solve",
    "solve_mdmm",
    "solve_sqp",
]
