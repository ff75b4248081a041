"""Tables with categories of many levels: our corrected fit against glum's unconstrained one.

    python -m benchmarks.bench_categories [--rounds 5]          # about 2 minutes

ACSIncome (332 900 rows; occupation has 529 levels, place of birth 223), with all columns and without these two, in
turn with glum at its default tolerance; and one category of 10 000 levels in 30 000 rows, where glum, whose Hessian is
a dense matrix, is not run. Memory is what numpy and Python hold at most beyond the loaded table.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import glum
import numpy as np
import pandas as pd

import setsquare as sq
from benchmarks.frame import Bound, Ratio, main, plain, steps
from benchmarks.measure import interleave, peak_bytes

PROTECTED = ["SEX", "RAC1P"]
NUMBERS = ["AGEP", "WKHP", "PINCP"]
#: Columns left out, and the largest ratio to glum's time.
FORMS = {"all columns": ((), 1.5), "without OCCP and POBP": (("OCCP", "POBP"), 1.0)}
QUICK = {"rounds": 1}


def load_acs_income() -> pd.DataFrame:
    """The table, with codes of categories as categories."""
    path = Path(os.environ.get("SETSQUARE_DATA", "data")) / "acs_income" / "acs_income.parquet"
    table = pd.read_parquet(path)
    codes = [name for name in table if name not in NUMBERS]
    return table.assign(**{name: table[name].astype(int).astype("category") for name in codes})


def draw_sites(n: int = 30_000, levels: int = 10_000) -> tuple[pd.DataFrame, np.ndarray, pd.DataFrame]:
    """One category of so many levels, a number, a binary outcome and a protected column."""
    rng = np.random.default_rng(0)
    site, sex = rng.permutation(np.arange(n) % levels), rng.integers(0, 2, n)
    age = rng.normal(size=n) + sex
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-0.5 * age - np.sin(site) - 0.5 * sex))).astype(int)
    return pd.DataFrame({"age": age, "site": pd.Categorical(site)}), y, pd.DataFrame({"sex": pd.Categorical(sex)})


def fit_ours(Z: pd.DataFrame, y: np.ndarray, X: pd.DataFrame, **options: Any) -> Callable[[], Any]:
    def fit() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sq.errors.SeparationWarning)
            return sq.OrthogonalGLMClassifier(**options).fit(Z, y, protected=X).solution_

    return fit


def fit_glum(Z: pd.DataFrame, y: np.ndarray) -> Callable[[], Any]:
    return lambda: glum.GeneralizedLinearRegressor(family="binomial", alpha=0.0, drop_first=True).fit(Z, y)


def run(rounds: int = 5) -> dict[str, Any]:
    table, ratios, bounds, lines = load_acs_income(), [], [], []
    for form in steps(FORMS, "ACSIncome"):
        left_out, limit = FORMS[form]
        y, X = table["PINCP"].to_numpy(), table[PROTECTED]
        Z = table.drop(columns=["PINCP", *PROTECTED, *left_out])
        ours = fit_ours(Z, y, X)
        timed = interleave({"ours": ours, "glum": fit_glum(Z, y.astype(float))}, rounds)
        pair = [(who, timed[who]) for who in ("ours", "glum")]
        ratios.append(Ratio.over(f"corrected fit, ACSIncome, {form}", *pair, limit=limit))
        certificate, gigabytes = timed["ours"].result.certificate, peak_bytes(ours) / 1e9
        bounds += [
            Bound(f"ACSIncome, {form}: largest abs. correlation left", certificate.max_correlation, 1e-8),
            Bound(f"ACSIncome, {form}: memory beyond the table", gigabytes, 1.0, "GB"),
        ]
        seconds = {who: timed[who].seconds for who in timed}
        lines.append({"form": form, "seconds": seconds, "coefficients": certificate.n_features, "memory": gigabytes})
    sites = draw_sites()
    for form, options in {"ridge": {"l2": 1e-4}, "no penalty": {}}.items():
        ours = fit_ours(*sites, **options)
        timed = interleave({"ours": ours}, rounds)
        certificate, megabytes = timed["ours"].result.certificate, peak_bytes(ours) / 1e6
        bounds += [
            Bound(f"10 000 levels in 30 000 rows, {form}", timed["ours"].median, 2.0, "s"),
            Bound(f"10 000 levels, {form}: memory beyond the table", megabytes, 200.0, "MB"),
            Bound(f"10 000 levels, {form}: largest abs. correlation left", certificate.max_correlation, 1e-8),
        ]
        lines.append(
            {
                "form": f"10 000 levels, {form}",
                "seconds": {"ours": timed["ours"].seconds},
                "coefficients": certificate.n_features,
                "memory": megabytes / 1e3,
            }
        )
    return plain({"ratios": ratios, "bounds": bounds, "lines": lines})


def show(result: dict[str, Any]) -> None:
    print("| table | coefficients | ours, s | glum, s | memory, GB |\n" + "|---" * 5 + "|")
    for line in result["lines"]:
        cells = [f"{np.median(line['seconds'][who]):.2f}" if who in line["seconds"] else "" for who in ("ours", "glum")]
        print(f"| {line['form']} | {line['coefficients']} | {' | '.join(cells)} | {line['memory']:.3f} |")
    for ratio in result["ratios"]:
        print(f"\n{ratio['what']}: {ratio['median']:.2f} of glum ({ratio['low']:.2f} to {ratio['high']:.2f})")
    for bound in result["bounds"]:
        print(f"{bound['what']}: {bound['value']:.3g} {bound['unit']} (at most {bound['limit']:g})")


if __name__ == "__main__":
    main(run, show, QUICK)
