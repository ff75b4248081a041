"""Erasure without the protected columns at hand, beside LEACE of concept-erasure, on one core and on two.

    python -m benchmarks.bench_erasure                          # about 20 minutes
    python -m benchmarks.bench_erasure --cells build/erasure    # the same, and a run that was stopped goes on

What is timed, on both sides: from features and protected columns in memory, learn the erasure and apply it to the same
rows, all of which are returned. Ours is ``LinearOrthogonalizer(using="features").fit_transform``, with all its checks
of the input; theirs is ``LeaceEraser.fit`` and a call of the eraser, or ``LeaceFitter.update`` for batches of 4096 rows
and a call of its eraser, on tensors that share the memory of the arrays. Both have the same cores and as many threads
of BLAS and of torch. The two sides of a cell take turns in a process of its own, which keeps the memory that it frees;
where a round takes less than a few seconds, the first does not count.

What is left is the largest absolute correlation of a corrected feature with a protected column, computed in float64.
"Change" is the sum of squares of the change in proportion to that of the centred features: the least change is part of
the definition of both.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import setsquare as sq
from benchmarks.frame import Bound, Ratio, digits, main, part, plain, steps
from benchmarks.measure import KEEP_MEMORY, in_child, interleave

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it is built on what newer versions of torch deprecate
    from concept_erasure import LeaceEraser, LeaceFitter

QUICK = {"shrink": 20, "rounds": 1}
#: Rows, features, type, protected columns, and how many times as fast as each of theirs ours has to be.
SIZES = (
    (50_000, 768, "float32", 2, 2.0),
    (200_000, 768, "float32", 2, 2.0),
    (50_000, 4096, "float32", 2, 2.0),
    (1_000_000, 100, "float64", 10, 3.0),
)
#: Features from which a round takes so long that finding memory takes a negligible part of it.
LONG = 1000
OURS, LEACE, BATCHED = "ours, using features", "LEACE", "LEACE, batches of 4096 rows"
#: Largest correlation that may be left by ours, in single precision and in float64.
LEFT = {"float32": 1e-8, "float64": 1e-12}

Erase = Callable[[np.ndarray, np.ndarray], np.ndarray]


def draw(n: int, q: int, kind: str, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Features that know binary protected columns, and these."""
    rng = np.random.default_rng(0)
    X = (rng.random((n, p)) < 0.4).astype(kind)
    Z = rng.standard_normal((n, q), dtype=np.dtype(kind).type)
    Z += X @ rng.standard_normal((p, q), dtype=np.dtype(kind).type)
    return Z, X


def ours(Z: np.ndarray, X: np.ndarray) -> np.ndarray:
    return sq.LinearOrthogonalizer(using="features").fit_transform(Z, protected=X)


def leace(Z: np.ndarray, X: np.ndarray) -> np.ndarray:
    z = torch.from_numpy(Z)
    return LeaceEraser.fit(z, torch.from_numpy(X))(z).numpy()


def leace_batched(Z: np.ndarray, X: np.ndarray, batch: int = 4096) -> np.ndarray:
    z, x = torch.from_numpy(Z), torch.from_numpy(X)
    fitter = LeaceFitter(Z.shape[1], X.shape[1], dtype=z.dtype)
    for start in range(0, len(z), batch):
        fitter.update(z[start : start + batch], x[start : start + batch])
    return fitter.eraser(z).numpy()


METHODS: dict[str, Erase] = {OURS: ours, LEACE: leace, BATCHED: leace_batched}


