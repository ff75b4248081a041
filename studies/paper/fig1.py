"""The paper's first figure (``fig:demo_plot``): what an optimiser does to the correlation with a protected column.

A logistic regression on two features, one protected column ``x = -1, 1``, and features ``z = x w`` with a skewed
``w``: the groups differ in more than their means, so features without a linear effect of ``x`` still tell them apart
after the activation. The training rows are drawn and then mirrored, ``(z, x, y)`` and ``(-z, -x, 1 - y)``. That makes
zero the best intercept for any weights, so the plane of the two weights shows the whole problem.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.progress import Progress
from scipy.special import expit

from setsquare import Problem, audit, solve
from setsquare.families import binomial
from setsquare.glm import Model, Objective, Settings, prepare, solve_mdmm
from setsquare.projection import Projector
from studies.arrays import Array
from studies.paper import figures
from studies.paper.cells import Cells
from studies.paper.record import Record, Table

SEED, N_TRAIN, N_NEW = 2024, 1000, 10_000
#: Weights of the true model, mean of the second feature in the group x = 1, and weights at which all paths start.
TRUE, SHIFT, START = (3.0, 2.0), -0.6, (-1.0, 1.0)
#: Weights that the surfaces show.
SPAN = (-1.5, 3.5)
METHODS = {"none": "none", "linear": "classical ($C^l$)", "generalized": "generalised ($C^h$)"}
PRINTED = {"none": "correlated", "linear": "correlated", "generalized": "uncorrelated"}


class Rows(NamedTuple):
    """Features (n, 2), protected column (n, 1), outcome (n,)."""

    Z: Array
    X: Array
    y: Array


def draw_rows(n: int, rng: np.random.Generator) -> Rows:
    """Draw rows in which the features of both groups are skewed, to opposite sides."""
    X = rng.choice([-1.0, 1.0], size=(n, 1))
    Z = X * np.column_stack([rng.lognormal(-0.5, 1.0, n), rng.normal(SHIFT, 1.0, n)])
    return Rows(Z, X, (rng.random(n) < expit(Z @ TRUE)).astype(np.float64))


def mirrored(rows: Rows) -> Rows:
    """Rows with their mirror images."""
    Z, X, y = rows
    return Rows(np.vstack([Z, -Z]), np.vstack([X, -X]), np.concatenate([y, 1.0 - y]))


@dataclass(frozen=True, slots=True)
class _Recorded(Objective):
    """An objective that keeps every point at which a solver asked for derivatives."""

    points: list[Array] = field(default_factory=list)

    def model(self, theta: Array, lam: Array | None) -> Model:
        self.points.append(self.raw(theta)[1:, 0])
        return Objective.model(self, theta, lam)


def descend(problem: Problem, n_steps: int) -> Array:
    """Weights along the path of the paper's optimiser, (1 + steps, 2); plain descent without protected columns."""
    prepared = prepare(problem, whiten=False)
    given = prepared.objective
    objective = _Recorded(**{name: getattr(given, name) for name in Objective.__dataclass_fields__})
    start = prepared.theta(np.zeros(1), np.asarray([START]))
    solve_mdmm(objective, start, Settings(max_iter=n_steps))
    return np.asarray(objective.points[:-1])  # the last call only adds the Hessian where it ended


def correlations(Z: Array, X: Array, gamma: Array) -> Array:
    """Correlation of x with the prediction for each of several weights (m, 2); 0 where it is constant."""
    mean = expit(Z @ gamma.T)
    gap = mean - mean.mean(axis=0)
    x = X[:, 0] - X[:, 0].mean()
    spread = np.linalg.norm(gap, axis=0) * np.linalg.norm(x)
    return np.asarray(np.divide(x @ gap, spread, out=np.zeros(len(gamma)), where=spread > 0.0))


def losses(Z: Array, y: Array, gamma: Array) -> Array:
    """Mean negative log-likelihood for each of several weights (m, 2)."""
    eta = Z @ gamma.T
    return np.asarray(np.mean(np.logaddexp(0.0, eta) - y[:, None] * eta, axis=0))


