"""The paper's network for the descriptions of movies, and its training, which goes on where it was stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, poisson_nll_loss

from setsquare.nn import Orthogonalize, fit_layer
from studies.paper.movies_lstm import LSTM, Activation, Words
from studies.paper.published_layers import BatchProjection

#: Words of the authors' list; 0 is the padding.
N_WORDS = 10_000
#: Layer between the embedding and the LSTM: none, ours, or the authors', which projects each batch on its own.
Correction: TypeAlias = Literal["without", "layer", "published"]
#: Batch of Keras' ``predict``, in which the authors' layer projects at prediction.
PREDICTED = 32


class Network(nn.Module):
    """Embedding (100 words × 100), LSTM (50), dense layers (25, 5, 1) with dropout; starts as Keras starts it."""

    def __init__(
        self, activation: Activation, correction: Correction = "without", n_protected: int | None = None
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_WORDS + 1, 100)
        nn.init.uniform_(self.embedding.weight, -0.05, 0.05)
        kinds: dict[str, Callable[[], nn.Module]] = {
            "layer": lambda: Orthogonalize(n_protected),
            "published": BatchProjection,
        }
        self.correction = kinds[correction]() if correction != "without" else None
        self.lstm = LSTM(100, 50, activation)
        self.dense = nn.ModuleList([nn.Linear(50, 25), nn.Linear(25, 5), nn.Linear(5, 1)])
        for name, parameter in self.dense.named_parameters():
            (nn.init.zeros_ if name.endswith("bias") else nn.init.xavier_uniform_)(parameter)

    def represent(self, tokens: Tensor, protected: Tensor) -> Tensor:
        """What the LSTM makes of descriptions (n, 100): (n, 50)."""
        if self.correction is None:
            words = Words.of(tokens, torch.zeros(len(tokens), dtype=torch.long))
            x = self.embedding(tokens[words.rows, words.steps])
        else:
            words = Words.of(tokens, torch.unique(protected, dim=0, return_inverse=True)[1])
            x = self.correction(self.embedding(tokens), protected)[words.rows, words.steps]
        state: Tensor = self.lstm(x, words)
        return state

    def predict(self, state: Tensor) -> Tensor:
        """Logarithm of the predicted count (n,) from the LSTM's state (n, 50)."""
        first, second, last = self.dense
        hidden = torch.relu(first(dropout(state, 0.1, self.training)))
        hidden = torch.relu(second(dropout(hidden, 0.2, self.training)))
        eta: Tensor = last(dropout(hidden, 0.3, self.training))[:, 0]
        return eta

    def forward(self, tokens: Tensor, protected: Tensor) -> Tensor:
        """Logarithm of the predicted count (n,); the protected columns reach the correction only."""
        return self.predict(self.represent(tokens, protected))


