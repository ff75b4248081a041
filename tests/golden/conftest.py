"""The fixture that compares with what was recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.golden.recorder import RELATIVE, compare


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compare values with the recorded ones of this test; `relative` is the difference that counts as equal."""
    area = request.path.stem.removeprefix("test_")
    case = request.node.name.removeprefix("test_")

    def check(values: Any, relative: float = RELATIVE) -> None:
        compare(area, case, values, relative)

    return check
