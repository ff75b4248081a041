"""Generalised projection of given predictions, beside the same problem as a regression with an offset.

    python -m benchmarks.bench_projection           # about 2 minutes

The projection of pre-activations `eta` is the generalised linear model on the protected columns, with the offset `eta`,
of any outcome with the mean of `h(eta)` that is uncorrelated with these columns: its score equations say that what is
fitted is uncorrelated, too. A constant would do, but glum refuses it; here the outcome is corrected noise. statsmodels
and glum take an offset. scikit-learn has none; for counts it can go in as exposure, rates `y / exp(offset)` with
weights `exp(offset)`, so it is a peer for the exponential alone. All are asked for a gradient of 1e-8; the largest
correlation that each leaves, and how far its corrected predictions are from ours, is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import glum
import numpy as np
import statsmodels.api as sm
from scipy.special import expit
from sklearn.linear_model import PoissonRegressor

from benchmarks.frame import Ratio, main, plain
from benchmarks.measure import interleave
from setsquare.projection import GeneralizedProjector, project_out

QUICK = {"rows": 20_000, "rounds": 2}
TOLERANCE = 1e-8
FAMILIES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], type]] = {
    "binomial": (expit, sm.families.Binomial),
    "poisson": (np.exp, sm.families.Poisson),
}


def draw(n: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Pre-activations that follow protected columns, half of them groups."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, p))
    X[:, ::2] = X[:, ::2] > 0.5
    return X @ rng.normal(size=p) * 0.3 + 0.7 * rng.normal(size=n) - 0.5, X


def calls(eta: np.ndarray, X: np.ndarray, family: str) -> dict[str, Callable[[], np.ndarray]]:
    """Corrected predictions of each method."""
    h, likelihood = FAMILIES[family]
    noise = project_out(np.random.default_rng(1).uniform(-1.0, 1.0, len(eta)), X)
    noise -= noise.mean()
    y = h(eta).mean() * (1.0 + 0.5 * noise / np.abs(noise).max())

    def ours() -> np.ndarray:
        return GeneralizedProjector.fit(eta, X, family).predict(eta, X)

    def by_statsmodels() -> np.ndarray:
        return sm.GLM(y, sm.add_constant(X), family=likelihood(), offset=eta).fit(tol=TOLERANCE).fittedvalues

    def by_glum() -> np.ndarray:
        model = glum.GeneralizedLinearRegressor(family=family, alpha=0.0, gradient_tol=TOLERANCE)
        return model.fit(X, y, offset=eta).predict(X, offset=eta)

    def by_sklearn() -> np.ndarray:
        model = PoissonRegressor(alpha=0.0, solver="newton-cholesky", tol=TOLERANCE)
        exposure = np.exp(eta)
        return model.fit(X, y / exposure, sample_weight=exposure).predict(X) * exposure

    found = {"setsquare": ours, "statsmodels": by_statsmodels, "glum": by_glum}
    return found | ({"scikit-learn": by_sklearn} if family == "poisson" else {})


def run(rows: int = 1_000_000, protected: int = 10, rounds: int = 5) -> dict[str, Any]:
    eta, X = draw(rows, protected)
    ratios, families = [], {}
    for family in FAMILIES:
        timed = interleave(calls(eta, X, family), rounds)
        ours = timed["setsquare"]
        what = f"generalised projection, {family}, {rows} rows x {protected} protected columns"
        ratios += [
            Ratio.over(what, ("setsquare", ours), (name, each))
            for name, each in timed.items()
            if each is not ours and not each.failure
        ]
        families[family] = {
            name: {"failure": each.failure}
            if each.failure
            else {
                "seconds": each.seconds,
                "correlation": np.abs(np.corrcoef(X.T, each.result)[-1, :-1]).max(),
                "distance": np.abs(each.result - ours.result).max(),
            }
            for name, each in timed.items()
        }
    return plain({"ratios": ratios, "rows": rows, "families": families})


def show(result: dict[str, Any]) -> None:
    print(
        f"{result['rows']} rows\n\n| family | method | seconds | abs. corr left | distance from ours |\n{'|---' * 5}|"
    )
    for family, methods in result["families"].items():
        for name, each in methods.items():
            cells = (
                [each["failure"], "", ""]
                if "failure" in each
                else [f"{np.median(each['seconds']):.2f}", f"{each['correlation']:.0e}", f"{each['distance']:.0e}"]
            )
            print(f"| {family} | {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main(run, show, QUICK)
