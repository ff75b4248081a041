"""The frame of the benchmarks: ratios, exponents, the estimate, pages, and the comparison of commits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks import bench_growth, bench_projection, compare_commits, estimate, frame, measured_page, page
from benchmarks.__main__ import CATALOGUE
from benchmarks.measure import Timed, in_child, peak_mb

ROOT = Path(__file__).parents[2]


def test_every_benchmark_is_in_the_catalogue():
    assert {path.stem.removeprefix("bench_") for path in ROOT.glob("benchmarks/bench_*.py")} == set(CATALOGUE)


def test_a_ratio_is_taken_round_by_round():
    ours, peer = Timed((1.0, 2.0, 30.0), None, None), Timed((4.0, 1.0, 15.0), None, None)
    ratio = frame.Ratio.over("work", ("ours", ours), ("numpy", peer), limit=1.0)
    assert (ratio.low, ratio.median, ratio.high) == (1.125, 2.0, 2.0)  # that of the medians would be 0.5
    assert ratio.version == f"numpy {np.__version__}"
    assert frame.Ratio(**json.loads(json.dumps(frame.plain(ratio)))) == ratio


def test_exponents_are_those_of_a_power_law_in_the_upper_sizes():
    def visit(turn: int, n: int) -> dict:
        seconds = (1.0 + turn) * 1e-6 * max(n, 1000) ** 1.5  # a fixed cost below
        return {"round": turn, "n": n, "seconds": seconds, "n_iter": 2, "solver": "sqp"}

    visits = [visit(turn, n) for turn in range(2) for n in (10, 100, 1000, 10_000, 100_000)]
    (line,) = bench_growth.exponents({"fit, n": visits}, share=0.003)
    assert line["time"] == pytest.approx({"median": 1.5, "low": 1.5, "high": 1.5, "from": 1000, "to": 100_000})
    assert line["iteration"]["median"] == pytest.approx(1.5)


def test_what_travels_is_the_hessian_and_little_else():
    q, p = 12, 3
    heard = bench_growth.traffic(q, p)
    assert 8 * (1 + q) * (1 + q + p) <= heard["sums"] <= 8 * (1 + q) * (1 + q + p) + 8 * (q + 20)
    assert heard["task"] < 10_000 + 8 * 4 * (1 + q) * (1 + q + p)  # no rows are in it


def test_the_estimate_adds_up():
    measured = estimate.Measured(100, 10, 5, 2, (1e-6, 1e-6, 2e-6), 1.5, 2.0, 100_000, 200_000)
    best, worst = (estimate.seconds(cluster, measured) for cluster in (estimate.BEST, estimate.WORST))
    assert best["work"] == pytest.approx(1e9 * 5 * 1e-6 / 50) and worst["work"] == pytest.approx(3.0 * best["work"])
    assert worst["reading"] == pytest.approx(10 * 5 * best["reading"])  # in each of ten passes, at a fifth of the speed
    assert best["scheduling"] == pytest.approx(10 * (1000 + 125 + 16 + 2 + 1) * 1e-3)
    assert worst["network"] == pytest.approx(10 * (1000 * 1e5 + 50 * 2e5) / 1.25e8)


def test_the_projection_is_a_regression_with_an_offset():
    """Peers that fit the offset arrive where the projection does, and where they started there was a correlation."""
    result = bench_projection.run(rows=3000, protected=4, rounds=1)
    eta, X = bench_projection.draw(3000, 4)
    assert np.abs(np.corrcoef(X.T, 1.0 / (1.0 + np.exp(-eta)))[-1, :-1]).max() > 0.1
    for family, peers in (("binomial", {"statsmodels", "glum"}), ("poisson", {"statsmodels", "glum", "scikit-learn"})):
        methods = result["families"][family]
        assert set(methods) == {"setsquare", *peers}
        assert methods["setsquare"]["correlation"] < 1e-12
        assert all(methods[peer]["distance"] < 1e-6 for peer in peers)
    assert len(result["ratios"]) == 5


def test_pages_say_what_was_measured_and_what_was_not(tmp_path):
    good = frame.Ratio("fit", "ours", "glum", "glum 3.0", 0.5, 0.4, 0.6, limit=1.0)
    bad = frame.Ratio("audit", "ours", "statsmodels", "statsmodels 0.14", 1.5, 1.4, 1.6, limit=1.0)
    about = {"name": "glm", "title": "Fits.", "command": "python -m benchmarks glm", "quick": False}
    record = about | {"minutes": 1.0, "load": [0.1, 0.2]} | frame.where()
    result = {"ratios": [good, bad], "bounds": [frame.Bound("exponent", 1.2, 1.1, least=0.9)]}
    frame.write(tmp_path / "glm.json", record | {"result": frame.plain(result)})
    page.write_pages(tmp_path, tmp_path, ["glm", "growth"])
    text = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert "| 0.50 (0.40 to 0.60) | 1.00: yes | ours | glum 3.0 | `python -m benchmarks glm` |" in text
    assert "| 1.50 (1.40 to 1.60) | 1.00: **no** |" in text and "0.9 to 1.1: **no**" in text
    assert "Not measured yet: growth." in text and (tmp_path / "images" / "benchmarks.png").exists()
    scales = (tmp_path / "how_it_scales.md").read_text(encoding="utf-8")
    assert scales.count("Not measured yet") == 3 and page.fill(scales, page.scale_parts({})) == scales


def test_a_script_writes_its_record(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", "--quick", "--rows", "7", "--output", str(tmp_path)])

    def run(rows: int = 100, rounds: int = 5, slow: bool = False) -> dict:
        return {"ratios": [], "rows": rows, "rounds": rounds, "slow": slow}

    frame.main(run, lambda result: print(result["rows"]), {"rows": 10, "rounds": 2})
    (file,) = tmp_path.glob("*.json")
    record = json.loads(file.read_text())
    assert record["result"] == {"ratios": [], "rows": 7, "rounds": 2, "slow": False}  # what is given beats --quick
    assert (
        record["command"].endswith(" --rows 7")
        and record["quick"]
        and record["cores"] >= 1
        and min(record["pace"]) >= 1.0
        and record["processor"]
        and capsys.readouterr().out == "7\n"
    )


def test_a_child_has_a_peak_of_its_own():
    ballast = np.ones(30_000_000)
    assert in_child(peak_mb) < peak_mb() and ballast.nbytes / 1e6 < peak_mb()


def test_what_is_slower_beyond_the_spread_is_flagged(capsys):
    assert compare_commits.report({"fit": [1.2, 1.3, 1.4]}, {}, "abc", 0.1) == 1
    assert compare_commits.report({"fit": [0.9, 1.3, 1.0]}, {}, "abc", 0.1) == 0  # noisy
    assert compare_commits.report({"fit": []}, {"fit": "ImportError: new"}, "abc", 0.1) == 0
    assert "ImportError: new" in capsys.readouterr().out


def test_commits_are_compared_and_nothing_is_left_behind(tmp_path, monkeypatch, capsys):
    if subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--verify", "HEAD"], capture_output=True).returncode:
        pytest.skip("not a git clone with a commit")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    arguments = ["HEAD", "--only", "Poisson", "--rounds", "2", "--starts", "1", "--limit", "1000"]
    assert compare_commits.main(arguments) == 0
    assert "corrected Poisson fit" in capsys.readouterr().out and not list(tmp_path.iterdir())
    assert compare_commits.main(["no-such-commit"]) == 2


def test_the_page_of_measurements_has_the_kept_results():
    written = measured_page.PAGE.read_text(encoding="utf-8")
    assert written == measured_page.measured_page(), "run python -m benchmarks.measured_page"
