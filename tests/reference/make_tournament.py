"""Write the lowest losses that the brute-force reference of the solver tournament finds: ``values/tournament.json``.

    python -m tests.reference.make_tournament [number of starts]

The reference shares no code with the library (``tests/theorems/tournament.py``). It takes some minutes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from tests.theorems.tournament import N_PROBLEMS, Reference, draw

FILE = Path(__file__).parent / "values" / "tournament.json"


def main(n_starts: int = 12) -> None:
    """Search each problem from so many starts, and keep what an earlier search found if it is lower."""
    before = json.loads(FILE.read_text())["losses"] if FILE.exists() else []
    losses = []
    for seed in range(N_PROBLEMS):
        found = Reference(draw(seed)).best(n_starts)
        known = before[seed] if seed < len(before) and before[seed] is not None else np.inf
        lowest = min(found, known)
        losses.append(float(f"{lowest:.12g}") if np.isfinite(lowest) else None)
    FILE.write_text(json.dumps({"n_starts": n_starts, "losses": losses}) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
