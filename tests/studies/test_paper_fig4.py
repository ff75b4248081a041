"""The paper's influence of red: zero by construction, whatever the network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from studies.paper import fig4, movies_reasons
from studies.paper.colored_mnist_early import papers_influence
from studies.paper.record import Record

RESULTS = Path(__file__).parents[2] / "studies" / "results"


@pytest.mark.parametrize("seed", range(3))
def test_the_papers_influence_is_zero_for_any_responses(seed: int) -> None:
    rng = np.random.default_rng(seed)
    red = (rng.random(300) < 0.5).astype(float)
    responses = np.maximum(rng.normal(size=(300, 20)) + 3.0 * red[:, None], 0.0)  # nothing but colour
    assert np.abs(papers_influence(responses, red, project=True)).max() < 1e-12
    assert papers_influence(responses, red, project=False).min() > 1.0


@pytest.mark.parametrize(("test", "says"), [(0.52, "reads the colour"), (0.93, "mostly reads the digit")])
def test_sentences_follow_the_numbers(test: float, says: str) -> None:
    runs = [{"label": "layer, the authors'", "test": test, "seconds": 60.0}]
    assert any(says in sentence for sentence in fig4.reasons(runs, -1.0, []))


def test_stored_findings_on_networks_are_those_that_the_programs_write() -> None:
    digits, movies = (Record.read(RESULTS / f"{name}.json") for name in ("fig4", "movies"))
    assert digits.reasons == fig4.reasons(*(digits.data[key] for key in ("runs", "red_and_label", "early")))
    data = dict(movies.data)
    assert (movies.reasons, movies.missed) == (movies_reasons.reasons(data), movies_reasons.missed(data))
