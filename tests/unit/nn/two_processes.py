"""Two processes that work together, ended from outside.

A process that ends by itself can wait for ever: torch joins the threads of a process group while it holds Python's
lock, and such a thread may need that lock to let go of its last tensor (seen in one of thirty runs with torch 2.13).

Importing torch and transformers takes longer than the work: one server imports them, and the processes are its forks.
"""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

METHOD = "forkserver" if sys.platform == "linux" else "spawn"  # elsewhere libraries may not survive a fork
NETWORKS = [
    f"transformers.models.{name}.modeling_{name}" for name in ("resnet", "vit", "convnext", "bert", "gpt2", "llama")
]

#: Seconds after which two processes that are not done are taken to wait for each other.
MOST_SECONDS = 240


def run(work: Callable[..., None], folder: Path, *args: Any) -> None:
    """Call ``work(rank, folder, *args)`` in two processes of one group; fail if they raise or do not end."""
    if METHOD == "forkserver":  # it leaves out what is not installed
        mp.get_context(METHOD).set_forkserver_preload(["setsquare.nn", "torch.distributed", work.__module__, *NETWORKS])
    processes = mp.start_processes(
        _take_part, args=(work, str(folder), args), nprocs=2, join=False, start_method=METHOD
    )
    done, end = [folder / f"done-{rank}" for rank in (0, 1)], monotonic() + MOST_SECONDS
    try:
        while not all(path.exists() for path in done):
            assert not processes.join(timeout=0.2), "a process ended before its work was done"
            stacks = "".join(path.read_text() for path in folder.glob("stacks-*"))
            assert monotonic() < end and not stacks, f"the processes wait for each other\n{stacks}"
    finally:
        for process in processes.processes:
            process.kill()


def _take_part(rank: int, work: Callable[..., None], folder: str, args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    with open(f"{folder}/stacks-{rank}", "w") as stacks:
        faulthandler.dump_traceback_later(MOST_SECONDS - 20, file=stacks)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/meet",
            rank=rank,
            world_size=2,
            timeout=timedelta(seconds=MOST_SECONDS // 2),
        )
        work(rank, folder, *args)
        Path(folder, f"done-{rank}").touch()
        Event().wait()  # until it is killed
