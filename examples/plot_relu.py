"""
Why correcting before a ReLU is not enough
==========================================

A layer is made orthogonal to a protected column *before* its ReLU. The output of the ReLU still depends on the column.
Two corrections that do work are shown beside it. The data are synthetic: one unit of a layer, for two scanners.
"""

import matplotlib.pyplot as plt
import numpy as np

import setsquare as sq
from setsquare.projection import GeneralizedProjector, project_out

rng = np.random.default_rng(0)
n = 4000
scanner = rng.integers(2, size=n)[:, None].astype(float)
# One scanner is brighter and noisier than the other.
unit = rng.normal(0.3 * scanner, 0.6 + 0.8 * scanner)


def relu(values):
    return np.maximum(values, 0.0)


# %%
# Three ways to correct the unit. The generalised projection shifts the pre-activation so that the *output* shows no
# effect of the scanner; it is still the output of a ReLU, so it is at least 0.
outputs = {
    "as it is": relu(unit),
    "corrected before": relu(project_out(unit, scanner)),
    "corrected after": project_out(relu(unit), scanner),
    "generalised": GeneralizedProjector.fit(unit, scanner, "relu").predict(unit, scanner),
}
for name, output in outputs.items():
    audit = sq.audit(output[:, 0], scanner, family="gaussian")
    gap = output[scanner == 1].mean() - output[scanner == 0].mean()
    print(f"{name:17} {audit.verdict:14} difference of means {gap:+.3f}, smallest value {output.min():+.3f}")

# %%
# The means before the ReLU are equal after the first correction, but the spreads are not, and a ReLU turns an unequal
# spread into an unequal mean.
figure, axes = plt.subplots(1, 4, figsize=(11, 3.2), sharex=True, sharey=True, layout="constrained")
bins = np.linspace(-1.0, 4.0, 41)
for axis, (name, output) in zip(axes, outputs.items(), strict=True):
    for level, colour in ((0, "#0072B2"), (1, "#D55E00")):
        values = output[scanner == level]
        axis.hist(values, bins=bins, color=colour, alpha=0.45, label=f"scanner {level}")
        axis.axvline(values.mean(), color=colour, linewidth=2, linestyle="-" if level else "--")
    axis.set(title=name, xlabel="output of the unit", ylim=(0, 500))
axes[0].set_ylabel("rows (the bar at 0 is cut)")
axes[0].legend(frameon=False)
plt.show()

# %%
# Vertical lines are the means of the two scanners. "Corrected before" is what Theorem 5 of the paper proposes; see
# :doc:`/theory` for the smallest counter-example. In a network, :class:`setsquare.nn.Orthogonalize` has the three as
# ``where="pre"``, ``where="post"`` and ``where="generalized"``.
