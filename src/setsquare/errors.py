"""One exception tree, and the warnings.

Every error that a user can cause is an :class:`InputError` with one sentence that names the column and says what to
do. A guarantee that could not be met is a :class:`NotOrthogonalError`: no model that still leaks is ever returned.
"""

from __future__ import annotations


def excerpt(text: object, length: int = 200) -> str:
    """Return a text for a message, cut to this length.

    Examples
    --------
    >>> excerpt("a" * 1000, 5)
    'aaaa…'
    """
    written = str(text)
    return written if len(written) <= length else f"{written[: length - 1]}…"


class SetsquareError(Exception):
    """Base class of everything that Setsquare raises."""


class InputError(SetsquareError, ValueError):
    """The input cannot be used as it is; the message says what to change."""


class MissingValuesError(InputError):
    """A column has missing or non-finite values."""


class UnseenLevelError(InputError):
    """New data hold a categorical level that the training data did not have."""


class OutcomeRangeError(InputError):
    """The outcome has values that the family cannot produce."""


class NotOrthogonalError(SetsquareError, RuntimeError):
    """The predictions could not be made orthogonal to the protected columns."""


class BrokenPromiseError(NotOrthogonalError):
    """The correlation on new rows cannot be bounded by what was promised (``max_correlation``)."""


class MissingDependencyError(SetsquareError, ImportError):
    """An optional package is needed for what was asked."""


class DataNotFoundError(SetsquareError, FileNotFoundError):
    """A data set is neither on this machine nor to be downloaded."""


class SetsquareWarning(UserWarning):
    """Base class of all warnings."""


class DroppedColumnWarning(SetsquareWarning):
    """A column was constant or collinear with others: a protected one needs no constraint, a feature no coefficient."""


class PooledLevelWarning(SetsquareWarning):
    """Rows with an unseen level were pooled into the reference level."""


class SolverWarning(SetsquareWarning):
    """The constraint is met, but the optimum was not reached to full accuracy."""


class SeparationWarning(SetsquareWarning):
    """Some coefficients are not determined by the data: they drift to infinity while the loss stands still."""


class FewRowsWarning(SetsquareWarning):
    """The constraint is met through a few rows with extreme predictions: without them a correlation appears."""


class HardlyObservedWarning(SetsquareWarning):
    """In many rows a partly missing protected column is almost never known, so that its model alone decides."""


class LabelSignalWarning(SetsquareWarning):
    """The protected columns carry much of the outcome itself, which the correction removes with them."""


class BoundaryWarning(SetsquareWarning):
    """Predictions on the boundary of their range were moved inside before the correction."""


class TrainingRowsWarning(SetsquareWarning):
    """A correction is, or may be, learned on the rows that the model was fitted on, and would not hold on new rows."""


class NewRowsWarning(SetsquareWarning):
    """A correction is exact on the training rows, but much of the association will remain on new rows."""


class WorseThanConstantWarning(SetsquareWarning):
    """On new rows a fit predicts worse than a constant: the correction costs more than the features tell."""


class SecondMomentsWarning(SetsquareWarning):
    """Second moments were erased as far as possible, and some correlation with the protected columns is left."""


class OffsetWarning(SetsquareWarning):
    """A model that was fitted with an offset predicts without one."""


class WeightWarning(SetsquareWarning):
    """A model inside a correction does not take sample weights."""


class NotFiniteWarning(SetsquareWarning):
    """A batch with missing or infinite values passed a layer, which learned nothing from it."""


class RoundingWarning(SetsquareWarning):
    """The output of a layer is rounded so coarsely that a correction leaves a correlation."""


class StaleCorrectionWarning(SetsquareWarning):
    """Weights before a fitted correction changed, so it no longer holds."""


class UncorrectedOutputWarning(SetsquareWarning):
    """A network uses tensors of a blinded layer's output that are not corrected."""


class WeakUnitsWarning(SetsquareWarning):
    """Units of a layer that few rows activate could not be solved, and were switched off."""