def clock(n: int, q: int, kind: str, p: int, threads: int, peer: str, rounds: int) -> dict[str, Any]:
    """Seconds of each round of ours and of a peer on some cores, what each leaves, and how much it changes."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])  # ours takes as many threads as there are cores
    torch.set_num_threads(threads)
    Z, X = draw(n, q, kind, p)
    found: dict[str, Any] = {}
    todo = {name: lambda name=name: _note(found, name, METHODS[name](Z, X)) for name in (OURS, peer)}
    for name in todo:  # libraries are loaded and threads started
        METHODS[name](*draw(1000, 50, kind, p))
    first = 0 if q >= LONG else 1
    timed = interleave(todo, rounds + first)
    return {name: {"seconds": timed[name].seconds[first:], **judge(Z, X, found[name])} for name in todo}


def _note(found: dict[str, Any], name: str, erased: np.ndarray) -> None:
    found[name] = erased


def judge(Z: np.ndarray, X: np.ndarray, erased: np.ndarray) -> dict[str, float]:
    """Largest absolute correlation that is left, and the relative change of the features; in float64."""
    centred = X - X.mean(axis=0, dtype=np.float64)
    mean, before = erased.mean(axis=0, dtype=np.float64), Z.mean(axis=0, dtype=np.float64)
    cross, squares, change, whole = np.zeros((X.shape[1], Z.shape[1])), np.zeros(Z.shape[1]), 0.0, 0.0
    for start in range(0, len(Z), 2000):
        rows = slice(start, start + 2000)
        z, moved = erased[rows] - mean, erased[rows].astype(np.float64) - Z[rows]
        cross += centred[rows].T @ z
        squares += np.einsum("nq,nq->q", z, z)
        change += float(np.vdot(moved, moved))
        whole += float(((Z[rows] - before) ** 2).sum())
    left = cross / np.linalg.norm(centred, axis=0)[:, None] / np.sqrt(squares)
    return {"left": float(np.abs(left).max()), "change": change / whole}


def run(shrink: int = 1, rounds: int = 5) -> dict[str, Any]:
    cells = []
    counts = range(1, min(2, len(os.sched_getaffinity(0))) + 1)
    todo = [(*size, threads, peer) for size in SIZES for threads in counts for peer in (LEACE, BATCHED)]
    for n, q, kind, p, faster, threads, peer in steps(todo, "cells"):
        n, q = n // shrink, (q if shrink == 1 else q // 4)
        limit = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        repeats = rounds if q < LONG else -(-rounds // 3)
        timed = part(
            f"{n}x{q}-{threads}-{'leace' if peer == LEACE else 'batched'}",
            lambda a=(n, q, kind, p, threads, peer, repeats), e=KEEP_MEMORY | limit: in_child(clock, *a, **e),
        )
        what = f"{n} x {q} {kind}, {p} protected columns, {threads} thread{'s' if threads > 1 else ''}"
        cells.append({"what": what, "kind": kind, "peer": peer, "faster": faster, "timed": timed})
    return plain({"ratios": [_ratio(cell) for cell in cells], "bounds": _bounds(cells), "cells": cells})


def _ratio(cell: dict[str, Any]) -> Ratio:
    timed, peer = cell["timed"], cell["peer"]
    mine, theirs = ((name, timed[name]["seconds"]) for name in (OURS, peer))
    return Ratio.over(f"erasure, {cell['what']}", mine, theirs, "concept-erasure", 1.0 / cell["faster"])


def _bounds(cells: list[dict[str, Any]]) -> list[Bound]:
    """What ours leaves, at most, by type."""
    return [
        Bound(
            f"erasure, {kind}: largest abs. correlation left",
            max(cell["timed"][OURS]["left"] for cell in cells if cell["kind"] == kind),
            limit,
        )
        for kind, limit in LEFT.items()
    ]


def show(result: dict[str, Any]) -> None:
    columns = ("erasure", "peer", "ours, s", "peer, s", "times as fast", "left by ours", "by the peer", "change", "its")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for cell in result["cells"]:
        mine, theirs = cell["timed"][OURS], cell["timed"][cell["peer"]]
        a, b = np.median(mine["seconds"]), np.median(theirs["seconds"])
        faster = float(np.median(np.divide(theirs["seconds"], mine["seconds"])))
        left = f"{mine['left']:.0e} | {theirs['left']:.0e} | {mine['change']:.5f} | {theirs['change']:.5f}"
        print(f"| {cell['what']} | {cell['peer']} | {a:.2f} | {b:.2f} | {digits(faster)} | {left} |")


if __name__ == "__main__":
    main(run, show, QUICK)
