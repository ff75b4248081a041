"""The report page in headless Chromium: what a reader sees, hears, clicks and downloads."""

from __future__ import annotations

import csv
import io
import re
import shutil
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.preprocessing import StandardScaler

import setsquare as sq
from setsquare import datasets
from setsquare.report import Report, build

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")

SECTIONS = (
    "summary",
    "meaning",
    "numbers",
    "effects",
    "levels",
    "calibration",
    "performance",
    "leakage",
    "certificate",
    "notes",
    "method",
)
PHONE, DESK = {"width": 380, "height": 800}, {"width": 1280, "height": 900}
FORMULA = "=1+1"


def adult() -> Report:
    """Adult, as it is fitted without the protected columns and under the constraint; diabetes where it is missing."""
    data = datasets.load_adult() if datasets.available("adult") else datasets.load_diabetes()
    protected = data.table[[name for name in ("race", "sex", "age") if name in data.table]]
    features = data.features_table().drop(columns=list(protected))
    kinds = (LogisticRegression(max_iter=1000), sq.OrthogonalGLMClassifier(l2=1e-3))
    if data.family == "gaussian":
        kinds = (LinearRegression(), sq.OrthogonalGLMRegressor(l2=1e-3))
    scaled = StandardScaler().fit_transform(sq.tables.learn(features).apply(features).values)
    models = (kinds[0].fit(scaled, data.y), kinds[1].fit(scaled, data.y, protected=protected))
    values = [m.predict_proba(scaled)[:, 1] if data.family == "binomial" else m.predict(scaled) for m in models]
    predictions = dict(zip(("as trained", "corrected"), values, strict=True))
    return build(
        {name: sq.audit(one, protected, data.family, setting="in-sample") for name, one in predictions.items()},
        predictions=predictions,
        protected=protected,
        outcome=data.y,
        certificate=models[1].solution_.certificate,
        command="setsquare correct adult.csv",
        data={"name": data.name},
    )


def hostile() -> Report:
    """Names that want to be code."""
    rng = np.random.default_rng(0)
    level = np.array(['"; DROP', FORMULA, "<img src=x onerror=alert(2)>"])[rng.integers(3, size=600)]
    table = pd.DataFrame({"<script>alert(1)</script>": level})
    values = rng.random(600)
    return build(sq.audit(values, table), predictions=values, protected=table, outcome=rng.random(600) < values)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sq.errors.SetsquareWarning)  # income goes with sex: that is the point
        report = adult()
    folder = tmp_path_factory.mktemp("report")
    for name, one in (("adult", report), ("hostile", hostile())):
        one.to_html(folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in ("adult", "hostile")}


