"""Controls of corrections that shift predictions or features by the protected columns."""

from __future__ import annotations

from typing import Any

from setsquare._typing import Array, Table
from setsquare.errors import InputError
from setsquare.glm.given import OUTCOME
from setsquare.projection.controls import Controls, fit_controls
from setsquare.tables.roles import Reader, TrainingMatrices
from setsquare.tables.validation import check_finite


def check_given(given: Any) -> None:
    """Refuse the outcome where the correction of new rows would need it."""
    if isinstance(given, str) and given == OUTCOME:
        raise InputError(
            'given="outcome" would need the outcome of the rows to be corrected: use OrthogonalGLMClassifier or '
            "OrthogonalGLMRegressor, which needs it in the fit only, or name columns of the feature table."
        )


def learn_controls(reader: Reader, encoded: TrainingMatrices, weight: Array | None) -> tuple[Controls | None, Array]:
    """Controls, None without any, and the protected columns of the training rows, as residuals on them."""
    if reader.given is None:
        return None, encoded.X
    assert encoded.C is not None
    check_finite(encoded.C, reader.given.names, "given column")
    controls = fit_controls(encoded.X, encoded.C, weight, reader.protected.names, reader.given.names)
    return controls, controls.residual(encoded.X, encoded.C)


def residual_names(reader: Reader, controls: Controls | None) -> tuple[str, ...]:
    """Names of the protected columns that vary beyond the controls."""
    return reader.protected.names if controls is None else controls.names(reader.protected.names)


def residuals(reader: Reader, controls: Controls | None, table: Table, P: Array) -> Array:
    """Residuals of the protected columns ``P`` of new rows on the controls in the table; ``P`` itself without any."""
    if controls is None:
        return P
    C = reader.given_matrix(table)
    assert C is not None
    return controls.residual(P, C)
