"""Blinded networks in a user's hands: contexts, copies, replicas, compilation, checkpoints, odd calls and shapes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from setsquare.errors import InputError, NotOrthogonalError, UncorrectedOutputWarning
from setsquare.nn import Orthogonalize, blind, list_layers


def n_hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def gap(out: Tensor, group: Tensor) -> float:
    inside = group.ravel() > 0.5
    return float((out[inside].mean(0) - out[~inside].mean(0)).abs().max().detach())


@pytest.fixture
def small() -> Iterator[tuple[nn.Sequential, Tensor, Tensor]]:
    """Two nested parts; the ReLU is "0.1"."""
    torch.manual_seed(0)
    group = (torch.arange(60.0) % 2)[:, None]
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4)), nn.Linear(4, 2))
    x = torch.randn(60, 3) + group
    assert gap(model(x), group) > 0.02
    yield model, x, group
    assert not n_hooks(model)


def test_contexts_may_be_nested(small: tuple[nn.Sequential, Tensor, Tensor]) -> None:
    model, x, group = small
    blinded = blind(model, ["1"], protected=group)
    with blinded, blind(model, ["0.1"], protected=group):
        with blinded:
            assert gap(model(x), group) < 1e-6
        assert gap(model(x), group) < 1e-6 and blinded.protected is group
        assert gap(blinded(x), group) < 1e-6
    assert blinded.protected is None


def test_a_blinded_network_may_be_blinded_again(small: tuple[nn.Sequential, Tensor, Tensor]) -> None:
    model, x, group = small
    twice = blind(blind(model, ["1"]), ["model.0.1"])
    assert gap(twice(x, protected=group), group) < 1e-6
    assert [float(b.corrections[key].moments.rows) for b, key in ((twice, "model/0/1"), (twice.model, "1"))] == [60, 60]
    own = Own()
    assert gap(blind(own, ["last"])(x, protected=group), group) < 1e-6
    assert float(own.layer.moments.rows) == 60.0, "a network's own layers get the columns, too"


def test_a_layer_is_not_corrected_twice(small: tuple[nn.Sequential, Tensor, Tensor]) -> None:
    model, _, _ = small
    with pytest.raises(InputError, match=r"Already blinded: layer\(s\) model\.1\. .* original network"):
        blind(blind(model, ["1"]), ["model.1"])


class StateReader(nn.Module):
    """An LSTM whose head reads its steps, or its last state, which is another tensor."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.rnn, self.head, self.last = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 1), last

    def forward(self, x: Tensor) -> Tensor:
        steps, (state, _) = self.rnn(x)
        return self.head(state[-1] if self.last else steps[:, -1])


def test_a_state_that_is_used_instead_of_the_corrected_steps_is_noticed() -> None:
    group = (torch.arange(60) % 2).float()[:, None]
    x = torch.randn(60, 5, 3) + group[:, :, None]
    for last in (False, True):
        torch.manual_seed(0)
        model = StateReader(last)
        blinded = blind(model, ["rnn"], rows="tokens", output=0)
        plain = model(x)
        if last:
            with pytest.warns(UncorrectedOutputWarning, match=r"uses element 1 of the output of layer 'rnn'"):
                out = blinded(x, protected=group)
        else:
            out = blinded(x, protected=group)
        assert type(out) is Tensor and torch.equal(out, plain) is last
        out.sum().backward()
        blinded(x, protected=group)  # the warning comes once


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = Orthogonalize(1), nn.Linear(3, 2)

    def forward(self, x: Tensor, protected: Tensor) -> Tensor:
        return self.last(torch.tanh(self.layer(x, protected)))


def test_names_of_one_module_are_one_layer(small: tuple[nn.Sequential, Tensor, Tensor]) -> None:
    _, x, group = small
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(3, 4), relu, nn.Linear(4, 4), relu)
    assert gap(model(x), group) > 5e-3
    assert [info.name for info in list_layers(model)] == ["0", "1", "2", "3"]
    for names in (["3"], ["1", "3"], ["1", "1"], iter(["1"])):
        blinded = blind(model, names)
        assert gap(blinded(x, protected=group), group) < 1e-6
        assert len(blinded.corrections) == 2, "one for each call"