class Seen:
    """An open page, with everything that it logged and asked for."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page, self.logged, self.asked = page, [], []
        page.on("console", lambda message: self.logged.append(message.text))
        page.on("pageerror", lambda error: self.logged.append(str(error)))
        page.on("dialog", lambda dialog: self.logged.append(dialog.message))
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(path.as_uri())


@pytest.fixture
def see(browser: Any, pages: dict[str, Path]) -> Iterator[Any]:
    opened = []

    def open_page(name: str = "adult", viewport: dict[str, int] = DESK, **options: Any) -> Seen:
        opened.append(browser.new_page(viewport=viewport, **options))
        return Seen(opened[-1], pages[name])

    yield open_page
    for page in opened:
        page.close()


@pytest.mark.parametrize("name", ["adult", "hostile"])
def test_a_page_logs_nothing_and_asks_for_nothing(see: Any, pages: dict[str, Path], name: str) -> None:
    seen = see(name)
    for button in seen.page.locator("th button, summary").all()[:30]:
        button.click()
    assert seen.logged == [] and seen.asked == [pages[name].as_uri()]
    assert pages[name].stat().st_size < 400_000


def test_the_policy_stops_what_was_not_written_by_us(see: Any) -> None:
    seen = see()
    seen.page.evaluate("document.body.append(Object.assign(new Image(), {src: 'http://example.org/x.png'}))")
    seen.page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.evil = 1'}))"
    )
    assert seen.page.evaluate("window.evil") is None
    assert len(seen.logged) == 2 and all("violates" in words and "Policy" in words for words in seen.logged)


def test_all_sections_are_there_and_reached_from_the_list(see: Any) -> None:
    page = see().page
    assert [one.get_attribute("id") for one in page.locator("main section").all()] == list(SECTIONS)
    links = page.locator("nav a")
    assert [link.get_attribute("href") for link in links.all()] == [f"#{name}" for name in SECTIONS]
    links.nth(5).click()
    assert page.url.endswith("#calibration") and page.locator("#calibration h2").is_visible()
    assert page.locator("figure").count() >= 6
    assert page.locator("h1").count() == 1 and page.locator(".verdict").first.is_visible()


def column(table: Any, j: int) -> list[str]:
    return [row.locator("th, td").nth(j).inner_text() for row in table.locator("tbody tr").all()]


def test_tables_sort_by_click_and_by_keyboard(see: Any) -> None:
    page = see().page
    table = page.locator("#effects table").first
    head = table.locator("thead th").nth(3)
    given = column(table, 3)
    assert given != sorted(given, key=float)
    head.locator("button").click()
    assert column(table, 3) == sorted(given, key=float) and head.get_attribute("aria-sort") == "ascending"
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert column(table, 3) == sorted(given, key=float, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    table.locator("thead th").first.locator("button").focus()
    page.keyboard.press("Space")
    names = column(table, 0)
    assert names == sorted(names, key=str.lower) and head.get_attribute("aria-sort") == "none"


def test_what_is_unknown_sorts_last_both_ways(see: Any) -> None:
    page = see().page
    table = page.locator("#performance table")
    for _ in range(2):
        table.locator("thead th").nth(5).locator("button").click()
        assert column(table, 5)[-1] == "-" and column(table, 5)[0] != "-"


def download(page: Any, button: Any) -> list[list[str]]:
    with page.expect_download() as found:
        button.click()
    assert found.value.suggested_filename.endswith(".csv")
    content = Path(found.value.path()).read_bytes().decode("utf-8-sig")
    return list(csv.reader(io.StringIO(content, newline="")))


def test_a_table_is_downloaded_with_all_its_digits(see: Any) -> None:
    page = see().page
    rows = download(page, page.locator("#effects .csv").first)
    shown = page.locator("#effects table").first
    assert len(rows) == 1 + shown.locator("tbody tr").count() and rows[0][:2] == ["column", "model"]
    assert [row[0] for row in rows[1:]] == column(shown, 0)
    shift = 0  # an effect on probabilities has an odds ratio first, with its interval
    if rows[0][2] == "odds ratio":
        assert rows[0][3:6] == ["odds ratio low", "odds ratio high", "log odds ratio"]
        for row, ratio in zip(rows[1:], column(shown, 2), strict=True):
            assert float(row[2]) == pytest.approx(float(ratio.split("\n")[0]), abs=1e-3)
            assert float(row[3]) < float(row[2]) < float(row[4])
        shift = 1
    for row, short in zip(rows[1:], column(shown, 2 + shift), strict=True):
        assert float(row[2 + 3 * shift]) == pytest.approx(float(short), abs=1e-3)
    assert any(len(row[2]) > 12 for row in rows)


@pytest.mark.parametrize("size", [(1280, 800), (380, 700)], ids=["desk", "phone"])
@pytest.mark.parametrize("name", ["adult", "hostile"])
def test_the_first_screen_has_the_verdict_and_the_figure(see: Any, name: str, size: tuple[int, int]) -> None:
    page = see(name, {"width": size[0], "height": size[1]}).page
    kind = ".wide" if size[0] > 700 else ".narrow"
    verdict = page.locator(".verdict").last.bounding_box()
    figure = page.locator(f"#summary {kind} svg").first.bounding_box()
    assert verdict["y"] + verdict["height"] < figure["y"]
    shown = (min(figure["y"] + figure["height"], size[1]) - figure["y"]) / figure["height"]
    assert shown > 0.5, f"{shown:.0%} of the figure is on the first screen"


def test_no_formula_and_no_code_is_downloaded(see: Any) -> None:
    page = see("hostile").page
    page.locator("#levels summary").click()
    rows = download(page, page.locator("#levels .csv"))
    assert rows[0][0] == "<script>alert(1)</script>"
    assert {row[0] for row in rows[1:]} == {'"; DROP', f"'{FORMULA}", "<img src=x onerror=alert(2)>"}
    signs = [cell for row in rows for cell in row if cell[:1] in tuple("=+@") or re.match("-.", cell)]
    assert all(float(cell) < 0 for cell in signs)


def test_names_are_seen_as_they_are(see: Any) -> None:
    page = see("hostile").page
    words = page.locator("body").inner_text()
    assert "<script>alert(1)</script>" in words and '"; DROP' in words and "<img src=x" in words
    assert page.locator("script").count() == 1 and page.locator("img").count() == 0


@pytest.mark.parametrize("name", ["adult", "hostile"])
def test_nothing_is_wider_than_a_phone(see: Any, name: str) -> None:
    page = see(name, PHONE).page
    for fold in page.locator("summary").all():
        fold.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    assert page.locator(".narrow svg").first.is_visible() and not page.locator(".wide svg").first.is_visible()
    boxes = page.evaluate(
        "[...document.querySelectorAll('main :is(h2, h3, p, ul, figure, .scroll, svg)')]"
        ".filter((one) => one.checkVisibility()).map((one) => one.getBoundingClientRect().right)"
    )
    assert max(boxes) <= 380


def test_tooltips_come_by_mouse_and_by_keyboard(see: Any) -> None:
    page = see().page
    tip, marks = page.locator("#tip"), page.locator("#effects .wide .mark")
    assert not tip.is_visible()
    marks.nth(1).locator(".dot").hover()
    assert tip.is_visible() and tip.inner_text() == marks.nth(1).get_attribute("aria-label")
    page.mouse.move(0, 0)
    assert not tip.is_visible()
    marks.first.focus()
    first = tip.inner_text()
    page.keyboard.press("ArrowDown")
    assert tip.inner_text() == marks.nth(1).get_attribute("aria-label") != first
    page.keyboard.press("End")
    assert tip.inner_text() == marks.last.get_attribute("aria-label")
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    assert page.locator("#effects .wide .mark[tabindex='0']").count() == 1, "a figure is one stop of the Tab key"


def test_the_first_stop_of_the_keyboard_skips_to_the_report(see: Any) -> None:
    page = see().page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def audit_access(page: Any, *rules: str) -> tuple[list[tuple[str, str]], set[str]]:
    """What axe-core finds wrong, and the rules that the page passes."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    only = {"runOnly": list(rules)} if rules else {}
    found = axe.Axe().run(page, options={"resultTypes": ["violations"]} | only).response
    wrong = [(one["id"], node["html"][:200]) for one in found["violations"] for node in one["nodes"]]
    return wrong, {one["id"] for one in found["passes"]}


