"""Tables in the guides are those of the kept results."""

from __future__ import annotations

import json
from importlib import import_module

import pytest

pytest.importorskip("torch")
guide_tables = pytest.importorskip("benchmarks.guide_tables")


@pytest.mark.parametrize(
    ("page", "name"),
    [("network.md", "network_outputs"), ("embeddings.md", "second_moments"), ("../theory.md", "new_rows")],
)
def test_the_guide_has_the_kept_results(page: str, name: str) -> None:
    benchmark = import_module(f"benchmarks.{name}")
    if not benchmark.RESULTS.exists():
        pytest.skip(f"no results are kept: python -m benchmarks.{name}")
    lines = benchmark.guide_lines(json.loads(benchmark.RESULTS.read_text(encoding="utf-8")))
    text = (guide_tables.GUIDES / page).read_text(encoding="utf-8")
    assert guide_tables.place(text, name, lines) == text


def test_a_page_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for the table"):
        guide_tables.place("text", "second_moments", [])
