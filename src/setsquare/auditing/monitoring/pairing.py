"""Pairs of rows of two groups in the order of their arrival.

The k-th row of one group is compared with the k-th row, or the mean of the k-th block of rows, of the other. Which rows
form a pair depends on groups and order only, never on scores, so that under equal means every difference has mean 0
given the past.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array, BoolArray

#: Rows of the two groups after which the size of the blocks is fixed.
LEARN = 100
#: Largest number of rows of the larger group in a block.
MOST = 20
#: Rows of a group that wait for a partner; the oldest of more are dropped.
WAITING = 1000


@dataclass(frozen=True, slots=True)
class Pairing:
    """Rows that wait for a partner.

    Attributes
    ----------
    first, second : ndarray
        Waiting scores of the group and of the reference group.
    n_first, n_second : int
        Rows of the two seen so far.
    blocks : tuple of int
        Rows of the group, and of the reference group, in a pair; (0, 0) until `LEARN` rows were seen.
    dropped : int
        Rows that were dropped because too many were waiting.
    """

    first: Array
    second: Array
    n_first: int = 0
    n_second: int = 0
    blocks: tuple[int, int] = (0, 0)
    dropped: int = 0


def start_pairing() -> Pairing:
    """State before the first row."""
    return Pairing(np.zeros(0), np.zeros(0))


def pair_rows(state: Pairing, scores: Array, is_first: BoolArray) -> tuple[Pairing, Array]:
    """Pair new rows of two groups in their order; returns the new state and the differences.

    Parameters
    ----------
    state : Pairing
    scores : ndarray of shape (n,)
    is_first : boolean ndarray of shape (n,)
        Whether a row is of the group; the others are of the reference group.

    Examples
    --------
    >>> scores, is_first = np.arange(200.0), np.arange(200) % 2 == 0
    >>> state, differences = pair_rows(start_pairing(), scores, is_first)
    >>> len(differences), float(differences.mean()), state.blocks
    (100, -1.0, (1, 1))
    """
    blocks = state.blocks
    seen = state.n_first + state.n_second
    if blocks == (0, 0) and seen + len(scores) >= LEARN:
        blocks = _choose_blocks(state.n_first + int(is_first[: LEARN - seen].sum()))
    first = np.concatenate([state.first, scores[is_first]])
    second = np.concatenate([state.second, scores[~is_first]])
    counts = state.n_first + int(is_first.sum()), state.n_second + int((~is_first).sum())
    differences = np.zeros(0)
    if blocks != (0, 0):
        a, b = blocks
        n = min(len(first) // a, len(second) // b)
        differences = first[: n * a].reshape(n, a).mean(axis=1) - second[: n * b].reshape(n, b).mean(axis=1)
        first, second = first[n * a :], second[n * b :]
    over = max(len(first) - WAITING, 0) + max(len(second) - WAITING, 0)
    return Pairing(first[-WAITING:], second[-WAITING:], *counts, blocks, state.dropped + over), differences


def _choose_blocks(n_first: int) -> tuple[int, int]:
    """Rows of each group in a pair: one of the smaller group, somewhat fewer of the larger than its share allows."""
    small, large = sorted((n_first, LEARN - n_first))
    size = int(np.clip(0.8 * large / max(small, 1), 1, MOST))
    return (1, size) if n_first <= LEARN - n_first else (size, 1)
