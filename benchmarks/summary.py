"""Standard errors of ``summary()`` and of ``bootstrap()`` beside 2000 bootstrap refits.

    nice -n 15 python -m benchmarks.summary --output benchmarks/results   # about 4 minutes on one core

Each set is fitted with all its features. ``refits`` is the standard deviation over 2000 refits to rows drawn with
replacement; ``again`` the same with other draws, which shows how far two bootstraps differ by chance. ``summary`` is
``summary()``, with draws of its own where it makes refits, ``sandwich`` is ``summary(refits=0)``, and ``bootstrap`` is
``bootstrap()`` with the draws of ``again``: what a function of the linear response to the counts of the rows explains
has a known variance, and only the rest is drawn. Shown: how many standard errors are within 5 % of ``refits``, and the
largest relative difference. The refits themselves have a relative error, larger where they have heavy tails. It says
how many coefficients a method without any error would have within 5 % of them, how many another 2000 refits, and how
likely all of them would be.

``known`` is the best estimate, ``bootstrap()`` with both sets of draws, with its relative error. ``outside`` are the
coefficients whose ``summary()`` is further than 5 % from it, by how much, and in how many standard errors of it
(``z``). ``marked`` are those for which ``summary()`` itself says that they rest on few rows: one row has more than a
fifth of the variance, or one row changes the response to the others by more than 7 % of the standard error; it makes
refits for them, whose number and seconds of CPU are shown.
"""

from __future__ import annotations

import time
from functools import partial, reduce
from typing import Any

import numpy as np
from scipy.special import ndtr

from benchmarks.frame import main, part, plain, steps
from setsquare import OrthogonalGLMClassifier, OrthogonalGLMRegressor, tables
from setsquare.datasets import load_compas, load_health_retirement
from setsquare.glm import Problem, solve
from setsquare.glm.bootstrap import Draws, Resampler, evaluate

QUICK = {"refits": 100}
#: Refits of one part.
PART = 250
SETS = {"compas": load_compas, "health": load_health_retirement}
METHODS = ("summary", "sandwich", "again", "bootstrap")


def run(refits: int = 2000) -> dict[str, Any]:
    found = {}
    for name, load in steps(list(SETS.items()), "sets"):
        data = load()
        Z, X = (tables.learn(table).apply(table) for table in (data.features_table(), data.protected_table()))
        problem = Problem(Z.values, np.asarray(data.y, dtype=float), X.values, data.family, feature_names=Z.names)
        whole = solve(problem)
        refit = partial(solve, start=(whole.intercept, whole.coef))
        draws = [drawn(name, problem, refit, refits, seed) for seed in (1, 2)]  # summary() has 0
        first, second, both = (evaluate(each) for each in (*draws, join(draws)))
        made, seconds = part(f"{name} summary", partial(summarise, data))
        errors = {"summary": numbers(made["std_error"]), "sandwich": whole.std_error, "refits": first.drawn_error}
        errors |= {"again": second.drawn_error, "bootstrap": second.std_error, "known": both.std_error}
        sets = {label: values[0] for label, values in errors.items()}
        plain_error = np.sqrt(2.0) * evaluate(join(draws)._replace(moments=None)).precision[0]
        found[name] = {
            "names": ["intercept", *Z.names],
            **sets,
            "precision": {"refits": plain_error, "bootstrap": second.precision[0], "known": both.precision[0]},
            "marked": whole.few_rows[0],
            "made": {"refits": made["n_refits"], "seconds": seconds},
            "outside": outside(sets["summary"], sets["known"], both.precision[0], whole.few_rows[0]),
            "within": {label: within(sets[label], sets["refits"]) for label in METHODS},
            "chance": {"perfect": chance(plain_error), "again": chance(np.sqrt(2.0) * plain_error)},
        }
        show({"sets": plain({name: found[name]})})
    return plain({"sets": found, "n_refits": refits})


