"""Protected columns of a stream are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import setsquare as sq
from setsquare.errors import InputError


@pytest.mark.parametrize("protected", [[], np.zeros(40), pd.Series(np.zeros(40)), {"sex"}])
def test_protected_columns_of_a_stream_are_given_by_name(protected: Any) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(40, 3)), columns=["a", "b", "c"]).assign(sex=np.arange(40) % 2)
    with pytest.raises(InputError, match="Pass the protected columns of a stream by name"):
        sq.OrthogonalGLMRegressor().fit(sq.Stream(lambda: iter([table])), "c", protected=protected)
