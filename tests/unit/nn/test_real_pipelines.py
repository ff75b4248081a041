"""Programs as people write them, in which a correction was silently wrong: each is noticed, exact or refused now."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import setsquare as sq
from setsquare.errors import (
    DroppedColumnWarning,
    InputError,
    NotOrthogonalError,
    RoundingWarning,
    StaleCorrectionWarning,
)
from setsquare.nn.activations import ACTIVATIONS
from setsquare.nn.held_out import Sums
from setsquare.nn.layer_fit_checks import switch_off

torch.manual_seed(1)
GROUP = (torch.arange(400) % 2).float()[:, None]
X = torch.randn(400, 6) + GROUP


def network(activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), activation(), nn.Linear(8, 1))


class Encoder(nn.Module):
    """An encoder that torch runs as fused kernels, in which inner modules do not run."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.start = nn.Linear(6, 8)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.middle, self.head = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        steps = self.start(x)[:, None].expand(-1, 3, -1)
        return self.head(self.middle(self.encoder(steps))).mean(1)


class Prompted(nn.Module):
    """A network with learned vectors in a list of parameters, which never runs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.prompts, self.body = nn.ParameterList([torch.randn(8)]), nn.Linear(6, 8)
        self.act, self.head = nn.ReLU(), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.body(x) + self.prompts[0]))


def fitted(model: nn.Module, layer: str = "1", **options: Any) -> sq.nn.Blinded:
    blinded = sq.nn.blind(model, [layer], **options).eval()
    sq.nn.fit_layer(blinded, [(X, GROUP)])
    return blinded


def gap(blinded: sq.nn.Blinded, layer: str = "1", x: Tensor = X) -> float:
    """Largest difference of the layer's means between the groups, in standard deviations."""
    seen: list[Tensor] = []
    handle = blinded.model.get_submodule(layer).register_forward_hook(lambda _m, _i, out: seen.append(out))
    try:
        with torch.no_grad():
            blinded(x, protected=GROUP)
    finally:
        handle.remove()
    y = seen[0].double().flatten(1)
    return float(((y[::2].mean(0) - y[1::2].mean(0)) / y.std(0).clamp_min(1e-9)).abs().max())


def change_data(model: Any) -> None:
    for parameter in model[0].parameters():  # as code for moving averages does it; torch does not count it
        parameter.data.mul_(-1.0)


@torch.no_grad()
def permute_units(model: Any) -> None:
    for parameter in model[0].parameters():  # neither sums nor norms change
        parameter.copy_(parameter.flip(0))


@torch.no_grad()
def train_attention(model: Any) -> None:
    model.encoder.layers[0].self_attn.out_proj.weight.mul_(-3.0)


@torch.no_grad()
def train_a_layer_of_the_encoder(model: Any) -> None:
    model.encoder.layers[1].linear1.weight.mul_(-3.0)


@torch.no_grad()
def train_prompts(model: Any) -> None:
    model.prompts[0].mul_(-2.0)


