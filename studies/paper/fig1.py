"""The paper's first figure (``fig:demo_plot``) on the authors' own data: correlation along the path of an optimiser.

The rows are those of the authors' ``plot_optim.R``, drawn with R's generator. All paths of the printed figure are an
iteration with the authors' working response and weights: on the features, on features projected without an intercept
("classical"), and with projected residuals ("generalised"), which is not the problem of Corollary 4.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.progress import Progress
from scipy.special import expit

from setsquare import Problem, solve
from setsquare.families import binomial
from studies.arrays import Array
from studies.paper import figures, names
from studies.paper.cells import Cells
from studies.paper.names import CONSTRAINED, MDMM, WITHOUT, symbol
from studies.paper.r_random import RRandom
from studies.paper.record import Record, Table

#: Seed, rows and true weights (intercept first) of the authors' script, and new rows from the same law.
SEED, N, TRUE, N_NEW = 133, 1000, (1.0, 0.5, -1.0), 100_000
#: Steps at which paths end in the authors' script, at which its crosses are, and of the longest run here.
SHOWN, CROSS, STEPS = 110, 400, 1000
CLASSICAL, WITH_INTERCEPT = "classical, no intercept", "classical, with intercept"
PROJECTED, EXACT = "projected Fisher scoring", CONSTRAINED
METHODS = (WITHOUT, CLASSICAL, WITH_INTERCEPT, PROJECTED, MDMM, EXACT)
#: What the printed figure shows.
PRINTED = {WITHOUT: "correlated", CLASSICAL: "correlated", PROJECTED: "uncorrelated"}
#: Weights that the surfaces show, as printed.
SPAN = ((-0.2, 1.2), (-1.7, 0.2))


class Rows(NamedTuple):
    """Constant and features (n, 3), protected column (n,), outcome (n,)."""

    Z: Array
    x: Array
    y: Array


def authors_rows() -> Rows:
    """Rows of the authors' script, with R's generator."""
    rng = RRandom(SEED)
    z = np.column_stack([rng.normal(N), rng.normal(N)])
    Z = np.column_stack([np.ones(N), z])
    y = rng.bernoulli(expit(Z @ TRUE))
    return Rows(Z, expit(z[:, 0] + rng.normal(N)), y)


def new_rows() -> Rows:
    """New rows from the same law."""
    rng = np.random.default_rng(SEED)
    z = rng.normal(size=(N_NEW, 2))
    Z = np.column_stack([np.ones(N_NEW), z])
    x = expit(z[:, 0] + rng.normal(size=N_NEW))
    return Rows(Z, x, (rng.random(N_NEW) < expit(Z @ TRUE)).astype(np.float64))


def fisher_scoring(Z: Array, y: Array, steps: int, Q: Array | None = None) -> Array:
    """Weights (1 + steps, 3) of the authors' iteration; with ``Q`` (n, 1), predictors and residuals are projected.

    The slope of the activation stands where that of the link belongs, in the working response and in the weights. So
    the steps are shorter than those of Fisher scoring, and they do not end at the maximum-likelihood estimate, either.
    """
    gamma: Array = np.zeros(Z.shape[1])
    path = [gamma]
    for _ in range(steps):
        eta = Z @ gamma
        eta = eta if Q is None else eta - Q @ (Q.T @ eta)
        mu = expit(eta)
        slope, rest = mu * (1.0 - mu), y - mu
        rest = rest if Q is None else rest - Q @ (Q.T @ rest)
        root = slope**-1.5
        gamma = np.asarray(np.linalg.lstsq(root[:, None] * Z, root * (eta + rest * slope), rcond=None)[0], float)
        path.append(gamma)
    return np.asarray(path)


def maximum_likelihood(Z: Array, y: Array) -> Array:
    """Weights (3,) of the logistic regression without a further intercept, by Newton's method."""
    gamma = np.zeros(Z.shape[1])
    for _ in range(50):
        mu = expit(Z @ gamma)
        gamma = gamma + np.linalg.solve(Z.T @ ((mu * (1.0 - mu))[:, None] * Z), Z.T @ (y - mu))
    return gamma


