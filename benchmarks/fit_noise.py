"""How often cells of Adult that a fit has made equal are found to differ on the rows that it has not seen.

    python -m benchmarks.fit_noise --output benchmarks/results   # about a minute on one core
    python -m benchmarks.fit_noise --quick

Constrained models with ``basis="cells"`` and ``expand="auto"`` on 70 % of the rows. On the other 30 % the means of all
cells of race and sex are compared by a Wald test. Such a test asks whether *this* fit is exactly equal in the
population. No fit to n rows is: its constraint is exact on its own rows, so in the population it is off by the sampling
error of n rows. With m new rows the statistic is therefore ``1 + m / n`` times a chi-square variable on average, and
not one. What the constraint fitted to its own noise comes on top of it: ``m`` times the square of the leave-one-out
correlation, which ``orthogonal_on="new rows"`` removes as far as the features can steer it.

Shown: mean of the statistic, what these two parts predict, and shares of splits with p < 0.05: found, and predicted for
a fit without the second part. ``audit_model`` and ``certificate.new_rows`` bound the correlation itself instead.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy.stats import chi2

import setsquare as sq
from benchmarks.frame import main, plain, steps
from setsquare.datasets import load_adult
from setsquare.errors import SetsquareWarning

QUICK = {"splits": 1, "new_splits": 0}
HELD_OUT = 0.3
MEANS = ("statistic", "predicted", "correlation", "upper")
#: Fewest rows of a cell.
FEWEST = 5


def wald(p: Any, cell: Any) -> tuple[float, int]:
    """Statistic of the differences between means of cells, each with its own variance, and its degrees of freedom."""
    groups = [own for name in np.unique(cell) if len(own := p[cell == name]) >= FEWEST]
    mean = np.array([own.mean() for own in groups])
    weight = np.array([len(own) / own.var(ddof=1) for own in groups])
    return float(weight @ (mean - weight @ mean / weight.sum()) ** 2), len(groups) - 1


def try_one(data: Any, where: str, split: int) -> dict[str, float]:
    """Statistic on the rows held out of one split, and the leave-one-out correlation of the fit."""
    protected, y = data.protected_table(), np.asarray(data.y, dtype=np.float64)
    features = data.features_table()
    features = features.drop(columns=[c for c in protected if c in features])
    cell = protected.astype(str).agg("|".join, axis=1).to_numpy()
    order = np.random.default_rng(split).permutation(data.n_rows)
    new, old = np.split(order, [int(HELD_OUT * data.n_rows)])
    model = sq.OrthogonalGLMClassifier(basis="cells", expand="auto", unseen="pool", orthogonal_on=where)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SetsquareWarning)
        model.fit(features.iloc[old], y[old], protected=protected.iloc[old])
        found, df = wald(model.predict_proba(features.iloc[new])[:, 1], cell[new])
    left = model.solution_.certificate.new_rows
    noise = 1.0 + len(new) / len(old)
    return {
        "statistic": found,
        "df": df,
        "p": float(chi2.sf(found, df)),
        "correlation": left.correlation,
        "upper": left.upper,
        "predicted": noise * df + len(new) * left.correlation**2,
        "noise": noise,
    }


def run(splits: int = 16, new_splits: int = 10) -> dict[str, Any]:
    data = load_adult()
    found: dict[str, Any] = {}
    for where, count in (("training rows", splits), ("new rows", new_splits)):
        each = [try_one(data, where, split) for split in steps(range(count), where)]
        if each:
            limit = np.array([chi2.isf(0.05, one["df"]) / one["noise"] for one in each])
            found[where] = {
                "splits": count,
                **{key: np.mean([one[key] for one in each]) for key in MEANS},
                "p below 0.05": np.mean([one["p"] < 0.05 for one in each]),
                "p below 0.05 by noise alone": np.mean(chi2.sf(limit, [one["df"] for one in each])),
                "each": each,
            }
            show({"fits": plain({where: found[where]})})
    return plain({"fits": found})


def show(result: dict[str, Any]) -> None:
    for where, cell in result["fits"].items():
        print(
            f"orthogonal on {where:13s} {cell['splits']} splits: statistic {cell['statistic']:.1f}, predicted "
            f"{cell['predicted']:.1f}; p < 0.05 in {cell['p below 0.05']:.2f}, by noise alone "
            f"{cell['p below 0.05 by noise alone']:.2f}; correlation {cell['correlation']:.3f}, at most "
            f"{cell['upper']:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main(run, show, QUICK)
