"""Blinded networks in larger programs: export, torch.func, averages, the meta device, packed sequences, refusals."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import setsquare as sq
from setsquare.errors import InputError, StaleCorrectionWarning

N = 48
GROUP = (torch.arange(N) % 2).float()[:, None]


class Recurrent(nn.Module):
    """An LSTM over packed steps with a head."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 1)

    def forward(self, steps: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(steps, lengths, batch_first=True, enforce_sorted=False)
        return self.head(pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))


def rows(n: int = 64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    group = (torch.arange(n) % 2).float()[:, None]
    return torch.randn(n, 6) + group, group


def fitted(**options: Any) -> Any:
    blinded = sq.nn.blind(network(), ["1"], **options)
    x, group = rows()
    sq.nn.fit_layer(blinded, [(x, group)])
    return blinded.eval()


OPTIONS = [{}, {"where": "post"}, {"moments": 2}, {"inference": "features"}]


@pytest.mark.parametrize("options", OPTIONS)
def test_an_exported_network_takes_batches_of_any_size(options: dict[str, Any]) -> None:
    blinded = fitted(**options)
    x, group = rows()
    batch = torch.export.Dim("batch", min=2, max=4096)
    shapes = {"inputs": ({0: batch},), "protected": {0: batch}}
    program = torch.export.export(blinded, (x,), {"protected": group}, dynamic_shapes=shapes)
    for n in (10, 37):
        torch.testing.assert_close(program.module()(x[:n], protected=group[:n]), blinded(x[:n], protected=group[:n]))


@pytest.mark.parametrize("options", OPTIONS[:2])
def test_gradients_of_each_row_by_torch_func(options: dict[str, Any]) -> None:
    blinded = fitted(**options)
    x, group = rows()
    state = (dict(blinded.named_parameters()), dict(blinded.named_buffers()))

    def output(parameters: Any, x: Tensor, group: Tensor) -> Tensor:
        return torch.func.functional_call(blinded, (parameters, state[1]), (x,), {"protected": group}).sum()

    by_row = lambda p, x, g: output(p, x[None], g[None])  # noqa: E731
    found = torch.func.vmap(torch.func.grad(by_row), in_dims=(None, 0, 0))(state[0], x, group)
    whole = torch.func.grad(output)(state[0], x, group)
    for name, gradient in whole.items():
        torch.testing.assert_close(found[name].sum(0), gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("use_buffers", [False, True])
def test_weights_averaged_from_the_first_batch_on(use_buffers: bool) -> None:
    x, group = rows()
    blinded = sq.nn.blind(network(), ["1"]).allocate(x, protected=group)
    assert blinded.corrections["1"].moments.is_empty
    with pytest.raises(InputError, match="has not seen a batch"):
        blinded.eval()(x, protected=group)
    averaged = AveragedModel(blinded, use_buffers=use_buffers)
    for _ in range(2):
        blinded.train()(x, protected=group)
        averaged.update_parameters(blinded)
    # The weights are averages, and the moments are not those of them.
    with pytest.warns(StaleCorrectionWarning, match=r"as AveragedModel does.*fit_layer on this network"):
        out = averaged.eval()(x, protected=group)
    torch.testing.assert_close(out, blinded.eval()(x, protected=group))
    sq.nn.fit_layer(averaged, [(x, group)])
    averaged(x, protected=group)  # without a warning


def test_copies_that_were_not_averaged_are_left_in_peace() -> None:
    x, group = rows()
    blinded = sq.nn.blind(network(), ["1"])
    blinded(x, protected=group)
    saved = io.BytesIO()
    torch.save(blinded, saved)
    for copied in (copy.deepcopy(blinded), torch.load(io.BytesIO(saved.getvalue()), weights_only=False)):
        copied.eval()(x, protected=group)
        copied.half().float()(x, protected=group)
        copied.load_state_dict(blinded.state_dict())
        copied(x, protected=group)
        copied.train()(x, protected=group)
        copied.eval()(x, protected=group)


def test_shapes_on_the_meta_device() -> None:
    for options in ({"where": "post"}, {}):
        with torch.device("meta"):
            blinded = sq.nn.blind(network(), ["1"], n_protected=1, **options)
        blinded.corrections["1"].to("meta")
        if options:
            out = blinded.train()(torch.zeros(4, 6, device="meta"), protected=torch.zeros(4, 1, device="meta"))
            assert out.shape == (4, 1) and out.is_meta
    out = fitted().to("meta")(torch.zeros(4, 6, device="meta"), protected=torch.zeros(4, 1, device="meta"))
    assert out.shape == (4, 1) and out.is_meta


def test_packed_sequences_are_corrected_step_by_step() -> None:
    torch.manual_seed(0)
    x, lengths = torch.randn(N, 7, 4) + GROUP[:, :, None], torch.randint(1, 8, (N,))
    lengths[0] = 7
    blinded = sq.nn.blind(Recurrent().eval(), ["rnn"], output=0, rows="tokens")
    forward = lambda model, batch: model(batch[0], batch[1], protected=batch[2])  # noqa: E731
    sq.nn.fit_layer(blinded, [(x, lengths, GROUP)], forward=forward)
    seen: list[Tensor] = []
    blinded.model.head.register_forward_hook(lambda _m, inputs, _o: seen.append(inputs[0]))
    with torch.no_grad():
        blinded.eval()(x, lengths, protected=GROUP)
        blinded.model(x, lengths)
    counts = torch.arange(7)[None] < lengths[:, None]
    group = (GROUP == 1.0).expand(N, 7)
    after, before = ((y[counts & group].mean(0) - y[counts & ~group].mean(0)).abs().max() for y in seen)
    assert after < 1e-6 < 0.02 < before
    with pytest.raises(InputError, match='blind it with rows="tokens"'):
        sq.nn.blind(Recurrent(), ["rnn"], output=0)(x, lengths, protected=GROUP)


class Checkpointed(nn.Module):
    """A network that recomputes its hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.act, self.head = nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(lambda z: self.act(self.body(z)), x, use_reentrant=False))


def test_refused_by_name_checkpointed_and_quantised_layers() -> None:
    x, group = rows()
    with pytest.raises(InputError, match=r"inside torch\.utils\.checkpoint"):
        sq.nn.blind(Checkpointed(), ["act"])(x, protected=group)
    outside = sq.nn.blind(Checkpointed(), ["head"]).train()
    outside(x.requires_grad_(), protected=group).sum().backward()
    assert float(outside.corrections["head"].moments.rows) == 64.0  # learned once

    class Quantised(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch will remove such tensors; networks that have them are around
                return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)

    with pytest.raises(InputError, match="Layer '0' is quantised"):
        sq.nn.blind(nn.Sequential(Quantised()), ["0"])(x.detach(), protected=group)
