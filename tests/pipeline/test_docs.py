"""Every code block of README and documentation runs and prints what it says; so do the examples, in small versions."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from doctest import ELLIPSIS, OutputChecker
from importlib import import_module
from pathlib import Path
from unittest import mock

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import sklearn

from setsquare.cli.arguments import main
from setsquare.datasets.loaders import LOADERS
from setsquare.datasets.registry import REGISTRY
from studies.comparators import COMPARATORS

ROOT = Path(__file__).parents[2]
PAGES = sorted({ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/guide/*.md")})
BLOCK = re.compile(r"```(python|console)\n(.*?)```\n(?:\n```text\n(.*?)```)?", flags=re.DOTALL)
WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text(encoding="utf-8"))]

#: What makes an example small enough for a test.
SMALLER = {
    "audit_in_ci": {},
    "plot_embeddings": {"2500": "300", "2000": "300"},
    "plot_large_file": {"100_000, 256": "20_000, 32"},
    "plot_network": {"range(15)": "range(1)"},
    "plot_new_rows": {"(10, 20, 40, 60, 80), 30": "(10, 40), 3", "20_000": "2000"},
    "plot_pipeline": {},
    "plot_relu": {},
}


@pytest.fixture(autouse=True)
def _as_it_was(tmp_path, monkeypatch):
    """Run in an empty folder; what pages register and switch on is gone afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    with contextlib.ExitStack() as stack:
        for registry in (os.environ, REGISTRY, LOADERS, COMPARATORS):
            stack.enter_context(mock.patch.dict(registry))
        stack.enter_context(sklearn.config_context())
        stack.enter_context(mpl.rc_context({"backend": "agg"}))
        yield


def settled(text: str) -> str:
    """Rounding errors differ between machines: 5.1e-16 and 3e-15 are both nothing."""
    text = re.sub(r"(?m) +$", "", text)  # dataframes pad their lines
    return re.sub(r"\d(\.\d)?e-1\d", "~0", text).strip()


def printed(work, *arguments) -> str:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        work(*arguments)
    return out.buffer.getvalue().decode()


def run_line(line: str) -> None:
    """A line of the command line, with the one thing that pages do behind it."""
    command, _, echo = line.partition("; echo ")
    with mock.patch.object(sys, "argv", shlex.split(command)), pytest.raises(SystemExit) as end:
        main()
    if echo:
        print(f"exit code {end.value.code}")


def check(page: Path, wanted: str, found: str) -> None:
    """Compare what a block prints; with REFRESH_PAGES=1 put it into the page instead."""
    if settled(wanted) == settled(found) or OutputChecker().check_output(settled(wanted), settled(found), ELLIPSIS):
        return
    if not os.environ.get("REFRESH_PAGES"):
        assert settled(found) == settled(wanted)
    whole = page.read_text(encoding="utf-8")
    assert whole.count(wanted) == 1 and "..." not in wanted, found
    page.write_text(whole.replace(wanted, "\n".join(line.rstrip() for line in found.strip("\n").split("\n")) + "\n"))


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_a_page_prints_what_it_says(page):
    names = {"__name__": "page"}
    for kind, block, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "python":
            check(page, text, printed(exec, compile(block, str(page), "exec"), names))
            continue
        for line, wanted in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, flags=re.MULTILINE):
            check(page, wanted, printed(run_line, line))


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_code_is_not_cut_on_a_page(page):
    code = "".join(block for kind, block, _ in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == "python")
    assert not [line for line in code.splitlines() if len(line) > 80], "run ruff format"


def test_there_is_code_on_the_pages():
    assert {"README", "start", "table", "network", "embeddings", "audit", "research", "theory", "extend"} <= {
        page.stem for page in WITH_CODE
    }


def test_every_example_has_a_small_version():
    assert {path.stem for path in ROOT.glob("examples/*.py")} == set(SMALLER)


@pytest.mark.parametrize("name", SMALLER)
def test_an_example_runs(name):
    code = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    for large, small in SMALLER[name].items():
        assert large in code
        code = code.replace(large, small)
    assert len(printed(exec, compile(code, f"{name}.py", "exec"), {"__name__": "example"}).splitlines()) >= 2


def listed_names() -> set[str]:
    found = set()
    for page in ROOT.glob("docs/api/*.rst"):
        module, listing = "", False
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith(".. "):
                name, _, value = line[3:].partition(":: ")
                module = value if name == "currentmodule" else module
                listing = name == "autosummary::"
                found |= {f"{module}.{value}"} if name == "py:data" else set()
            elif listing and re.fullmatch(r"   \w+", line):
                found.add(f"{module}.{line.strip()}")
    return found


PARTS = ("auditing", "datasets", "errors", "estimators", "families", "nn", "projection", "tables")


MODULES = ("setsquare", "setsquare.report", *(f"setsquare.{name}" for name in PARTS), "studies.comparators")


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_in_the_reference(module):
    home = import_module(module)
    public = getattr(home, "__all__", [name for name in vars(home) if name[:1].isupper()])
    documented = {name.rsplit(".", 1)[-1] for name in listed_names()}
    submodules = {name for name in public if type(getattr(home, name)).__name__ == "module"}
    assert set(public) - submodules <= documented


def test_the_reference_lists_nothing_that_is_not_there():
    for name in listed_names():
        module, _, short = name.rpartition(".")
        assert hasattr(import_module(module), short), name
