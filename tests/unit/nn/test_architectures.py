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
quantised weights        yes    yes  no     yes        (test_quantised.py)
quantised outputs        refused by name
=======================  =====  ===  =====  =========  =======  ======  =============

Networks are small and random. ResNet, ViT and ConvNeXt are those of transformers, so that every family runs wherever
the tests do; the rows of torchvision, timm and Lightning are skipped where these are not installed. Compiled networks
are one graph (``fullgraph=True``) and checked with ``backend="eager"``, exported ones with batches of any size, two
processes with gloo.
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
from tests.unit.nn import two_processes
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

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


def build(name: str) -> tuple[sq.nn.Blinded, dict[str, Tensor], Case]:
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


def fit(blinded: nn.Module, inputs: dict[str, Tensor], group: Tensor = GROUP, n_batches: int = 1) -> None:
    size = len(group) // n_batches
    parts = zip(*(value.split(size) for value in inputs.values()), strict=True)
    batches = [(dict(zip(inputs, part, strict=True)), own) for part, own in zip(parts, group.split(size), strict=True)]
    sq.nn.fit_layer(blinded, batches, forward=lambda model, batch: model(**batch[0], protected=batch[1]))


def check_blind(name: str) -> None:
    """A batch in training has no difference left, and had one."""
    blinded, inputs, case = build(name)
    plain = sq.nn.blind(blinded.model, [case.layer], rows=case.rows, output=case.output, inference="off").eval()
    assert difference(plain, inputs, case) > 0.05
    generalized = blinded.corrections[case.layer.replace(".", "/")].where == "generalized"
    assert difference(blinded.train(), inputs, case) < (0.05 if generalized else 1e-4)


def check_fit(name: str) -> None:
    blinded, inputs, case = build(name)
    fit(blinded, inputs, n_batches=2)
    assert difference(blinded.eval(), inputs, case) < 1e-5


def check_train(name: str) -> None:
    """Gradients pass the correction, steps change the weights, and a fit afterwards is exact again."""
    blinded, inputs, case = build(name)
    optimizer = torch.optim.AdamW(blinded.parameters(), 1e-3)
    before = [parameter.detach().clone() for parameter in blinded.parameters()]
    for _ in range(2):
        optimizer.zero_grad()
        first(blinded.train()(**inputs, protected=GROUP)).square().mean().backward()
        optimizer.step()
    assert any(p.grad is not None and float(p.grad.abs().max()) > 0.0 for p in blinded.parameters())
    assert not all(torch.equal(old, new) for old, new in zip(before, blinded.parameters(), strict=True))
    fit(blinded, inputs)
    assert difference(blinded.eval(), inputs, case) < 1e-5


def check_save(name: str) -> None:
    blinded, inputs, case = build(name)
    fit(blinded, inputs)
    with torch.no_grad():
        next(blinded.model.parameters()).mul_(1.0)  # the same weights
        expected = first(blinded.eval()(**inputs, protected=GROUP))
    buffer = io.BytesIO()
    torch.save(blinded.state_dict(), buffer)
    fresh = build(name)[0].eval()
    fresh.load_state_dict(torch.load(io.BytesIO(buffer.getvalue())))
    with torch.no_grad():
        torch.testing.assert_close(first(fresh(**inputs, protected=GROUP)), expected)
    assert difference(fresh, inputs, case) < 1e-5