def measure(method: str, n_steps: int, n_grid: int) -> dict[str, Any]:
    """Path of the paper's optimiser, exact optimum, new rows, and the surface, of one method."""
    rng = np.random.default_rng(SEED)
    train, new = mirrored(draw_rows(N_TRAIN // 2, rng)), draw_rows(N_NEW, rng)
    Z, Z_new = train.Z, new.Z
    if method == "linear":
        projector = Projector.fit(Z, train.X)
        Z, Z_new = projector.apply(Z, train.X), projector.apply(Z_new, new.X)
    problem = Problem(Z, train.y, train.X if method == "generalized" else None, family=binomial)
    solution, path = solve(problem), descend(problem, n_steps)
    shown = np.unique(np.round(np.geomspace(1, len(path), 150)).astype(int)) - 1
    axis = np.linspace(*SPAN, n_grid)
    grid = np.column_stack([axis_values.ravel() for axis_values in np.meshgrid(axis, axis)])
    found = audit(expit(solution.intercept[0] + Z_new @ solution.coef[0]), new.X, family="binomial")
    return {
        "steps": shown.tolist(),
        "path": path[shown].tolist(),
        "path_correlation": correlations(Z, train.X, path[shown]).tolist(),
        "path_loss": losses(Z, train.y, path[shown]).tolist(),
        "optimum": solution.coef[0].tolist(),
        "intercept": float(solution.intercept[0]),
        "loss": solution.certificate.loss,
        "correlation": float(correlations(Z, train.X, solution.coef)[0]),
        "new_correlation": float(correlations(Z_new, new.X, solution.coef)[0]),
        "new_p": found.p_value,
        "grid": axis.tolist(),
        "surface_loss": np.round(losses(Z, train.y, grid), 5).tolist(),
        "surface_correlation": np.round(correlations(Z, train.X, grid), 5).tolist(),
    }


def run(*, quick: bool, cells: Cells, progress: Progress) -> Record:
    """Run the three methods."""
    size = {"n_steps": 200, "n_grid": 21} if quick else {"n_steps": 2000, "n_grid": 41}
    task = progress.add_task("paths", total=len(METHODS))
    data: dict[str, Any] = {}
    for method in METHODS:
        key = {"method": method, "seed": SEED, "rows": (N_TRAIN, N_NEW), "drawn": (TRUE, SHIFT), "start": START, **size}
        data[method] = cells(key, partial(measure, method, **size))
        progress.advance(task)
    columns = (
        *("correction", "the paper", f"correlation, at most {size['n_steps']} steps", "loss"),
        *("correlation at the exact optimum", "exact loss", "correlation, new rows", "p, new rows (HC3)"),
    )
    keys = ("correlation", "loss", "new_correlation", "new_p")
    rows = [
        (method, PRINTED[method], found["path_correlation"][-1], found["path_loss"][-1], *(found[key] for key in keys))
        for method, found in data.items()
    ]
    table = Table("Correlation of the predictions with the protected column", columns, rows)
    missed = (
        "The paper's own picture: neither its data nor its step size are given. These data are drawn anew, of the kind "
        "that it describes, and the optimiser chooses its steps.",
    )
    title = "Loss surfaces, paths, and correlation along the path"
    return Record("fig1", title, (table,), _reasons(data), data, missed)


def _reasons(data: dict[str, Any]) -> tuple[str, ...]:
    none, linear, exact = (data[method] for method in METHODS)
    return (
        f"The classical correction leaves {linear['correlation']:.3f}: the groups are skewed to opposite sides, and "
        "features with equal means have different ones after the activation.",
        f"The paper's optimiser squares the constraint, and its gradient vanishes where the constraint holds: "
        f"{exact['path_correlation'][-1]:.1e} is left after {exact['steps'][-1]} steps, and "
        f"{abs(exact['correlation']):.0e} at the exact optimum. Where the constraint is not met the loss is lower.",
        f"New rows: {none['new_correlation']:.3f} without correction, {linear['new_correlation']:.3f} with the "
        f"classical one (p = {linear['new_p']:.0e}), {exact['new_correlation']:.3f} with the generalised one "
        f"(p = {exact['new_p']:.2f}), whose constraint was fitted to {N_TRAIN} rows.",
        f"The loss is {exact['loss']:.3f} with the generalised correction and {linear['loss']:.3f} with the classical "
        "one, which needs the protected column of every row that it predicts.",
    )


def draw(record: Record, path: Path) -> Path:
    """Draw three surfaces with constraint, path and optimum, and the correlation along the paths."""
    figure, axes = figures.subplots(2, 2, height=5.8)
    for axis, (method, label), colour in zip(axes.flat, METHODS.items(), figures.COLOURS, strict=False):
        found = record.data[method]
        _draw_surface(axis, found, colour)
        axis.set_title(label, fontsize=8)
        steps = 1 + np.asarray(found["steps"])
        axes[1, 1].plot(steps, found["path_correlation"], color=colour, label=label)
        axes[1, 1].plot(steps[-1], found["path_correlation"][-1], "x", color="black", markersize=5)
    last = axes[1, 1]
    last.set(xscale="log", xlabel="1 + steps of the optimiser", ylabel="correlation of prediction and $x_1$")
    last.axhline(0.0, color="black", linestyle="--", linewidth=0.8)
    last.set_title("correlation along the paths", fontsize=8)
    last.legend(frameon=False, fontsize=7)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=7)
    return figures.save(figure, path)


def _draw_surface(axis: Any, found: dict[str, Any], colour: str) -> None:
    grid, shape = found["grid"], (len(found["grid"]),) * 2
    loss, correlation = (np.reshape(found[f"surface_{what}"], shape) for what in ("loss", "correlation"))
    best = loss.min()
    contours = axis.contour(grid, grid, loss, best + 0.02 * 2.0 ** np.arange(8), colors="#999999", linewidths=0.6)
    axis.clabel(contours, fmt="%.2f", fontsize=6)
    axis.contour(grid, grid, correlation, [0.0], colors="black", linestyles="--", linewidths=1.0)
    axis.plot([], [], color="#999999", linewidth=0.6, label="mean loss")
    axis.plot([], [], "--", color="black", linewidth=1.0, label="no correlation with $x_1$")
    steps = np.asarray(found["path"])
    axis.plot(*steps.T, color=colour, label="path of the optimiser")
    axis.plot(*steps[0], "o", color=colour, markersize=4, label="start")
    axis.plot(*found["optimum"], "x", color="black", markersize=6, label="exact optimum")
    axis.set(xlim=SPAN, ylim=SPAN, aspect="equal", xlabel="$\\gamma_1$", ylabel="$\\gamma_2$")
