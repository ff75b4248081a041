"""Array types used in signatures."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[np.float64]
BoolArray: TypeAlias = NDArray[np.bool_]
IntArray: TypeAlias = NDArray[np.int64]
#: A dense float64 array or a ``scipy.sparse`` matrix in CSR format (the two kinds of feature matrix).
Matrix: TypeAlias = Any
#: Any dataframe that narwhals knows (pandas, polars, pyarrow, ...) or an array.
Table: TypeAlias = Any

__all__ = ["Array", "ArrayLike", "BoolArray", "IntArray", "Matrix", "Table"]
