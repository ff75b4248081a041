"""
A network that cannot see the scanner
=====================================

Digits of scikit-learn, scanned by two devices. The digits are real, the second device is simulated: it is brighter
and noisier. A network learns to recognise the digits, and one of its hidden layers also separates the devices. Two
lines blind that layer, in a network that is already trained.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

import setsquare as sq

torch.manual_seed(0)
rng = np.random.default_rng(0)
digits = load_digits()
device = rng.integers(2, size=len(digits.target))
bright = device[:, None, None]
pixels = digits.images / 16 + 0.25 * bright + (0.05 + 0.1 * bright) * rng.normal(size=digits.images.shape)

images = torch.tensor(pixels[:, None], dtype=torch.float32)
labels = torch.tensor(digits.target)
scanner = torch.tensor(device[:, None], dtype=torch.float32)
train, correct, probe_train, test = slice(0, 600), slice(600, 1200), slice(1200, 1500), slice(1500, None)

# %%
# A small network of your own; it does not use Setsquare.
network = torch.nn.Sequential(
    torch.nn.Conv2d(1, 12, 3),
    torch.nn.ReLU(),
    torch.nn.Flatten(),
    torch.nn.Linear(432, 32),
    torch.nn.ReLU(),
    torch.nn.Linear(32, 10),
)


optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
for _ in range(15):
    for rows in torch.randperm(600).split(100):
        loss = torch.nn.functional.cross_entropy(network(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# %%
# Layer "4" is the second ReLU. ``blind`` wraps the network, and ``fit_layer`` learns the correction from a few passes
# over images that the network was *not* trained on: an overfitted network depends on the device differently on its
# training images. ``held_out`` checks the correction on further images, and would warn. To train with the correction in
# place, train the wrapper and give it ``protected=``.


def batches(rows):
    return list(zip(images[rows].split(300), scanner[rows].split(300), strict=True))


blinded = sq.nn.blind(network, layers=["4"])
for name, fit in sq.nn.fit_layer(blinded, batches(correct), held_out=batches(probe_train)).items():
    print(f"{name}: largest correlation {fit.residual:.0e} on {fit.n_rows} images, {fit.held_out:.2f} on others")

# %%
# The audit uses new images. The joint test is a permutation test over all units of the layer.
new = slice(1200, None)
for name, model in (("as trained", network), ("blinded", blinded)):
    print(f"{name}: {sq.nn.audit_layer(model, batches(new), '4').reason}")

# %%
# Can a classifier still predict the device from the layer? It is trained on images that the correction has not seen,
# and tested on others; chance is about 0.5. A linear correction leaves nonlinear effects: a forest still finds
# something, because the second device is noisier.


def hidden(model, rows):
    kept = []
    handle = network[4].register_forward_hook(lambda *call: kept.append(call[-1].detach().numpy()))
    with torch.no_grad():
        out = model(images[rows]) if model is network else model(images[rows], protected=scanner[rows])
    handle.remove()
    return kept[0], float((out.argmax(1) == labels[rows]).float().mean())


probes = {"logistic": LogisticRegression(max_iter=2000), "forest": RandomForestClassifier(100, random_state=0)}
figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
for axis, (name, model) in zip(axes, (("as trained", network), ("blinded", blinded)), strict=True):
    (known, _), (asked, accuracy) = hidden(model, probe_train), hidden(model, test)
    read = {kind: probe.fit(known, device[probe_train]).score(asked, device[test]) for kind, probe in probes.items()}
    print(f"{name:11} digits read {accuracy:.3f}; device read", {kind: round(value, 3) for kind, value in read.items()})
    score = probes["logistic"].decision_function(asked)
    for level, colour in ((0, "#0072B2"), (1, "#D55E00")):
        axis.hist(score[device[test] == level], bins=30, color=colour, alpha=0.55, label=f"device {level}")
    axis.set(title=f"{name}: the probe is right in {read['logistic']:.0%}", xlabel="score of the logistic probe")
axes[0].set_ylabel("new images")
axes[0].legend(frameon=False)
plt.show()
