"""Tokens as rows: positions that count are uncorrelated with the protected columns, whatever the padding is."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402

from setsquare.nn import blind, fit_layer  # noqa: E402


def largest(units: Tensor, X: Tensor) -> float:
    units, X = units - units.mean(0), X - X.mean(0)
    return float(((X / X.norm(dim=0)).T @ (units / units.norm(dim=0))).abs().max())


@pytest.mark.parametrize("activation", ["identity", "relu"])
def test_positions_that_count_are_uncorrelated_with_the_protected_columns(activation: str) -> None:
    torch.manual_seed(0)
    X = torch.cat([(torch.rand(300, 1) < 0.3).double(), 5.0 + torch.randn(300, 1).double()], 1)
    length = torch.randint(1, 9, (300, 1)) - 3 * X[:, :1].long()  # depends on the first column
    mask = torch.arange(8) < length.clamp(min=1)
    tokens = torch.randn(300, 8, 4).double() + 0.4 * X.sum(1)[:, None, None]
    tokens = torch.where(mask[:, :, None], tokens, 7.0)  # padding, far from the tokens
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU() if activation == "relu" else nn.Identity()).double()
    blinded = blind(model, ["1"], rows="tokens")
    batches = list(zip(tokens.split(64), mask.split(64), X.split(64), strict=True))
    fit_layer(blinded, batches, mask=lambda batch: batch[1])
    each = X[:, None].expand(-1, 8, -1)[mask]
    with torch.no_grad():
        before, after = model(tokens)[mask], blinded.eval()(tokens, protected=X)[mask]
    assert largest(before, each) > 0.1
    assert largest(after, each) < 1e-6
    torch.testing.assert_close(after.mean(0), before.mean(0), rtol=0.0, atol=1e-6)  # means are kept
