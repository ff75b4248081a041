"""What an audit hands over: tables, plain values, text and html."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
from html.parser import HTMLParser
from pathlib import Path

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import setsquare as sq
from setsquare.auditing.certificate import _find_references
from setsquare.auditing.documents.number_sections import number_section
from setsquare.auditing.documents.sections import effects
from setsquare.document.formats import number, p_value, term_name
from setsquare.errors import InputError, MissingDependencyError
from setsquare.tables import frame as frames

N = 300
rng = np.random.default_rng(3)
GROUP, AGE = rng.choice(["a", "b", "c"], N), rng.normal(50.0, 10.0, N)
P = 1.0 / (1.0 + np.exp(-rng.normal(size=N) - 0.8 * (GROUP == "b")))
P3 = rng.dirichlet(np.ones(3), N)
TABLE = pd.DataFrame({"group": GROUP, "age": AGE})
COLUMNS = ["term", "source", "estimate", "std_error", "statistic", "p_value", "ci_low", "ci_high"]
NAME = "<script>alert('\"&')</script>"


@pytest.fixture(scope="module")
def results() -> dict[str, sq.AuditResult]:
    every = ["glm", "linear", "relu", "forest", "independence"]
    return {
        "means": sq.audit(P, TABLE),
        "classes": sq.audit(P3, TABLE),
        "units": sq.audit(rng.normal(size=(N, 2, 2)), TABLE, n_permutations=19),
        "every model": sq.audit(P[:40], TABLE[:40], evaluation=every, n_permutations=19),
        "constant": sq.audit(np.full(N, 0.2), TABLE),
        "separated": sq.audit(GROUP == "b", TABLE),
        "single row": sq.audit(P, np.where(np.arange(N) == 0, "lone", GROUP)),
        "weights and clusters": sq.audit(P, TABLE, sample_weight=np.ones(N), cluster=np.arange(N) // 3),
        "paper": sq.audit(P, TABLE, vcov="model"),
    }


KINDS = (
    "means",
    "classes",
    "units",
    "every model",
    "constant",
    "separated",
    "single row",
    "weights and clusters",
    "paper",
)


@pytest.mark.parametrize(
    ("protected", "kind"),
    [(TABLE, pd.DataFrame), (pl.from_pandas(TABLE), pl.DataFrame), (pa.Table.from_pandas(TABLE), pa.Table)],
    ids=["pandas", "polars", "pyarrow"],
)
def test_tables_are_of_the_library_that_the_input_came_in(protected: object, kind: type) -> None:
    found = sq.audit(P, protected)
    for table in (found.table(), found.tests(), found.table(adjusted=True)):
        assert type(table) is kind
    table = nw.from_native(found.table(), eager_only=True)
    assert table.columns == COLUMNS and len(table) == 3
    assert table["term"].to_list() == ["group[b]", "group[c]", "age"]
    wanted = sq.audit(P, TABLE).evaluations[0].effects
    for name in COLUMNS[2:]:
        np.testing.assert_allclose(table[name].to_numpy(), [getattr(e, name) for e in wanted], rtol=1e-9)


def test_arrays_give_pandas_and_the_protected_table_goes_first() -> None:
    assert isinstance(sq.audit(P, np.column_stack([AGE, AGE**2])).table(), pd.DataFrame)
    assert isinstance(sq.audit(pl.Series(P), AGE).table(), pl.DataFrame)
    assert isinstance(sq.audit(pd.Series(P), pl.DataFrame({"age": AGE})).table(), pl.DataFrame)


@pytest.mark.parametrize("kind", KINDS)
def test_tables_have_eight_columns_whatever_was_audited(results: dict[str, sq.AuditResult], kind: str) -> None:
    found = results[kind]
    for evaluation in found.evaluations:
        table = found.table(evaluation.name)
        assert list(table.columns) == COLUMNS and len(table) == len(evaluation.effects)
        assert all(table[name].dtype == float for name in COLUMNS[2:])
    assert list(found.table().columns) == COLUMNS
    assert list(found.table(adjusted=True).columns) == [*COLUMNS, "p_holm", "p_bh"]
    assert (len(found.table()) == 0) == (kind == "constant")


def test_a_library_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, results: dict[str, sq.AuditResult]
) -> None:
    monkeypatch.setattr(frames, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install pandas"):
        results["means"].table()
    assert results["means"].to_dict()["verdict"] == "leak"


def test_tests_of_all_models_with_adjusted_p_values(results: dict[str, sq.AuditResult]) -> None:
    found = results["every model"]
    tests = found.tests()
    assert list(tests.columns) == ["evaluation", "test", "statistic", "df", "p_value", "p_adjusted", "method"]
    assert len(tests) == sum(1 + len(e.by_source) + len(e.further) for e in found.evaluations)
    assert list(dict.fromkeys(tests["evaluation"])) == ["glm", "linear", "relu", "forest", "independence"]
    own = tests[(tests["evaluation"] == "glm") & (tests["test"] != "all protected columns")]
    assert (own["p_adjusted"] >= own["p_value"]).all()


def test_models_are_found_by_name(results: dict[str, sq.AuditResult]) -> None:
    found = results["every model"]
    assert found.evaluation().name == "glm" and found.evaluation("forest").name == "forest"
    with pytest.raises(InputError, match=r"tree.*glm, linear"):
        found.evaluation("tree")
    with pytest.raises(InputError, match="constant"):
        results["constant"].table("glm")


@pytest.mark.parametrize("kind", KINDS)
def test_plain_values_go_through_json(results: dict[str, sq.AuditResult], kind: str) -> None:
    found = results[kind]
    back = json.loads(json.dumps(found.to_dict()))
    assert (
        back["verdict"] == str(found.verdict)
        and back["n"] == found.n
        and [one["text"] for one in back["notes"]] == list(found.notes)
    )
    assert [e["name"] for e in back["evaluations"]] == [e.name for e in found.evaluations]
    for evaluation, plain in zip(found.evaluations, back["evaluations"], strict=True):
        for effect, row in zip(evaluation.effects, plain["effects"], strict=True):
            assert list(row) == COLUMNS
            assert row["estimate"] == effect.estimate or math.isnan(effect.estimate)
    assert back["certificate"]["correlation_upper"] == found.certificate.correlation_upper


def test_tuples_become_lists(results: dict[str, sq.AuditResult]) -> None:
    assert isinstance(results["means"].evaluations[0].to_dict()["effects"], list)


@pytest.mark.parametrize("kind", KINDS)
def test_text_has_the_verdict_the_numbers_and_the_notes(results: dict[str, sq.AuditResult], kind: str) -> None:
    found = results[kind]
    text = str(found)
    flat = " ".join(text.split())
    assert flat.startswith(f"{str(found.verdict).upper()}. {found.reason}")
    assert f"{found.n} predictions" in flat and "nan" not in text.lower().split()
    for evaluation in found.evaluations:
        assert evaluation.title.lower() in text.lower()
        assert all(term_name(effect.term, effect.source) in text for effect in evaluation.effects)
        tests = evaluation.further if evaluation.name == "shape" else (evaluation.joint,)
        assert all(p_value(test.p_value) in text for test in tests)
    for note in (*found.notes, *(note for e in found.evaluations for note in e.notes)):
        assert note in flat
    assert all(number(bound.correlation_upper) in text for bound in found.certificate.columns)


def test_a_note_is_printed_once(results: dict[str, sq.AuditResult]) -> None:
    found = sq.audit(P, np.where(np.arange(N) == 0, "lone", GROUP), evaluation=["glm", "linear"])
    assert str(found).count("determine an effect alone") == 1
    assert str(results["means"]).count("read as probabilities") == 1


class Tags(HTMLParser):
    """Collects what is open and what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.seen: set[str] = set()
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in ("br", "meta"):
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read_html(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    assert not tags.stack
    return tags


@pytest.mark.parametrize("kind", KINDS)
def test_html_is_well_formed_and_has_the_same_numbers(results: dict[str, sq.AuditResult], kind: str) -> None:
    found = results[kind]
    for page in (found._repr_html_(), found.to_html()):
        words = " ".join(read_html(page).words).replace("\u00a0", " ")  # no line break before a per cent sign
        assert str(found.verdict) in words and found.reason in words
        assert all(term_name(effect.term, effect.source) in words for e in found.evaluations for effect in e.effects)


def test_names_and_levels_are_escaped() -> None:
    table = pd.DataFrame({NAME: np.where(GROUP == "a", "<b>bold</b>", "plain & simple")})
    found = sq.audit(P, table, setting="<i>mine</i>")
    page = found._repr_html_()
    tags = read_html(page)
    assert tags.seen.isdisjoint({"script", "i"}) and "<b>bold" not in page
    assert NAME in " ".join(tags.words)
    labels = sq.audit(np.where(P > 0.5, NAME, "x"), GROUP, positive=NAME)
    assert "script" not in read_html(labels._repr_html_()).seen
    compared = sq.compare({NAME: P, "other": P**2}, P > 0.5, table)
    assert "script" not in read_html(compared._repr_html_()).seen


def test_a_page_is_written(tmp_path: Path, results: dict[str, sq.AuditResult]) -> None:
    page = results["means"].to_html(tmp_path / "audit.html")
    assert (tmp_path / "audit.html").read_text(encoding="utf-8") == page and page.startswith("<!doctype html>")


@pytest.mark.parametrize("kind", ["means", "constant"])
def test_results_are_frozen_equal_and_can_be_stored(results: dict[str, sq.AuditResult], kind: str) -> None:
    found = results[kind]
    for record, name in ((found, "verdict"), (found.certificate, "correlation_upper"), (found, "anything")):
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
            setattr(record, name, 0.0)
    assert pickle.loads(pickle.dumps(found)) == found == copy.deepcopy(found)
    assert str(pickle.loads(pickle.dumps(results["units"]))) == str(results["units"])


def test_results_of_units_can_be_compared(results: dict[str, sq.AuditResult]) -> None:
    assert copy.deepcopy(results["units"]) == results["units"]


def test_arrays_of_the_effect_map_are_frozen(results: dict[str, sq.AuditResult]) -> None:
    assert not results["units"].effect_map.estimate.flags.writeable


def test_verdicts_are_strings(results: dict[str, sq.AuditResult]) -> None:
    found = results["means"]
    assert found.verdict == "leak" and f"{found.verdict}" == "leak" and found.is_leak
    assert found.p_value == found.evaluations[0].joint.p_value
    assert not results["constant"].is_leak


def test_numbers_are_short() -> None:
    assert [number(v) for v in (0.0, 1.23456, -45.678, 123.45, 1e-4, 2e6, math.inf, -math.inf, math.nan)] == [
        "0.000",
        "1.235",
        "-45.678",
        "123.5",
        "1.00e-04",
        "2.00e+06",
        "inf",
        "-inf",
        "-",
    ]
    assert [p_value(p) for p in (1.0, 0.05, 1e-5, 0.0, math.nan)] == ["1.0000", "0.0500", "1.0e-05", "<1e-300", "-"]


def test_confidence_is_never_printed_as_certainty() -> None:
    assert "100%" not in str(sq.audit(P, TABLE, confidence=0.999))


def test_the_reason_has_the_adjusted_p_value() -> None:
    found = sq.audit(P[:150], TABLE[:150], evaluation=["glm", "linear"])
    smallest = min(member.adjusted for member in found.members)
    said = "p < 0.001" if smallest < 0.001 else f"p = {smallest:.2g}"
    assert said in found.statistics and "p = " not in found.reason


def test_a_source_whose_levels_cover_all_rows_has_no_reference_group():
    sizes = (40, 30)
    assert _find_references(np.array([0.4, 0.3]), ("race", "race"), sizes).sources == ("race",)
    assert _find_references(np.array([0.4, 0.6]), ("race", "race"), sizes).sources == ()


def test_pages_name_the_reference_group_and_the_combinations_of_groups():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"race": rng.choice(["a", "b"], 300, p=[0.6, 0.4]), "sex": rng.choice(["F", "M"], 300)})
    found = sq.audit(rng.random(300), table)
    assert "Each group is compared with the reference group (race: a" in json.dumps(
        effects({"one": found}), default=str
    )
    text = json.dumps(number_section({"one": found}), default=str)
    assert "race and sex: a, F" in text and "race and sex: b, M" in text
    numbers = sq.audit(rng.random(300), rng.normal(size=300))
    assert "reference group" not in json.dumps(effects({"one": numbers}), default=str)
