"""Table 1 of the paper at the size of MIMIC-CXR: the experiment on generated files of that size.

    python -m benchmarks.bench_embeddings           # 181342 x 1376 float32, 1 GB on disk: about 3 minutes
    python -m benchmarks.bench_embeddings --whole   # with all splits of the patients: longer

The files have the format of the real ones; their values are drawn. Nothing that they say of effusion means anything.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frame import Ratio, main, plain

QUICK = {"rows": 20_000}
COLUMNS, TEST = 1376, 3041


def write(folder: Path, rows: int) -> None:
    """Write both splits: embeddings with a falling spectrum that know of the patient, and tables of the patients."""
    import pandas as pd

    rng = np.random.default_rng(0)
    scale = (1.0 + np.arange(COLUMNS)) ** -0.7
    turn = np.linalg.qr(rng.normal(size=(COLUMNS, COLUMNS)))[0]
    own, signal = 0.6 * rng.normal(size=(4, COLUMNS)) * scale, rng.normal(size=40)
    folder.mkdir(parents=True)
    for part, n, first in (("train", rows, 0), ("test", TEST, 10**7)):
        patient = np.sort(rng.integers(0, max(n // 4, 2), size=n))
        _, codes = np.unique(patient, return_inverse=True)
        count = codes.max() + 1
        age = rng.normal(62, 16, size=count).clip(18, 91).round()[codes]
        male, race = rng.integers(0, 2, size=count)[codes], rng.choice(3, p=[0.04, 0.18, 0.78], size=count)[codes]
        X = np.column_stack([(age - 62) / 16, male - 0.5, race == 1, race == 2])
        path = folder / f"mimic_cfm_{part}_emb.npy"
        file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, COLUMNS))
        label = np.zeros(n)
        for start in range(0, n, 10_000):
            block = slice(start, min(start + 10_000, n))
            Z = rng.normal(size=(block.stop - start, COLUMNS)) * scale + X[block] @ own
            chance = 1 / (1 + np.exp(1.2 - Z[:, :40] @ signal - 0.4 * X[block, 0]))
            label[block] = rng.random(len(Z)) < chance
            file[block] = Z @ turn
        file.flush()
        sex, name = np.array(["F", "M"])[male], np.array(["ASIAN", "BLACK/AFRICAN AMERICAN", "WHITE"])[race]
        columns = {"subject_id": patient + first, "age": age, "sex": sex, "race": name, "Pleural Effusion": label}
        pd.DataFrame(columns).to_csv(folder / f"mimic_cfm_{part}_meta.csv", index=False)


def run(rows: int = 181_342, whole: bool = False) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "mimic", rows)
        start = time.perf_counter()
        command = [sys.executable, "-m", "studies", "table1", "--output", f"{folder}/results"]
        command += [] if whole else ["--quick"]
        environment = os.environ | {"SETSQUARE_DATA": folder}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    peak, size = usage.ru_maxrss * 1024 / 1e6, rows * COLUMNS * 4 / 1e6
    what = f"Table 1 on {rows} x {COLUMNS} float32 embeddings"
    ratio = Ratio.over(what, ("the experiment", [peak]), ("the data", [size]), of="memory")
    return plain({"ratios": [ratio], "rows": rows, "seconds": seconds, "megabytes": peak, "data": size})


def show(result: dict[str, Any]) -> None:
    print(
        f"{result['rows']} x {COLUMNS} float32 ({result['data'] / 1e3:.2f} GB): {result['seconds'] / 60:.1f} min, "
        f"peak memory {result['megabytes'] / 1e3:.2f} GB"
    )


if __name__ == "__main__":
    main(run, show, QUICK)
