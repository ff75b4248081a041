"""The network of the coloured digits, what can be done about the colour, and the training."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from setsquare.errors import SecondMomentsWarning
from setsquare.nn import OrthogonalityConstraint, Orthogonalize, fit_layer
from setsquare.nn.functional import project_out

Where: TypeAlias = Literal["published", "post", "pre", "generalized"]
#: Share of the past in the averaged weights, a step.
AVERAGE = 0.99
#: Accuracy on the validation rows that a smaller penalty may cost.
NEAR = 0.01


@dataclass(frozen=True, slots=True)
class Mode:
    """What is done about the colour.

    Attributes
    ----------
    where : {"published", "post", "pre", "generalized"}, optional
        Correction of layers while training; "published" is the authors' layer.
    layers : tuple of int
        The convolutions that are corrected, of 1 and 2.
    inference : {"protected", "marginal", "off"}
        What a corrected layer does at test time.
    constraint : {"mean", "moments"}, optional
        What is pressed towards zero correlation with the protected columns in both convolutions: spatial means, or
        means and mean squares for each unit of ink.
    channels : {1, 2}, optional
        Map of the three channels of the input, the same for every pixel and fitted to inked pixels before training,
        that erases red: its means, or means and second moments.
    protected : {"red", "colour"}
        Red alone, or red and green (blue is the rest).
    grey : bool
        Take the colour out of the images themselves: the ceiling.
    """

    where: Where | None = None
    layers: tuple[int, ...] = (1,)
    inference: Literal["protected", "marginal", "off"] = "protected"
    constraint: Literal["mean", "moments"] | None = None
    channels: Literal[1, 2] | None = None
    protected: Literal["red", "colour"] = "red"
    grey: bool = False


MODES = {
    "uncorrected": Mode(),
    "published": Mode("published", inference="off"),
    "second moments, red": Mode(channels=2),
    "post": Mode("post"),
    "post, off": Mode("post", inference="off"),
    "pre": Mode("pre"),
    "generalized": Mode("generalized"),
    "generalized, marginal": Mode("generalized", inference="marginal"),
    "generalized 1+2": Mode("generalized", (1, 2)),
    "pooled, red": Mode(constraint="mean"),
    "pooled, colour": Mode(constraint="mean", protected="colour"),
    "moments, red": Mode(constraint="moments"),
    "moments, colour": Mode(constraint="moments", protected="colour"),
    "grey": Mode(grey=True),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a training; those of the paper by default.

    Attributes
    ----------
    epochs, patience, batch : int
    validation : float
        Share of the training rows that is held out.
    learning_rate : float
    penalty : float
        Weight of the explained shares of variance in the constrained modes, halved.
    monitor : {"accuracy", "loss"}
        What early stopping looks at on the validation rows; the paper does not say. The constrained modes look at the
        penalty, see :func:`train`.
    n_train : int, optional
        Use so many training rows only.
    """

    epochs: int = 100
    patience: int = 25
    batch: int = 128
    validation: float = 0.2
    learning_rate: float = 1e-3
    penalty: float = 36.0
    monitor: Literal["accuracy", "loss"] = "accuracy"
    n_train: int | None = None


class Published(nn.Module):
    """The authors' layer: residuals of the batch's regression on (1, red) in training, nothing in ``eval``."""

    def forward(self, y: Tensor, protected: Tensor) -> Tensor:
        """Correct a batch; the means are removed, too."""
        return project_out(y, protected) - y.mean(0) if self.training else y


class Responses(NamedTuple):
    """What the network puts out: the score (n,), and both convolutions after ReLU and correction."""

    score: Tensor
    first: Tensor
    second: Tensor


