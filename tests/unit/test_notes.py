"""Notes: a sentence, a code, fields, and the words of each surface."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import setsquare as sq
from setsquare.cli.terminal import as_option, as_option_of_fit, phrase
from setsquare.errors import InputError, PooledLevelWarning
from setsquare.notes import Note, Option, describe, lead, message

DROP = Note("missing-values", "{count} gaps in {column!r}: {drop:pass} or {level}.", severity="caution", count=3,
            column="{age}", drop=Option("missing", "drop"), level=Option("missing", "level"))  # fmt: skip


def test_a_note_is_its_sentence_with_a_code_and_fields() -> None:
    assert DROP == "3 gaps in '{age}': pass missing='drop' or missing='level'."
    assert (DROP.code, DROP.severity, DROP.fields["count"]) == ("missing-values", "caution", 3)
    assert describe(DROP) == {"code": "missing-values", "severity": "caution", "text": str(DROP)}
    assert describe("By hand.") == {"code": "remark", "severity": "info", "text": "By hand."}


def test_notes_can_be_stored_and_copied() -> None:
    for again in (pickle.loads(pickle.dumps(DROP)), copy.deepcopy(DROP)):
        assert again == DROP and (again.code, again.severity, again.fields) == (DROP.code, "caution", DROP.fields)
        assert again.phrase(as_option) == DROP.phrase(as_option)


def test_the_command_line_names_its_own_options() -> None:
    assert phrase(DROP) == "3 gaps in '{age}': pass --missing drop or --missing level."
    wanted = "3 gaps in '{age}': fit the model with --missing drop or --missing level."
    assert phrase(DROP, as_option_of_fit) == wanted
    assert as_option(Option("positive", "not yet")) == "--positive 'not yet'"
    assert phrase("pass missing='drop'") == "pass missing='drop'"  # a plain sentence is not searched


def test_a_name_before_a_note_keeps_what_it_carries() -> None:
    named = lead("{model}", DROP)
    assert isinstance(named, Note) and named.startswith("{model}: 3 gaps") and named.code == DROP.code
    assert phrase(named) == "{model}: 3 gaps in '{age}': pass --missing drop or --missing level."
    assert lead("model", "Plain.") == "model: Plain."


def test_errors_and_warnings_carry_notes() -> None:
    assert message(InputError(DROP)) is DROP and str(InputError(DROP)) == str(DROP)
    plain = message(PooledLevelWarning("Rows {were} pooled."))
    assert (plain, plain.code) == ("Rows {were} pooled.", "PooledLevelWarning")
    values = np.array([0.1, np.nan, 0.3, 0.4, 0.5, 0.6])
    with pytest.raises(InputError) as caught:
        sq.compare({"model": values, "other": np.arange(6) / 6}, [0, 1, 0, 1, 0, 1], [1, 2, 1, 2, 2, 1])
    note = message(caught.value)
    assert note.code == "missing-predictions" and note.fields["count"] == 1
    assert phrase(note).startswith("model: 1 row(s)") and "pass --missing drop" in phrase(note)


def test_every_note_of_an_audit_has_a_code() -> None:
    rng = np.random.default_rng(0)
    group, age = rng.choice(["a", "b"], 300), rng.normal(size=300)
    protected = {"group": np.where(np.arange(300) == 0, "lone", group), "age": age, "same": np.ones(300)}
    pandas = pytest.importorskip("pandas")
    evaluation = ["glm", "relu", "forest", "independence"]
    found = sq.audit(rng.random(300), pandas.DataFrame(protected), evaluation=evaluation, n_permutations=19)
    assert {note.code for note in found.all_notes} >= {
        "family-guessed",
        "lone-rows",
        "relu-gain",
        "meaning-of-estimates",
        "few-permutations",
    }


def test_no_code_searches_a_sentence() -> None:
    """Notes, warnings and reasons are asked for their code: nothing in the package looks for words in them."""
    reads = re.compile(
        r"""["'] (not )?in (note|reason|setting|sentence|str\((note|error|warning))|(note|reason|setting|sentence)\."""
        r"(startswith|endswith|replace|split|partition|find)\("
    )
    allowed = "convert string to float"  # numpy's sentence
    for path in (Path(sq.__file__).parent).rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert not reads.search(line) or allowed in line, f"{path.name}: {line.strip()}"