def correlations(Z: Array, x: Array, gamma: Array) -> Array:
    """Correlation of x with the prediction for each of several weights (m, 3); 0 where it is constant."""
    mean = expit(Z @ gamma.T)
    gap, x = mean - mean.mean(axis=0), x - x.mean()
    spread = np.linalg.norm(gap, axis=0) * np.linalg.norm(x)
    return np.asarray(np.divide(x @ gap, spread, out=np.zeros(len(gamma)), where=spread > 1e-12))


def losses(Z: Array, y: Array, gamma: Array) -> Array:
    """Mean negative log-likelihood for each of several weights (m, 3)."""
    eta = Z @ gamma.T
    return np.asarray(np.mean(np.logaddexp(0.0, eta) - y[:, None] * eta, axis=0))


def features(method: str, rows: Rows, fitted: Rows) -> Array:
    """Features of a method (n, 3); the classical projections are those of the rows that were fitted."""
    if method not in (CLASSICAL, WITH_INTERCEPT):
        return rows.Z
    D, E = fitted.x[:, None], rows.x[:, None]
    if method == CLASSICAL:
        return rows.Z - E @ np.linalg.lstsq(D, fitted.Z, rcond=None)[0]
    D, E = np.column_stack([np.ones(len(D)), D]), np.column_stack([np.ones(len(E)), E])
    return np.column_stack([rows.Z[:, 0], rows.Z[:, 1:] - E @ np.linalg.lstsq(D, fitted.Z[:, 1:], rcond=None)[0]])


def measure(method: str, n_grid: int) -> dict[str, Any]:
    """Path of one method, its end, new rows, and its surface."""
    train, new = authors_rows(), new_rows()
    Z = features(method, train, train)
    if method in (MDMM, EXACT):
        problem = Problem(Z[:, 1:], train.y, train.x[:, None], family=binomial)
        found = solve(problem, "mdmm" if method == MDMM else "sqp", max_iter=10_000 if method == MDMM else None)
        path = np.array([[found.intercept[0], *found.coef[0]]])
    else:
        Q = train.x[:, None] / np.linalg.norm(train.x) if method == PROJECTED else None
        path = fisher_scoring(Z, train.y, STEPS, Q)
    along = correlations(Z, train.x, path)
    best = path[-1] if method in (PROJECTED, MDMM, EXACT) else maximum_likelihood(Z, train.y)
    grid = [np.linspace(*span, n_grid) for span in SPAN]
    points = np.column_stack([np.full(n_grid**2, path[-1, 0]), *(part.ravel() for part in np.meshgrid(*grid))])
    return {
        "path": path[: CROSS + 1].tolist(),
        "path_correlation": along.tolist(),
        "end": path[-1].tolist(),
        "optimum": float(correlations(Z, train.x, best[None])[0]),
        "loss": float(losses(Z, train.y, best[None])[0]),
        "new_correlation": float(correlations(features(method, new, train), new.x, best[None])[0]),
        "grid": [part.tolist() for part in grid],
        "surface_loss": np.round(losses(Z, train.y, points), 5).tolist(),
        "surface_correlation": np.round(correlations(Z, train.x, points), 5).tolist(),
    }


def run(*, quick: bool, cells: Cells, progress: Progress) -> Record:
    """Run all methods."""
    n_grid = 21 if quick else 61
    task = progress.add_task("paths", total=len(METHODS))
    data: dict[str, Any] = {}
    for method in METHODS:
        key = {"method": method, "seed": SEED, "steps": (SHOWN, CROSS, STEPS), "new": N_NEW, "n_grid": n_grid}
        data[method] = cells(key, partial(measure, method, n_grid))
        progress.advance(task)
    rows: list[Any] = []
    for method, found in data.items():
        along = found["path_correlation"]
        at = [along[k] if len(along) > k else None for k in (SHOWN, CROSS)]
        at.append(along[-1] if len(along) > 1 else None)
        rows.append((method, PRINTED.get(method), *at, found["optimum"], found["loss"], found["new_correlation"]))
    columns = (
        "method",
        "the paper",
        f"after {SHOWN} steps",
        f"after {CROSS}",
        f"after {STEPS}",
        "at the optimum",
        "loss there",
        "new rows",
    )
    table = Table("Correlation of the predictions with the protected column, authors' data", columns, rows)
    title = "Loss surfaces, paths, and correlation along the path"
    return Record("fig1", title, (table,), _reasons(data), data)


