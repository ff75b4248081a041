"""Standard errors of ``summary()`` and of ``bootstrap()`` beside 2000 bootstrap refits.

    nice -n 15 python -m benchmarks.summary --output benchmarks/results

Each set is fitted with all its features. ``refits`` is the standard deviation over 2000 refits to rows drawn with
replacement; ``again`` the same with other draws, which shows how far two bootstraps differ by chance; ``sandwich`` is
``summary()``. Shown: how many standard errors are within 5 % of ``refits``, and the largest relative difference. The
refits themselves have a relative error, larger where they have heavy tails. It says how many coefficients a method
without any error would have within 5 % of them, how many another 2000 refits, and how likely all of them would be.

``outside`` compares the sandwich with both sets of refits together: the coefficients that are further away than 5 %,
by how much, and in how many standard errors of the refits (``z``). ``marked`` are those for which ``summary()`` itself
says that they rest on few rows: one row has more than a fifth of the variance, or one row changes the response to the
others by more than 7 % of the standard error. ``unmarked`` counts the others, for which the sandwich is meant.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy.special import ndtr

from benchmarks.frame import main, plain, steps
from setsquare import tables
from setsquare.datasets import load_compas, load_health_retirement
from setsquare.glm import Problem, solve
from setsquare.glm.bootstrap import refit_resampled

QUICK = {"refits": 100}
SETS = {"compas": load_compas, "health": load_health_retirement}


def run(refits: int = 2000) -> dict[str, Any]:
    found = {}
    for name, load in steps(list(SETS.items()), "sets"):
        data = load()
        Z, X = (tables.learn(table).apply(table) for table in (data.features_table(), data.protected_table()))
        problem = Problem(Z.values, np.asarray(data.y, dtype=float), X.values, data.family, feature_names=Z.names)
        whole = solve(problem)
        refit = partial(solve, start=(whole.intercept, whole.coef))
        sets = {"sandwich": whole.std_error}
        for label, seed in (("refits", 0), ("again", 1)):
            drawn = refit_resampled(problem, refit, refits, np.random.default_rng(seed))
            sets[label] = drawn.std_error
        found[name] = {
            "names": ["intercept", *Z.names],
            **{label: values[0] for label, values in sets.items()},
            "precision": drawn.precision[0],
            "marked": whole.few_rows[0],
            "outside": outside(
                *(sets[label][0] for label in ("sandwich", "refits", "again")), drawn.precision[0], whole
            ),
            "within": {label: within(sets[label][0], sets["refits"][0]) for label in ("sandwich", "again")},
            "chance": {"perfect": chance(drawn.precision[0]), "again": chance(np.sqrt(2.0) * drawn.precision[0])},
        }
        show({"sets": plain({name: found[name]})})
    return plain({"sets": found, "n_refits": refits})


def within(errors: Any, known: Any) -> dict[str, float]:
    gap = np.abs(errors / known - 1.0)
    return {"count": int((gap < 0.05).sum()), "of": len(gap), "largest": gap.max(), "median": np.median(gap)}


def outside(errors: Any, refits: Any, again: Any, precision: Any, whole: Any) -> dict[str, Any]:
    """Coefficients whose standard error is more than 5 % away from both sets of refits together, marked or not."""
    known = np.sqrt((refits**2 + again**2) / 2.0)
    gap, marked = errors / known - 1.0, whole.few_rows[0]
    return {
        "unmarked": {"count": int((~marked).sum()), "largest": np.abs(gap[~marked]).max()},
        "gaps": {
            int(j): {"gap": gap[j], "z": gap[j] / (precision[j] / np.sqrt(2.0)), "marked": marked[j]}
            for j in np.flatnonzero(np.abs(gap) > 0.05)
        },
    }


def chance(precision: Any) -> dict[str, float]:
    """Number of standard errors within 5 % that errors of this relative size leave on average, and chance of all."""
    each = 1.0 - 2.0 * ndtr(-0.05 / precision)
    return {"expected": each.sum(), "all": each.prod()}


def show(result: dict[str, Any]) -> None:
    for name, cell in result["sets"].items():
        for label, part in cell["within"].items():
            print(
                f"{name:10s} {label:9s} {part['count']} of {part['of']} within 5 %, "
                f"median {part['median']:.3f}, largest {part['largest']:.3f}",
                flush=True,
            )
        unmarked = cell["outside"]["unmarked"]
        print(
            f"{name:10s} unmarked  {unmarked['count']} of {len(cell['names'])}, largest {unmarked['largest']:.3f} from "
            f"4000 refits; marked: {', '.join(n for n, m in zip(cell['names'], cell['marked'], strict=True) if m)}"
        )
        for j, one in cell["outside"]["gaps"].items():
            print(
                f"{name:10s} outside   {cell['names'][int(j)]}: {one['gap']:+.3f}, z = {one['z']:.1f}"
                f"{'' if one['marked'] else ', NOT marked'}",
                flush=True,
            )
        for label, part in cell["chance"].items():
            print(f"{name:10s} {label:9s} by chance {part['expected']:.1f}, all {part['all']:.2f}", flush=True)


if __name__ == "__main__":
    main(run, show, QUICK)