def drawn(name: str, problem: Problem, refit: Any, refits: int, seed: int) -> Draws:
    """Refits to the draws of one seed, in parts."""
    parts = []
    for start in range(0, refits, PART):
        rng = np.random.default_rng([seed, start])
        resampler = Resampler.of(problem, refit)
        compute = partial(resampler.draw, min(PART, refits - start), rng)
        estimates, moved, moments, failed = part(f"{name} {seed} {start}", lambda: list(compute()))  # noqa: B023
        parts.append(
            Draws([numbers(one) for one in estimates], [numbers(one) for one in moved], numbers(moments), failed)
        )
    return join(parts)


def summarise(data: Any) -> Any:
    """Standard errors of ``summary()``, the number of its refits, and its CPU time."""
    model = OrthogonalGLMClassifier() if data.family == "binomial" else OrthogonalGLMRegressor(data.family)
    model.fit(data.features_table(), data.y, data.protected_table())
    start = time.process_time()
    errors = model.summary().std_error
    return [{"std_error": errors, "n_refits": model.solution_.refits.found.n_refits}, time.process_time() - start]


def numbers(values: Any) -> Any:
    """A list from a file as an array, with NaN for what is not known."""
    return np.array(values, dtype=float)


def join(parts: list[Draws]) -> Draws:
    return reduce(Draws.join, parts)


def within(errors: Any, known: Any) -> dict[str, float]:
    gap = np.abs(errors / known - 1.0)
    return {"count": int((gap < 0.05).sum()), "of": len(gap), "largest": gap.max(), "median": np.median(gap)}


def outside(errors: Any, known: Any, precision: Any, marked: Any) -> dict[str, Any]:
    """Coefficients whose standard error is more than 5 % away from the best estimate, marked or not."""
    gap = errors / known - 1.0
    return {
        "unmarked": {"count": int((~marked).sum()), "largest": np.abs(gap[~marked]).max()},
        "gaps": {
            int(j): {"gap": gap[j], "z": gap[j] / precision[j], "marked": marked[j]}
            for j in np.flatnonzero(np.abs(gap) > 0.05)
        },
    }


def chance(precision: Any) -> dict[str, float]:
    """Number of standard errors within 5 % that errors of this relative size leave on average, and chance of all."""
    each = 1.0 - 2.0 * ndtr(-0.05 / precision)
    return {"expected": each.sum(), "all": each.prod()}


def show(result: dict[str, Any]) -> None:
    for name, cell in result["sets"].items():
        for label, each in cell["within"].items():
            print(
                f"{name:10s} {label:9s} {each['count']} of {each['of']} within 5 %, "
                f"median {each['median']:.3f}, largest {each['largest']:.3f}",
                flush=True,
            )
        made = cell["made"]
        print(f"{name:10s} summary() made {made['refits']} refits in {made['seconds']:.1f} s of CPU")
        best = cell["precision"]
        print(f"{name:10s} relative errors, median and largest:", end=" ")
        print("; ".join(f"{label} {np.median(each):.3f}, {max(each):.3f}" for label, each in best.items()))
        unmarked = cell["outside"]["unmarked"]
        print(
            f"{name:10s} unmarked  {unmarked['count']} of {len(cell['names'])}, largest {unmarked['largest']:.3f} from "
            f"the best; marked: {', '.join(n for n, m in zip(cell['names'], cell['marked'], strict=True) if m)}"
        )
        for j, one in cell["outside"]["gaps"].items():
            print(
                f"{name:10s} outside   {cell['names'][int(j)]}: {one['gap']:+.3f}, z = {one['z']:.1f}"
                f"{'' if one['marked'] else ', NOT marked'}",
                flush=True,
            )
        for label, each in cell["chance"].items():
            print(f"{name:10s} {label:9s} by chance {each['expected']:.1f}, all {each['all']:.2f}", flush=True)


if __name__ == "__main__":
    main(run, show, QUICK)
