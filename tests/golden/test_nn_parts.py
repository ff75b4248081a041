"""Golden masters and limits of the parts that corrections of networks are made of."""

from __future__ import annotations

import warnings
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.golden.test_nn import N, batches, network, protected, units, wave  # noqa: E402

from setsquare.errors import SetsquareError  # noqa: E402
from setsquare.nn import Orthogonalize, blind, fit_layer, hook_checks, layer_fit_checks, pho, weight_watch  # noqa: E402
from setsquare.nn import activations as acts  # noqa: E402
from setsquare.nn import batches as readers  # noqa: E402
from setsquare.nn.audit import _principal  # noqa: E402
from setsquare.nn.head import _family, _makes_output  # noqa: E402
from setsquare.nn.layer_outputs import OutputCollector, collect_outputs  # noqa: E402
from setsquare.nn.moment_maps import ErasureMap, TransportMap  # noqa: E402
from setsquare.nn.moments import RunningMoments  # noqa: E402
from setsquare.nn.network_layers import choose_tensor, eval_mode, put_tensor  # noqa: E402


class Masked(torch.nn.Module):
    """A network that takes an attention mask."""

    def forward(self, x: Any, attention_mask: Any = None) -> Any:
        return x


def said(call: Any, *arguments: Any) -> str:
    """The sentence with which a call is refused."""
    with pytest.raises(SetsquareError) as caught:
        call(*arguments)
    return str(caught.value)


def test_batches_are_split(golden):
    x, X = wave(4, 3), protected(4)
    assert readers.split_batch({"a": x, "protected": X})[0].keys() == {"a"}
    assert readers.split_batch((x, X[:, 0], X))[1] is X and readers.split_batch([x, X])[0] is x
    assert readers.split_batch((x, X[:, 0], X[:, 0]))[1].ndim == 1
    assert readers.split_batch((x, ["a", "b"]))[1] == ["a", "b"]
    golden([said(readers.split_batch, one) for one in (x, (x,), {"a": x}, (x, X[:, 0]), (x, np.arange(4.0)))])


def test_masks_that_would_be_lost(golden):
    x, X = torch.ones(3, 4), protected(3)
    mask = torch.tensor([[1, 1, 1, 0]] * 3)
    message = said(lambda: readers.refuse_lost_mask(Masked(), (x, mask, X)))
    fine = [(x, X), (x, torch.ones_like(mask), X), (x, 2 * mask, X), (x, mask[:2], X), (x, mask[0], X), (x, "a", X)]
    fine += [(x[0], mask[0], X), ([x], mask, X), {"a": x}, (x, X, mask)]
    for batch in fine:
        readers.refuse_lost_mask(Masked(), batch)
    readers.refuse_lost_mask(network(), (x, mask, X))
    with pytest.raises(SetsquareError, match="attention_mask"):
        readers.call_with_protected(Masked(), (x, mask, X))
    golden(message)


def test_batches_are_joined_and_kept(golden):
    x, X = wave(6, 3), protected(6)
    joined = list(readers.JoinedBatches([x[:4], (x[4:], "y")], X))
    assert [len(one) for one in joined] == [3, 3] and joined[0][1] is None and joined[1][1] == "y"
    assert torch.equal(joined[1][2], X[4:])
    several = list(readers.JoinedBatches([{"a": x}], X))
    assert torch.equal(several[0][2], X)
    short = said(lambda: list(readers.JoinedBatches([x], X[:5])))
    long = said(lambda: list(readers.JoinedBatches([x[:3]], X)))

    class Loader:
        n = 0

        def __iter__(self) -> Any:
            self.n += 1
            return iter([(x[:3].clone(), "a", None), (x[3:].clone(), 1, 2.0)])

    for limit, times in ((0.0, 3), (399.0, 3), (400.0, 1)):
        loader = Loader()
        kept = readers.KeptBatches(loader, limit)
        kept.first()
        assert [len(list(kept)) for _ in range(3)] == [2, 2, 2]
        assert loader.n == times
    kept = readers.KeptBatches(iter([(x, X)]), 0.0)
    list(kept)
    once = said(lambda: list(kept))
    parts = (x, x.float(), np.ones(3), [x, "a"], {"a": 1}, None, set())
    sizes = [readers.KeptBatches([], 0.0)._bytes(one) for one in parts]
    again = readers.KeptBatches([], 0.0)
    assert again._bytes(x) < again._bytes(x) == float("inf")
    golden([short, long, once, said(lambda: readers.KeptBatches([], 0.0).first()), sizes])


