"""Architectures by jobs: each is exact, or refused by name.

=============  =====  ===  =====  =========  =======  ======
architecture   blind  fit  train  save/load  compile  export
=============  =====  ===  =====  =========  =======  ======
ResNet         yes    yes  yes    yes        yes      yes
ViT            yes    yes  yes    yes        yes      yes
ConvNeXt       yes    yes  yes    yes        yes      yes
BERT           yes    yes  yes    yes        yes      yes
LSTM           yes    yes  yes    yes        yes      yes
=============  =====  ===  =====  =========  =======  ======

Compiled networks are checked with ``backend="eager"``. Two gloo processes are in ``test_distributed.py``.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import setsquare as sq
from setsquare.errors import InputError
from setsquare.nn.row_axes import Rows, to_units

N = 48
GROUP = (torch.arange(N) % 2).float()[:, None]


class Recurrent(nn.Module):
    """An LSTM over steps with a head."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 1)

    def forward(self, steps: Tensor, lengths: Tensor | None = None) -> Tensor:
        if lengths is None:
            return self.head(self.rnn(steps)[0])
        packed = pack_padded_sequence(steps, lengths, batch_first=True, enforce_sorted=False)
        return self.head(pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0])


def images() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(N, 3, 16, 16) + 0.5 * GROUP[:, :, None, None]}


def tokens() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(0, 15, (N, 5)) + 15 * GROUP.long()}


def steps() -> dict[str, Tensor]:
    return {"steps": torch.randn(N, 5, 4) + GROUP[:, :, None]}


@dataclass(frozen=True)
class Case:
    """A network, its inputs, and the layer that is blinded."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Tensor]]
    layer: str
    rows: Rows
    output: int | None = None


def _transformer(name: str, **settings: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(**settings)
    return getattr(transformers, f"{name}Model")(config)


SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
CASES = {
    "ResNet": Case(
        lambda: _transformer("ResNet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"),
        images,
        "encoder.stages.0",
        "pixels",
    ),
    "ViT": Case(lambda: _transformer("ViT", image_size=16, patch_size=8, **SMALL), images, "layernorm", "tokens"),
    "ConvNeXt": Case(
        lambda: _transformer("ConvNext", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=4),
        images,
        "encoder.stages.0",
        "pixels",
    ),
    "BERT": Case(lambda: _transformer("Bert", vocab_size=30, **SMALL), tokens, "encoder.layer.0.output", "tokens"),
    "LSTM": Case(Recurrent, steps, "rnn", "tokens", 0),
}


def build(name: str) -> tuple[sq.nn.hooks.Blinded, dict[str, Tensor], Case]:
    torch.manual_seed(0)
    case = CASES[name]
    blinded = sq.nn.blind(case.build().eval(), [case.layer], rows=case.rows, output=case.output, n_protected=1)
    return blinded, case.inputs(), case


def difference(blinded: nn.Module, inputs: dict[str, Tensor], case: Case) -> float:
    """Largest difference of the layer's means between the groups, in standard deviations."""
    seen: list[Any] = []
    handle = blinded.model.get_submodule(case.layer).register_forward_hook(lambda _m, _i, out: seen.append(out))
    with torch.no_grad():
        blinded(**inputs, protected=GROUP)
    handle.remove()
    y = seen[0] if case.output is None else seen[0][case.output]
    units = to_units(y, case.rows)
    group = GROUP.repeat_interleave(len(units) // N, dim=0)[:, 0] == 1.0
    return float(((units[group].mean(0) - units[~group].mean(0)) / units.std(0).clamp_min(1e-6)).abs().max())


def first(out: Any) -> Tensor:
    return out if isinstance(out, Tensor) else out[0]


@pytest.mark.parametrize("name", CASES)
def test_fitted_trained_saved_and_exported(name: str) -> None:
    blinded, inputs, case = build(name)
    batches = [({key: value[k : k + 24] for key, value in inputs.items()}, GROUP[k : k + 24]) for k in (0, 24)]
    forward = lambda model, batch: model(**batch[0], protected=batch[1])  # noqa: E731

    # Train: gradients pass the correction.
    blinded.train()
    first(blinded(**inputs, protected=GROUP)).square().mean().backward()
    assert any(p.grad is not None and p.grad.abs().max() > 0.0 for p in blinded.parameters())

    # Fit: no difference is left, and there was one.
    blinded.corrections[case.layer.replace(".", "/")].moments.reset()
    plain = sq.nn.blind(blinded.model.eval(), [case.layer], rows=case.rows, output=case.output, inference="off")
    assert difference(plain, inputs, case) > 0.05
    sq.nn.fit_layer(blinded, batches, forward=forward)
    blinded.eval()
    assert difference(blinded, inputs, case) < 1e-4

    # Save and load.
    expected = first(blinded(**inputs, protected=GROUP)).detach()
    buffer = io.BytesIO()
    torch.save(blinded.state_dict(), buffer)
    fresh = build(name)[0]
    fresh.load_state_dict(torch.load(io.BytesIO(buffer.getvalue())))
    torch.testing.assert_close(first(fresh.eval()(**inputs, protected=GROUP)).detach(), expected)

    # Export.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(blinded, (), {**inputs, "protected": GROUP}, strict=False)
    torch.testing.assert_close(
        first(program.module()(**inputs, protected=GROUP)).detach(), expected, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("name", ["ResNet", "ViT", "ConvNeXt", "BERT", "LSTM"])
def test_compiled(name: str) -> None:
    blinded, inputs, _ = build(name)
    sq.nn.fit_layer(blinded, [(inputs, GROUP)], forward=lambda model, batch: model(**batch[0], protected=batch[1]))
    blinded.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(blinded, backend="eager")
        out = first(compiled(**inputs, protected=GROUP))
    torch.testing.assert_close(out, first(blinded(**inputs, protected=GROUP)), rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


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
    torch.testing.assert_close(averaged.eval()(x, protected=group), blinded.eval()(x, protected=group))


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
