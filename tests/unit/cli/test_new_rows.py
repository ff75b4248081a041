"""``setsquare correct`` for new rows: cross-fitting, leave-one-out targets, promises, clusters, and what is written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import setsquare as sq

FEATURES = [f"z{j}" for j in range(12)]
COMMON = ("correct", "table.csv", "--outcome", "y", "--protected", "sex", "--features", ",".join(FEATURES))


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 400
    sex = rng.choice(["F", "M"], n)
    Z = rng.normal(size=(n, 12))
    Z[:, :4] += 0.8 * (sex == "M")[:, None]
    y = rng.random(n) < 1 / (1 + np.exp(1.0 - 0.4 * Z[:, :8].sum(axis=1)))
    return pd.DataFrame(Z, columns=FEATURES).assign(
        sex=sex, y=np.where(y, "yes", "no"), patient=np.arange(n) // 4, city=rng.choice(["a", "b"], n)
    )


@pytest.mark.parametrize("cluster", [(), ("--cluster", "patient")])
def test_a_fit_for_new_rows_is_that_of_python(call, table, cluster):
    code, out, err = call(
        *COMMON, "--orthogonal-on", "new-rows", "--model", "m.setsquare", "--json", "out.json", *cluster
    )
    assert (code, err) == (0, "") and "Orthogonal to the protected columns on new rows" in out
    options = {"cluster": table["patient"]} if cluster else {}
    model = sq.OrthogonalGLMClassifier(protected="sex", orthogonal_on="new rows")
    model.fit(table[[*FEATURES, "sex"]], table["y"], **options)
    saved = sq.load("m.setsquare")
    np.testing.assert_allclose(saved.coef_, model.coef_, atol=1e-10)
    found = json.loads(Path("out.json").read_text())
    assert found["certificate"]["orthogonal_on"] == "new rows"
    assert found["certificate"]["new_rows"]["by_cluster"] == bool(cluster)
    assert found["largest_correlation_in_training"] > 1e-3


def test_a_promise_that_is_kept_writes_the_model(call):
    code, _, err = call(*COMMON, "--orthogonal-on", "new-rows", "--max-correlation", "0.2", "--model", "m.setsquare")
    assert (code, err) == (0, "")
    assert sq.load("m.setsquare").solution_.certificate.new_rows.upper <= 0.2


def test_a_promise_that_is_refused_ends_with_2_and_writes_nothing(call):
    code, out, err = call(
        *(*COMMON, "--orthogonal-on", "new-rows", "--max-correlation", "0.02", "--model", "m.setsquare"),
        *("--json", "out.json", "--apply", "table.csv", "--write-predictions", "p.csv"),
    )
    assert (code, out) == (2, "") and "more than --max-correlation 0.02" in err.replace("\n", " ")
    assert "Traceback" not in err
    assert sorted(path.name for path in Path().iterdir()) == ["table.csv"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--orthogonal-on", "new-rows"), "--orthogonal-on needs --method constrained"),
        (("--max-correlation", "0.2"), "--max-correlation needs --method constrained"),
        (("--l2", "auto"), "--l2 auto needs --method constrained"),
    ],
)
def test_options_of_the_constrained_method_are_not_ignored_by_others(call, options, message):
    code, _, err = call(*COMMON, "--method", "generalized", *options, "--model", "m.setsquare")
    assert code == 2 and message in err.replace("\n", " ") and not Path("m.setsquare").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--max-correlation", "1.5"), "--max-correlation must be above 0 and below 1, not 1.5"),
        (("--max-correlation", "0"), "--max-correlation must be above 0 and below 1, not 0.0"),
        (("--cluster", "clinic"), "--cluster has the same value in every row"),
        (("--cluster", "clinic"), "or leave --cluster out if the rows are independent"),
        (("--confidence", "0.3"), "--confidence 0.3 must be between 0.5 and 1"),
        (
            ("--orthogonal-on", "new-rows", "--given", "z11", "--cluster", "patient"),
            "--orthogonal-on new-rows with --given needs leave-one-out fits",
        ),
        (("--l2", "auto", "--given", "z11", "--cluster", "patient"), "--l2 auto with --given needs leave-one-out fits"),
    ],
)
def test_refusals_name_the_options_of_the_command_line(call, table, options, message):
    table.assign(clinic="only one").to_csv("table.csv", index=False)
    code, out, err = call(*COMMON, *options, "--model", "m.setsquare")
    said = " ".join(err.split())
    assert (code, out) == (2, "") and message in said and not Path("m.setsquare").exists()
    assert not any(name in said for name in ("max_correlation", "cluster=", "given=", "orthogonal_on", "confidence="))


def test_the_automatic_ridge_is_that_of_python(call, table):
    code, _, err = call(*COMMON, "--l2", "auto", "--model", "m.setsquare")
    assert (code, err) == (0, "")
    model = sq.OrthogonalGLMClassifier(protected="sex", l2="auto").fit(table[[*FEATURES, "sex"]], table["y"])
    assert sq.load("m.setsquare").l2_ == pytest.approx(model.l2_) and model.l2_ > 0.0


@pytest.mark.parametrize("method", ["generalized", "linear"])
def test_corrections_of_predictions_are_learned_on_cross_fitted_ones(call, table, method):
    # One row has a city of its own: in its fold the model has never seen it.
    table.assign(city=table["city"].where(table.index != 7, "c")).to_csv("rare.csv", index=False)
    code, out, err = call(
        *("correct", "rare.csv", "--outcome", "y", "--protected", "sex", "--method", method, "--cluster", "patient"),
        *("--features", ",".join([*FEATURES, "city"]), "--model", "m.setsquare", "--folds", "4"),
    )
    assert (code, err) == (0, "") and "learned on cross-fitted predictions" in out.replace("\n", " ").replace("  ", " ")
    assert sq.load("m.setsquare").learned_on_ == "cross-fitted predictions"