def test_loaders_that_shuffle(golden):
    data = torch.utils.data.TensorDataset(wave(6, 3))
    for what in ("protected", "cluster"):
        readers.refuse_shuffled(torch.utils.data.DataLoader(data, batch_size=2), what)
        readers.refuse_shuffled([1, 2], what)
    shuffled = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)
    golden([said(readers.refuse_shuffled, shuffled, what) for what in ("protected", "cluster")])


def test_tensors_of_layers(golden):
    x, Pair = wave(2, 2), namedtuple("Pair", ["a", "b"])
    assert choose_tensor("l", x, 5, "blinded") is x
    assert choose_tensor("l", ("no", x), 1, "blinded") is x and choose_tensor("l", {"k": x}, "k", "blinded") is x
    assert put_tensor(x, None, 1) == 1 and put_tensor([1, 2], 1, 7) == [1, 7] and put_tensor((1, 2), 0, 7) == (7, 2)
    assert put_tensor(Pair(1, 2), 1, 7) == Pair(1, 7) and put_tensor(OrderedDict(a=1), "a", 2) == OrderedDict(a=2)
    model = network()
    model[1].eval()
    with eval_mode(model):
        assert not model.training and not model[0].training
    assert model.training and model[0].training and not model[1].training
    wrong = [(("no", x), None), (("no", x), 0), ({"k": x, "l": x}, None), ("word", 3)]
    golden([said(choose_tensor, "l", out, key, "blinded") for out, key in wrong])


def test_outputs_of_heads():
    made = wave(5, 1)
    fine = [
        made,
        made.sigmoid(),
        made.exp(),
        made[:, 0],
        (made, "x"),
        ("a", 3),
        {"logits": made},
        {"a": wave(9), "b": made},
    ]
    fine += ["word", [wave(7), made.sigmoid()], made.softmax(-1)]
    assert [_makes_output(made, out) for out in fine] == [True] * len(fine)
    wrong = [made + 1.0, 2.0 * made, (made + 1.0, wave(5, 2)), {"a": made.sin() + 3.0}]
    assert [_makes_output(made, out) for out in wrong] == [False] * len(wrong)
    three = wave(4, 3)
    assert _makes_output(three, three.softmax(-1)) and _makes_output(three, three.log_softmax(-1))
    assert not _makes_output(three, three.softmax(0))
    y = np.array([0.0, 1.0, 2.0])
    assert _family(None, y, 3).name == "multinomial" and _family(None, y, 1).name == "gaussian"
    assert _family(None, y[:2], 1).name == "binomial" and _family("poisson", y, 1).name == "poisson"
    assert _family(None, np.eye(3), 3).name == "multinomial"


def test_checks_of_hooks(golden):
    y, mask = wave(2, 3, 4), torch.tensor([[1, 1, 0], [1, 1, 1]])
    model = Masked()
    assert hook_checks.find_attention_masks(model, (y, mask), {}).keys() == {"attention_mask"}
    assert not hook_checks.find_attention_masks(model, (y,), {})
    assert not hook_checks.find_attention_masks(model, (), {"x": y})
    masks = {"attention_mask": mask}
    assert hook_checks.mask_of_layer(model, "decoder.1", masks) is mask
    model.config = type("Config", (), {"is_encoder_decoder": True})()
    assert hook_checks.mask_of_layer(model, "encoder.1", masks) is mask
    own = {"attention_mask": mask, "decoder_attention_mask": mask + 1}
    assert hook_checks.mask_of_layer(model, "decoder.1", own) is own["decoder_attention_mask"]
    assert hook_checks.mask_of_layer(model, "decoder.1", {}) is None
    fit = hook_checks.fit_attention_mask
    assert fit(mask, y, "tokens") is mask and fit(None, y, "tokens") is None and fit(mask, y[0], "tokens") is None
    assert fit(mask, y, "pixels") is None and fit(mask[:, :2], y, "samples") is None
    assert fit(torch.ones(2, 3), y, "samples") is None
    for axis in (-3, 0, 2):
        hook_checks.check_axes("l", y, axis)
    hook_checks.refuse_idle([])
    hook_checks.check_call("l", True, True)
    hints = [hook_checks.hint(one, y, 0) for one in (None, torch.ones(3, 1), torch.ones(2, 1), torch.ones(9, 1))]
    golden(
        [
            said(lambda: hook_checks.mask_of_layer(model, "decoder.1", masks)),
            said(lambda: fit(mask[:, :2], y, "tokens")),
            said(lambda: fit(mask, y, "samples")),
            said(lambda: hook_checks.check_axes("l", y, 3)),
            said(lambda: hook_checks.check_axes("l", y, -4)),
            said(lambda: hook_checks.refuse_idle(["a", "b"])),
            said(lambda: hook_checks.refuse_unhooked(["a"])),
            said(lambda: hook_checks.refuse_replaced("a")),
            said(lambda: hook_checks.check_call("l", False, True)),
            said(lambda: hook_checks.check_call("l", True, False)),
            hints,
        ]
    )


