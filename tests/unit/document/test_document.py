"""One document: what its short form leaves out, and that every renderer has the same numbers."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest

import setsquare as sq
from setsquare.cli.terminal import Screen
from setsquare.document import Document, Headline, section, table, typed
from setsquare.document.formats import TONES, answer, cell, grid_of, page_style, signed, tone_name

N = 500
rng = np.random.default_rng(3)
TABLE = pd.DataFrame({"group": rng.choice(["a", "b"], N), "age": rng.normal(50.0, 10.0, N)})
SCORE = 1.0 / (1.0 + np.exp(-rng.normal(size=N) - 1.0 * (TABLE["group"] == "b")))
OTHER = 1.0 / (1.0 + np.exp(-rng.normal(size=N)))
Y = (rng.random(N) < SCORE).astype(int)


def example() -> Document:
    rows = [["a", "one", 1.0, 2.0], ["a", "two", 3.0, None]]
    shown = table("Both", [("text", "name", "model"), ("number", "x"), ("signed", "y")], rows, detail=("x",))
    parts = (
        section("first", "First", text=["Words."], tables=[shown, table("Fine", [("count", "z")], [[3]], detail=True)]),
        section("second", "Second", notes=["Only in the whole."], detail=True),
    )
    return Document("A question?", (Headline("", "leak", "An answer."),), parts)


def test_the_short_form_leaves_out_details_and_rows_without_a_number() -> None:
    short = example().brief()
    assert short.title == "" and [part["id"] for part in short.sections] == ["first"]
    (shown,) = short.section("first")["tables"]
    assert grid_of(shown) == [["name", "model", "y"], ["a", "one", "+2.0000"]]
    assert len(example().section("first")["tables"]) == 2 and "Only in the whole." in example().to_text()
    assert short.to_text().startswith("LEAK. An answer.\n") and example().to_text().startswith("A question?\n")


def test_cells_may_have_a_kind_of_their_own() -> None:
    rows = [["p", typed(1e-9, "p")], ["auc", typed([0.7, 0.6, 0.8], "interval")], ["words", "leak"]]
    assert [row[1] for row in grid_of(table("", [("text", "", "value")], rows))] == [
        "value",
        "1.0e-09",
        "0.700 [0.600, 0.800]",
        "leak",
    ]
    assert cell(None, "interval") == "-" and signed(-2e-4) == "-0.0002"


def test_pages_and_word_files_say_verdicts_in_plain_words() -> None:
    answers = [answer(str(verdict)) for verdict in sq.auditing.Verdict]
    assert len(set(answers)) == 4 and not any("leak" in one or "trace" in one or "n too" in one for one in answers)
    assert "<strong>dependence found</strong> <span>An answer.</span>" in example().to_html()
    assert example().to_text().startswith("A question?\nLEAK. An answer.")


def test_every_verdict_has_one_tone() -> None:
    assert [tone_name(str(verdict)) for verdict in sq.auditing.Verdict] == ["leak", "unsure", "none", "unsure"]
    assert all(tone.light in page_style() and tone.dark in page_style() for tone in TONES.values())


@pytest.mark.parametrize("kind", ["audit", "comparison", "probes"])
def test_every_renderer_has_the_same_numbers(kind: str) -> None:
    found = {
        "audit": lambda: sq.audit(SCORE, TABLE),
        "comparison": lambda: sq.compare({"one": SCORE, "two": OTHER}, Y, TABLE),
        "probes": lambda: sq.probe(TABLE[["age"]].to_numpy(), TABLE[["group"]], probes=("linear",), cv=3),
    }[kind]()
    document = found.document()
    screen = Screen()
    screen.file = io.StringIO()
    screen.show(document.brief())
    words = [
        cell for part in document.brief().sections for one in part["tables"] for row in grid_of(one) for cell in row
    ]
    assert len(words) > 10
    assert all(word in str(found) and word in screen.file.getvalue() for word in words)
    assert document.brief().to_text() == f"{found}\n"
    whole = [cell for part in document.sections for one in part["tables"] for row in grid_of(one) for cell in row]
    assert set(words) <= set(whole)


def test_a_comparison_carries_its_groups_with_weights_and_clusters() -> None:
    """The page has nothing to compute: numbers by group are those of the same rows, weights and clusters."""
    weight, patient = rng.uniform(0.5, 2.0, N), np.array([f"p{k}" for k in np.arange(N) // 5])
    weight[:4] = 0.0
    names = {"one": SCORE, "two": OTHER}
    found = sq.compare(names, Y, TABLE, sample_weight=weight, cluster=patient)
    again = sq.report.build(
        {side.name: side.audit for side in found.sides},
        predictions=names,
        protected=TABLE,
        outcome=Y,
        sample_weight=weight,
        cluster=patient,
    )
    for part in ("levels", "calibration"):
        assert found.document().section(part)["tables"] == again.section(part)["tables"]
    with_rows, alone = found.document().section("levels"), sq.compare(names, Y, TABLE).document().section("levels")
    assert with_rows["tables"] != alone["tables"] and "4 rows without" in with_rows["notes"][0]


def test_a_single_model_needs_no_name() -> None:
    document = sq.compare({"score": SCORE}, Y, TABLE).document()
    assert [each.model for each in document.verdicts] == [""]
    columns = {column["name"] for part in document.sections for one in part["tables"] for column in one["columns"]}
    assert "model" not in columns and "value" in columns


def test_the_reference_group_is_named() -> None:
    text = " ".join(str(sq.audit(SCORE, TABLE)).split())
    assert "Each group is compared with the reference group (group: a)." in text
    text = " ".join(str(sq.audit(SCORE, TABLE, reference={"group": "b"})).split())
    assert "Each group is compared with the reference group (group: b)." in text
    assert "reference group" not in str(sq.audit(SCORE, TABLE[["age"]]))
