"""Hugging Face networks: recorded hidden states, padding, fine-tuning after a fit, generation. Random tiny networks."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from setsquare.errors import InputError, NotOrthogonalError, StaleCorrectionWarning
from setsquare.nn import audit_layer, blind, fit_layer

transformers = pytest.importorskip("transformers")
N, T = 400, 8


def bert(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=40, max_position_embeddings=16, **small, **options)
    return transformers.BertModel(config).eval()


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=40, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config).eval()


def texts(padded: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids (N, T), attention mask and group; if padded, texts of the second group are shorter."""
    generator = torch.Generator().manual_seed(1)
    group = (torch.arange(N) % 2).float()[:, None]
    ids = torch.randint(1, 39, (N, T), generator=generator)
    mask = torch.ones(N, T, dtype=torch.long)
    if padded:
        length = torch.where(group[:, 0] == 1, torch.randint(2, 5, (N,), generator=generator), T)
        mask = (torch.arange(T) < length[:, None]).long()
        return ids * mask, mask, group
    ids[:, 1] = torch.where((group[:, 0] == 1) & (torch.rand(N, generator=generator) < 0.8), 39, ids[:, 1])
    return ids, mask, group


def batches(ids: Tensor, mask: Tensor, group: Tensor) -> list[tuple[dict[str, Tensor], Tensor]]:
    parts = zip(ids.split(100), mask.split(100), group.split(100), strict=True)
    return [({"input_ids": a, "attention_mask": b}, c) for a, b, c in parts]


def correlation(values: Tensor, group: Tensor) -> float:
    """Largest correlation of a column of values (n, d) with the group (n, 1)."""
    values, group = (values - values.mean(0)).double(), (group - group.mean()).double()
    return float((values * group).sum(0).div(values.norm(dim=0) * group.norm()).abs().nan_to_num().max())


@pytest.mark.parametrize("rows", ["samples", "tokens"])
def test_hidden_states_are_the_corrected_ones_after_a_call_that_recorded_them(rows: Any) -> None:
    ids, mask, group = texts()
    model = bert()
    with torch.no_grad():
        plain = model(ids, attention_mask=mask, output_hidden_states=True).hidden_states[1]  # leaves its hooks behind
        blinded = blind(model, ["encoder.layer.0"], rows=rows)
        fit_layer(blinded, batches(ids, mask, group))
        out = blinded.eval()(ids, attention_mask=mask, protected=group, output_hidden_states=True).hidden_states[1]
    assert correlation(plain[:, 1], group) > 0.2
    if rows == "samples":
        assert correlation(out.flatten(1), group) < 1e-5
    assert correlation(out.flatten(0, 1), group.repeat_interleave(T, 0)) < 1e-5


def test_an_output_recorded_before_the_correction_is_refused() -> None:
    class Recorder(nn.Linear):
        """Keeps its output inside its own forward, before any hook can see it."""

        def forward(self, x: Tensor) -> Tensor:
            self.kept = super().forward(x)
            return self.kept

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = Recorder(3, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> dict[str, Any]:
            return {"out": self.last(self.first(x)), "states": (x, self.first.kept)}

    model, group = Network(), (torch.arange(50.0) % 2)[:, None]
    with pytest.raises(NotOrthogonalError, match="returns the output of layer 'first' as it was before"):
        blind(model, ["first"])(torch.randn(50, 3), protected=group)
    model.last.register_forward_hook(lambda _module, _inputs, out: out + 1.0)
    with pytest.raises(NotOrthogonalError, match="hook of layer 'last' changes its input or output after"):
        blind(model, ["last"])(torch.randn(50, 3), protected=group)


def test_padding_does_not_bring_the_group_into_clean_tokens() -> None:
    ids, mask, group = texts(padded=True)
    model, where = bert(), "embeddings"
    nn.init.zeros_(model.embeddings.position_embeddings.weight)  # so that a token does not tell its place
    valid, each = mask.bool().flatten(), group.repeat_interleave(T, 0)
    with pytest.raises(InputError, match=r"leaves out \d+ positions of the batch \(padding\)"):
        fit_layer(blind(model, [where]), batches(ids, mask, group))
    blinded = blind(model, [where], rows="tokens")
    fit_layer(blinded, batches(ids, mask, group))
    unmasked = blind(model, [where], rows="tokens")
    fit_layer(unmasked, batches(ids, torch.ones_like(mask), group))  # what the moments of the padding do
    with torch.no_grad():
        plain = model.embeddings(ids).flatten(0, 1)
    found = {"plain": correlation(plain[valid], each[valid])}
    for name, network in (("masked", blinded), ("unmasked", unmasked)):
        seen: list[Tensor] = []
        handle = model.encoder.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0]))
        with torch.no_grad():
            network.eval()(ids, attention_mask=mask, protected=group)
        handle.remove()
        found[name] = correlation(seen[0].flatten(0, 1)[valid], each[valid])
    assert found["masked"] < 1e-5 and found["plain"] < 0.1 and found["unmasked"] > 0.15
    result = audit_layer(blinded, batches(ids, mask, group), where, rows="tokens")
    assert result.certificate.correlation < 1e-5
    assert audit_layer(unmasked, batches(ids, mask, group), where, rows="tokens").verdict == "leak"


