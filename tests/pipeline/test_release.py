"""What a release is made of says the same everywhere: versions, lower bounds, names, sizes and links."""

from __future__ import annotations

import json
import re
import runpy
import tomllib
from pathlib import Path

import pytest
import yaml

from setsquare import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
#: Extras whose lower bounds `make test-lowest` installs.
LOWEST = ("report", "data", "formula", "demo")
MARKDOWN = [ROOT / "README.md", *sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]


def bounds(requirements: list[str]) -> dict[str, str]:
    found = (re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?>=([\d.]+)", each) for each in requirements)
    return {each[1].lower(): each[2] for each in found if each}


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return dict(line.lower().split("==") for line in lines if line and not line.startswith("#"))


def padded(version: str) -> tuple[int, ...]:
    return tuple([*map(int, version.split(".")), 0, 0][:3])


def test_the_lowest_versions_are_the_lower_bounds():
    wanted = bounds(PROJECT["project"]["dependencies"])
    for extra in LOWEST:
        wanted |= bounds(EXTRAS[extra])
    tests = bounds(EXTRAS["test"])
    lowest = pins("constraints-lowest.txt")
    assert set(wanted) <= set(lowest)
    for name, version in lowest.items():
        assert padded(version) == padded((wanted | tests)[name]), name


def test_the_conda_recipe_has_the_same_dependencies_and_version():
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    run = dict(line.split(" >=") for line in recipe["requirements"]["run"])
    assert run.pop("python") == PROJECT["project"]["requires-python"].removeprefix(">=")
    assert run == bounds(PROJECT["project"]["dependencies"])
    assert recipe["context"]["version"] == __version__
    (entry,) = recipe["build"]["python"]["entry_points"]
    assert dict([entry.split(" = ")]) == PROJECT["project"]["scripts"]


def test_the_version_stands_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    assert re.search(rf"^## {re.escape(__version__)}\b", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)


def test_the_workflows_test_every_python_that_the_package_names():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    named = {line.rpartition(" ")[2] for line in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", line)}
    matrix = workflow["jobs"]["tests"]["strategy"]["matrix"]
    assert set(matrix["python"]) == named
    assert len(matrix["os"]) == 3


def test_every_make_target_of_the_workflows_exists():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    called = {
        name
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for name in re.findall(r"\bmake ([\w-]+)", path.read_text(encoding="utf-8"))
    }
    assert called and called <= targets


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_bytes()) <= 8000


def test_the_description_on_an_index_has_no_link_into_a_clone():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "](docs/" in text
    for rule in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    assert not re.search(r"\]\((?!https?:)", text)
    assert "![" not in text and "setsquare audit predictions.csv" in text


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_files_point_to_files(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        made = re.match(r"(\.\./)?(gallery|api/generated)/", target)  # by Sphinx
        if not re.match(r"https?:|mailto:", target) and not made:
            assert (page.parent / target).exists(), target


def test_sites_of_several_versions(tmp_path):
    script = runpy.run_path(str(ROOT / "docs" / "versions.py"))
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("new")
    pages = tmp_path / "pages"
    for name in ("0.9", "0.10", "dev"):
        (pages / name).mkdir(parents=True)
    (pages / "0.10" / "old.html").touch()
    script["place"](tmp_path / "site", pages, "refs/tags/v0.10.3", "https://example.org/docs")
    listed = json.loads((pages / "switcher.json").read_text())
    assert [entry["version"] for entry in listed] == ["0.10", "0.9", "dev"]
    assert listed[0] == {"name": "0.10", "version": "0.10", "url": "https://example.org/docs/0.10/", "preferred": True}
    assert [path.name for path in (pages / "0.10").iterdir()] == ["index.html"]
    assert "url=0.10/index.html" in (pages / "index.html").read_text()
    script["place"](tmp_path / "site", pages, "refs/heads/main", "https://example.org/docs")
    assert (pages / "dev" / "index.html").read_text() == "new"