class Rows(NamedTuple):
    """Tokens (n, 100), votes (n,), protected columns (n, p)."""

    tokens: Tensor
    votes: Tensor
    protected: Tensor

    def take(self, rows: Any) -> Rows:
        """Return some of the rows."""
        return Rows(*(part[rows] for part in self))

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[Rows]:
        """Cut into batches, in their order or in a random one."""
        n = len(self.votes)
        order = torch.arange(n) if generator is None else torch.randperm(n, generator=generator)
        return (self.take(rows) for rows in torch.split(order, size))


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a training: those of the paper, where it has them.

    Attributes
    ----------
    activation : {"relu", "tanh"}
    learning_rate : float
    epochs, patience : int
        At most so many epochs, and so many without a better loss on the validation rows.
    batch : int
    validation : float
        Share of the training rows that early stopping looks at: a fifth in the authors' code.
    last : bool
        Whether these are the last training rows, as Keras' ``validation_split`` takes them, or drawn by the seed.
    seed : int
        Draws the validation rows, the first weights, the order of the batches and what drops out.
    """

    activation: Activation = "relu"
    learning_rate: float = 1e-6
    epochs: int = 10
    patience: int = 3
    batch: int = 128
    validation: float = 0.1
    last: bool = False
    seed: int = 0


class Trained(NamedTuple):
    """A network as it was after its best epoch.

    Attributes
    ----------
    network : Network
    losses : list of float
        On the validation rows: before the training, and after each epoch.
    diverged : int or None
        Steps after which the loss was not finite, which ends the training.
    ended : bool
        Whether the rule of early stopping (or divergence) ended the training, not the time limit.
    validation : Tensor of int
        Numbers of the validation rows.
    seconds, before : float
        Processor time of all epochs, and of those before this call.
    """

    network: Network
    losses: list[float]
    diverged: int | None
    ended: bool
    validation: Tensor
    seconds: float
    before: float


def train(
    correction: Correction,
    rows: Rows,
    settings: Settings,
    *,
    checkpoint: Path | None = None,
    advance: Callable[[], object] = lambda: None,
    limit: float = float("inf"),
) -> Trained:
    """Train a network; after each epoch everything is kept in `checkpoint`, from which a run that was stopped goes on.

    The layer, where there is one, is at last fitted exactly to all rows.

    Parameters
    ----------
    correction : {"without", "layer", "published"}
    rows : Rows
        All training rows; some of them only tell when to stop.
    settings : Settings
    checkpoint : Path, optional
    advance : callable
        Called after each batch.
    limit : float
        Processor seconds after which no further epoch is begun in this call.
    """
    torch.manual_seed(settings.seed)
    network = Network(settings.activation, correction, rows.protected.shape[1])
    optimizer = torch.optim.Adam(network.parameters(), settings.learning_rate, fused=True)
    generator = torch.Generator().manual_seed(settings.seed)
    order = torch.randperm(len(rows.votes), generator=generator)
    held_out = round(settings.validation * len(order))
    order = torch.arange(len(order)).flip(0) if settings.last else order
    validation, training = rows.take(order[:held_out]), rows.take(order[held_out:])
    losses: list[float] = []
    best: dict[str, Any] = {}
    diverged, seconds, begin = None, 0.0, time.process_time()
    if checkpoint is not None and checkpoint.exists():
        kept = torch.load(checkpoint, weights_only=True)
        network.load_state_dict(kept["network"])
        optimizer.load_state_dict(kept["optimizer"])
        generator.set_state(kept["generator"])
        torch.set_rng_state(kept["dropout"])
        losses, best, seconds = kept["losses"], kept["best"], kept["seconds"]
    before = seconds
    while goes_on := len(losses) <= settings.epochs and len(losses) - _best(losses) <= settings.patience:
        if losses and time.process_time() - begin > limit:
            break
        start = time.process_time()
        if losses:
            done = _epoch(network, training, optimizer, generator, settings.batch, advance)
            if done < len(training.votes):
                diverged = (len(losses) - 1) * -(-len(training.votes) // settings.batch) + done // settings.batch
                break
        elif correction == "layer":  # in training mode a layer learns what it needs in eval
            network.represent(*training.take(slice(settings.batch))[::2])
        losses.append(loss_of(network, validation))
        if _best(losses) == len(losses) - 1:
            best = {name: value.clone() for name, value in network.state_dict().items()}
        seconds += time.process_time() - start
        if checkpoint is not None:
            kept = {
                "network": network.state_dict(),
                "optimizer": optimizer.state_dict(),
                "losses": losses,
                "best": best,
            }
            kept |= {"generator": generator.get_state(), "dropout": torch.get_rng_state(), "seconds": seconds}
            torch.save(kept, checkpoint.with_suffix(".part"))
            checkpoint.with_suffix(".part").replace(checkpoint)  # a whole file, whenever the machine stops
    network.load_state_dict(best)
    if correction == "layer":
        fit_layer(network, [(batch.tokens, batch.protected) for batch in rows.batches(500)], forward=_represent)
    ended = diverged is not None or not goes_on
    return Trained(network.eval(), losses, diverged, ended, order[:held_out], seconds, before)


def _best(losses: list[float]) -> int:
    return min(range(len(losses)), key=losses.__getitem__, default=0)


def _represent(network: nn.Module, batch: Any) -> None:
    assert isinstance(network, Network)
    network.represent(*batch)


def _epoch(
    network: Network,
    rows: Rows,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
    size: int,
    advance: Callable[[], object],
) -> int:
    """Train for an epoch; return the number of rows before the loss was no number any more."""
    network.train()
    done = 0
    for batch in rows.batches(size, generator):
        loss = poisson_nll_loss(network(batch.tokens, batch.protected), batch.votes)
        if not torch.isfinite(loss):
            break
        done += len(batch.votes)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        advance()
    return done


class Outcome(NamedTuple):
    """Logarithm of the predicted counts (n,), and the LSTM's states (n, 50)."""

    eta: Tensor
    state: Tensor


@torch.no_grad()
def evaluate(network: Network, rows: Rows) -> Outcome:
    """What a network puts out at test time."""
    network.eval()
    size = PREDICTED if isinstance(network.correction, BatchProjection) else 500
    state = torch.cat([network.represent(batch.tokens, batch.protected) for batch in rows.batches(size)])
    return Outcome(network.predict(state), state)


@torch.no_grad()
def mean_with_dropout(network: Network, state: Tensor) -> float:
    """Mean prediction from the LSTM's state while units drop out, as they do in training."""
    network.train()
    mean = float(network.predict(state).double().exp().mean())
    network.eval()
    return mean


def loss_of(network: Network, rows: Rows) -> float:
    """Mean Poisson loss of a network's predictions."""
    return float(poisson_nll_loss(evaluate(network, rows).eta.double(), rows.votes.double()))
