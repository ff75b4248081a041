"""Reports: what is in them, what is left out, and that names from the data come out as text in every format."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from markdown_it import MarkdownIt

import setsquare as sq
from setsquare import _extras
from setsquare.errors import InputError, MissingDependencyError
from setsquare.report import Report, build

N = 400
rng = np.random.default_rng(7)
GROUP, AGE, SIGNAL = rng.choice(["a", "b", "c"], N), rng.normal(50.0, 10.0, N), rng.normal(size=N)
TABLE = pd.DataFrame({"group": GROUP, "age": AGE})
BEFORE = 1.0 / (1.0 + np.exp(-SIGNAL - 1.0 * (GROUP == "b")))
AFTER = 1.0 / (1.0 + np.exp(-SIGNAL))
Y = (rng.random(N) < BEFORE).astype(float)
CLASSES = rng.dirichlet(np.ones(3), N)
EVIL = (
    "<script>alert(1)</script>",
    '"; DROP',
    "=1+1",
    "a|b",
    "$x_1^2$ & 50% #~{}\\",
    "`code` *bold* [x](javascript:alert(1))",
    "{{ 7 * 7 }}",
    "https://example.org www.example.org a@example.org",
    "![](x)",
    "' onload='alert(1)",
)
ALL = ("summary", "meaning", "numbers", "effects", "levels", "calibration", "performance", "leakage")
ALL += ("certificate", "notes", "method")


@pytest.fixture(scope="module")
def full() -> Report:
    model = sq.OrthogonalGLMClassifier().fit(rng.normal(size=(N, 6)), Y, protected=TABLE)
    return build(
        {"before": sq.audit(BEFORE, TABLE), "after": sq.audit(AFTER, TABLE)},
        predictions={"before": BEFORE, "after": AFTER},
        protected=TABLE,
        outcome=Y,
        certificate=model.solution_.certificate,
        method=["By hand."],
        command="setsquare audit x.csv",
        data={"sha256": "ab12"},
    )


@pytest.fixture(scope="module")
def every(full: Report) -> dict[str, Report]:
    labels = np.array(["x", "y", "z"])[CLASSES.argmax(axis=1)]
    constant = np.full(N, 0.2)
    return {
        "full": full,
        "alone": build(sq.audit(BEFORE, TABLE)),
        "comparison": build(sq.compare({"before": BEFORE, "after": AFTER}, Y, TABLE)),
        "classes": build(sq.audit(CLASSES, TABLE), predictions=CLASSES, protected=TABLE, outcome=labels),
        "units": build(sq.audit(rng.normal(size=(N, 2, 2)), TABLE, n_permutations=19)),
        "constant": build(sq.audit(constant, TABLE), predictions=constant, protected=TABLE, outcome=Y),
        "separated": build(sq.audit(GROUP == "b", TABLE), predictions=GROUP == "b", protected=TABLE),
        "several models": build(
            sq.audit(AFTER[:80], TABLE[:80], evaluation=["glm", "linear", "independence"], n_permutations=19)
        ),
        "text outcome": build(
            sq.audit(AFTER, TABLE), predictions=AFTER, protected=TABLE, outcome=np.where(Y > 0, "yes", "no")
        ),
    }


KINDS = (
    "full",
    "alone",
    "comparison",
    "classes",
    "units",
    "constant",
    "separated",
    "several models",
    "text outcome",
)


class Page(HTMLParser):
    """What a browser sees: tags, attributes, and words outside of script and style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.words = ""
        self.inside: dict[str, str] = {"script": "", "style": ""}
        self.content: list[str | None] = []
        self.feed(page)
        assert not self.stack

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.content += [value for name, value in attrs if name == "content"]
        if tag != "meta":
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] in self.inside:
            self.inside[self.stack[-1]] += data
        else:
            self.words += f" {data}".replace("\u2060", "").replace("\u00a0", " ")  # where lines do not break


def ids(report: Report) -> list[str]:
    return [section["id"] for section in report.sections]