@pytest.mark.parametrize(("name", "viewport"), [("adult", DESK), ("hostile", PHONE)], ids=["desk", "phone"])
def test_axe_finds_nothing_wrong(see: Any, name: str, viewport: dict[str, int]) -> None:
    page = see(name, viewport).page
    for fold in page.locator("summary").all()[:2]:
        fold.click()
    wrong, passed = audit_access(page)
    assert wrong == []
    assert {"color-contrast", "html-has-lang", "heading-order", "region", "button-name", "svg-img-alt"} <= passed


def test_contrast_holds_in_the_dark_and_would_be_missed(see: Any) -> None:
    page = see("hostile", DESK, color_scheme="dark").page
    page.locator("summary").first.click()
    assert audit_access(page, "color-contrast") == ([], {"color-contrast"})
    page.evaluate("document.documentElement.style.setProperty('--soft', '#444')")
    assert audit_access(page, "color-contrast")[0]


def test_figures_and_dark_mode_are_drawn(see: Any) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        page = see("adult", DESK, color_scheme=scheme).page
        colours[scheme] = page.evaluate(
            "[getComputedStyle(document.body).backgroundColor,"
            " getComputedStyle(document.querySelector('.wide .dot')).stroke]"
        )
        assert all(box["height"] > 80 for box in (one.bounding_box() for one in page.locator(".wide svg").all()))
    assert colours["light"][0] != colours["dark"][0] and colours["light"][1] != colours["dark"][1]


