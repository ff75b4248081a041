"""Validation of the feature table by scikit-learn's rules."""

from __future__ import annotations

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from setsquare import tables
from setsquare._typing import Table
from setsquare.errors import InputError
from setsquare.tables.frame import is_dataframe


def validate_features(estimator: BaseEstimator, table: Table, *, reset: bool) -> Table:
    """Check the feature table as scikit-learn does; missing values, and text in arrays, are left to the design."""
    if is_dataframe(table):
        if not tables.n_rows(table):
            raise InputError("The table is empty (0 rows): give at least one row.")
        return validate_data(estimator, table, skip_check_array=True, reset=reset)
    if _is_plain(estimator, table, reset):
        if reset:
            estimator.n_features_in_ = table.shape[1]
        return table
    options = {"accept_sparse": "csr", "ensure_all_finite": False, "reset": reset}
    try:
        return validate_data(estimator, table, dtype=(np.float64, np.float32), **options)
    except ValueError as error:
        if "convert string to float" not in str(error):
            raise
        return validate_data(estimator, table, dtype=None, **options)


def _is_plain(estimator: BaseEstimator, table: Table, reset: bool) -> bool:
    """Whether nothing is to be checked or converted; scikit-learn takes as long to find out as a small fit takes."""
    if type(table) is not np.ndarray or table.ndim != 2 or table.dtype not in (np.float64, np.float32):
        return False
    known = reset or getattr(estimator, "n_features_in_", None) == table.shape[1]
    return known and 0 not in table.shape and not hasattr(estimator, "feature_names_in_")