@pytest.mark.parametrize(
    ("build", "layer", "rows", "change"),
    [
        (network, "1", "samples", change_data),
        (network, "1", "samples", permute_units),
        (Encoder, "middle", "tokens", train_attention),
        (Encoder, "middle", "tokens", train_a_layer_of_the_encoder),
        (Prompted, "act", "samples", train_prompts),
    ],
)
def test_weights_that_change_unseen_are_noticed(build: Any, layer: str, rows: Any, change: Any) -> None:
    blinded = fitted(build(), layer, rows=rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gap(blinded, layer) < 1e-6
    change(blinded.model)
    with pytest.warns(StaleCorrectionWarning, match="not those that it was fitted to"):
        assert gap(blinded, layer) > 0.05


def test_a_saved_encoder_that_ran_as_fused_kernels_is_not_called_stale() -> None:
    """With gradients the inner modules run one by one; they are the same weights."""
    blinded, buffer = fitted(Encoder(), "middle", rows="tokens"), io.BytesIO()
    torch.save(blinded.state_dict(), buffer)
    fresh = sq.nn.blind(Encoder(), ["middle"], rows="tokens").eval()
    fresh.load_state_dict(torch.load(io.BytesIO(buffer.getvalue())))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(fresh(X, protected=GROUP), blinded(X, protected=GROUP))
        assert gap(fresh, "middle") < 1e-6


def test_weights_that_come_back_are_those_of_the_fit() -> None:
    blinded = fitted(network())
    other = {name: value + 1.0 for name, value in blinded.named_parameters()}
    for _ in range(2):  # warned of again
        with torch.no_grad(), pytest.warns(StaleCorrectionWarning):
            torch.func.functional_call(blinded, other, (X,), {"protected": GROUP})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert gap(blinded) < 1e-6 and not blinded.corrections["1"].is_stale


def test_a_state_is_not_loaded_into_a_layer_with_another_meaning() -> None:
    state = fitted(network()).state_dict()
    for other in (sq.nn.blind(network(nn.Tanh), ["1"]), sq.nn.blind(network(nn.Sigmoid), ["1"])):
        with pytest.raises(InputError, match=r"saved by an Orthogonalize layer with other settings .* than Orthogonal"):
            other.load_state_dict(state)
    linear = sq.nn.Orthogonalize(1, "post", n_given=1)
    linear(torch.randn(30, 2), torch.randn(30, 2))
    with pytest.raises(InputError, match="other settings"):
        sq.nn.Orthogonalize(2, "post").load_state_dict(linear.state_dict())


def test_another_activation_before_a_loaded_correction_is_noticed() -> None:
    blinded, other = fitted(network(), "2"), sq.nn.blind(network(nn.Tanh), ["2"]).eval()
    other.load_state_dict(blinded.state_dict())  # no weight says that the networks differ
    with pytest.warns(StaleCorrectionWarning):
        assert gap(other, "2") > 0.01


def bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    return transformers.BertModel(transformers.BertConfig(vocab_size=30, **small)).eval()


def test_an_attention_mask_that_the_network_would_not_get_is_refused() -> None:
    """A loader of (ids, mask, group) is common; only its first element goes to the network."""
    layer, model = "encoder.layer.0.output", bert()
    ids, mask = torch.randint(1, 30, (40, 6)), torch.ones(40, 6, dtype=torch.long)
    mask[::2, 3:] = 0
    group = GROUP[:40]
    blinded = sq.nn.blind(model, [layer], rows="tokens")
    match = "may be the attention_mask, and only the first element"
    with pytest.raises(InputError, match=match):
        sq.nn.fit_layer(blinded, [(ids, mask, group)])
    with pytest.raises(InputError, match=match):
        sq.nn.fit_layer(blinded, DataLoader(TensorDataset(ids, mask), 20), protected=group)
    for network in (model, blinded):
        with pytest.raises(InputError, match=match):
            sq.nn.audit_layer(network, [(ids, mask, group)], layer, rows="tokens")
    with pytest.raises(InputError, match=match):
        sq.nn.audit_layer(model, [(ids, mask)], layer, group.numpy(), rows="tokens")
    encoding = pytest.importorskip("transformers").BatchEncoding({"input_ids": ids, "attention_mask": mask})
    (fit,) = sq.nn.fit_layer(blinded, [(encoding, None, group)]).values()
    assert fit.n_rows == int(mask.sum())
    assert sq.nn.fit_layer(blinded, [(ids, torch.ones_like(ids), group)])  # nothing is padding
    assert sq.nn.fit_layer(blinded, [(ids, ids + 1, group)])  # labels of a language model


def test_loaders_that_shuffle_by_other_samplers_are_refused() -> None:
    rows = TensorDataset(X)
    shuffled = DataLoader(rows, batch_sampler=BatchSampler(RandomSampler(rows), 50, False))
    spread = DataLoader(rows, 50, sampler=DistributedSampler(rows, 1, 0))
    for loader in (shuffled, spread):
        with pytest.raises(InputError, match="The loader shuffles its rows"):
            sq.nn.fit_layer(sq.nn.blind(network(), ["1"]), loader, protected=GROUP)
    ordered = DataLoader(rows, 50, sampler=DistributedSampler(rows, 1, 0, shuffle=False))
    blinded = sq.nn.blind(network(), ["1"]).eval()
    sq.nn.fit_layer(blinded, ordered, protected=GROUP)
    assert gap(blinded) < 1e-6


def test_a_protected_column_that_does_not_vary_is_named() -> None:
    both = torch.cat([GROUP, torch.full_like(GROUP, 0.1)], dim=1)
    with pytest.warns(DroppedColumnWarning, match=r"Protected column\(s\) 1 \(counted from 0\) are constant"):
        sq.nn.fit_layer(sq.nn.blind(network(), ["1"]), [(X, both)])


def test_nothing_learns_twice_inside_a_checkpoint() -> None:
    part, layer, constraint = nn.Linear(6, 8), sq.nn.Orthogonalize(1), sq.nn.OrthogonalityConstraint(1)
    for inner, what in ((layer, "The Orthogonalize layer"), (constraint, "The constraint")):
        with pytest.raises(InputError, match=rf"{what} runs inside torch\.utils\.checkpoint"):
            checkpoint(lambda x, own=inner: own(part(x), GROUP), X, use_reentrant=False)
        inner(part(X), GROUP)
        inner.eval()
        checkpoint(lambda x, own=inner: own(part(x), GROUP), X, use_reentrant=False).sum().backward()


def offset_network(dtype: torch.dtype, offset: float) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 1))
    nn.init.constant_(model[0].bias, offset)
    return model.to(dtype)


