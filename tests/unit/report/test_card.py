"""Model cards, and reports to hand on as Word files, LaTeX and Markdown."""

from __future__ import annotations

import io
import json
from pathlib import Path

import docx
import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier

import setsquare as sq
from setsquare.errors import InputError
from setsquare.report import model_card

N = 600
#: Properties of the Model Card Toolkit's schema 0.0.2 by section; the schema allows no other section.
SCHEMA = {
    "model_details": {"name", "overview", "documentation", "owners", "version", "licenses", "references", "citations"},
    "model_parameters": {"model_architecture", "data", "input_format", "output_format"},
    "quantitative_analysis": {"performance_metrics", "graphics"},
    "considerations": {"users", "use_cases", "limitations", "tradeoffs", "ethical_considerations"},
}


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"sex": rng.choice(["f", "m"], N), "debt": rng.normal(size=N)})
    table["income"] = rng.normal(size=N) + (table["sex"] == "m")
    table["y"] = (rng.random(N) < 1 / (1 + np.exp(-table["income"]))).astype(int)
    return table


@pytest.fixture(scope="module")
def compared(rows: pd.DataFrame) -> sq.Comparison:
    model = sq.OrthogonalGLMClassifier(protected=["sex"]).fit(rows[["sex", "debt", "income"]], rows["y"])
    plain = 1 / (1 + np.exp(-rows["income"]))
    corrected = model.predict_proba(rows[["sex", "debt", "income"]])[:, 1]
    return sq.compare({"plain": plain, "corrected": corrected}, rows["y"], rows[["sex"]])


def test_a_card_has_the_fields_of_the_schema_and_the_numbers_of_the_audit(rows, compared, tmp_path: Path) -> None:
    model = sq.OrthogonalGLMClassifier(protected=["sex"]).fit(rows[["sex", "debt", "income"]], rows["y"])
    card = model_card(model, compared, name="Credit", use_cases=["Loans below 5000."])
    found = json.loads(card.to_json(tmp_path / "card.json"))
    assert found == json.loads((tmp_path / "card.json").read_text()) == card.to_dict()
    assert set(found) == {"schema_version", *SCHEMA}
    for name, properties in SCHEMA.items():
        assert set(found[name]) <= properties
    metrics = found["quantitative_analysis"]["performance_metrics"]
    assert all(isinstance(metric["type"], str) and isinstance(metric["value"], float) for metric in metrics)
    value = {(metric["type"], metric.get("slice")): metric["value"] for metric in metrics}
    audit = compared.sides[-1].audit
    assert value["correlation with the protected columns", None] == audit.certificate.correlation
    groups = audit.groups()
    for group, mean in zip(groups["group"], groups["mean"], strict=True):
        assert value["mean prediction", f"sex: {group}"] == mean
    assert found["model_parameters"]["data"][0]["sensitive"] == {"sensitive_data": ["sex"]}
    assert {"description": "Loans below 5000."} in found["considerations"]["use_cases"]
    assert any("against plain" in each["description"] for each in found["considerations"]["tradeoffs"])


def test_a_card_is_written_as_markdown_page_and_word_file(rows, compared) -> None:
    model = sq.OrthogonalGLMClassifier(protected=["sex"]).fit(rows[["sex", "debt", "income"]], rows["y"])
    card = model_card(model, compared, name="Credit | <b>")
    markdown = card.to_markdown()
    assert "| AUC |" in markdown and "| auc |" not in markdown and "* AUC: " in markdown
    assert markdown.startswith("# Credit \\| &lt;b>") and "Columns debt and income." in markdown
    assert "The protected columns (sex) are not needed to predict." in markdown
    assert "<h1" in card.to_html() and card.to_docx().startswith(b"PK")


def test_a_corrected_forest_says_that_it_needs_the_protected_columns(rows) -> None:
    forest = RandomForestClassifier(5, max_depth=3, random_state=0)
    model = sq.PredictionOrthogonalizer(forest, protected=["sex"]).fit(rows[["sex", "debt", "income"]], rows["y"])
    found = model_card(model).to_dict()
    assert "corrected for sex, which it needs" in found["model_details"]["documentation"]
    assert "are needed to predict" in found["model_parameters"]["input_format"]
    assert found["considerations"]["ethical_considerations"][0]["mitigation_strategy"] == "Not audited."


def test_only_corrected_models_have_cards(rows) -> None:
    forest = RandomForestClassifier(2, random_state=0).fit(rows[["debt"]], rows["y"])
    with pytest.raises(InputError, match="RandomForestClassifier is not one"):
        model_card(forest)


def test_a_word_file_has_every_section_table_and_note(compared, tmp_path: Path) -> None:
    document = compared.document()
    content = compared.to_docx(tmp_path / "report.docx")
    assert content == (tmp_path / "report.docx").read_bytes()
    read = docx.Document(io.BytesIO(content))
    texts = [paragraph.text for paragraph in read.paragraphs]
    for section in document.sections:
        assert section["title"] in texts and set(map(str, section["notes"])) <= set(texts)
    tables = [table for section in document.sections for table in section["tables"]]
    assert len(read.tables) == len(tables)
    for table, written in zip(tables, read.tables, strict=True):
        assert len(written.rows) == len(table["rows"]) + 1
        assert [cell.text for cell in written.rows[0].cells] == [column["name"] for column in table["columns"]]


def test_an_audit_is_written_as_latex_and_markdown(compared, tmp_path: Path) -> None:
    audit = compared.sides[-1].audit
    assert audit.to_latex(tmp_path / "a.tex", sections=["effects"]).count(r"\begin{tabular}") >= 1
    assert (tmp_path / "a.tex").read_text() == audit.to_latex(sections=["effects"])
    assert audit.to_markdown().count("\n## ") == len(audit.document().sections)