def test_an_effect_without_an_estimate_has_no_odds_ratio() -> None:
    """A single row determines the effect of its group, which then is unknown, not infinite."""
    rng = np.random.default_rng(0)
    group = np.where(rng.random(400) < 0.6, "a", "b").astype(object)
    group[0] = "one row"
    table = build(sq.audit(rng.uniform(0.2, 0.8, 400), pd.DataFrame({"group": group}))).section("effects")["tables"][0]
    ratio = [column["name"] for column in table["columns"]].index("odds ratio")
    assert {row[0]: row[ratio] is None for row in table["rows"]} == {"group: b": False, "group: one row": True}


def test_long_names_of_groups_stay_apart_in_figures() -> None:
    rng = np.random.default_rng(0)
    names = [f"married to a spouse in the armed forces, living {how} in a house" for how in ("together", "apart")]
    page = build(sq.audit(rng.random(300), pd.DataFrame({"g": np.array(names)[rng.integers(2, size=300)]}))).to_html()
    wide = page[page.index('class="wide"') : page.index('class="narrow"')]
    shown = re.findall(r'class="name end">([^<]+)<', wide)
    assert len(set(shown)) == 2 and all("…" in each and len(each) < 50 for each in shown)


def test_everything_that_was_asked_for_is_there(full: Report) -> None:
    assert ids(full) == list(ALL)
    assert {figure["kind"] for s in full.sections for figure in s["figures"]} == {
        "forest",
        "bounds",
        "ridges",
        "means",
        "calibration",
        "trade-off",
        "groups",
    }
    assert "By hand." in full.section("method")["notes"]
    assert ["command", "setsquare audit x.csv"] in full.section("method")["tables"][0]["rows"]
    assert ["data: sha256", "ab12"] in full.section("method")["tables"][0]["rows"]


def test_sections_without_data_are_left_out(every: dict[str, Report]) -> None:
    assert ids(every["alone"]) == [
        "summary",
        "meaning",
        "numbers",
        "effects",
        "leakage",
        "notes",
        "method",
    ]
    assert {"performance", "levels", "calibration"} <= set(ids(every["comparison"]))
    assert "levels" not in ids(every["units"])
    for report in every.values():
        for section in report.sections:
            assert section["text"] or section["notes"] or section["tables"] or section["figures"]
            assert all(table["rows"] and table["columns"] for table in section["tables"])


def test_the_verdict_is_that_of_the_last_audit_and_the_numbers_are_those_of_the_audits(full: Report) -> None:
    before, after = sq.audit(BEFORE, TABLE), sq.audit(AFTER, TABLE)
    assert (full.verdict, full.sentence) == (str(after.verdict), after.reason)
    assert before.is_leak and not after.is_leak
    table = full.section("effects")["tables"][0]
    names = [column["name"] for column in table["columns"]]
    rows = {(row[0], row[1]): dict(zip(names, row, strict=True)) for row in table["rows"]}
    for side, audit in (("before", before), ("after", after)):
        for effect in audit.evaluations[0].effects:
            unit = next(c for c in audit.certificate.columns if c.term == effect.term).scale
            name = f"{effect.term} (per {unit:.3g})" if effect.source == "age" else f"group: {effect.term[-2]}"
            row = rows[name, side]
            assert row["p"] == effect.p_value and (unit == 1.0 or unit == pytest.approx(AGE.std(ddof=1), rel=0.01))
            numbers = (row["log odds ratio"], row["low"], *row["odds ratio"][:2])
            low, high = unit * effect.estimate, unit * effect.ci_low
            assert numbers == pytest.approx((low, high, math.exp(low), math.exp(high)))


def test_performance_is_that_of_compare(full: Report, every: dict[str, Report]) -> None:
    assert full.section("performance")["tables"] == every["comparison"].section("performance")["tables"]


