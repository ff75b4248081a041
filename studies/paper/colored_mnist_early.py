"""Accuracy of the coloured-digit networks over the first steps of training, and the paper's measure of influence."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from studies.arrays import Array
from studies.datasets import load_colored_mnist
from studies.paper.colored_mnist import _rows
from studies.paper.colored_mnist_training import MODES, Network, Settings, accuracy, evaluate

#: Steps after which the test accuracy is taken.
STEPS = (1, 2, 5, 10, 20, 50, 100, 200)


def over_time(name: str, seed: int, steps: tuple[int, ...] = STEPS) -> dict[str, Any]:
    """Accuracy on the counterfactual test rows after so many steps of the published training."""
    mode, settings = MODES[name], Settings()
    data = load_colored_mnist(seed)
    split = data.table["split"].to_numpy()
    training, test = (_rows(data, np.flatnonzero(split == part), mode) for part in ("train", "test"))
    torch.manual_seed(seed)
    network = Network(mode)
    optimizer = torch.optim.Adam(network.parameters(), settings.learning_rate)
    generator = torch.Generator().manual_seed(seed)
    reached: list[float] = []
    done = 0
    while done < steps[-1]:
        for batch in training.batches(settings.batch, generator):
            network.train()
            loss = cross_entropy(network(batch.images, batch.protected).score, batch.label)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            done += 1
            if done in steps:
                reached.append(accuracy(evaluate(network, test, mode).score, test.label))
            if done == steps[-1]:
                break
    return {"mode": name, "seed": seed, "steps": list(steps), "accuracy": reached}


def papers_influence(responses: Array, red: Array, *, project: bool) -> Array:
    """The paper's influence of red on each unit (n, units): a slope under the constraint that fitted values are >= 0.

    Its code projects the responses on ``[1, red]`` before (``project``). Least squares then has the solution zero,
    which is feasible: the influence is zero for every network, trained or not.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> red = np.repeat([0.0, 1.0], 50)
    >>> responses = rng.random((100, 3)) + red[:, None]
    >>> papers_influence(responses, red, project=True).round(9) + 0.0
    array([0., 0., 0.])
    >>> bool((papers_influence(responses, red, project=False) > 0.5).all())
    True
    """
    D = np.column_stack([np.ones(len(red)), red])
    rest = responses - D @ np.linalg.lstsq(D, responses, rcond=None)[0] if project else responses
    # Fitted values are >= 0 where both group means are: the constrained fit clips the means of the two groups.
    means = np.maximum([rest[red == value].mean(axis=0) for value in (0.0, 1.0)], 0.0)
    return np.asarray(means[1] - means[0])
