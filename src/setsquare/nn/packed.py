"""Packed sequences of recurrent layers as padded ones, and back."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence


def unpack(packed: PackedSequence) -> tuple[Tensor, Tensor]:
    """Return padded sequences (n, steps, units) in the order of the batch, and which steps count (n, steps)."""
    y, lengths = pad_packed_sequence(packed, batch_first=True)
    return y, torch.arange(y.shape[1])[None] < lengths[:, None]


def repack(y: Tensor, like: PackedSequence) -> PackedSequence:
    """Pack sequences (n, steps, units) as ``like``.

    Examples
    --------
    >>> import torch
    >>> packed = pack_padded_sequence(torch.randn(2, 3, 4), torch.tensor([1, 3]), True, enforce_sorted=False)
    >>> bool((repack(unpack(packed)[0], packed).data == packed.data).all())
    True
    """
    _, lengths = pad_packed_sequence(like, batch_first=True)
    order = like.sorted_indices
    rows, lengths = (y, lengths) if order is None else (y[order], lengths[order.cpu()])
    data = pack_padded_sequence(rows, lengths, batch_first=True).data
    return PackedSequence(data, like.batch_sizes, like.sorted_indices, like.unsorted_indices)
