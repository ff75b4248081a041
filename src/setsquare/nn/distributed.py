"""Sums over the processes of a distributed run."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor


def is_distributed() -> bool:
    """Return whether other processes hold rows of the same batch."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def sum_over_processes(part: Tensor, shared: bool = True) -> Tensor:
    """Sum over all processes; return ``part`` itself outside a distributed run, or if the rows are not ``shared``."""
    if shared and is_distributed():
        part = part.clone()
        dist.all_reduce(part)
    return part