class Network(nn.Module):
    """The published network; a correction sits behind (or before) the ReLU of its convolutions."""

    def __init__(self, mode: Mode) -> None:
        super().__init__()
        self.before = mode.where in ("pre", "generalized")
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3)
        self.hidden, self.head = nn.Linear(16 * 12 * 12, 64), nn.Linear(64, 1)
        for name, parameter in self.named_parameters():  # as Keras starts them
            (nn.init.zeros_ if name.endswith("bias") else nn.init.xavier_uniform_)(parameter)
        self.channels = None if mode.channels is None else _erasure(mode.channels)
        self.corrections = nn.ModuleDict({str(k): _correction(mode) for k in mode.layers if mode.where is not None})

    def forward(self, images: Tensor, protected: Tensor) -> Responses:
        """Score and responses of images (n, 3, 28, 28); the protected columns reach the corrections only."""
        images = images if self.channels is None else self.channels(images, protected)
        first = self._respond("1", self.first(images), protected)
        second = self._respond("2", self.second(first), protected)
        hidden = torch.relu(self.hidden(torch.max_pool2d(second, 2).flatten(1)))
        return Responses(self.head(hidden)[:, 0], first, second)

    def _respond(self, name: str, pre: Tensor, protected: Tensor) -> Tensor:
        if name not in self.corrections:
            return torch.relu(pre)
        correct = self.corrections[name]
        return torch.relu(correct(pre, protected)) if self.before else correct(torch.relu(pre), protected)


def _erasure(moments: Literal[1, 2]) -> Orthogonalize:
    return Orthogonalize(1, inference="features", rows="pixels", moments=moments)


def _correction(mode: Mode) -> nn.Module:
    if mode.where == "published":
        return Published()
    activation = "relu" if mode.where == "generalized" else None
    return Orthogonalize(1, mode.where, activation, inference=mode.inference)


def pooled(responses: Responses, images: Tensor, mode: Mode) -> list[Tensor]:
    """What the penalty presses towards zero correlation with the colour: (n, filters) for each kind of summary."""
    parts = [part for layer in (responses.first, responses.second) for part in (layer, layer.square())]
    if mode.constraint == "mean":
        return [part.mean((2, 3)) for part in parts[::2]]
    ink = images.sum(1).mean((1, 2))[:, None]
    return [part.mean((2, 3)) / ink for part in parts]


class Penalty(nn.ModuleList):
    """Penalty on the share of variance that the colour explains, summed over the kinds of summary."""

    def __init__(self, mode: Mode, n_protected: int, settings: Settings) -> None:
        n_kinds = 2 if mode.constraint == "mean" else 4
        super().__init__(
            OrthogonalityConstraint(n_protected, penalty=settings.penalty, rate=0.0, scale="shared")
            for _ in range(n_kinds)
        )

    def forward(self, summaries: Sequence[Tensor], protected: Tensor) -> Tensor:
        """Penalty of a batch."""
        parts: list[Tensor] = [part(summary, protected) for part, summary in zip(self, summaries, strict=True)]
        return torch.stack(parts).sum()


class Rows(NamedTuple):
    """Images (n, 3, 28, 28), labels (n,), protected columns (n, p)."""

    images: Tensor
    label: Tensor
    protected: Tensor

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[Rows]:
        """Cut into batches, in their order or in a random one."""
        n = len(self.label)
        order = torch.arange(n) if generator is None else torch.randperm(n, generator=generator)
        return (Rows(*(part[rows] for part in self)) for rows in torch.split(order, size))


class Outcome(NamedTuple):
    """Scores (n,), the first convolution's responses (n, 5408), and pooled responses of some rows."""

    score: Tensor
    first: Tensor
    pooled: list[Tensor]


@torch.no_grad()
def evaluate(network: Network, rows: Rows, mode: Mode, *, keep_first: bool = False) -> Outcome:
    """What the network puts out for some rows at test time."""
    network.eval()
    parts = []
    for batch in rows.batches(500):
        responses = network(batch.images, batch.protected)
        first = responses.first.flatten(1) if keep_first else responses.first[:, :0, 0, 0]
        parts.append([responses.score, first, *pooled(responses, batch.images, mode)])
    score, first, *summaries = (torch.cat(part) for part in zip(*parts, strict=True))
    return Outcome(score, first, summaries)


