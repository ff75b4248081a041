"""What users read is plain English: forbidden turns, one spelling per term, sentences of readable length.

Read are pages, docstrings (with the help of the command line) and every string of five words or more in the package.
Code, names in backticks and printed output are left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *(path for path in ROOT.glob("*.md") if path.stem != "CHANGELOG"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("docs/api/*.rst"),
    *ROOT.glob(".github/**/*.md"),
    *ROOT.glob("examples/*.py"),
]
MODULES = sorted((ROOT / "src").glob("**/*.py"))

#: What not to write, and what to write instead.
TURNS = {
    r"\b(say|know|tell)s? nothing (of|about) (the|its|a)\b": "does not depend on, is unrelated to",
    r"\b(is|are|was|were) told\b": "receives, is given",
    r"\bso-man\w+": "every k-th, a number",
    r"\bno text in UTF-8\b": "is not valid UTF-8",
    r"\bp of no effect\b": "p-value",
    r"\bHC3 errors\b": "HC3 standard errors",
    r"\bwith commas between\b": "comma-separated",
    r"\brows have in common\b": "cluster",
    r"\bbetter is higher\b": "Higher is better for ...",
    r"\bwhat can be left\b": "largest effect not ruled out",
    r"\b(is|are) no (array|table|number|pickle|model|markup|text)s?\b": "is not a ...",
    r"\b(one|once|twice|two|three|times|samples|rows|draws|seconds|bytes|numbers|passes|columns) an? "
    r"(row|unit|iteration|cell|file|column|batch|group|class|feature|step|round|observation)\b": "per ...",
    r"\bnot (un|in)(common|likely|usual|important|significant)\w*\b": "say it without two negations",
    r"\b(cannot|can not|never|not) (fail|refuse) to\b": "say it without two negations",
    r"\b(simply|obviously|of course|needless to say)\b": "leave it out",
    r"\b(powerful|seamless\w*|blazing\w*|state.of.the.art|cutting.edge|world.class)\b": "a number",
    r"\b(utilis|utiliz)\w+": "use",
    r"\b(whilst|amongst|hereby|therein|thereof|whereof|heretofore)\b": "while, among, ...",
}
#: American spellings (pages and messages are British) and second spellings of one term.
SPELLINGS = {
    r"\b(colors?|colored|behaviors?|favors?|neighbors?|neighboring|centers?|centered|gray|labeled|labeling|modeled|"
    r"modeling|licenses?|canceled|catalogs?|judgment|favorable|artifacts?)\b": "British",
    r"\b(\w+(iz)(e|es|ed|ing|ation|ations))\b": "British: -ise",
    r"\b(analyz)\w+": "British: analyse",
    r"\bdata frames?\b|(?-i:\bDataFrames?\b)": "dataframe",
    r"\bdatasets?\b": "data set",
    r"\bcross validat\w+": "cross-validation",
    r"\bp values?\b": "p-value",
    r"\bnon-linear\w*": "nonlinear",
    r"\bsklearn\b|\bscikit learn\b": "scikit-learn",
    r"\bpytorch\b": "torch",
    r"(?-i:\bNumPy\b)": "numpy",
    r"(?-i:\bparquet\b)": "Parquet",
    r"\bcovariance matrixes\b|\bindexes\b": "matrices, indices",
}
#: Names and titles that keep their own spelling.
ALLOWED = re.compile(
    r"Generalizing Orthogonalization for Models\s+with\s+Non-Linearities|Metadata Normalization|Equalized odds|"
    r"Arrow [Dd]atasets?|\b(\w+_)?[Ss]ize[sd]?\b|\b[Pp]rizes?\b|"
    # Names in code, options among them:
    r"\b\w+=|(?m:^\w+ : )|"
    r"\b(Dataset|DataFrame|Orthogonalize)\b|\"[^\"\s]*\"|\.parquet|\bcenter\b|prefers-color-scheme"
)
#: Longest sentence, in words.
LONGEST_MESSAGE, LONGEST_SENTENCE = 45, 60


def bare(text: str) -> str:
    """Text without code, names in backticks, links, formulas and what keeps its own spelling."""
    for pattern in (r"```.*?```", r"<!--.*?-->", r"\$\$.*?\$\$", r"(?m)^.. code.*?\n\n(?=\S)"):
        text = re.sub(pattern, "", text, flags=re.DOTALL)
    text = re.sub(r"(?m)^\s*(>>>|\.\.\. ).*(\n(?!\s*>>>)\s*\S.*)*", "", text)  # examples, with what they print
    text = re.sub(r"``[^`]*``|:[\w:]+:`[^`]*`|`[^`]*`|\$[^$\n]+\$", "X", text)
    text = re.sub(r"\]\([^)]*\)|https?:\S+", "]", text)
    return ALLOWED.sub("Y", text)


def page_text(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":  # the gallery: its comments are the page
        return bare(comments(text))
    if path.suffix == ".rst":
        return bare(re.sub(r"(?m)^(\.\. |   ).*$", "", text))
    return bare(text)


def comments(code: str) -> str:
    return f"{ast.get_docstring(ast.parse(code)) or ''}\n" + "\n".join(
        re.sub("^%%.*", "", each) for each in re.findall(r"^# ?(.*)", code, flags=re.M)
    )


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, bare(text)


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Strings of five words or more that are not docstrings, with X where a value is put in."""
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            text = "".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            text = node.value
        else:
            continue
        if len(text.split()) >= 5:
            yield node.lineno, ALLOWED.sub("Y", re.sub(r"\{[^}]*\}|'[^']*'", "X", text))


