"""The command line as a user calls it."""

from __future__ import annotations

import subprocess
import sys

import setsquare
from setsquare.cli import demo


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "setsquare", *arguments], capture_output=True, text=True, timeout=120)


def test_the_demonstration_shows_before_and_after_without_colour_codes_in_a_pipe():
    done = run("demo")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.replace("│", " ").split())
    assert "mean probability of release, colour Black 0.780 0.827 0.829" in text
    assert "plain: leak." in text and "corrected predictions: no leak found." in text
    assert "\x1b[" not in done.stdout


def test_the_demonstration_falls_back_on_data_that_are_always_there(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(demo, "available", lambda name: False)
    demo.show(page=tmp_path / "page.html")
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Does a model of disease progression use age and sex?" in out
    assert "setsquare[demo]" in out
    assert (tmp_path / "page.html").exists()


def test_the_version_is_that_of_the_package():
    assert run("--version").stdout.strip() == setsquare.__version__


def test_a_wrong_command_ends_without_a_traceback():
    done = run("dmeo")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith('setsquare: Unknown command "dmeo". Did you mean "demo"?')


def test_the_import_brings_no_optional_package_and_no_heavy_one():
    code = (
        "import sys, setsquare; heavy = {'torch', 'matplotlib', 'pandas', 'dask', 'sklearn', 'scipy', 'numpy'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_plain_audit_imports_neither_scikit_learn_nor_pandas_nor_matplotlib(tmp_path):
    """They take longer than the audit itself."""
    rows = "\n".join(f"{j % 7 / 7},{'mf'[j % 2]},{j % 31}" for j in range(200))
    (tmp_path / "rows.csv").write_text(f"score,sex,age\n{rows}\n")
    code = (
        "import sys; from setsquare.cli.arguments import app;"
        "app(['audit', sys.argv[1], '--predictions', 'score', '--protected', 'sex,age'], result_action='return_value');"
        "heavy = {'torch', 'matplotlib', 'pandas', 'dask', 'sklearn', 'scipy.stats', 'scipy.optimize', 'jinja2'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "rows.csv")], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