@pytest.mark.parametrize(
    ("dtype", "offset"), [(torch.bfloat16, 100.0), (torch.float16, 100.0), (torch.float32, 1e6), (torch.bfloat16, 0.0)]
)
def test_rounding_that_undoes_a_correction_is_measured(dtype: torch.dtype, offset: float) -> None:
    """Numbers on a coarse grid cannot be shifted by less than its step, so all rows of a group keep the same error."""
    blinded, x = sq.nn.blind(offset_network(dtype, offset), ["0"]).eval(), X.to(dtype)
    if not offset:
        (fit,) = sq.nn.fit_layer(blinded, [(x, GROUP)]).values()
        assert gap(blinded, "0", x) < 0.01
        return
    with pytest.warns(RoundingWarning, match="is rounded so coarsely"):
        (fit,) = sq.nn.fit_layer(blinded, [(x, GROUP)]).values()
    left = gap(blinded, "0", x)
    assert left > 0.05 and 0.3 * left < fit.residual < 0.7 * left  # half the difference, in standard deviations


def test_correlations_of_units_far_from_zero() -> None:
    sums = Sums()
    for rows in (slice(0, 200), slice(200, None)):
        sums.add(1e7 + X[rows].double(), 1e6 + GROUP[rows])
    expected = torch.corrcoef(torch.cat([GROUP, X], dim=1).double().T)[0, 1:]
    torch.testing.assert_close(sums.correlations()[0], expected, rtol=0.0, atol=1e-8)


def test_units_are_switched_off_only_where_that_makes_them_constant() -> None:
    units, off = torch.randn(50, 2).double(), torch.tensor([True, False, True])
    B = torch.ones(2, 3).double()
    switch_off("1", B, off, units, ACTIVATIONS["relu"])
    assert float(torch.relu(3.0 * units - B[0, off]).max()) == 0.0 and B[1].tolist() == [0.0, 1.0, 0.0]
    with pytest.raises(NotOrthogonalError, match="their activation is not constant for low inputs"):
        switch_off("1", B, off, units, ACTIVATIONS["leaky_relu"])


def test_a_compiled_network_is_fitted_before() -> None:
    inside = sq.nn.blind(torch.compile(network(), backend="eager"), ["_orig_mod.1"])
    for compiled in (torch.compile(sq.nn.blind(network(), ["1"]), backend="eager"), inside):
        with pytest.raises(InputError, match="compiled, so its layers cannot be fitted"):
            sq.nn.fit_layer(compiled, [(X, GROUP)])