def test_fine_tuning_after_a_fit_is_noticed_and_the_layer_learns_again() -> None:
    ids, mask, group = texts()
    model = bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    blinded = blind(model, ["pooler"])
    fit_layer(blinded, batches(ids, mask, group))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        out = blinded.eval()(ids, attention_mask=mask, protected=group).pooler_output
        model.double().float()  # a conversion is no change
        blinded(ids, attention_mask=mask, protected=group)
    assert correlation(out, group) < 1e-5
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        states = blinded.train()(ids, attention_mask=mask, protected=group).last_hidden_state
        nn.functional.mse_loss(states[:, 0, 0], group[:, 0]).backward()
        optimizer.step()

    step()
    with pytest.warns(StaleCorrectionWarning, match="learns again"):
        step()
    for _ in range(5):  # once is enough
        step()
    with pytest.warns(StaleCorrectionWarning, match="it may not hold"), torch.no_grad():
        blinded.eval()(ids, attention_mask=mask, protected=group)
    assert blinded.corrections["pooler"].is_stale and not blinded.corrections["pooler"].frozen
    with torch.no_grad():
        out = blinded.train()(ids, attention_mask=mask, protected=group).pooler_output
    assert correlation(out, group) < 1e-4  # of the batch itself
    fit_layer(blinded, batches(ids, mask, group))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        out = blinded.eval()(ids, attention_mask=mask, protected=group).pooler_output
    assert correlation(out, group) < 1e-5


def test_weights_after_the_layer_may_change_and_a_loaded_network_is_watched() -> None:
    ids, mask, group = texts()
    model = bert()
    blinded = blind(model, ["encoder.layer.0"], rows="tokens")
    fit_layer(blinded, batches(ids, mask, group))
    again = blind(bert(), ["encoder.layer.0"], rows="tokens").eval()
    again.load_state_dict(blinded.state_dict())
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        for network in (blinded.eval(), again):
            network(ids, attention_mask=mask, protected=group)
            network.model.pooler.dense.weight.mul_(2.0)
            network(ids, attention_mask=mask, protected=group)
    for network in (blinded, again):
        with torch.no_grad():
            network.model.embeddings.LayerNorm.weight.mul_(1.1)
        with pytest.warns(StaleCorrectionWarning):
            network(ids, attention_mask=mask, protected=group)


@pytest.mark.parametrize("use_cache", [True, False])
def test_generation_with_and_without_a_cache(use_cache: bool) -> None:
    ids, mask, group = texts()
    model = gpt2()
    blinded = blind(model, ["transformer.h.0", "transformer.h.1"], rows="tokens")
    fit_layer(blinded, batches(ids, mask, group))
    ids, group = ids[:6], group[:6]
    with blinded.eval() as b:
        b.protected = group
        out = model.generate(ids, attention_mask=mask[:6], max_new_tokens=4, do_sample=False, use_cache=use_cache)
    steps = ids
    with torch.no_grad():
        for _ in range(4):
            logits = blinded(steps, protected=group).logits[:, -1]
            steps = torch.cat([steps, logits.argmax(-1, keepdim=True)], 1)
    ended = (out[:, T:] == 0).cumsum(1) > 0  # after the end, generate fills up
    assert torch.equal(out[:, T:][~ended], steps[:, T:][~ended]) and out.shape[1] == T + 4


def test_lengths_may_differ_between_batches() -> None:
    ids, mask, group = texts()
    model = gpt2()
    blinded = blind(model, ["transformer.h.0"], rows="tokens")
    mixed = [
        ({"input_ids": ids[:200], "attention_mask": mask[:200]}, group[:200]),
        ({"input_ids": ids[200:, :5], "attention_mask": mask[200:, :5]}, group[200:]),
    ]
    assert fit_layer(blinded, mixed)["corrections.transformer/h/0"].n_rows == 200 * (T + 5)
    result = audit_layer(blinded, mixed, "transformer.h.0", rows="tokens")
    assert result.certificate.correlation < 1e-5
    assert audit_layer(model, mixed, "transformer.h.0", rows="tokens").certificate.correlation > 0.1


def test_a_bfloat16_network_is_fitted_in_higher_precision() -> None:
    ids, mask, group = texts()
    model = bert().bfloat16()
    plain = model(ids, attention_mask=mask).last_hidden_state.float().flatten(0, 1).detach()
    blinded = blind(model, ["encoder.layer.1"], rows="tokens")
    fit_layer(blinded, batches(ids, mask, group))
    moments = blinded.corrections["encoder/layer/1"].moments
    assert moments.gram.dtype == torch.float64
    with torch.no_grad():
        out = blinded.eval()(ids, attention_mask=mask, protected=group).last_hidden_state
    each = group.repeat_interleave(T, 0)
    assert out.dtype == torch.bfloat16 and correlation(plain, each) > 0.05
    assert correlation(out.float().flatten(0, 1), each) < 0.003  # of the rounding to 8 bits