@pytest.mark.parametrize("kind", KINDS)
def test_reports_go_through_json_and_every_format(every: dict[str, Report], kind: str, tmp_path: Path) -> None:
    report = every[kind]
    assert Report.from_dict(json.loads(report.to_json())) == report
    for method, name in (
        (report.to_json, "r.json"),
        (report.to_text, "r.txt"),
        (report.to_markdown, "r.md"),
        (report.to_latex, "r.tex"),
        (report.to_html, "r.html"),
    ):
        content = method(tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8") == content and not re.search(r"\bnan\b", content.lower())
    page = Page(report.to_html())
    assert page.tags.count("h1") == 1 and page.tags.count("script") == 1
    assert report.title in page.words and report.sentence in page.words
    assert str(report) == report.to_text() and report.sentence.split(",")[0] in " ".join(report.to_text().split())


def test_the_policy_allows_this_style_and_this_script_and_nothing_else(full: Report) -> None:
    page = Page(full.to_html())
    policy = next(value for value in page.content if value and "default-src" in value)
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy and "http" not in policy
    for tag in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(page.inside[tag].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not page.attributes & {"src", "style", "onclick", "onload", "xlink:href"}


@pytest.fixture(scope="module", params=EVIL)
def evil(request: pytest.FixtureRequest) -> tuple[str, Report]:
    name = request.param
    table = pd.DataFrame({name: np.where(GROUP == "a", name, "plain"), f"{name} age": AGE})
    audits = {name: sq.audit(BEFORE, table, setting=name), "after": sq.audit(AFTER, table)}
    report = build(
        audits,
        predictions={name: BEFORE, "after": AFTER},
        protected=table,
        outcome=Y,
        title=f"Is {name} used?",
        method=[name],
        command=name,
        data={name: name},
    )
    return name, report


@pytest.fixture(scope="module")
def plain() -> Page:
    """A page whose names are ordinary."""
    return Page(build(sq.audit(AFTER, TABLE), predictions=AFTER, protected=TABLE, outcome=Y).to_html())


def test_names_are_text_on_the_page(evil: tuple[str, Report], plain: Page) -> None:
    name, report = evil
    page = Page(report.to_html())
    assert set(page.tags) <= {*plain.tags, "polyline", "tspan", "ul", "li"} and page.attributes <= plain.attributes
    assert page.inside == plain.inside and page.tags.count("script") == 1
    assert f" {name} " in page.words


def test_names_are_text_in_json_and_in_plain_text(evil: tuple[str, Report]) -> None:
    name, report = evil
    assert json.loads(report.to_json())["title"] == f"Is {name} used?"
    assert report.to_text().splitlines()[0] == f"Is {name} used?"


def test_names_are_text_in_markdown(evil: tuple[str, Report]) -> None:
    name, report = evil
    markdown = MarkdownIt("gfm-like", {"linkify": False}).enable(["table", "strikethrough"])
    tokens = markdown.parse(report.to_markdown())
    inline = [token for token in tokens if token.type == "inline"]
    kinds = {token.type for token in tokens} | {child.type for token in inline for child in token.children or []}
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "code_inline", "em_open", "fence", "hr"}
    words = ["".join(child.content for child in token.children or []) for token in inline]
    assert words[0] == f"Is {name} used?" and name in words
    width = {len(line.split(" | ")) for line in report.to_markdown().splitlines() if line.startswith(f"| {words[0]}")}
    assert len(width) <= 1


def test_names_are_text_in_latex(evil: tuple[str, Report]) -> None:
    name, report = evil
    known = r"\\(?:begin|end)\{\w+\}(?:\{[lr]+\})?|\\(?:toprule|midrule|bottomrule|centering|caption)\b|\\\\"
    rest = re.sub(known, "", report.to_latex())
    signs = re.sub(r"\\text\w+\{\}|\\textsuperscript\{2\}|\\[&%$#_{}]|\{\[\}", "", rest)
    assert not re.search(r"[\\$#%^~_<>|]", signs)
    back = {"textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^"}
    back |= {"textless": "<", "textgreater": ">", "textbar": "|"}
    rest = re.sub(r"\\(text\w+)\{\}", lambda found: back.get(found[1], found[0]), rest.replace("{[}", "["))
    cells = {re.sub(r"\\([&%$#_{}])", r"\1", cell).strip() for cell in re.split(r"(?<!\\)&|\n", rest)}
    assert name in cells and any(cell.startswith(f"{name} age (per ") for cell in cells)
    assert {f"{name}: plain", f"{name}: {name}"} & cells


def test_control_characters_do_not_reach_the_screen() -> None:
    name = "red\x1b[31m\nnext\u202eback"
    table = pd.DataFrame({name: np.where(GROUP == "a", "x", "y")})
    report = build(sq.audit(AFTER, table), predictions=AFTER, protected=table, title="half a character: \udc80")
    for content in (report.to_text(), report.to_markdown(), report.to_latex(), report.to_html()):
        assert not re.search("[\x1b\u202e\udc80]", content)
        assert "red" in content and "\nnext" not in content
    assert Report.from_dict(json.loads(report.to_json())) == report


def test_results_have_pages_of_their_own(tmp_path: Path) -> None:
    comparison = sq.compare({"before": BEFORE, "after": AFTER}, Y, TABLE)
    for result in (sq.audit(BEFORE, TABLE), comparison):
        page = result.to_html(tmp_path / "page.html")
        assert (tmp_path / "page.html").read_text(encoding="utf-8") == page == build(result).to_html()
        assert page.startswith("<!doctype html>")


def test_a_page_without_jinja2_is_refused_in_one_sentence(full: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extras, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"A report page needs the package jinja2: pip install"):
        full.to_html()
    assert full.to_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outcome": Y}, "pass predictions= too"),
        ({"predictions": {"other": AFTER}}, "same names"),
        ({"predictions": AFTER, "protected": TABLE[:-1]}, "399 rows but others have 400"),
        ({"predictions": AFTER, "outcome": Y[:-1]}, "399 rows"),
        ({"predictions": np.full(N, np.nan)}, "nothing to report"),
    ],
)
def test_what_does_not_fit_together_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build({"after": sq.audit(AFTER, TABLE)}, **options)  # type: ignore[arg-type]


