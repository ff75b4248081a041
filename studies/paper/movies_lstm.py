"""An LSTM over descriptions with much padding, with a choice of activation, and its gradient written out.

Automatic differentiation of a hundred short steps spends most of its time on bookkeeping: written out, an epoch of the
paper's network takes a third of the processor time.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from studies.arrays import Array

#: Of the LSTM's cell; the paper's is ReLU.
Activation: TypeAlias = Literal["relu", "tanh"]


class Words(NamedTuple):
    """Words of descriptions in the order of an LSTM's steps, without padding that other rows share.

    Padding comes first. Until its first word a row is in the state of every other row with the same protected columns,
    so one row for each of these goes through the padding, the one whose words start last; the others take its state
    when they start. Four of five words are padding.

    Attributes
    ----------
    rows, steps : Tensor of int
        Row and step of each word that is read, by step.
    sizes : list of int
        Words that are read in each step; once a row has started it is read in every step.
    joins : list of Tensor of int
        For each step, the places of the rows whose state those that start take.
    back : Tensor of int
        Place of each row at the end.
    """

    rows: Tensor
    steps: Tensor
    sizes: list[int]
    joins: list[Tensor]
    back: Tensor

    @classmethod
    def of(cls, tokens: Tensor, groups: Tensor) -> Words:
        """Order the words of tokens (n, steps) with groups (n,) of rows that share what padding becomes.

        Examples
        --------
        >>> import torch
        >>> tokens = torch.tensor([[0, 0, 7], [0, 5, 6], [0, 0, 0]])
        >>> words = Words.of(tokens, torch.zeros(3, dtype=torch.long))
        >>> words.sizes, words.rows.tolist()
        ([1, 2, 3], [2, 2, 1, 2, 1, 0])
        """
        n_steps = tokens.shape[1]
        word, group = (tokens != 0).numpy(), groups.numpy()
        starts = np.where(word.any(axis=1), word.argmax(axis=1), n_steps - 1)  # no word: read the last padding
        order = np.argsort(starts, kind="stable")
        last = np.zeros(group.max() + 1, dtype=np.int64)
        last[group[order]] = order  # of several rows the one that starts last
        others = order[~np.isin(order, last)]
        place = np.concatenate([last, others])
        ends = len(last) + np.searchsorted(starts[others], np.arange(n_steps), side="right")
        begins = np.concatenate([[len(last)], ends[:-1]])
        joins = [torch.from_numpy(group[place[a:b]]) for a, b in zip(begins, ends, strict=True)]
        rows = np.concatenate([place[:size] for size in ends])
        back = np.empty_like(place)
        back[place] = np.arange(len(place))
        steps = np.repeat(np.arange(n_steps), ends)
        return cls(torch.from_numpy(rows), torch.from_numpy(steps), ends.tolist(), joins, torch.from_numpy(back))


class _Cells(torch.autograd.Function):
    """The LSTM's steps: state after the last one, from what drives each word (m, 4 units), and its gradient."""

    @staticmethod
    def forward(ctx: Any, driven: Tensor, recurrent: Tensor, words: Words, activation: Activation) -> Tensor:
        gates, R = driven.detach().numpy().copy(), recurrent.detach().numpy()
        m, ends = len(R), np.cumsum(words.sizes)
        h_before, c_before, c_after = (np.empty((len(gates), m), gates.dtype) for _ in range(3))
        h = c = np.zeros((words.sizes[0] - len(words.joins[0]), m), gates.dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # a state that has grown beyond all numbers ends a training
            for size, end, join in zip(words.sizes, ends, words.joins, strict=True):
                step, old, joins = slice(end - size, end), len(h), join.numpy()
                for before, state in ((h_before[step], h), (c_before[step], c)):
                    before[:old] = state
                    before[old:] = state[joins] if old else 0.0
                gate = gates[step]
                gate += h_before[step] @ R
                gate[:, : 3 * m] = _sigmoid(gate[:, : 3 * m])
                gate[:, 3 * m :] = _activate(gate[:, 3 * m :], activation)
                enter, forget, leave, new = (gate[:, k * m : (k + 1) * m] for k in range(4))
                c = forget * c_before[step] + enter * new
                c_after[step] = _activate(c, activation)
                h = leave * c_after[step]
        ctx.kept = gates, h_before, c_before, c_after, R, words, activation
        return torch.from_numpy(h)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        gates, h_before, c_before, c_after, R, words, activation = ctx.kept
        m, ends, dh = len(R), np.cumsum(words.sizes), grads[0].numpy().copy()
        dc, driven = np.zeros_like(dh), np.empty_like(gates)
        enter, forget, leave, new = (gates[:, k * m : (k + 1) * m] for k in range(4))
        with np.errstate(over="ignore", invalid="ignore"):
            # What does not depend on later steps, for all words at once.
            state = leave * _slope(c_after, activation)
            left = c_after * leave * (1.0 - leave)
            entered, kept = new * enter * (1.0 - enter), c_before * forget * (1.0 - forget)
            made = enter * _slope(new, activation)
            for k in reversed(range(len(ends))):
                step, joins = slice(ends[k] - words.sizes[k], ends[k]), words.joins[k].numpy()
                d, old = driven[step], words.sizes[k] - len(joins)
                dc += dh * state[step]
                np.multiply(dc, entered[step], out=d[:, :m])
                np.multiply(dc, kept[step], out=d[:, m : 2 * m])
                np.multiply(dh, left[step], out=d[:, 2 * m : 3 * m])
                np.multiply(dc, made[step], out=d[:, 3 * m :])
                dc, dh = dc * forget[step], d @ R.T
                if len(joins) and old:
                    for part in (dc, dh):
                        np.add.at(part, joins, part[old:])
                dc, dh = dc[:old], dh[:old]
        return torch.from_numpy(driven), torch.from_numpy(h_before.T @ driven), None, None


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def _activate(x: Array, activation: Activation) -> Array:
    return np.maximum(x, 0.0) if activation == "relu" else np.tanh(x)


def _slope(activated: Array, activation: Activation) -> Array:
    """Derivative of an activation, from its value."""
    return (activated > 0.0).astype(activated.dtype) if activation == "relu" else 1.0 - activated**2


class LSTM(nn.Module):
    """An LSTM with a choice of activation; torch's own has tanh only.

    With ReLU, as in the paper, nothing bounds its state, which can grow with each of the 100 steps.

    Examples
    --------
    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> tokens = torch.tensor([[0, 0, 7, 1], [0, 5, 6, 2]])
    >>> words = Words.of(tokens, torch.zeros(2, dtype=torch.long))
    >>> LSTM(3, 5, "relu")(torch.randn(2, 4, 3)[words.rows, words.steps], words).shape
    torch.Size([2, 5])
    """

    def __init__(self, n_inputs: int, n_units: int, activation: Activation) -> None:
        super().__init__()
        self.activation = activation
        self.kernel = nn.Parameter(nn.init.xavier_uniform_(torch.empty(n_inputs, 4 * n_units)))
        self.recurrent = nn.Parameter(nn.init.orthogonal_(torch.empty(n_units, 4 * n_units)))
        self.bias = nn.Parameter(torch.zeros(4 * n_units))
        nn.init.ones_(self.bias.data[n_units : 2 * n_units])  # an open forget gate, as Keras has it

    def forward(self, x: Tensor, words: Words) -> Tensor:
        """State after the last step (n, units), from the inputs of the words that are read (m, inputs)."""
        driven = torch.addmm(self.bias, x, self.kernel)
        state: Tensor = _Cells.apply(driven, self.recurrent, words, self.activation)  # type: ignore[no-untyped-call]
        return state[words.back]