def test_print_shows_what_is_folded_and_hides_what_is_clicked(see: Any) -> None:
    page = see().page
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible() and not page.locator(".csv").first.is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert all(table.is_visible() for table in page.locator("table").all())
    page.set_viewport_size({"width": 673, "height": 950})  # A4 without its margins
    assert page.evaluate("document.documentElement.scrollWidth") <= 673
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0
    assert len(page.pdf(format="A4")) > 20_000


def people(n: int = 1500) -> tuple[np.ndarray, pd.DataFrame]:
    """Scores of people of four races and two sexes, lower for one race."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "race": np.array(["White", "Black", "Asian", "Hispanic"])[rng.choice(4, n, p=[0.55, 0.2, 0.1, 0.15])],
            "sex": np.array(["female", "male"])[rng.integers(2, size=n)],
        }
    )
    return 1.0 / (1.0 + np.exp(0.9 * (table["race"] == "Black").to_numpy() - rng.normal(size=n))), table


@cache
def five_models() -> tuple[dict[str, np.ndarray], np.ndarray, pd.DataFrame]:
    """Predictions of five models for rows that they have not seen, outcome and protected columns; COMPAS if known."""
    if datasets.available("compas"):
        data = datasets.load_compas()
        table, y = data.protected_table(), data.y
        features = data.features_table().drop(columns=list(table), errors="ignore")
        x = StandardScaler().fit_transform(sq.tables.learn(features).apply(features).values)
    else:
        score, table = people(4000)
        rng = np.random.default_rng(1)
        x = np.column_stack([np.log(score / (1.0 - score)), rng.normal(size=(len(score), 9))])
        y = (rng.random(len(score)) < score).astype(int)
    new = np.random.default_rng(0).random(len(y)) < 0.4
    models = {
        "logistic regression": LogisticRegression(max_iter=1000),
        "random forest, 100 trees": RandomForestClassifier(100, min_samples_leaf=20, random_state=0),
        "gradient boosting, 100 trees": GradientBoostingClassifier(max_depth=1, subsample=0.5, random_state=0),
    }
    found = {name: model.fit(x[~new], y[~new]).predict_proba(x[new])[:, 1] for name, model in models.items()}
    for rows in ("training rows", "new rows"):
        model = sq.OrthogonalGLMClassifier(l2=1e-3, orthogonal_on=rows)
        model.fit(x[~new], y[~new], protected=table[~new])
        found[f"corrected, orthogonal on {rows}"] = model.predict_proba(x[new])[:, 1]
    return found, y[new], table[new]


def compared(*numbers: int) -> Report:
    models, y, table = five_models()
    return build(sq.compare({list(models)[k]: list(models.values())[k] for k in numbers}, y, table, threshold=0.5))


def leaking() -> Report:
    models, y, table = five_models()
    score = models["logistic regression"]
    audit = sq.audit(score, table, outcome=y, threshold=0.5)
    return build(audit, predictions=score, protected=table, outcome=y)


def fourteen_groups() -> Report:
    score, _ = people()
    occupations = (
        "Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing Handlers-cleaners Machine-op-inspct "
        "Other-service Priv-house-serv Prof-specialty Protective-serv Sales Tech-support Transport-moving"
    )
    table = pd.DataFrame({"occupation": np.array(occupations.split())[np.arange(len(score)) % 14]})
    score = np.clip(score + 0.3 * (table["occupation"] == "Exec-managerial").to_numpy(), 0.0, 1.0)
    return build(sq.audit(score, table, threshold=0.5), predictions=score, protected=table)


def decisions_only() -> Report:
    score, table = people()
    decided = (score > 0.5).astype(float)
    return build(sq.audit(decided, table), predictions=decided, protected=table)


CASES = {
    "leak": leaking,
    "two": lambda: compared(0, 3),
    "five": lambda: compared(*range(5)),
    "fourteen": fourteen_groups,
    "decisions": decisions_only,
}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("cases")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sq.errors.SetsquareWarning)
        for name, make in CASES.items():
            make().to_html(folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in CASES}


@pytest.mark.parametrize("size", [(1280, 800), (380, 700)], ids=["desk", "phone"])
@pytest.mark.parametrize("name", CASES)
def test_all_verdicts_and_the_whole_figure_are_on_the_first_screen(
    browser: Any, cases: dict[str, Path], name: str, size: tuple[int, int]
) -> None:
    page = browser.new_page(viewport={"width": size[0], "height": size[1]})
    page.goto(cases[name].as_uri())
    verdicts = page.locator(".verdict")
    assert verdicts.count() == {"five": 5, "two": 2}.get(name, 1)
    last = verdicts.last.bounding_box()
    figure = page.locator(f"#summary {'.wide' if size[0] > 700 else '.narrow'} svg").first.bounding_box()
    assert last["y"] + last["height"] < figure["y"]
    assert figure["y"] + figure["height"] <= size[1], "all groups and the axis are visible"
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    page.close()


@pytest.mark.parametrize(("name", "most"), [("five", 18), ("fourteen", 7), ("decisions", 5)])
def test_few_pages_are_printed_and_folded_tables_of_many_models_are_named(
    browser: Any, cases: dict[str, Path], name: str, most: int
) -> None:
    page = browser.new_page()
    page.goto(cases[name].as_uri())
    assert len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4"))) <= most
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    folded = page.locator("details").all()
    assert folded and all((one.get_attribute("open") is None) == (name == "five") for one in folded)
    assert all(one.locator("summary").is_visible() == (name == "five") for one in folded)
    page.close()


@pytest.mark.parametrize("width", [380, 1280])
def test_verdicts_of_several_models_are_the_legend_and_their_findings_follow_the_figure(
    browser: Any, cases: dict[str, Path], width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 700})
    page.goto(cases["five"].as_uri())
    assert page.locator("#summary .legend").count() == 0
    colours = page.evaluate(
        "[...document.querySelectorAll('.verdict .swatch')].map((one) => getComputedStyle(one).borderColor)"
    )
    marks = page.evaluate(
        "[...document.querySelectorAll('#summary svg .mark .dot')].slice(0, 5)"
        ".map((one) => getComputedStyle(one).stroke)"
    )
    assert colours == marks and len(set(colours)) == 5
    assert all(verdict.bounding_box()["height"] < 50 for verdict in page.locator(".verdict").all()), "two lines at most"
    findings = page.locator(".finding")
    assert findings.count() == 5
    assert [one.split(":")[0] for one in page.locator(".verdict").all_inner_texts()] == [
        one.split(".")[0] for one in findings.all_inner_texts()
    ]
    assert findings.first.bounding_box()["y"] > page.locator("#summary figure").bounding_box()["y"]
    page.close()


@pytest.mark.skipif(not datasets.available("compas"), reason="the data set compas is not on this machine")
def test_the_first_screen_needs_no_terms(browser: Any, cases: dict[str, Path]) -> None:
    page = browser.new_page(viewport={"width": 380, "height": 700})
    for name in CASES:
        page.goto(cases[name].as_uri())
        words = page.locator("header").inner_text() + page.locator("#summary figure").inner_text()
        assert "dependence found" in words.lower()
        assert not re.search(r"\bleak|\btrace|\bratio|confidence|p-value|\bn =", words), words
    page.close()
