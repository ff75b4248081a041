"""Tokens and pixels as rows: layers, networks and the constraint, with masks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from setsquare.errors import InputError
from setsquare.nn import OrthogonalityConstraint, Orthogonalize, audit_layer, blind, fit_layer
from setsquare.nn.functional import generalized_project_out, project_out
from setsquare.nn.layer_outputs import OutputCollector, collect_outputs
from setsquare.nn.row_axes import n_positions


def draw(n: int = 60, t: int = 5, d: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    X = torch.cat([(torch.rand(n, 1) < 0.4).double(), torch.randn(n, 1).double()], 1)
    y = torch.randn(n, t, d).double() + X[:, :1, None] + 0.5 * X[:, 1:, None]
    return y, X, torch.rand(n, t) < 0.7


def each(X: Tensor, t: int) -> Tensor:
    return X[:, None].expand(-1, t, -1).reshape(-1, X.shape[1])


@pytest.mark.parametrize("activation", [None, "relu"])
def test_tokens_that_count_are_corrected_as_rows_of_their_own(activation: str | None) -> None:
    y, X, mask = draw()
    layer = Orthogonalize(2, activation=activation, rows="tokens")
    out = layer(y, X, mask)
    rows, columns = y[mask], each(X, 5)[mask.flatten()]
    exact = project_out(rows, columns) if activation is None else generalized_project_out(rows, columns, activation)
    torch.testing.assert_close(out[mask], exact, rtol=0.0, atol=1e-8)
    # The others get the same correction, so that none of them keeps what is removed.
    torch.testing.assert_close(layer.eval()(y, X), out, rtol=0.0, atol=1e-8)
    changed = torch.where(mask[:, :, None], y, torch.nan)
    again = Orthogonalize(2, activation=activation, rows="tokens")(changed, X, mask)
    torch.testing.assert_close(again[mask], out[mask], rtol=0.0, atol=0.0)


def test_pixels_are_tokens_with_the_units_second() -> None:
    y, X, mask = draw(t=6)
    maps = y.movedim(2, 1).reshape(60, 3, 2, 3)
    out = Orthogonalize(2, rows="pixels")(maps, X, mask.view(60, 2, 3))
    exact = Orthogonalize(2, rows="tokens")(y, X, mask)
    torch.testing.assert_close(out.reshape(60, 3, 6).movedim(1, 2), exact, rtol=0.0, atol=1e-12)
    same = Orthogonalize(2, rows="pixels")(maps, X, mask.view(60, 1, 2, 3))
    torch.testing.assert_close(same, out, rtol=0.0, atol=0.0)


def test_gradients_through_a_mask() -> None:
    y, X, mask = draw(n=40, t=3, d=2)
    weight = torch.randn(40, 3, 2).double() * mask[:, :, None]

    def loss(values: Tensor) -> Tensor:
        return (Orthogonalize(2, rows="tokens")(values, X, mask) * weight).sum()

    value = y.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(value), value)
    rows = y[mask].requires_grad_()
    (exact,) = torch.autograd.grad((project_out(rows, each(X, 3)[mask.flatten()]) * weight[mask]).sum(), rows)
    torch.testing.assert_close(found[mask], exact, rtol=0.0, atol=1e-10)
    assert float(found[~mask].abs().max()) == 0.0


def test_many_positions_of_few_samples_do_not_count_as_many_rows() -> None:
    torch.manual_seed(0)
    layer = Orthogonalize(1, rows="tokens")
    group = (torch.arange(400.0) % 2)[:, None]
    mean = torch.randn(400, 1, 1)  # of a sample: four of them say little of a group
    for rows in torch.arange(400).split(4):
        out = layer(mean[rows].expand(-1, 200, 1) + 0.1 * torch.randn(4, 200, 1), group[rows])
    assert not bool(torch.isclose(out[::2].mean(), out[1::2].mean(), atol=1e-4))
    few = Orthogonalize(1, rows="tokens")
    out = few(mean[:4].expand(-1, 200, 1) + 0.0, group[:4])
    torch.testing.assert_close(out[::2].mean(), out[1::2].mean())  # the first batch has nothing else


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu, self.head = nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.relu(self.conv(x)).mean((2, 3)))


def images() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    group = (torch.arange(120.0) % 2)[:, None].double()
    inked = torch.rand(120, 6, 6) < 0.6
    x = torch.randn(120, 1, 8, 8).double() + 0.5 * group[:, :, None, None]
    return x, group, inked


def test_a_convolution_is_fitted_and_audited_on_inked_pixels() -> None:
    x, group, inked = images()
    model = Network().double()
    blinded = blind(model, ["relu"], rows="pixels")
    batches = list(zip(x.split(40), inked.split(40), group.split(40), strict=True))
    options: dict[str, Any] = {"mask": lambda batch: batch[1]}
    fit = fit_layer(blinded, batches, **options)["corrections.relu"]
    assert fit.n_rows == int(inked.sum()) and fit.residual < 1e-6
    found = audit_layer(blinded, batches, "relu", rows="pixels", **options)
    assert found.certificate.correlation < 1e-6
    assert audit_layer(model, batches, "relu", rows="pixels", **options).certificate.correlation > 0.1
    wider = x[:4].repeat(1, 1, 2, 2)  # another size of image
    assert blinded.eval()(wider, protected=group[:4]).shape == (4, 1)


def test_an_audit_of_positions_takes_samples_as_independent_and_keeps_the_covariance_of_the_positions() -> None:
    torch.manual_seed(0)
    group = (torch.arange(100.0) % 2)[:, None]
    tokens = torch.randn(100, 1, 4).expand(-1, 50, -1)  # each sample is repeated 50 times
    identity = nn.Sequential(nn.Identity())
    found = audit_layer(identity, [(tokens, group)], "0", rows="tokens")
    alone = audit_layer(identity, [(tokens[:, 0], group)], "0")
    assert found.evaluations[0].joint.p_value == pytest.approx(alone.evaluations[0].joint.p_value, rel=1e-6)
    y, X, mask = draw()
    collector = OutputCollector("0", None, 0, None, 10**6, "tokens", lambda _: mask)
    units, _ = collect_outputs(identity, [(y, X)], collector)
    rows, columns = y[mask], each(X, 5)[mask.flatten()]
    positions = (rows - rows.mean(0)).T @ (columns - columns.mean(0)) / len(rows)
    samples = torch.as_tensor(units - units.mean(0)).T @ (X - X.mean(0)) / len(X)
    torch.testing.assert_close(samples, positions, rtol=0.0, atol=1e-12)


def test_the_constraint_counts_the_same_rows() -> None:
    y, X, mask = draw()
    constraint = OrthogonalityConstraint(2, rows="tokens", scale="unit", rate=0.0)
    value = constraint(y, X, mask)
    plain = OrthogonalityConstraint(2, scale="unit", rate=0.0)
    torch.testing.assert_close(value, plain(y[mask], each(X, 5)[mask.flatten()]), rtol=0.0, atol=1e-12)
    assert constraint.correlation.shape == (2, 3) and constraint.residual > 0.2


@pytest.mark.parametrize(
    ("shape", "rows", "mask", "message"),
    [
        ((6, 3), "tokens", None, 'rows="tokens" needs an output with positions'),
        ((6, 3), "pixels", None, 'rows="pixels" needs an output with positions'),
        ((6, 4, 3), "tokens", torch.ones(6, 5), r"mask has shape \(6, 5\) .* pass one of shape \(6, 4\)"),
        ((6, 4, 3), "tokens", torch.zeros(6, 4), "leaves out every position"),
        ((6, 4, 3), "tokens", torch.full((6, 4), -1e9), "must be 1 or True"),
        (
            (6, 4, 3),
            "tokens",
            "attention_mask",
            r"The mask is 'attention_mask': pass an array of shape \(n, positions\)",
        ),
        ((6, 4, 3), "tokens", [["a"] * 4] * 6, r"The mask \(list\) has values that are not numbers: pass an array"),
        ((6, 4, 3), "tokens", [[1], [1, 1]], r"The mask \(list\) has values that are not numbers: pass an array"),
        ((6, 4, 3), "samples", torch.ones(6, 4), "each position is a unit"),
        ((6, 4, 3), "words", None, "rows"),
    ],
)
def test_rows_that_cannot_be_read(shape: tuple[int, ...], rows: Any, mask: Any, message: str) -> None:
    X = (torch.arange(6.0) % 2)[:, None]
    with pytest.raises(InputError, match=message):
        Orthogonalize(1, rows=rows)(torch.randn(shape), X, mask)
    with pytest.raises(InputError, match=message):
        OrthogonalityConstraint(1, rows=rows)(torch.randn(shape), X, mask)


def test_positions_without_a_protected_value_are_refused() -> None:
    y, X, mask = draw()
    missing = X.clone()
    missing[3, 0] = torch.nan
    for layer in (Orthogonalize(2, rows="tokens"), OrthogonalityConstraint(2, rows="tokens")):
        with pytest.raises(InputError, match="protected columns have missing"):
            layer(y, missing, mask)
        with pytest.raises(InputError, match=r"shape \(60, 5, 2\) .* pass columns of shape \(n, p\)"):
            layer(y, X[:, None].expand(-1, 5, -1), mask)
        with pytest.raises(InputError, match=r"shape \(59, 2\) .* for the same n rows"):
            layer(y, X[1:], mask)


def test_a_network_with_its_own_mask_gets_it() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            assert mask is not None
            return self.layer(x) * mask[:, :, None]

    y, X, mask = draw()
    blinded = blind(Masked().double(), ["layer"], rows="tokens")
    assert blinded(y, mask=mask, protected=X).shape == y.shape
    assert int(blinded.corrections["layer"].moments.rows) == y[:, :, 0].numel()
    blinded.corrections["layer"].moments.reset()
    blinded.mask = mask
    blinded(y, mask=mask, protected=X)
    assert int(blinded.corrections["layer"].moments.rows) == int(mask.sum())
    with pytest.raises(InputError, match="Pass either forward="):
        fit_layer(blinded, [(y, X)], mask=lambda batch: mask, forward=lambda model, batch: None)
    with pytest.raises(InputError, match="no axes to average over"):
        audit_layer(blinded, [(y, X)], "layer", rows="tokens", pool=1)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ("attention_mask", r"such as lambda batch: batch\[0\]\[\"attention_mask\"\], not 'attention_mask'\.$"),
        (torch.ones(60, 5), r"such as lambda batch: batch\[1\], not a Tensor\.$"),
    ],
)
def test_a_mask_of_a_loader_is_a_function(mask: Any, message: str) -> None:
    y, X, _ = draw()
    blinded = blind(nn.Sequential(nn.Linear(3, 3).double()), ["0"], rows="tokens")
    with pytest.raises(InputError, match=message):
        fit_layer(blinded, [(y, X)], mask=mask)
    with pytest.raises(InputError, match=message):
        audit_layer(blinded.model, [(y, X)], "0", rows="tokens", mask=mask)


class Steps(nn.Module):
    """Convolution over steps (n, units, steps), whose output is then seen as tokens (n, steps, units)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu, self.last, self.head = nn.Conv1d(3, 7, 1), nn.ReLU(), nn.Tanh(), nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.relu(self.conv(x.movedim(2, 1))).movedim(1, 2)))


