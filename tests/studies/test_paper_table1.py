"""Table 1: chest X-rays. The stand-in of the NIH where it is, and the format of MIMIC on generated files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from benchmarks.bench_embeddings import write
from rich.progress import Progress

from setsquare.errors import DataNotFoundError, InputError
from studies import datasets
from studies.paper import catalogue, new_patients, table1
from studies.paper.cells import Cells
from studies.paper.names import CLASSICAL, CONSTRAINED, WITHOUT


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    try:
        datasets.load_nih_chest_xrays()
    except (DataNotFoundError, InputError) as error:
        pytest.skip(str(error))
    if datasets.available("mimic_chest_xrays"):
        pytest.skip("MIMIC is on this machine: the quick run would take minutes.")
    cells = Cells(tmp_path_factory.mktemp("table1") / "cells.jsonl")
    return table1.run(quick=True, cells=cells, progress=Progress(disable=True))


def test_in_sample_effects_vanish_with_the_constraint_only(record):
    largest = {
        name: max(abs(effect["estimate"]) for effect in result["train"]["effects"].values())
        for name, result in record.data["methods"].items()
    }
    assert largest[CONSTRAINED] < 1e-7
    assert largest[WITHOUT] > 5e-3 and largest[CLASSICAL] > 1e-3


def test_new_patients_are_few_and_errors_know_it(record):
    """The correlation that is left lies within its interval by patient; taking images for independent denies it."""
    age = record.data["methods"][CONSTRAINED]["test"]["correlations"]["age"]
    test = record.data["patients"][1]
    naive = (1 - age["estimate"] ** 2) / np.sqrt(test["images"])
    assert age["ci_low"] < 0 < age["ci_high"]
    assert abs(age["estimate"]) > 4 * naive
    assert age["std_error"] > 3 * naive
    assert test["effective"] < test["patients"] / 3
    certain = record.data["methods"][WITHOUT]["test"]["correlations"]["age"]
    assert certain["ci_low"] > 0


def test_settings_are_compared_on_training_patients_and_shown_on_new_ones(record):
    adapted = record.data["settings"][new_patients.ADAPTED]
    assert max(abs(value[0]) for value in adapted["images"].values()) < 1e-8
    plain = record.data["settings"]["generalised projection"]
    assert max(abs(value[0]) for value in plain["images"].values()) > 1e-2
    assert table1.best(record.data, needs_protected=True).startswith(new_patients.ADAPTED)
    assert not new_patients.SETTINGS[table1.best(record.data, needs_protected=False)].needs_protected


def test_both_constraints_hold_in_both_senses():
    """Images and patients: zero for every image and for every patient, on the rows that were fitted."""
    rng = np.random.default_rng(0)
    import pandas as pd

    from studies.paper.embeddings import Part

    patient = rng.integers(0, 60, size=400)
    age = rng.normal(size=60)[patient] + 0.1 * rng.normal(size=400)
    Z = rng.normal(size=(400, 5)) + 0.3 * age[:, None]
    y = (Z.sum(axis=1) + rng.normal(size=400) > 0).astype(float)
    part = Part(Z, y, pd.DataFrame({"age": age}), patient)
    both = new_patients.try_on("C^h, images and patients", part, part)
    once = new_patients.try_on("C^h, every patient counts once", part, part)
    images = new_patients.try_on("C^h", part, part)
    assert abs(both["images"]["age"][0]) < 1e-8 and abs(both["patients"]["age"][0]) < 1e-8
    assert abs(once["patients"]["age"][0]) < 1e-8 < 1e-3 < abs(once["images"]["age"][0])
    assert abs(images["images"]["age"][0]) < 1e-8 < 1e-3 < abs(images["patients"]["age"][0])


@pytest.mark.slow
def test_runs_on_files_in_the_format_of_mimic(tmp_path, monkeypatch):
    write(tmp_path / "mimic", 4000)
    monkeypatch.setenv("SETSQUARE_DATA", str(tmp_path))
    record, paths = catalogue.run("table1", tmp_path / "results", quick=True)
    assert record.data["data"] == "mimic_chest_xrays" and not record.missed
    terms = list(record.data["methods"][CONSTRAINED]["train"]["effects"])
    assert terms == ["sex[Male]", "age", "race[Black]", "race[White]"]
    effects = record.data["methods"][CONSTRAINED]["train"]["effects"].values()
    assert max(abs(effect["estimate"]) for effect in effects) < 1e-7
    assert all(path.stat().st_size for path in paths)
    assert json.loads(paths[0].read_text())["name"] == "table1"
