"""Options of an audit: one record with the defaults of ``sq.audit``."""

from __future__ import annotations

import inspect
from dataclasses import fields

import numpy as np
import pytest

import setsquare as sq
from setsquare.auditing.audit_predictions import audit_rows
from setsquare.auditing.options import AuditOptions, read_options
from setsquare.errors import InputError


def test_the_record_has_the_names_and_defaults_of_audit() -> None:
    parameters = list(inspect.signature(sq.audit).parameters.values())[2:]  # after predictions and protected
    assert [(one.name, one.default) for one in parameters] == [(one.name, one.default) for one in fields(AuditOptions)]


def test_unknown_and_old_words_are_refused_as_audit_refuses_them() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'treshold'"):
        read_options(treshold=0.5)
    with pytest.raises(InputError, match="basis="):
        read_options(coding="cells")


def test_coded_columns_serve_a_second_audit_of_the_same_rows_only() -> None:
    rng = np.random.default_rng(0)
    group, score = rng.choice(["a", "b"], 200), rng.normal(size=200)
    options = read_options(missing="drop")
    first = audit_rows(score, group, options)
    second = audit_rows(score**2, group, options, first.coded)
    assert second.coded is first.coded
    assert second.result.p_value == sq.audit(score**2, group, missing="drop").p_value
    gaps = np.where(np.arange(200) < 5, np.nan, score)
    third = audit_rows(gaps, group, options, first.coded)
    assert third.coded is not first.coded
    assert third.result.n == 195


def test_too_few_permutations_for_any_finding_are_noted_and_enough_are_not() -> None:
    rng = np.random.default_rng(0)
    group, score = rng.choice(["a", "b"], 40), rng.normal(size=40)
    for count, noted in ((19, True), (199, False)):
        found = sq.audit(score, group, evaluation=["glm", "independence"], n_permutations=count)
        assert ("few-permutations" in [note.code for note in found.notes]) == noted