def token_network(kind: str, t: int) -> nn.Module:
    units = {"3 units": 3, "as many units as tokens": t}.get(kind, 8)
    return nn.Sequential(nn.Linear(3, units), nn.LayerNorm(units), nn.ReLU(), nn.Linear(units, 2))


@pytest.mark.parametrize("t", [5, 3, 8])
@pytest.mark.parametrize("layer", ["0", "1", "2", "3"])
@pytest.mark.parametrize("kind", ["8 units", "3 units", "as many units as tokens"])
def test_pixels_of_a_layer_of_tokens_are_refused(kind: str, layer: str, t: int) -> None:
    y, X, _ = draw(t=t)
    model = token_network(kind, t).double()
    message = rf"""layer '{layer}', of shape \(60, {t}, \d\), .* take the second \({t}\): pass rows="tokens"\.$"""
    for again in range(2):  # a refused pass does not count as the first one
        blinded = blind(model, [layer], rows="pixels") if not again else blinded  # noqa: F821
        with pytest.raises(InputError, match=f"^The weights before the output of {message}"):
            blinded(y, protected=X)
    with pytest.raises(InputError, match=message):
        fit_layer(blind(model, [layer], rows="pixels"), [(y, X)])
    with pytest.raises(InputError, match=message):
        audit_layer(model, [(y, X)], layer, rows="pixels")
    assert not torch.nn.modules.module._global_forward_hooks
    fit_layer(blind(model, [layer], rows="tokens"), [(y, X)])


