"""How long a fit would take on a cluster, worked out from what was measured on one machine.

    time       = reading + work + network + scheduling
    reading    = v n b / (N r)          n rows of b bytes, N nodes that read r bytes a second, v times
    work       = n i t / N              i iterations, t seconds by row and iteration on such a machine
    network    = k (B s + N c) / w      k passes, B sums of s bytes, N tasks of c bytes, a link of w bytes a second
    scheduling = k T o                  T tasks a pass, o seconds each

The network is counted as if all of it went through one link, which a tree of sums does not do: an upper end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from setsquare.rows.dask import FAN_IN


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is assumed, not measured.

    Attributes
    ----------
    rows, blocks, nodes : int
    reading, link : float
        Bytes a second that a node reads, and that its link carries.
    task : float
        Seconds that the scheduler takes for a task.
    holds : bool
        Whether the nodes have memory for their rows, and read them once; else they read them in every pass.
    """

    reading: float
    link: float
    holds: bool
    rows: int = 10**9
    blocks: int = 1000
    nodes: int = 50
    task: float = 1e-3


#: The ends of the range: memory for all rows, fast discs and network; or neither.
BEST = Cluster(reading=1e9, link=1.25e9, holds=True)
WORST = Cluster(reading=2e8, link=1.25e8, holds=False)


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured for these numbers of features and protected columns, and out of core.

    Attributes
    ----------
    q, p, iterations, cores : int
    row : tuple of float
        Seconds by row and iteration in memory: median, smallest, largest.
    stream : float
        Time out of core over time in memory, by row and iteration: reading, decoding and coding in every pass.
    passes : float
        Passes for each iteration, those before the first and after the last included.
    sums, sent : int
        Bytes of a block's sums, and of a task.
    """

    q: int
    p: int
    iterations: int
    cores: int
    row: tuple[float, float, float]
    stream: float
    passes: float
    sums: int
    sent: int

    @classmethod
    def of(cls, growth: Mapping[str, Any], out_of_core: Mapping[str, Any]) -> Measured:
        """Take it from the files of both benchmarks."""
        unit, whole = growth["result"]["unit"], out_of_core["result"]["whole"]
        row = [visit["seconds"] / visit["n"] / visit["n_iter"] for visit in unit]
        return cls(
            unit[0]["q"],
            unit[0]["p"],
            unit[0]["n_iter"],
            growth["cores"],
            (float(np.median(row)), min(row), max(row)),
            out_of_core["result"]["ratios"][0]["median"],
            whole["passes"] / whole["n_iter"],
            growth["result"]["traffic"]["sums"],
            growth["result"]["traffic"]["task"],
        )

    @property
    def stored(self) -> int:
        """Bytes of a row in the files: single precision, and the outcome."""
        return 4 * (self.q + self.p + 1)

    @property
    def held(self) -> int:
        """Bytes of a row on a worker: as read, and in double precision with a basis of the protected columns."""
        return self.stored + 8 * (1 + self.q + 2 * self.p + 2)

    @property
    def n_passes(self) -> int:
        """Passes over the rows."""
        return round(self.passes * self.iterations)


def n_tasks(blocks: int) -> int:
    """Tasks of a pass: one a block, and the tree that merges their sums.

    >>> n_tasks(1000)
    1144
    """
    total = blocks
    while blocks > 1:
        blocks = -(-blocks // FAN_IN)
        total += blocks
    return total


def seconds(cluster: Cluster, measured: Measured) -> dict[str, float]:
    """Parts of the time, by name."""
    k = measured.n_passes
    row = measured.row[1] if cluster.holds else measured.row[2] * measured.stream
    traffic = cluster.blocks * measured.sums + cluster.nodes * measured.sent
    return {
        "reading": (1 if cluster.holds else k) * cluster.rows * measured.stored / (cluster.nodes * cluster.reading),
        "work": cluster.rows * measured.iterations * row / cluster.nodes,
        "network": k * traffic / cluster.link,
        "scheduling": k * n_tasks(cluster.blocks) * cluster.task,
    }
