"""Architectures by jobs: each is exact, or refused by name.

=======================  =====  ===  =====  =========  =======  ======  =============
architecture             blind  fit  train  save/load  compile  export  two processes
=======================  =====  ===  =====  =========  =======  ======  =============
ResNet                   yes    yes  yes    yes        yes      yes     yes
ViT                      yes    yes  yes    yes        yes      yes     yes
ConvNeXt                 yes    yes  yes    yes        yes      yes     yes
BERT                     yes    yes  yes    yes        yes      yes     yes
GPT-2                    yes    yes  yes    yes        yes      yes     yes
Llama                    yes    yes  yes    yes        yes      yes     yes
LSTM                     yes    yes  yes    yes        yes      yes     yes
torchvision ResNet       yes    yes  yes    yes        yes      yes     yes
timm ViT                 yes    yes  yes    yes        yes      yes     yes
timm ConvNeXt            yes    yes  yes    yes        yes      yes     yes
Lightning                yes    yes  yes    yes        yes      yes     yes
``moments=2``, all       yes    yes  no     yes        yes      yes     fitted by one
gradient checkpointing   refused inside the checkpoint, by name
quantised layers         refused by name
=======================  =====  ===  =====  =========  =======  ======  =============

Networks are small and random. ResNet, ViT and ConvNeXt are those of transformers; the rows of torchvision, timm and
Lightning are skipped where these are not installed. Compiled networks are checked with ``backend="eager"``, two
processes with gloo; both take seconds and are marked slow.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

import setsquare as sq
from setsquare.nn.row_axes import Rows, to_units

N = 48
GROUP = (torch.arange(N) % 2).float()[:, None]


class Recurrent(nn.Module):
    """An LSTM over steps with a head."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 1)

    def forward(self, steps: Tensor) -> Tensor:
        return self.head(self.rnn(steps)[0])


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


def pictures() -> dict[str, Tensor]:
    return {"x": torch.randn(N, 3, 32, 32) + 0.5 * GROUP[:, :, None, None]}


def lightning_module() -> nn.Module:
    """A Lightning module around a network, with its own training step."""
    lightning = pytest.importorskip("lightning")

    class Lit(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

        def forward(self, steps: Tensor) -> Tensor:
            return self.net(steps)

    return Lit()


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
    "GPT-2": Case(
        lambda: _transformer("GPT2", vocab_size=30, n_positions=8, n_embd=16, n_layer=1, n_head=2, use_cache=False),
        tokens,
        "h.0.mlp",
        "tokens",
    ),
    "Llama": Case(
        lambda: _transformer("Llama", vocab_size=30, max_position_embeddings=8, use_cache=False, **SMALL),
        tokens,
        "layers.0.mlp",
        "tokens",
    ),
    "LSTM": Case(Recurrent, steps, "rnn", "tokens", 0),
    "torchvision ResNet": Case(
        lambda: pytest.importorskip("torchvision").models.resnet18(num_classes=2), pictures, "layer1", "pixels"
    ),
    "timm ViT": Case(
        lambda: pytest.importorskip("timm").create_model(
            "vit_tiny_patch16_224", img_size=32, embed_dim=16, depth=1, num_heads=2, num_classes=2
        ),
        pictures,
        "norm",
        "tokens",
    ),
    "timm ConvNeXt": Case(
        lambda: pytest.importorskip("timm").create_model(
            "convnext_atto", depths=(1, 1, 1, 1), dims=(8, 8, 16, 16), num_classes=2
        ),
        pictures,
        "stages.0",
        "pixels",
    ),
    "Lightning": Case(lightning_module, steps, "net.1", "tokens"),
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


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
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


def work(rank: int, names: list[str], folder: str) -> None:
    """Train and fit each network on every second row, in one of two processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for name in names:
        blinded, inputs, case = build(name)
        mine = {key: value[rank::2] for key, value in inputs.items()}
        shared = nn.parallel.DistributedDataParallel(blinded, find_unused_parameters=True)
        group = halves()[rank::2]
        first(shared.train()(**mine, protected=group)).square().mean().backward()
        correction = blinded.corrections[case.layer.replace(".", "/")]
        seen, gradient = correction.moments.rows.clone(), largest_gradient(blinded)
        sq.nn.fit_layer(blinded, [(mine, group)], forward=lambda model, batch: model(**batch[0], protected=batch[1]))
        torch.save((seen, gradient, blinded.state_dict()), f"{folder}/{name}-{rank}.pt")
    dist.destroy_process_group()


def halves() -> Tensor:
    """Both processes have both groups."""
    return (torch.arange(N) // 2 % 2).float()[:, None]


def largest_gradient(model: nn.Module) -> float:
    return max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None)


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    names = []
    for name, case in CASES.items():
        try:
            case.build()
        except pytest.skip.Exception:
            continue
        names.append(name)
    mp.spawn(work, args=(names, str(tmp_path)), nprocs=2)
    for name in names:
        (seen, gradient, first_state), (_, other, second_state) = (
            torch.load(tmp_path / f"{name}-{rank}.pt") for rank in (0, 1)
        )
        blinded, inputs, case = build(name)
        whole = first(blinded.train()(**inputs, protected=halves()))
        whole.square().mean().backward()
        correction = blinded.corrections[case.layer.replace(".", "/")]
        assert float(seen) == float(correction.moments.rows), name  # rows of both processes
        assert gradient == pytest.approx(other), name
        key = f"corrections.{case.layer.replace('.', '/')}.moments.response"
        torch.testing.assert_close(first_state[key], second_state[key], rtol=0.0, atol=0.0)
        sq.nn.fit_layer(
            blinded, [(inputs, halves())], forward=lambda model, batch: model(**batch[0], protected=batch[1])
        )
        alone = blinded.state_dict()
        if not any("running_mean" in name for name in alone):  # each process has its own batch statistics
            torch.testing.assert_close(first_state[key], alone[key], rtol=1e-4, atol=1e-4)
