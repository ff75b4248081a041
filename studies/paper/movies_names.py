"""Names of the models of movies, and what their records hold; without torch, which the page does not need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from setsquare.document import p_value

#: Models: the LSTM as in the paper; at ten times its rate; and so that it trains; and one on sentence embeddings.
PAPER, FASTER = "LSTM, ReLU, rate 1e-6", "LSTM, ReLU, rate 1e-5"
TRAINED, TEXT = "LSTM, tanh, rate 3e-3", "MiniLM, Poisson model"
#: Corrections in the network, after its embedding: ours, and the authors', which projects each batch on its own.
LAYER, AUTHORS = "layer, ours", "layer, the authors'"


def training(data: Mapping[str, Any], model: str, correction: str) -> dict[str, Any] | None:
    """The training of a network with the paper's coding; None if it was not run."""
    wanted = (model, correction, "paper")
    rows = (one for one in data["trainings"] if (one["model"], one["correction"], one["coding"]) == wanted)
    return next(rows, None)


def both_p_values(one: Mapping[str, Any]) -> str:
    """The same in short, for a row of a table."""
    test, fit = (", ".join(p_value(effect[key]) for effect in one["effects"]) for key in ("p_model", "p_model_fit"))
    return f"{test}; training rows {fit}"


def model_p_values(one: Mapping[str, Any]) -> str:
    """p-values of actor and crew with model-based errors, as the paper has them, on test and on training rows."""
    test, fit = (" and ".join(p_value(effect[key]) for effect in one["effects"]) for key in ("p_model", "p_model_fit"))
    return f"{test} (training rows: {fit})"