def test_an_activation_called_by_keyword(small: tuple[nn.Sequential, Tensor, Tensor]) -> None:
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.relu = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.relu(input=x)

    _, x, group = small
    assert gap(torch.relu(x), group) > 0.2
    assert gap(blind(Keyword(), ["relu"])(x, protected=group), group) < 1e-6


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_is_refused(small: tuple[nn.Sequential, Tensor, Tensor], reentrant: bool) -> None:
    """It runs the layer again in the backward pass, where the hooks are gone: the gradients would be wrong."""

    class Saving(nn.Module):
        def __init__(self, part: nn.Module, head: nn.Module) -> None:
            super().__init__()
            self.part, self.head = part, head

        def forward(self, x: Tensor) -> Tensor:
            return self.head(checkpoint(self.part, x, use_reentrant=reentrant))

    model, x, group = small
    saving = Saving(model[0], model[1])
    x.requires_grad_()
    with pytest.raises(InputError, match=r"Layer 'part\.1' runs inside torch\.utils\.checkpoint"):
        blind(saving, ["part.1"])(x, protected=group)
    blind(saving, ["head"])(x, protected=group).square().sum().backward()
    assert x.grad is not None and torch.isfinite(x.grad).all()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch itself does it
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_compiled(small: tuple[nn.Sequential, Tensor, Tensor]) -> None:
    model, x, group = small
    blinded = blind(copy.deepcopy(model), ["1"])
    compiled = torch.compile(blinded, backend="aot_eager")
    for _ in range(2):
        assert gap(compiled(x, protected=group), group) < 1e-6
    plain = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(plain(x), model(x))

    def ignore_hooks() -> None:
        with blind(model, ["1"], protected=group):
            plain(x)

    # What was compiled without hooks does not look for them afterwards.
    with pytest.raises(NotOrthogonalError, match="did not run with its hooks"):
        ignore_hooks()


def replica(module: nn.Module) -> Any:
    """As DataParallel makes them, one for each device."""
    copied = module._replicate_for_data_parallel()
    for name, parameter in module._parameters.items():
        setattr(copied, name, parameter)
    for name, child in module._modules.items():
        copied._modules[name] = replica(child)
    return copied


def test_replicas_do_not_share_hooks(small: tuple[nn.Sequential, Tensor, Tensor]) -> None:
    model, x, group = small
    blinded = blind(model, ["1"])
    blinded(x, protected=group)
    first, second = replica(blinded), replica(blinded)
    with first:  # one replica runs while the other does
        first.protected = group[:30]
        assert gap(second(x[30:], protected=group[30:]), group[30:]) < 1e-6
        assert gap(first.model(x[:30]), group[:30]) < 1e-6
        assert not n_hooks(model)
    torch.testing.assert_close(nn.DataParallel(blinded)(x, protected=group), blinded(x, protected=group))


def test_copies_made_inside_the_context(small: tuple[nn.Sequential, Tensor, Tensor]) -> None:
    model, x, group = small
    expected = model(x)
    with blind(model, ["1"], protected=group) as b:
        model(x)
        network, blinded = copy.deepcopy(model), copy.deepcopy(b)
        with pytest.raises(InputError, match="Layer '1' runs in a copy of the blinded network"):
            network(x)
    torch.testing.assert_close(network(x), expected)
    assert gap(blinded(x, protected=group), group) < 1e-6


def test_parts_of_the_network_are_not_called_alone(small: tuple[nn.Sequential, Tensor, Tensor]) -> None:
    """Else the calls of one layer could not be told apart."""
    model, x, group = small
    with blind(model, ["0.1"], protected=group) as b:
        with pytest.raises(InputError, match=r"Layer '0\.1' runs outside a call of the network"):
            model[0](x)
        model(x)
    assert len(b.corrections) == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_padded_sequences_as_nested_tensors_are_refused() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 1).eval()
    mask = torch.zeros(10, 4, dtype=torch.bool)
    mask[:5, 2:] = True
    with torch.no_grad(), pytest.raises(InputError, match=r"Layer 'layers\.0\.linear1' .* enable_nested_tensor=False"):
        blind(model, ["layers.0.linear1"])(
            torch.randn(10, 4, 8), src_key_padding_mask=mask, protected=torch.arange(10.0)
        )


def test_shapes_and_columns_that_do_not_fit(small: tuple[nn.Sequential, Tensor, Tensor]) -> None:
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean()

    model, x, group = small
    with pytest.raises(InputError, match=r"Layer '1' has shape \(\) and thus no axis 0"):
        blind(nn.Sequential(model, Mean()), ["1"])(x, protected=group)
    with pytest.raises(InputError, match=r"Layer '1' has shape \(60, 2\) and thus no axis 5"):
        blind(model, ["1"], batch_dim=5)(x, protected=group)
    for protected, message in (
        (torch.tensor(1.0), "shape \\(\\)"),
        (["a", "b"] * 30, "are not all numbers"),
        (torch.arange(60), "one_hot"),
    ):
        with pytest.raises(InputError, match=f"Layer '1': The protected columns.*{message}"):
            blind(model, ["1"])(x, protected=protected)
    for same in (group.numpy(), group.tolist(), group.bool(), group.half(), group.clone().requires_grad_()):
        assert gap(blind(model, ["1"])(x, protected=same), group) < 1e-6
