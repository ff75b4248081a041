"""
Embeddings in, corrected embeddings out
=======================================

You have a file of embeddings, but not the network that made them, and must remove age and sex. The embeddings are
synthetic, made in the first lines: 2500 patients with one to four images each, 256 columns in half precision, which
contain the severity of a finding, the age, the sex and the patient.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupShuffleSplit

import setsquare as sq

rng = np.random.default_rng(0)
patient = np.repeat(np.arange(2500), rng.integers(1, 5, size=2500))
n = len(patient)
age = rng.normal(60, 12, size=2500)[patient]
sex = rng.choice(["female", "male"], size=2500)[patient]
# The finding is more frequent in old patients, so age helps a model to predict it.
severity = rng.normal(size=n) + 0.5 * (age - 60) / 12
finding = rng.random(n) < 1 / (1 + np.exp(1.0 - 1.5 * severity))
causes = np.column_stack([severity, (age - 60) / 12, 2 * (sex == "male"), rng.normal(size=(2500, 12))[patient]])
embeddings = causes @ rng.normal(size=(15, 256)) + 0.5 * rng.normal(size=(n, 256))

folder = Path(tempfile.mkdtemp())
np.save(folder / "embeddings.npy", embeddings.astype(np.float16))
protected = pd.DataFrame({"age": age, "sex": sex})

# %%
# From here on everything starts from the file. Patients are split, not images.
stored = np.load(folder / "embeddings.npy", mmap_mode="r")
train, test = next(GroupShuffleSplit(1, test_size=0.4, random_state=0).split(stored, groups=patient))

components = sq.PrincipalComponents(n_components=0.98).fit(stored[train])
Z = components.transform(stored)
print(f"{stored.shape[1]} columns of {stored.dtype} become {Z.shape[1]} components of {Z.dtype}")

# %%
# Corrected embeddings that need no age or sex for new images: ``using="features"`` replaces the protected columns by
# their best linear prediction from the embedding.
correction = sq.LinearOrthogonalizer(using="features").fit(Z[train], protected=protected.iloc[train])
corrected = correction.transform(Z)
np.save(folder / "corrected.npy", corrected)

# %%
# Are they gone? Probes try to predict age and sex from the embedding, on patients that neither the correction nor the
# probe has seen. What is left of sex is sampling error: the correction was fitted to a third of the patients.
found = sq.probe(
    {"as it is": None, "corrected": sq.LinearOrthogonalizer(using="features")},
    protected,
    features=Z,
    cluster=patient,
    cv=3,
    probes=("linear", "boosting"),
    max_rows=2000,
)
print(found)

# %%
# Three models of the finding. The last one is the corrected head: its *probabilities* are
# orthogonal on the training rows, which a logistic regression of orthogonal features does not promise.
y = finding.astype(int)
plain = LogisticRegression(max_iter=1000)
head = sq.OrthogonalGLMClassifier().fit(Z[train], y[train], protected=protected.iloc[train])
heads = {
    "as it is": plain.fit(Z[train], y[train]).predict_proba(Z[test]),
    "corrected features": plain.fit(corrected[train], y[train]).predict_proba(corrected[test]),
    "corrected head": head.predict_proba(Z[test]),
}
audits = {
    name: sq.audit(p[:, 1], protected.iloc[test], cluster=patient[test], setting="held out by patient")
    for name, p in heads.items()
}
for name, p in heads.items():
    print(f"{name}: AUC {roc_auc_score(y[test], p[:, 1]):.3f}. {audits[name].reason}")

# %%
# Probability of the finding by age, for new patients, with a line through the means of ten groups of age.
figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), sharey=True, layout="constrained")
groups = np.digitize(age[test], np.quantile(age[test], np.linspace(0, 1, 11)[1:-1]))
for axis, (name, p) in zip(axes, heads.items(), strict=True):
    axis.scatter(age[test], p[:, 1], s=4, alpha=0.3, color="#D55E00" if name == "as it is" else "#0072B2", linewidths=0)
    axis.plot(*(np.bincount(groups, values) / np.bincount(groups) for values in (age[test], p[:, 1])), color="black")
    axis.set(title=f"{name}: AUC {roc_auc_score(y[test], p[:, 1]):.3f}", xlabel="age")
axes[0].set_ylabel("probability of the finding")
plt.show()

# %%
# One page to hand over: ``report.to_html("report.html")``. Here, its summary as text.
report = sq.report.build(
    audits,
    predictions={name: p[:, 1] for name, p in heads.items()},
    protected=protected.iloc[test],
    outcome=y[test],
    cluster=patient[test],
)
print("\n".join(report.to_text().splitlines()[:24]))
