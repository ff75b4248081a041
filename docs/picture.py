"""Draw the README's pictures (needs ``pip install '.[report,data]'``).

``python docs/picture.py`` draws predictions before and after; ``python docs/picture.py --report`` takes a picture of
the page that ``setsquare demo --html`` writes, with Chromium.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

import setsquare as sq

BLUE, ORANGE = "#0072B2", "#D55E00"


def main() -> None:
    """Probabilities of a high disease progression by age, before and after the correction."""
    data = sq.datasets.load_diabetes()
    table, high = data.features_table(), data.y > np.median(data.y)
    boosting = HistGradientBoostingClassifier(
        max_iter=40, max_leaf_nodes=4, random_state=0
    )
    model = sq.PredictionOrthogonalizer(
        boosting, protected=["age", "sex"], cv="training rows"
    ).fit(table, high)
    before = model.estimator_.predict_proba(table.drop(columns=["age", "sex"]))[
        :, 1
    ]
    after = model.predict_proba(table)[:, 1]
    age = table["age"].to_numpy(float)

    figure, axes = plt.subplots(
        1, 2, figsize=(8.4, 3.1), sharey=True, layout="constrained"
    )
    for axis, p, title, colour in (
        (axes[0], before, "as trained", ORANGE),
        (axes[1], after, "corrected", BLUE),
    ):
        axis.scatter(age, p, s=9, color=colour, alpha=0.45, linewidths=0)
        slope, intercept = np.polyfit(age, p, 1)
        ends = np.array([age.min(), age.max()])
        axis.plot(ends, intercept + slope * ends, color="black", linewidth=2)
        r = np.corrcoef(age, p)[0, 1]
        shown = (
            f"{r:.2f}"
            if abs(r) > 1e-6
            else "0 (|r| < 1e-15)"
            if abs(r) < 1e-15
            else f"0 (|r| = {abs(r):.0e})"
        )
        axis.set_title(f"{title}: correlation with age {shown}", fontsize=11)
        axis.set_xlabel("age")
        axis.set_ylim(0, 1)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("probability of fast progression")
    figure.savefig(
        Path(__file__).parent / "images" / "before_after.png", dpi=160
    )


def report() -> None:
    """The first screen of the demonstration's report."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        subprocess.run(
            ["setsquare", "demo", "--html", str(page)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        shot = Path(__file__).parent / "images" / "report.png"
        options = [
            "--headless",
            "--no-sandbox",
            "--hide-scrollbars",
            "--window-size=1000,1240",
            f"--screenshot={shot}",
        ]
        subprocess.run(
            ["chromium", *options, str(page)], check=True, capture_output=True
        )


if __name__ == "__main__":
    report() if "--report" in sys.argv else main()