def test_fingerprints_of_weights(golden):
    tensors = [wave(3, 4), wave(5).float(), torch.arange(6), torch.tensor(2.5), wave(2, 3, 2), torch.zeros(0, 3)]
    tensors += [torch.complex(wave(4), wave(4, speed=0.3))]
    rows = torch.cat([weight_watch._summary(tensor) for tensor in tensors])
    golden([rows, weight_watch._weights(6, rows), weight_watch._sample(tensors[:5])])


def test_what_counts_as_the_same_weights():
    base = weight_watch._summary(wave(3, 4))
    size = torch.tensor([[1.0, 1.0, 0.0, 0.0]]).double() * base[:, 1:2]
    assert weight_watch._same(base, base)
    assert weight_watch._same(base + 0.5 * weight_watch.ROUNDING * size, base)
    assert not weight_watch._same(base + 20.0 * weight_watch.ROUNDING * size, base)
    assert not weight_watch._same(base, base + torch.tensor([[0.0, 0.0, 1.0, 0.0]]))
    assert not weight_watch._same(base, torch.cat([base, base]))
    half = base.clone()
    half[:, 3] = 1e-3  # a conversion to another dtype
    assert weight_watch._same(half + 1e-3 * size, base) and not weight_watch._same(half + 5e-2 * size, base)
    model = network()
    watch = weight_watch.WeightWatch.of(model.modules())
    model[1] = torch.nn.ReLU()
    assert watch.has_moved()
    other = weight_watch.WeightWatch.of(network().modules())
    other.expect(other.values)
    assert not other.moved
    other.expect(other.values + 1.0)
    assert other.moved and other.has_moved()


def test_switched_off_units():
    B, off = wave(3, 2), torch.tensor([False, True])
    kept = B[:, 0].clone()
    layer_fit_checks.switch_off("l", B, off, wave(9, 1), acts.ACTIVATIONS["relu"])
    top = 100.0 * (1.0 + float(wave(9, 1).abs().max()))
    assert torch.equal(B[:, 0], kept) and B[:, 1].tolist() == [pytest.approx(top), 0.0, 0.0]
    with pytest.raises(SetsquareError, match="1 units of layer 'l' were not solved"):
        layer_fit_checks.switch_off("l", B, off, wave(9, 1), acts.ACTIVATIONS["leaky_relu"])


def test_rounding_at_its_limits():
    assert not layer_fit_checks.Rounding().is_coarse
    for share, coarse in ((0.9, False), (1.1, True)):
        rounding = layer_fit_checks.Rounding()
        values = (
            torch.tensor([[-1.0], [1.0]]).double() + share * layer_fit_checks.COARSE / torch.finfo(torch.bfloat16).eps
        )
        rounding.add(values, torch.bfloat16)
        rounding.add(values, torch.float64)
        assert rounding.is_coarse is coarse and rounding.n_rows == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer_fit_checks.warn_of_rounding([("a", layer_fit_checks.LEFT)], 2)
    with pytest.warns(UserWarning, match=r"rounded so coarsely that a correlation of up to 0\.02"):
        layer_fit_checks.warn_of_rounding([("a", 0.02)], 2)


def test_constant_columns(golden):
    own = RunningMoments(None)
    own.learn(units(), torch.cat([protected(), torch.ones(N, 1)], 1))
    with pytest.warns(UserWarning, match="constant") as caught:
        layer_fit_checks.check_columns("l", own, 2)
    flat = RunningMoments(None)
    flat.learn(units(), torch.ones(N, 1).double())
    golden([str(caught[0].message), said(lambda: layer_fit_checks.check_columns("l", flat, 2))])


@pytest.mark.parametrize("kind", ["erasure", "preserved", "transport"])
def test_maps(golden, kind):
    own: Any = TransportMap(2) if kind == "transport" else ErasureMap(1)
    assert own.is_empty
    X = torch.cat([protected(90), wave(90, 1)], 1) if kind == "preserved" else protected(90)
    own.fit(units(90), X, 1 if kind == "preserved" else 0)
    assert not own.is_empty and float(own.rows) == 90.0
    out = own.correct(units(90), protected(90))
    short = said(lambda: own.correct(units(90)[:, :2], protected(90)))
    values = [getattr(own, name) for name in own.NAMES if name not in ("matrices", "shifts")]
    single = own.correct(units(90).float(), protected(90)).dtype
    own.reset()
    golden([out, short, values, str(single), own.is_empty], relative=1e-5)


