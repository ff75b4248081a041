"""A head is refitted on rows that the network has not seen: rows that fit too well are noticed."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

pytest.importorskip("torch")

from setsquare.nn.head import _warn_of_training_rows


@pytest.mark.parametrize("sure", [0.8, 0.9])
@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_that_fit_better_than_they_claim(sure: float, classes: int) -> None:
    y = np.arange(60) % classes
    shares = np.full((60, classes), (1.0 - sure) / (classes - 1))
    shares[np.arange(60), y] = sure
    p = shares[:, 1:] if classes == 2 else shares
    with pytest.warns(UserWarning, match="fit the outcomes far better than they claim"):
        _warn_of_training_rows(p, y)
    rng = np.random.default_rng(0)
    drawn = np.array([rng.choice(classes, p=row) for row in shares])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _warn_of_training_rows(p, drawn)  # as calibrated as can be
        _warn_of_training_rows(p, y + 0.5)  # no classes