def test_pixels_of_convolutions_over_steps_are_read_and_tokens_made_of_them_are_refused() -> None:
    y, X, _ = draw(t=5)
    model = Steps().double()
    for layer in ("conv", "relu"):
        blinded = blind(model, [layer], rows="pixels", where="post")
        assert fit_layer(blinded, [(y, X)])[f"corrections.{layer}"].n_rows == 300
        assert audit_layer(blinded, [(y, X)], layer, rows="pixels").certificate.correlation < 1e-6
    with pytest.raises(InputError, match="'last', of shape"):
        blind(model, ["last"], rows="pixels")(y, protected=X)
    audit_layer(model, [(y, X)], "last", rows="pixels", pool=lambda out: out.movedim(2, 1))


def test_pixels_of_packed_embeddings_recurrent_and_attention_layers_are_refused() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.MultiheadAttention(6, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.part(x, x, x)[0]

    X = (torch.arange(20.0) % 2)[:, None]
    recurrent = nn.Sequential(nn.LSTM(6, 4, batch_first=True, bidirectional=True))
    for model, layer, x in (
        (recurrent, "0", torch.randn(20, 5, 6)),
        (Heads(), "part", torch.randn(20, 5, 6)),
        (nn.Sequential(nn.Embedding(9, 6)), "0", torch.randint(0, 9, (20, 5))),
    ):
        with pytest.raises(InputError, match='pass rows="tokens"'):
            blind(model, [layer], rows="pixels", output=0)(x, protected=X)


@pytest.mark.parametrize("n", [1, 3])
def test_positions_of_a_single_sample_are_counted(n: int) -> None:
    y = torch.zeros(n, 4, 5, 6)
    assert [n_positions(y, rows) for rows in ("samples", "tokens", "pixels")] == [1, 20, 30]
