"""
Orthogonal on new rows
======================

A constraint that is exact on the training rows is fitted to the same noise as the model. On new rows part of the
correlation comes back, and the more features there are for the rows, the more of it. The leave-one-out constraint
removes this part. What is left is chance: the sampling error of the rows.

The data are simulated, so that the correlation on new rows is known: a logistic model with 500 rows, of which half of
the signal depends on a protected group.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

import setsquare as sq


def draw(rng, n, q):
    """Features, outcome and protected group: five features are shifted by the group."""
    group = (rng.random(n) < 0.5).astype(float)
    Z = rng.normal(size=(n, q))
    Z[:, :5] += 0.8 * group[:, None]
    chance = 1 / (1 + np.exp(1.0 - 0.4 * Z[:, :10].sum(axis=1)))
    return Z, (rng.random(n) < chance).astype(int), group


# %%
# Thirty samples for each number of features. A fit that cannot be orthogonal on new rows is refused, not returned; one
# that predicts them worse than a constant warns, and needs a ridge (``l2="auto"``) or more rows.
n, counts, samples = 500, (10, 20, 40, 60, 80), 30
found = {target: np.full((len(counts), samples), np.nan) for target in ("training rows", "new rows")}
worse = dict.fromkeys(found, 0)
for i, q in enumerate(counts):
    for seed in range(samples):
        rng = np.random.default_rng([q, seed])
        Z, y, group = draw(rng, n, q)
        Zn, _, new_group = draw(rng, 20_000, q)
        for target, values in found.items():
            try:
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    model = sq.OrthogonalGLMClassifier(orthogonal_on=target).fit(Z, y, protected=group)
            except sq.errors.NotOrthogonalError:
                continue
            worse[target] += any(issubclass(one.category, sq.errors.WorseThanConstantWarning) for one in said)
            values[i, seed] = np.corrcoef(model.predict_proba(Zn)[:, 1], new_group)[0, 1]

for target, values in found.items():
    print(f"{target:13}", np.nanmean(values, axis=1).round(3), "refused:", int(np.isnan(values).sum()))
    print(f"{'':13} worse than a constant: {worse[target]} of {values.size}")

# %%
# The band is what chance leaves of a correlation of zero with 500 rows (one standard error).
figure, axis = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
ratio = np.array(counts) / n
axis.axhspan(-1 / np.sqrt(n), 1 / np.sqrt(n), color="0.9", label="chance: ± 1/√n")
axis.axhline(0.0, color="0.6", linewidth=0.8)
names = {"training rows": "exact on the training rows (the paper)", "new rows": 'orthogonal_on="new rows"'}
for (target, values), colour in zip(found.items(), ("#D55E00", "#0072B2"), strict=True):
    known = np.sum(~np.isnan(values), axis=1)
    mean, error = np.nanmean(values, axis=1), np.nanstd(values, axis=1, ddof=1) / np.sqrt(known)
    axis.errorbar(ratio, mean, 2 * error, color=colour, marker="o", capsize=3, label=names[target])
axis.set(xlabel="features per row, q / n", ylabel="mean correlation on new rows", ylim=(-0.06, 0.16))
axis.legend(frameon=False, loc="upper left")
plt.show()