def _reasons(data: dict[str, Any]) -> tuple[str, ...]:
    end = {method: found["optimum"] for method, found in data.items()}
    path = data[PROJECTED]["path_correlation"]
    crossing = next(k for k in range(50, len(path)) if path[k] * path[k - 1] <= 0.0)
    return (
        "The classical projection of the authors' script has no intercept. At its optimum it leaves "
        f"{end[CLASSICAL]:.3f}, with an intercept {end[WITH_INTERCEPT]:.3f}: on these data the classical "
        "correction nearly suffices.",
        "The authors' iteration has the slope of the activation where that of the link belongs, so it ends off the "
        f"optimum ({data[WITHOUT]['path_correlation'][-1]:.3f} against {end[WITHOUT]:.3f} without a correction).",
        f"The path called generalised is projected Fisher scoring, not Corollary 4. It passes zero at step {crossing}, "
        f"near where the authors' script ends it ({SHOWN} steps: {path[SHOWN]:.4f}), and goes on to "
        f"{end[PROJECTED]:.3f}.",
        f"The exact solution of Corollary 4 has {abs(end[EXACT]):.0e}; the printed optimiser (MDMM) {end[MDMM]:.4f}.",
    )


def draw(record: Record, path: Path) -> Path:
    """Three surfaces with constraint and paths, and the correlation along the paths below."""
    figure, axes = figures.subplots(2, 3, figures.PAGE, 4.4, height_ratios=(1.5, 1.0))
    shown = {WITHOUT: (WITHOUT,), names.CLASSICAL: (CLASSICAL, WITH_INTERCEPT), names.CONSTRAINED: (PROJECTED,)}
    for column, (title, methods) in zip(axes.T, shown.items(), strict=True):
        _draw_surface(column[0], record.data[methods[0]])
        column[0].set_title(symbol(title))
        for method, colour, style in zip(methods, figures.COLOURS, ("-", "--"), strict=False):
            found = record.data[method]
            steps = np.asarray(found["path"])
            column[0].plot(steps[:, 1], steps[:, 2], style, color=colour)
            column[0].plot(*steps[-1, 1:], "o", color=colour, ms=3)
            along = found["path_correlation"][1:]  # at zero weights there is none
            column[1].plot(1 + np.arange(len(along)), along, style, color=colour, label=symbol(method))
        column[1].axhline(0.0, color="black", lw=0.6, ls=":")
        column[1].set(xscale="log", ylim=(-0.3, 0.3), xlabel="step")
        column[1].legend(loc="upper right" if title == names.CLASSICAL else "lower left", fontsize=6.5)
    for method, mark in ((EXACT, "x"), (MDMM, "+")):
        found = record.data[method]
        axes[0, 2].plot(*found["end"][1:], mark, color="black", ms=6)
        axes[1, 2].plot(STEPS, found["optimum"], mark, color="black", ms=6, label=symbol(method), clip_on=False)
    axes[1, 2].plot([SHOWN, SHOWN], [-0.05, 0.3], color="#999999", lw=0.6)
    axes[1, 2].annotate(
        "the script ends", (SHOWN, 0.22), fontsize=6.5, ha="right", xytext=(-2, 0), textcoords="offset points"
    )
    axes[1, 2].legend(loc="lower left", fontsize=6.5)
    axes[0, 0].plot([], [], ":", color="black", lw=1.0, label="no correlation")
    axes[0, 0].legend(loc="upper right", fontsize=6.5)
    axes[0, 0].set_ylabel("$\\gamma_2$")
    axes[1, 0].set_ylabel("correlation with $x$")
    return figures.save(figure, path)


def _draw_surface(axis: Any, found: dict[str, Any]) -> None:
    grid = found["grid"]
    loss, correlation = (
        np.reshape(found[f"surface_{what}"], (len(grid[1]), len(grid[0]))) for what in ("loss", "correlation")
    )
    levels = loss.min() + 0.005 * 2.0 ** np.arange(8)
    axis.contourf(*grid, loss, np.concatenate([[0.0], levels, [loss.max() + 1.0]]), cmap="Greys", alpha=0.35)
    axis.contour(*grid, correlation, [0.0], colors="black", linestyles=":", linewidths=1.0)
    axis.set(xlim=SPAN[0], ylim=SPAN[1], xlabel="$\\gamma_1$")
