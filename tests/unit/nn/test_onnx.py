"""Fitted networks as ONNX files with batches of any size: onnxruntime gives the outputs of torch."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.nn import test_architectures as architectures
from torch import Tensor, nn

import setsquare as sq

for package in ("onnx", "onnxscript"):
    pytest.importorskip(package, reason=f"{package} is not installed: ONNX files cannot be written")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: ONNX files cannot be run")

GROUP = (torch.arange(64) % 2).float()[:, None]


class Deployed(nn.Module):
    """A blinded network with named inputs."""

    def __init__(self, blinded: nn.Module) -> None:
        super().__init__()
        self.blinded = blinded

    def forward(self, x: Tensor, protected: Tensor) -> Tensor:
        return self.blinded(x, protected=protected)


def steps(seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(64, 5, 6) + GROUP[:, :, None]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0]).mean(1)


def convolution() -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(5, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 1))


CASES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "generalised": (convolution, "1", {}),
    "linear, pixels": (convolution, "1", {"where": "post", "rows": "pixels"}),
    "second moments": (convolution, "1", {"moments": 2, "rows": "pixels"}),
    "erasure": (convolution, "1", {"inference": "features", "rows": "pixels"}),
    "LSTM, tokens": (Recurrent, "rnn", {"rows": "tokens", "output": 0}),
}


def check_file(deployed: nn.Module, x: Tensor, group: Tensor, sizes: tuple[int, ...], path: Path) -> None:
    """Write a network as a file for batches of any size, and compare what onnxruntime and torch make of it."""
    batch = torch.export.Dim("batch", min=2, max=4096)
    shapes = {"x": {0: batch}, "protected": {0: batch}}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.export.export(deployed, (x, group), dynamic_shapes=shapes, strict=False)
        torch.onnx.export(program, dynamo=True, verbose=False).save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for n in sizes:
        given = {part.name: value[:n].numpy() for part, value in zip(session.get_inputs(), (x, group), strict=False)}
        (out,) = session.run(None, given)
        np.testing.assert_allclose(out, deployed(x[:n], group[:n]).detach().numpy(), rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_gives_the_outputs_of_torch(name: str, tmp_path: Path) -> None:
    build, layer, options = CASES[name]
    torch.manual_seed(0)
    model, x = build(), steps()
    plain = model(x).detach()
    blinded = sq.nn.blind(model, [layer], **options).eval()
    sq.nn.fit_layer(blinded, [(x, GROUP)])
    deployed = Deployed(blinded).eval()
    with torch.no_grad():
        assert float((deployed(x, GROUP) - plain).abs().max()) > 1e-3  # the correction is in the file
    check_file(deployed, x, GROUP, (2, 37, 64), tmp_path / "network.onnx")


@pytest.mark.parametrize("name", architectures.CASES)
def test_architectures_as_files(name: str, tmp_path: Path) -> None:
    blinded, inputs, _ = architectures.build(name)
    architectures.fit(blinded, inputs)
    ((key, x),) = inputs.items()
    deployed = architectures.Deployed(blinded, key).eval()
    check_file(deployed, x, architectures.GROUP, (2, 37, architectures.N), tmp_path / "network.onnx")
