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
    assert "colour: Black 0.780 0.827 0.829" in text
    assert "verdict leak trace no leak found" in text
    assert "needs colour to predict no no yes" in text and "The corrected model predicts without colour" in text
    assert "A trace is a dependence that is significant but demonstrably small" in text  # why not "no leak found"
    assert "\x1b[" not in done.stdout


def test_the_demonstration_falls_back_on_data_that_are_always_there(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(demo, "available", lambda name: False)
    demo.show(page=tmp_path / "page.html")
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Does a model of disease progression use age and sex?" in out
    assert "pip install scikit-lego" in out and "A trace" not in out
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


def test_a_plain_audit_imports_only_what_it_uses(tmp_path):
    """They take longer than the audit itself."""
    rows = "\n".join(f"{j % 7 / 7},{'mf'[j % 2]},{j % 31}" for j in range(200))
    (tmp_path / "rows.csv").write_text(f"score,sex,age\n{rows}\n")
    code = (
        "import atexit, sys; from setsquare.cli.start import main;"
        "heavy = {'torch', 'matplotlib', 'pandas', 'dask', 'sklearn', 'scipy.stats', 'scipy.optimize', 'jinja2',"
        " 'scipy.fft', 'numpy.f2py.crackfortran', 'numpy.testing._private', 'importlib.metadata', 'rich.progress',"
        " 'setsquare.glm.solver', 'setsquare.glm.budget', 'setsquare.projection.erasure', 'setsquare.rows.scratch'};"
        "atexit.register(lambda: print(sorted(heavy & set(sys.modules)))); main()"
    )
    arguments = ["audit", str(tmp_path / "rows.csv"), "--predictions", "score", "--protected", "sex,age"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