def train(
    mode: Mode,
    training: Rows,
    validation: Rows,
    settings: Settings,
    seed: int,
    advance: Callable[[], object],
    checkpoint: Path | None = None,
) -> tuple[Network, dict[str, float]]:
    """Train a network; of all epochs, the one is returned that was best on the validation rows.

    After each epoch everything is kept in `checkpoint`, from which a run that was stopped goes on; ``before`` are the
    processor seconds that were spent until then.

    With a constraint that is the one with the smallest penalty, of those whose accuracy is within :data:`NEAR` of the
    best: a network whose units have died has no penalty, and no use.
    """
    torch.manual_seed(seed)
    network = Network(mode)
    if network.channels is not None:  # nothing is trained before it, so that it is fitted once
        batches = [(batch.images, batch.protected) for batch in training.batches(500)]
        with warnings.catch_warnings():  # no map of three channels is exact: the study says how much is left
            warnings.simplefilter("ignore", SecondMomentsWarning)
            fit_layer(network, batches, network.channels, forward=_fit_to_ink)
    average = copy.deepcopy(network)
    penalty = Penalty(mode, training.protected.shape[1], settings)
    optimizer = torch.optim.Adam(network.parameters(), settings.learning_rate)
    generator = torch.Generator().manual_seed(seed)
    best, top, kept = -float("inf"), 0.0, 0.0
    found, chosen, epoch, n_steps = copy.deepcopy(network), 0, 0, 0
    begin, before = time.process_time(), 0.0
    if checkpoint is not None and checkpoint.exists():
        old = torch.load(checkpoint, weights_only=True)
        *networks, optimizer_state = old["states"]
        for part, state in zip((network, average, found), networks, strict=True):
            part.load_state_dict(state)
        optimizer.load_state_dict(optimizer_state)
        generator.set_state(old["generator"])
        best, top, kept, chosen, epoch, n_steps, before = old["numbers"]
    while epoch < settings.epochs:
        epoch += 1
        network.train()
        for batch in training.batches(settings.batch, generator):
            responses = network(batch.images, batch.protected)
            loss = cross_entropy(responses.score, batch.label)
            if mode.constraint is not None:
                loss = loss + penalty(pooled(responses, batch.images, mode), batch.protected)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            n_steps += 1
            _follow(average, network, min(AVERAGE, n_steps / (n_steps + 9.0)))
        advance()
        candidate = network if mode.constraint is None else average
        reached, quality = _quality(candidate, validation, mode, settings)
        if reached >= top - NEAR and (quality > best or kept < reached - NEAR):
            best, kept, chosen, found = quality, reached, epoch, copy.deepcopy(candidate)
        top = max(top, reached)
        # An accuracy of 1 cannot be improved on, so waiting would change nothing.
        if epoch - chosen >= settings.patience or best == 1.0:
            break
        if checkpoint is not None:
            states = [*(part.state_dict() for part in (network, average, found)), optimizer.state_dict()]
            numbers = [best, top, kept, chosen, epoch, n_steps, before + time.process_time() - begin]
            now = {"states": states, "generator": generator.get_state(), "numbers": numbers}
            torch.save(now, checkpoint.with_suffix(".part"))
            checkpoint.with_suffix(".part").replace(checkpoint)  # a whole file, whenever the machine stops
    return found, {"epochs": epoch, "best_epoch": chosen, "before": before}


def _fit_to_ink(network: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Run the channel map alone, on pixels with ink."""
    images, red = batch
    assert isinstance(network, Network) and network.channels is not None
    corrected: Tensor = network.channels(images, red, images.sum(1) > 0.0)
    return corrected


@torch.no_grad()
def _follow(average: Network, network: Network, past: float) -> None:
    for old, new in zip(average.parameters(), network.parameters(), strict=True):
        old.lerp_(new, 1.0 - past)


def _quality(network: Network, rows: Rows, mode: Mode, settings: Settings) -> tuple[float, float]:
    """Validation accuracy, and what is to be as large as can be: it, or minus the loss; else minus the penalty."""
    seen = evaluate(network, rows, mode)
    reached = accuracy(seen.score, rows.label)
    if mode.constraint is None:
        return reached, reached if settings.monitor == "accuracy" else -float(cross_entropy(seen.score, rows.label))
    return reached, -float(Penalty(mode, rows.protected.shape[1], settings)(seen.pooled, rows.protected))


def accuracy(score: Tensor, label: Tensor) -> float:
    """Share of the rows whose score has the sign of the label."""
    return float(((score > 0.0) == (label > 0.5)).float().mean())