def test_only_results_make_a_report() -> None:
    for wrong in ({}, {"a": 1}, 3):
        with pytest.raises(InputError, match="result of audit or compare"):
            build(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no section 'x'"):
        build(sq.audit(AFTER, TABLE)).section("x")


def test_rows_that_are_left_out_are_counted() -> None:
    holes = np.where(np.arange(N) < 3, np.nan, AFTER)
    report = build(sq.audit(AFTER, TABLE), predictions=holes, protected=TABLE)
    assert "3 rows without a prediction, an outcome or a weight are left out." in report.section("levels")["notes"]


def test_the_page_does_not_grow_with_the_rows() -> None:
    def size(times: int) -> int:
        table = pd.concat([TABLE] * times, ignore_index=True)
        values, y = np.tile(AFTER, times), np.tile(Y, times)
        return len(build(sq.audit(values, table), predictions=values, protected=table, outcome=y).to_html())

    assert size(50) < 1.1 * size(5) < 200_000


def test_many_levels_and_many_effects_stay_readable() -> None:
    codes = np.arange(2000) % 60
    values = np.random.default_rng(0).random(2000)
    table = pd.DataFrame({"city": [f"city {code:02d}" for code in codes]})
    report = build(sq.audit(values, table), predictions=values, protected=table)
    (forest,) = report.section("effects")["figures"]
    assert len(forest["rows"]) == 40 and "19 smallest effects are in the table only" in forest["summary"]
    assert len(report.section("effects")["tables"][0]["rows"]) == 59
    (ridges,) = report.section("levels")["figures"]
    assert [row["label"] for row in ridges["rows"]][-1] == "49 other levels" and len(ridges["rows"]) == 12
    assert "The 49 smallest levels of city are shown together." in report.section("levels")["notes"]


def test_the_meaning_of_a_trace_gives_the_bound_of_its_audits() -> None:
    rng = np.random.default_rng(0)
    sex = rng.choice(["f", "m"], 20000)
    audit = sq.audit(rng.normal(size=20000) * np.where(sex == "m", 1.15, 1.0), sex)
    assert (audit.verdict, audit.found) == ("trace", ("spread",))
    (_, said) = build(audit).section("meaning")["text"]
    assert f"the correlation is at most {audit.certificate.correlation_upper:.3f}." in said
    assert "standard deviations" not in said, "small groups may be further away"
