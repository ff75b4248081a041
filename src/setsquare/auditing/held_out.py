"""Held-out predictions of several models, one per fold, and the mean prediction of each model.

The mean of a model's predictions depends on the outcomes that it was fitted to. Where a fold has many rows of a group,
the training rows of its model have few: the means of the models move against the held-out rows, and pooled predictions
depend on the protected columns although no model does. The mean prediction of each model on its training rows is
therefore subtracted. This also works for folds of a single row, and keeps the differences between folds that the
features explain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from setsquare._typing import Array

#: Means that differ less than this, relative to the standard deviation within folds, are not subtracted.
SAME = 0.02
#: The mean of a model is taken over as many training rows as are held out, but at least this many.
SEEN = 500


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Held-out predictions: each row is predicted by a model that was not fitted to it.

    Attributes
    ----------
    predictions : ndarray of shape (n, ...)
        As the models gave them.
    classes : sequence or None
        Classes of a classifier.
    folds : list of pairs of index arrays
        Training and test rows.
    numbers : ndarray of shape (n, k)
        Predictions as numbers; labels as indicators of the classes. k = 0 if that is not possible.
    means : ndarray of shape (n, k)
        Mean prediction of the model of each row.
    """

    predictions: Any
    classes: Any
    folds: list[tuple[Any, Any]]
    numbers: Array
    means: Array

    @property
    def growth(self) -> float:
        """Rows over training rows of a fold."""
        return len(self.predictions) / min(len(train) for train, _ in self.folds)

    @property
    def means_differ(self) -> bool:
        """Whether the means of the models differ enough to affect a test."""
        between = self.means.std(axis=0)
        within = (self.numbers - self.means).std(axis=0)
        return bool((between > np.maximum(SAME * within, 1e-12 * np.abs(self.means).max(axis=0, initial=0.0))).any())

    @property
    def centred(self) -> Array:
        """Predictions as numbers, as if all models had the same mean."""
        gap = self.numbers - self.means
        rounding = 1e-12 * np.abs(self.numbers).max(axis=0, initial=0.0)
        return np.asarray(np.where(np.abs(gap) > rounding, gap, 0.0) + self.means.mean(axis=0))

    def audited(self) -> Any:
        """Return the values to audit: the predictions, or centred numbers if the means differ."""
        if not self.means_differ:
            return self.predictions
        if self.predictions.ndim == 1 and self.numbers.shape[1] > 1:  # labels
            return self.centred[:, 1] if self.numbers.shape[1] == 2 else self.centred
        return self.centred.reshape(self.predictions.shape)


def as_numbers(values: Any, classes: Any) -> Array:
    """Predictions or outcomes as numbers, (n, k): indicators where they are labels of the `classes`.

    Examples
    --------
    >>> as_numbers(np.array(["no", "yes"]), np.array(["no", "yes"]))
    array([[1., 0.],
           [0., 1.]])
    >>> as_numbers(np.array(["no", "yes"]), None).shape  # cannot be read
    (2, 0)
    """
    array = np.asarray(values)
    if classes is not None and array.ndim == 1 and np.ndim(classes) == 1:
        return np.asarray(array[:, None] == np.asarray(classes)[None, :], dtype=np.float64)
    try:
        return array.reshape(len(array), -1).astype(np.float64)
    except (TypeError, ValueError):
        return np.zeros((len(array), 0))