@pytest.mark.parametrize("rows", ["samples", "tokens", "pixels"])
def test_collected_outputs(golden, rows):
    x, X = wave(12, 3, 4), protected(12)
    model = torch.nn.Sequential(torch.nn.Identity())
    mask = torch.ones(12, 3)
    mask[::5, 2] = 0
    collector = OutputCollector("0", None, 0, None, 10**6, rows, (lambda _: mask[:6]) if rows == "tokens" else None)
    found, columns = collect_outputs(model, [(x[:6], X[:6]), (x[6:], X[6:])], collector)
    pooled = OutputCollector("0", None, 1, 1, 10**6)
    other, _ = collect_outputs(model, [x], pooled, protected=wave(3, 2))
    limits = [OutputCollector("0", None, 0, None, most) for most in (143, 144)]
    large = said(lambda: collect_outputs(model, [(x, X)], limits[0]))
    collect_outputs(model, [(x, X)], limits[1])
    bad = [
        said(lambda: collect_outputs(model, [], OutputCollector("0", None, 0, None, 99))),
        said(lambda: collect_outputs(model, [(x, X[:3])], OutputCollector("0", None, 0, None, 999))),
        said(lambda: collect_outputs(model, [(x * np.nan, X)], OutputCollector("0", None, 0, None, 999))),
        said(lambda: collect_outputs(model, [(x, X)], OutputCollector("0", None, 5, None, 999))),
        said(lambda: collect_outputs(model, [(x, X)], OutputCollector("0#2", None, 0, None, 999))),
        said(lambda: collect_outputs(model, [(x, X), (x[:, :2], X)], OutputCollector("0", None, 0, None, 9999))),
    ]
    golden([found, columns, other, large, bad])


def test_principal_components(golden):
    Y = np.column_stack([units().numpy(), np.full(N, 3.0), units().numpy()[:, 0] * 2.0])
    scores, nearest, share = _principal(Y, 3, 0)
    golden([np.abs(scores), nearest, share, _principal(Y, 9, 0)[0].shape], relative=1e-4)


def test_states_of_layers(golden):
    own = blind(network(), ["1"])
    fit_layer(own, batches())
    state = own.state_dict()
    again = blind(network(), ["1"])
    again.allocate(batches()[0][0], protected=batches()[0][1])
    again.load_state_dict(state)
    x, X = batches()[0]
    assert torch.allclose(own.eval()(x, protected=X), again.eval()(x, protected=X))
    layer = Orthogonalize(2)
    layer(units(), protected())
    plain = layer.get_extra_state()
    assert len(plain) == 2 and plain[0] == 2.0
    layer.freeze(None)
    assert layer.get_extra_state()[0] == 3.0 and layer.frozen
    fresh = Orthogonalize(2)
    fresh.set_extra_state(torch.tensor([3.0, plain[1]]))
    assert fresh.frozen and fresh._fitted_to is None
    fresh.set_extra_state(torch.tensor([1.0]))
    assert fresh.frozen
    fresh.set_extra_state(torch.tensor([0.0]))
    assert not fresh.frozen
    fresh.set_extra_state(torch.tensor([2.0, plain[1], 1.0, 2.0, 3.0, 4.0]))
    assert not fresh.frozen and fresh._fitted_to.shape == (1, 4)
    wrong = said(lambda: Orthogonalize(2, rows="tokens").set_extra_state(plain))
    kinds = [Orthogonalize(2), Orthogonalize(2, activation="relu"), Orthogonalize(2, moments=2, inference="features")]
    golden([wrong, [repr(one) for one in kinds], [one._settings for one in kinds]])


def test_an_intercept_is_not_rounded():
    found = pho(protected(), units()[:, 0], intercept=0.1)
    assert float(found.intercept) == pytest.approx(float(pho(protected(), units()[:, 0]).intercept) + 0.1, abs=1e-13)


@pytest.mark.parametrize("passes", [1, 20])
def test_few_passes(passes):
    own = blind(network(act=torch.nn.Sigmoid()), ["1"], where="generalized")
    (found,) = fit_layer(own, batches(), max_passes=passes).values()
    assert found.n_passes == 1 if passes == 1 else found.n_passes > 1
    assert np.isnan(found.residual) if passes == 1 else found.residual < 1e-8


def test_too_few_passes(golden):
    own = blind(network(act=torch.nn.Sigmoid()), ["1"], where="generalized")
    golden(said(lambda: fit_layer(own, batches(), max_passes=2)).split("(")[0])