@cache
def pages() -> list[tuple[str, str]]:
    return [(str(path.relative_to(ROOT)), page_text(path)) for path in PAGES]


@cache
def package() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Docstrings and messages of the package, each with its file and line."""
    texts: tuple[list[tuple[str, str]], list[tuple[str, str]]] = ([], [])
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for found, read in zip(texts, (docstrings, messages), strict=True):
            found += [(f"{path.relative_to(ROOT)}:{line}", text) for line, text in read(tree)]
    return texts


def sentences(text: str) -> Iterator[str]:
    """Sentences of running text; a line of a table, a heading or an item of a list ends one."""
    for block in re.split(r"\n\s*\n|\n(?=\s*([*+-]|\d+\.|\||#|\w[\w, ]* : )\s?)", text):
        if block and not block.lstrip().startswith(("|", "#", "!", "```")):
            yield from re.split(r"(?<=[.!?:;])\s+(?=[A-Z\"'*X(])", " ".join(block.split()))


@pytest.fixture
def prose() -> list[tuple[str, str]]:
    return [*pages(), *package()[0], *package()[1]]


def findings(prose: list[tuple[str, str]], rules: dict[str, str]) -> list[str]:
    return [
        f"{where}: {found[0]!r} (write: {instead})"
        for pattern, instead in rules.items()
        for where, text in prose
        for found in re.finditer(pattern, text, flags=re.IGNORECASE)
    ]


def long_sentences(texts: list[tuple[str, str]], words: int) -> list[str]:
    found = ((where, each) for where, text in texts for each in sentences(text))
    return [f"{where}: {each}" for where, each in found if len(each.split()) > words]


def test_no_forbidden_turn(prose):
    assert not findings(prose, TURNS)


def test_one_spelling_for_each_term(prose):
    assert not findings(prose, SPELLINGS)


def test_no_heading_or_parameter_starts_with_of():
    dangling = re.compile(r"(?m)^(#+ Of\b.*|(\w[\w, ]* : .*\n\s+Of\b.*))$|\A\s*Of\b.*")
    texts = [*pages(), *package()[0]]
    assert not [f"{where}: {found[0]}" for where, text in texts for found in dangling.finditer(text)]


def test_messages_have_short_sentences():
    assert not long_sentences(package()[1], LONGEST_MESSAGE)


def test_pages_have_readable_sentences():
    assert not long_sentences(pages(), LONGEST_SENTENCE)


@pytest.mark.parametrize(
    "text",
    [
        "The score says nothing of the group.",
        "one a row of the table",
        "HC3 errors",
        "The file is no pickle.",
        "p of no effect",
    ],
)
def test_the_rules_find_what_they_are_for(text):
    assert findings([("here", text)], TURNS)


@pytest.mark.parametrize(
    "text", ["a color", "normalized scores", "the dataset", "p values", "uses PyTorch", "non-linear"]
)
def test_the_spellings_find_what_they_are_for(text):
    assert findings([("here", bare(text))], SPELLINGS)


def test_code_and_titles_keep_their_own_words():
    text = "`color` and ``normalize``, *Generalizing Orthogonalization for Models with Non-Linearities*, Equalized odds"
    assert not findings([("here", bare(text))], SPELLINGS)
