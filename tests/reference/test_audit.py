"""Paper mode prints what R prints, on the paper's data sets; and what the default finds on the same predictions."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import linalg

import setsquare as sq
from setsquare import datasets, tables

R = json.loads((Path(__file__).parent / "values" / "r_evaluation.json").read_text())
SETS = ("adult", "bank", "compas", "health_retirement")


class Fitted(NamedTuple):
    """The prediction model as R leaves it: linear predictor and mean of each row."""

    data: datasets.Dataset
    eta: np.ndarray
    mean: np.ndarray


def require(name: str) -> None:
    if not datasets.available(name):
        pytest.skip(f"the data set {name} is not on this machine: set SETSQUARE_DATA")


@cache
def fitted(name: str) -> Fitted:
    data = datasets.load_adult("uci", table2=True) if name == "adult_uci" else getattr(datasets, f"load_{name}")()
    table = data.features_table()
    Z = tables.learn(table).apply(table).values
    eta = glm_as_r(np.column_stack([np.ones(len(Z)), Z]), data.y, data.family)
    return Fitted(data, eta, np.exp(eta) if data.family == "poisson" else 1.0 / (1.0 + np.exp(-eta)))


def glm_as_r(Z: np.ndarray, y: np.ndarray, family: str) -> np.ndarray:
    """Linear predictor where R's glm.fit stops: levels with one outcome only drift until then, and no further."""
    mu = (y + 0.5) / 2.0 if family == "binomial" else y + 0.1
    eta = np.log(mu / (1.0 - mu)) if family == "binomial" else np.log(mu)
    before = math.inf
    for _ in range(25):
        weight = mu * (1.0 - mu) if family == "binomial" else mu
        root = np.sqrt(weight)[:, None]
        beta = linalg.lstsq(Z * root, (eta + (y - mu) / weight) * root[:, 0], 1e-11, lapack_driver="gelsy")[0]
        eta = Z @ beta
        mu = 1.0 / (1.0 + np.exp(-eta)) if family == "binomial" else np.exp(eta)
        deviance = 2.0 * np.sum(_half_deviance(y, mu, family))
        if abs(deviance - before) / (abs(deviance) + 0.1) < 1e-8:
            return eta
        before = deviance
    raise AssertionError("R would have stopped")


def _half_deviance(y: np.ndarray, mu: np.ndarray, family: str) -> np.ndarray:
    if family == "binomial":
        return -np.where(y > 0.5, np.log(mu), np.log1p(-mu))
    return np.where(y > 0.0, y * np.log(np.maximum(y, 1.0) / mu), 0.0) - y + mu


def first_levels(table: Any) -> dict[str, Any]:
    """Reference groups as in R: the first level of each factor."""
    return {one.name: one.levels[0] for one in tables.learn(table).coders if hasattr(one, "levels")}


def printed(rows: dict[str, Any]) -> list[dict[str, float]]:
    return [row for name, row in rows.items() if name != "(Intercept)"]


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("what", ["evaluation_uncorrected", "evaluation_linear_score"])
def test_paper_mode_prints_what_r_prints(name: str, what: str) -> None:
    require(name)
    model = fitted(name)
    score = what == "evaluation_linear_score"
    result = sq.audit(
        model.eta if score else model.mean,
        model.data.protected_table(),
        family="gaussian" if score else model.data.family,
        vcov="model",
        reference=first_levels(model.data.protected_table()),
    )
    wanted = printed(R[name][what])
    found = [effect for effect in result.evaluations[0].effects if not math.isnan(effect.estimate)]
    assert len(found) == len(wanted)
    for effect, row in zip(found, wanted, strict=True):
        assert effect.estimate == pytest.approx(row["estimate"], rel=1e-5)
        assert effect.std_error == pytest.approx(row["std_error"], rel=1e-5)
        assert effect.statistic == pytest.approx(row["z"], rel=1e-5)
        if row["p"] > 1e-300:
            assert math.log(effect.p_value) == pytest.approx(math.log(row["p"]), abs=1e-3)
        else:
            assert effect.p_value <= 1e-300


@pytest.mark.parametrize("name", SETS)
def test_prediction_models_are_those_of_r(name: str) -> None:
    require(name)
    model = fitted(name)
    y, eta = model.data.y, model.eta
    loglik = np.sum(y * eta - (np.exp(eta) if model.data.family == "poisson" else np.logaddexp(0.0, eta)))
    constant = np.sum([math.lgamma(value + 1.0) for value in y]) if model.data.family == "poisson" else 0.0
    assert loglik - constant == pytest.approx(R[name]["loglik"], rel=1e-9)


def test_table_2_without_correction() -> None:
    require("adult_uci")
    model = fitted("adult_uci")
    protected = model.data.protected_table()
    found = sq.audit(model.mean, protected, vcov="model", reference=first_levels(protected))
    table = found.table().set_index("term")
    names = {
        "sex_male": "sex[Male]",
        "race_asian": "race[Asian-Pac-Islander]",
        "race_black": "race[Black]",
        "race_other": "race[Other]",
        "race_white": "race[White]",
    }
    for short, term in names.items():
        row = table.loc[term]
        assert row["estimate"] == pytest.approx(R["adult_table2"]["without"][short], rel=1e-5), term
        assert math.log(row["p_value"]) == pytest.approx(math.log(R["adult_table2"]["without_p"][short]), abs=1e-3)


@pytest.mark.parametrize("name", SETS)
def test_default_finds_the_leak_with_smaller_errors(name: str) -> None:
    """Robust errors are those of predictions; the paper's are those of outcomes, and wider."""
    require(name)
    model = fitted(name)
    robust, paper = (
        sq.audit(model.mean, model.data.protected_table(), family=model.data.family, vcov=vcov)
        for vcov in ("HC3", "model")
    )
    assert robust.verdict == "leak"
    assert robust.p_value < 1e-12
    ratio = np.asarray(robust.table()["std_error"]) / np.asarray(paper.table()["std_error"])
    assert np.nanmax(ratio) < 0.95
    assert any("hardly ever rejects" in note for note in paper.notes)
