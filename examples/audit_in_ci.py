"""
An audit that fails the build
=============================

Every training run can bring a leak back. Run the audit with your other tests, so that a model that has learned a
protected column does not pass. Two ways are shown: a test for pytest, and a shell command.
"""

# sphinx_gallery_thumbnail_path = '_static/logo.svg'
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
from sklearn.linear_model import LinearRegression

import setsquare as sq

folder = Path(tempfile.mkdtemp())
data = sq.datasets.load_diabetes()
protected = data.protected_table()
measurements = data.features_table().drop(columns=["age", "sex"])

# %%
# Your build trains a model and writes its predictions for held-out patients. Here, two candidates: a plain regression
# and one whose predictions were corrected.
train, held_out = slice(0, 242), slice(242, None)
candidates = {
    "plain": LinearRegression(),
    "corrected": sq.PredictionOrthogonalizer(LinearRegression(), protected=["age", "sex"]),
}
for name, model in candidates.items():
    table = measurements if name == "plain" else data.features_table()
    prediction = model.fit(table[train], data.y[train]).predict(table[held_out])
    protected[held_out].assign(score=prediction).to_csv(folder / f"{name}.csv", index=False)

# %%
# As a test
# ---------
#
# ``tolerance`` is the largest correlation that you accept: a dependence that is demonstrably smaller is a trace, not a
# leak. This test fails on a leak; a stricter one would require ``audit.certificate.correlation_upper < 0.1``.


def test_predictions_do_not_leak(path):
    rows = pd.read_csv(path, dtype={"sex": str})
    audit = sq.audit(rows["score"], rows[["age", "sex"]], family="gaussian", tolerance=0.05)
    assert not audit.is_leak, audit.reason


for name in candidates:
    try:
        test_predictions_do_not_leak(folder / f"{name}.csv")
        print(f"{name}: passed")
    except AssertionError as error:
        print(f"{name}: FAILED, {error}")

# %%
# As a shell command
# ------------------
#
# In the workflow file of your build server::
#
#     - run: setsquare audit predictions.csv --predictions score --protected age,sex --fail-on-leak --html audit.html
#
# The exit code is 1 for a leak and 2 for input that cannot be audited, so both stop the build. Keep the page
# ``audit.html`` as an artefact.
for name in candidates:
    line = f"audit {folder / name}.csv --predictions score --protected age,sex --categorical sex --fail-on-leak --quiet"
    finished = subprocess.run([sys.executable, "-m", "setsquare", *line.split()], capture_output=True, text=True)
    print(f"{name}: exit code {finished.returncode}")
    print(finished.stdout)
