"""Constrained generalised linear models: problem, preparation, objective, solvers, solution and certificate."""

from __future__ import annotations

from setsquare.glm.problem import Problem
from setsquare.glm.solution import Certificate, Solution, Status, Step
from setsquare.glm.solver import solve

__all__ = ["Certificate", "Problem", "Solution", "Status", "Step", "solve"]