def check_compile(name: str) -> None:
    blinded, inputs, _ = build(name)
    fit(blinded, inputs)
    as_one_graph = torch._dynamo.config.patch(allow_rnn=True)  # torch compiles LSTMs only if asked to
    with warnings.catch_warnings(), torch.no_grad(), as_one_graph:
        warnings.simplefilter("ignore")
        out = first(torch.compile(blinded.eval(), backend="eager", fullgraph=True)(**inputs, protected=GROUP))
        torch.testing.assert_close(out, first(blinded(**inputs, protected=GROUP)), rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


class Deployed(nn.Module):
    """A blinded network with two inputs and one output."""

    def __init__(self, blinded: nn.Module, name: str) -> None:
        super().__init__()
        self.blinded, self.name = blinded, name

    def forward(self, x: Tensor, protected: Tensor) -> Tensor:
        return first(self.blinded(**{self.name: x}, protected=protected))


def check_export(name: str) -> None:
    """One program for batches of any size."""
    blinded, inputs, _ = build(name)
    fit(blinded, inputs)
    ((key, x),) = inputs.items()
    deployed, batch = Deployed(blinded, key).eval(), torch.export.Dim("batch", min=2, max=4096)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        shapes = {"x": {0: batch}, "protected": {0: batch}}
        program = torch.export.export(deployed, (x, GROUP), dynamic_shapes=shapes, strict=False).module()
        for n in (10, N):
            torch.testing.assert_close(program(x[:n], GROUP[:n]), deployed(x[:n], GROUP[:n]), rtol=1e-4, atol=1e-5)


CHECKS = {
    "blind": check_blind,
    "fit": check_fit,
    "train": check_train,
    "save and load": check_save,
    "compile": check_compile,
    "export": check_export,
}


@pytest.mark.parametrize("job", CHECKS)
@pytest.mark.parametrize("name", CASES)
def test_an_architecture_does_a_job(name: str, job: str) -> None:
    CHECKS[job](name)


def test_gradient_checkpointing_of_transformers_is_refused() -> None:
    blinded, inputs, _ = build("BERT")
    blinded.model.gradient_checkpointing_enable()
    with pytest.raises(InputError, match=r"Layer 'encoder\.layer\.0\.output' runs inside torch\.utils\.checkpoint"):
        blinded.train()(**inputs, protected=GROUP)


def test_a_trainer_of_lightning() -> None:
    """Two epochs with its own loop; the correction learns there, and is fitted at the end."""
    lightning = pytest.importorskip("lightning")

    class Lit(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self, blinded: nn.Module) -> None:
            super().__init__()
            self.blinded = blinded

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
            return self.blinded(batch[0], protected=batch[1]).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 1e-3)

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    x = torch.randn(N, 4) + GROUP
    blinded = sq.nn.blind(network, ["1"])
    loader = DataLoader(TensorDataset(x, GROUP), batch_size=24)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    before = network[0].weight.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning.Trainer(max_epochs=2, accelerator="cpu", devices=1, **quiet).fit(Lit(blinded), loader)
    assert not torch.equal(before, network[0].weight) and float(blinded.corrections["1"].moments.rows) > N
    sq.nn.fit_layer(blinded, loader)
    with torch.no_grad():
        hidden = network[:2](x)
        assert float((hidden[::2].mean(0) - hidden[1::2].mean(0)).abs().max()) > 0.05
    case = Case(lambda: network, steps, "1", "samples")
    assert difference(blinded.eval(), {"input": x}, case) < 1e-5


def work(rank: int, folder: str, names: list[str]) -> None:
    """Train and fit each network on every second row, in one of two processes."""
    for name in names:
        blinded, inputs, case = build(name)
        mine = {key: value[rank::2] for key, value in inputs.items()}
        shared = nn.parallel.DistributedDataParallel(blinded, find_unused_parameters=True)
        group = halves()[rank::2]
        first(shared.train()(**mine, protected=group)).square().mean().backward()
        correction = blinded.corrections[case.layer.replace(".", "/")]
        seen, gradient = correction.moments.rows.clone(), largest_gradient(blinded)
        fit(blinded, mine, group)
        torch.save((seen, gradient, blinded.state_dict()), f"{folder}/{name}-{rank}.pt")


def halves() -> Tensor:
    """Both processes have both groups."""
    return (torch.arange(N) // 2 % 2).float()[:, None]


def largest_gradient(model: nn.Module) -> float:
    return max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None)


def test_two_processes(tmp_path: Path) -> None:
    names = []
    for name, case in CASES.items():
        try:
            case.build()
        except pytest.skip.Exception:
            continue
        names.append(name)
    two_processes.run(work, tmp_path, names)
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
        fit(blinded, inputs, halves())
        alone = blinded.state_dict()
        if not any("running_mean" in name for name in alone):  # each process has its own batch statistics
            torch.testing.assert_close(first_state[key], alone[key], rtol=1e-4, atol=1e-4)
