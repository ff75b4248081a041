"""Squares that overflow show nothing: a layer does not take them for success."""

from __future__ import annotations

import pytest
import torch

from setsquare.errors import NotOrthogonalError
from setsquare.nn import functional


def test_outputs_whose_squares_overflow_are_not_called_orthogonal() -> None:
    torch.manual_seed(0)
    x = torch.randn(300, 1)
    with pytest.raises(NotOrthogonalError):
        functional.generalized_project_out(50.0 + x + torch.randn(300, 1), x, "exp")
