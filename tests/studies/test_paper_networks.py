"""Networks of appendices F.5 and F.6: sizes of their layers, their settings, and where the authors' layers sit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from studies.paper import movies, movies_network
from studies.paper.catalogue import targets
from studies.paper.colored_mnist_training import MODES, Published, Settings
from studies.paper.colored_mnist_training import Network as Digits
from studies.paper.movies_lstm import LSTM, Words
from studies.paper.movies_network import Network
from studies.paper.published_layers import BatchProjection


def test_layers_of_the_movies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embedding 100, LSTM 50 with ReLU, dropout .1, dense 25, .2, dense 5, .3, dense 1, exponential."""
    rates: list[float] = []

    def recorded(x: Tensor, rate: float, training: bool) -> Tensor:
        rates.append(rate)
        return nn.functional.dropout(x, rate, training)

    monkeypatch.setattr(movies_network, "dropout", recorded)
    network = Network("relu", "published", 2)
    tokens, protected = torch.randint(1, 9000, (40, 100)), torch.randint(0, 2, (40, 2)).float()
    assert network(tokens, protected).shape == (40,) and rates == [0.1, 0.2, 0.3]
    assert network.embedding.embedding_dim == 100 and network.embedding.num_embeddings > 9999
    assert (network.lstm.kernel.shape, network.lstm.recurrent.shape) == ((100, 4 * 50), (50, 4 * 50))
    assert [(layer.in_features, layer.out_features) for layer in network.dense] == [(50, 25), (25, 5), (5, 1)]
    assert isinstance(network.correction, BatchProjection)
    assert (movies.PAPERS.activation, movies.PAPERS.learning_rate) == ("relu", 1e-6)
    assert (movies.PAPERS.epochs, movies.PAPERS.batch, movies.PAPERS.patience) == (1000, 128, 10)


def test_layers_of_the_digits() -> None:
    """Convolutions with 8 and 16 filters of 3 x 3, ReLU, the layer behind the first, pooling 2 x 2, dense 64 and 1."""
    network = Digits(MODES["published"])
    for layer, size in ((network.first, (3, 8)), (network.second, (8, 16))):
        assert (layer.in_channels, layer.out_channels) == size and layer.kernel_size == (3, 3)
    assert (network.hidden.in_features, network.hidden.out_features) == (16 * 12 * 12, 64)  # 28 - 2 - 2, halved
    assert (network.head.in_features, network.head.out_features) == (64, 1)
    assert list(network.corrections) == ["1"] and isinstance(network.corrections["1"], Published)
    images, red = torch.rand(30, 3, 28, 28), (torch.arange(30) % 3 == 0).float()[:, None]
    found = network.train()(images, red)
    assert found.score.shape == (30,) and found.first.min() < 0.0 <= found.second.min()  # behind the ReLU
    settings, printed = Settings(), targets()["colored_mnist"]
    chosen = (settings.epochs, settings.patience, settings.batch, settings.validation)
    assert chosen == tuple(printed[key] for key in ("epochs", "patience", "batch", "validation"))


def test_a_linear_map_keeps_a_projection_and_an_lstm_does_not() -> None:
    """Section 4.2.3: behind the embedding the layer still holds before the LSTM's activations, not behind them."""
    torch.manual_seed(0)
    group = torch.arange(200).remainder(2).double()
    words = torch.randn(200, 5, 3, dtype=torch.float64) * (1.0 + 2.0 * group[:, None, None]) + group[:, None, None]
    lstm = LSTM(3, 4, "relu").double()

    def effect(values: Tensor) -> float:
        return float((values[group == 1].mean(0) - values[group == 0].mean(0)).abs().max())

    with torch.no_grad():
        corrected = BatchProjection()(words, group[:, None])
        order = Words.of(torch.ones(200, 5, dtype=torch.long), torch.arange(200))
        assert effect(words) > 0.5 and effect(corrected) < 1e-12
        assert effect(corrected @ lstm.kernel) < 1e-12
        assert effect(lstm(corrected[order.rows, order.steps], order)) > 0.01
