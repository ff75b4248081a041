"""
A large file, block by block
============================

Rows stay in a memory-mapped file. A projection and principal components read them block by block, so memory holds a
block and some sums, whatever the number of rows. The file is generated: 100 000 rows of 256 columns in half
precision, with an effect of the laboratory batch on every column. The same code works for a file of many gigabytes.
"""

import tempfile
import tracemalloc
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import setsquare as sq
from setsquare.projection import Projector

n, q = 100_000, 256
rng = np.random.default_rng(0)
folder = Path(tempfile.mkdtemp())
batch = rng.choice(["A", "B", "C"], size=n)
X = (batch[:, None] == ["B", "C"]).astype(float)  # dummies of the batches
signal, mark = rng.normal(size=(20, q)), 0.5 * rng.normal(size=(2, q))
stored = np.lib.format.open_memmap(folder / "measurements.npy", mode="w+", dtype=np.float16, shape=(n, q))
for start in range(0, n, 10_000):
    rows = slice(start, start + 10_000)
    stored[rows] = rng.normal(size=(10_000, 20)) @ signal + X[rows] @ mark + rng.normal(size=(10_000, q))
stored.flush()

# %%
# The batch effect is removed from every column, from file to file. ``Projector`` reads the rows twice to fit and
# once to apply; ``out=`` says where corrected rows go. Twenty principal components of the corrected rows fit into
# memory.
measurements = np.load(folder / "measurements.npy", mmap_mode="r")
corrected = np.lib.format.open_memmap(folder / "corrected.npy", mode="w+", dtype=np.float16, shape=(n, q))
Projector.fit(measurements, X).apply(measurements, X, out=corrected)
components = sq.PrincipalComponents(20).fit(corrected)
reduced = components.transform(corrected)
print(f"{n} rows of {q} columns in {corrected.dtype}, reduced to {reduced.shape[1]} columns in {reduced.dtype}")

# %%
# Is the batch effect gone? An audit of the components, before and after.
for name, Z in (("as stored", sq.PrincipalComponents(20).fit_transform(measurements)), ("corrected", reduced)):
    print(f"{name}: {sq.audit(Z, batch, max_rows=5000, n_permutations=199).reason}")

# %%
# The most memory that Python and numpy allocated at a time, for a growing part of the file. The mapped file itself is
# not counted: the operating system takes its pages back as it likes.
sizes = [n // 4, n // 2, n]
work = {
    "fit the correction": lambda rows: Projector.fit(measurements[:rows], X[:rows]),
    "principal components": lambda rows: sq.PrincipalComponents(20).fit(measurements[:rows]),
}
figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
axis.plot(sizes, [rows * q * 8 / 1e6 for rows in sizes], "o--", color="#999999", label="these rows as float64")
for (name, task), colour in zip(work.items(), ("#0072B2", "#D55E00"), strict=True):
    peaks = []
    for rows in sizes:
        tracemalloc.start()
        task(rows)
        peaks.append(tracemalloc.get_traced_memory()[1] / 1e6)
        tracemalloc.stop()
    print(f"{name}:", ", ".join(f"{peak:.0f} MB for {rows} rows" for peak, rows in zip(peaks, sizes, strict=True)))
    axis.plot(sizes, peaks, "o-", color=colour, label=name)
axis.set(xlabel="rows", ylabel="MB", ylim=(0, None))
axis.legend(frameon=False)
plt.show()
