"""Golden masters of the corrections of networks; that they are exact is tested in tests/theorems/test_torch_*.py.

Inputs are made of cosines, and weights are set to them, so that no random generator of torch is involved.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from setsquare.errors import SetsquareError, SetsquareWarning  # noqa: E402
from setsquare.nn import (  # noqa: E402  # noqa: E402
    OrthogonalityConstraint,
    Orthogonalize,
    audit_layer,
    blind,
    blind_and_refit,
    fit_layer,
    functional,
    generalized_solver,
    held_out,
    layer_fit_checks,
    list_layers,
    moments,
    packed,
    pho,
    refit_head,
    register_activation,
    row_axes,
    weight_watch,
    within_classes,
)
from setsquare.nn import activations as acts  # noqa: E402
from setsquare.nn.generalized_moments import GeneralizedMoments, _scale  # noqa: E402

N, P = 60, 2
NAMES = ("identity", "relu", "sigmoid", "tanh", "exp", "leaky_relu", "softplus", "elu")


def wave(*shape: int, speed: float = 1.3, start: float = 0.4) -> Any:
    """Numbers between -1.5 and 1.5 without a pattern over a few hundred places."""
    place = torch.arange(float(np.prod(shape)), dtype=torch.float64)
    return (torch.cos(start + speed * place) + 0.5 * torch.sin(0.7 * place**1.1)).reshape(shape)


def protected(n: int = N) -> Any:
    return torch.stack([(torch.arange(n) % 3 == 0).double(), 40.0 + 9.0 * wave(n, speed=2.1)], 1)


def units(n: int = N, d: int = 4) -> Any:
    return wave(n, d) + 0.6 * protected(n)[:, :1] + 0.02 * protected(n)[:, 1:]


def network(out: int = 1, act: Any = None, hidden: int = 6) -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(3, hidden), act or torch.nn.Tanh(), torch.nn.Linear(hidden, out))
    model = model.double()
    with torch.no_grad():
        for k, parameter in enumerate(model.parameters()):
            parameter.copy_(wave(*parameter.shape, speed=1.1 + 0.3 * k))
    return model


def batches(n: int = N, size: int = 20) -> list[Any]:
    x = wave(n, 3, speed=0.9) + 0.5 * protected(n)[:, :1]
    return list(zip(x.split(size), protected(n).split(size), strict=True))


def labelled(n: int = N, classes: int = 2) -> list[Any]:
    x = torch.cat([x for x, _ in batches(n)])
    score = x[:, 0] + 1.5 * wave(n, speed=3.3)
    y = (score > 0.3).double() if classes == 2 else torch.bucketize(score, torch.tensor([-0.3, 0.8]).double())
    return [(x, y, protected(n))]


@pytest.mark.parametrize("name", [*NAMES, "gelu"])
def test_activations(golden, name):
    h, u = acts.ACTIVATIONS[name], 4.0 * wave(12, 2)
    u = u.abs() - 0.7 if name == "gelu" else u
    edges = torch.tensor([-0.75, -0.7, 0.0, 1e-8]).double()
    values = [h.H(u), h.h(u), h.slope(u), h.terms(u.clone(), torch.empty_like(u)), h.H(edges), h.slope(edges)]
    golden([*values, h.times_slope(torch.ones_like(u), u, torch.empty_like(u)), functional.flatten(u[0]).shape])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_linear_projections(golden, weighted, dtype):
    y = units().to(getattr(torch, dtype)).reshape(N, 2, 2).requires_grad_()
    weight = (1.0 + wave(N) ** 2) if weighted else None
    X = torch.cat([protected(), protected()[:, :1], torch.ones(N, 1)], 1)
    out = functional.project_out(y, X, weight)
    (out.double() * wave(N, 2, 2)).sum().backward()
    few = functional.project_out(y.detach()[:2], X[:2])
    golden(
        [out.double(), str(out.dtype), y.grad.double(), few.double()],
        relative={"float64": 1e-6, "float32": 1e-4, "bfloat16": 2e-2}[dtype],
    )


@pytest.mark.parametrize("name", [*NAMES, "gelu"])
def test_generalised_projections(golden, name):
    pre = (units(d=3).abs() + 1.5 if name == "gelu" else units(d=3)).requires_grad_()
    out = functional.generalized_project_out(pre, protected(), name)
    loss = (acts.ACTIVATIONS[name].h(out) * wave(N, 3)).sum()
    (gradient,) = torch.autograd.grad(loss, pre, create_graph=True)
    second = 0.0
    if name != "identity":  # of which the gradient is constant
        (second,) = torch.autograd.grad((gradient * wave(N, 3, speed=0.3)).sum(), pre)
    single = functional.generalized_project_out(pre.detach().float(), protected(), name)
    rough = functional.generalized_project_out(pre.detach(), protected(), name, max_iter=1, strict=False)
    golden([out, gradient, second, rough], relative=1e-5)
    assert float((single - out.detach()).abs().max()) < 1e-3


def test_parts_of_the_solver(golden):
    eta, D = units(d=3), torch.cat([torch.ones(N, 1).double(), (protected() - protected().mean(0)) / 9.0], 1)
    B, h = 0.2 * wave(3, 3), acts.ACTIVATIONS["softplus"]
    total = generalized_solver.row_sums(eta, D, B, h)
    K, c = wave(3, 3, 3) ** 2, wave(3, 3)
    K = K + K.transpose(0, 1) + 4.0 * torch.eye(3).double()[:, :, None]
    plain = generalized_solver.Prior(1.0, D.mean(0), h.h(eta).mean(0), torch.ones(3).double())
    past = generalized_solver.Prior(0.6, D.mean(0), h.h(eta).mean(0), torch.tensor([1.0, 2.0, 0.5]).double(), K, c)
    states = [generalized_solver.assemble(total, N, B, prior) for prior in (plain, past)]
    flat = K.clone()
    flat[2], flat[:, 2] = flat[1], flat[:, 1]
    solved = [generalized_solver.solve_units(K, c), generalized_solver.solve_units(flat, c, drop=1e-8)]
    upper = generalized_solver.products(D)

    def run(prior: Any, steps: int) -> Any:
        def sums(B: Any) -> Any:
            return generalized_solver.assemble(generalized_solver.row_sums(eta, D, B, h), N, B, prior)

        limits = {"eps": 2e-16, "tolerance": 1e-10, "aim": 1e-15, "max_iter": steps}
        return generalized_solver.minimise(sums, torch.zeros(3, 3).double(), prior, **limits)

    found = [run(prior, steps) for prior in (plain, past) for steps in (1, 3)]
    ends = [[one.B, one.converged, one.last.value, one.first.gap] for one in found]
    golden([total, states, solved, upper, generalized_solver.unpack(upper[:3].T), ends], relative=1e-5)


@pytest.mark.parametrize("momentum", ["auto", None, 0.3])
@pytest.mark.parametrize("kind", ["post", "given", "marginal", "tokens", "pixels"])
def test_layers(golden, kind, momentum):
    options: dict[str, Any] = {"momentum": momentum}
    if kind == "given":
        options |= {"n_protected": 1, "n_given": 1}
    if kind == "marginal":
        options |= {"inference": "marginal"}
    if kind in ("tokens", "pixels"):
        options |= {"rows": kind}
    shape = {"tokens": (N, 5, 2), "pixels": (N, 2, 2, 3)}.get(kind, (N, 4))
    y, layer, outs = (
        wave(*shape) + 0.4 * protected()[:, :1].reshape(N, *(1,) * (len(shape) - 1)),
        Orthogonalize(**options),
        [],
    )
    mask = torch.ones(N, 5) if kind == "tokens" else None
    if mask is not None:
        mask[::4, 3:] = 0
    for some in (slice(0, 7), slice(7, 50), slice(50, 60)):
        part = y[some].clone().requires_grad_()
        out = layer(part, protected()[some], None if mask is None else mask[some])
        (out * wave(*out.shape)).sum().backward()
        outs += [out, part.grad]
    own = layer.moments
    state = [own.anchor, own.scale, own.rows, own.gram, own.response, own.n_repeats, own.coefficients(), own.average()]
    last = layer.eval()(y[:9], protected()[:9, :1] if kind == "given" else protected()[:9])
    golden([outs, state, last])


@pytest.mark.parametrize("name", ["relu", "sigmoid", "exp"])
@pytest.mark.parametrize("momentum", ["auto", None])
def test_generalised_layers(golden, name, momentum):
    layer, outs, y = Orthogonalize(P, activation=name, momentum=momentum), [], units(140, 3)
    for some in (slice(0, 40), slice(40, 50), slice(50, 100), slice(100, 140)):
        part = y[some].clone().requires_grad_()
        out = layer(part, protected(140)[some])
        (out * wave(*out.shape)).sum().backward()
        outs += [out, part.grad]
    own = layer.moments
    prior = own.exact_prior()
    state = [own.rows, own.curvature, own.mean, own.solution, own.unsolved, own.response, prior.centre, prior.scale]
    golden([outs, state, layer.eval()(y[:9], protected(140)[:9]), _scale(own.gram)], relative=1e-5)


def test_limits_of_running_moments():
    own = moments.RunningMoments("auto")
    own.allocate(2, 3)
    assert own.is_empty and own.response.shape == (3, 3)
    own.learn(units(d=3)[:29], protected()[:29])
    assert not own._is_ample(29) and own._is_ample(30) and own._enough() == 30
    assert float(own._share(30)) == 1.0 and 0.5 < float(own._share(29)) < 1.0
    assert float(own._past(60.0)) == pytest.approx(0.9 * 29.0) and float(own._past(6.0)) == pytest.approx(0.99 * 29.0)
    own.momentum = None
    assert float(own._past(6.0)) == 29.0
    own.momentum = 0.25
    assert float(own._past(6.0)) == 0.75 * 29.0
    own.reset()
    assert own.is_empty and not own.allocated and len(own.gram) == 0
    other = GeneralizedMoments(None, "relu")
    assert set(other._shapes(3, 2).values()) == {(3, 3), (3, 2), (6, 2), (2,)}


@pytest.mark.parametrize("method", ["augmented_lagrangian", "mdmm"])
@pytest.mark.parametrize("scale", [0.7, "unit", "shared"])
@pytest.mark.parametrize("n_given", [0, 1])
def test_constraints(golden, method, scale, n_given):
    rule = OrthogonalityConstraint(P - n_given, method, scale=scale, n_given=n_given, momentum=0.3)
    values = []
    for some in (slice(0, 20), slice(20, 25), slice(25, 60)):
        y = units(d=3)[some].clone().requires_grad_()
        value = rule(y, protected()[some])
        value.backward()
        values += [value, y.grad]
    rule.step()
    again = OrthogonalityConstraint(P - n_given, method, scale=scale, n_given=n_given)
    again.load_state_dict(rule.state_dict())
    parts = [
        rule.multipliers,
        rule.correlation,
        rule.constant,
        rule.residual,
        rule.covariance,
        rule.variance,
        rule.mean,
    ]
    more = [rule.n_rows, rule.n_calls, rule.protected_mean, rule.protected_scatter, repr(rule), rule.rate]
    golden([values, parts, more, rule.eval()(units(d=3)[:9], protected()[:9]), again.residual])


@pytest.mark.parametrize("kind", ["post", "generalized", "features", "moments", "preserve", "stream"])
def test_fitted_layers(golden, kind):
    model = network(act=torch.nn.ReLU() if kind == "generalized" else torch.nn.Tanh())
    options: dict[str, Any] = {
        "generalized": {"where": "generalized"},
        "features": {"inference": "features"},
        "moments": {"moments": 2},
        "preserve": {"inference": "features", "n_preserved": 1, "n_protected": 1},
    }.get(kind, {})
    own = blind(model, ["1"], **options)
    loader = batches(120, 40)
    fits = fit_layer(own, loader, max_bytes=0 if kind == "stream" else 1e9, held_out=loader)
    x, X = torch.cat([a for a, _ in loader]), protected(120)
    out = own.eval()(x, protected=X) if kind not in ("features", "preserve") else own.eval()(x)
    found = fits[next(iter(fits))]
    values = [list(fits), found.n_rows, found.n_passes, found.weak, round(found.held_out, 7), out]
    golden(values, relative=1e-4)


HEADS = ["plain", "auto", "new rows", "outcome", "given", "budget", "spline", "three", "gaussian"]


@pytest.mark.parametrize("kind", HEADS)
def test_heads(golden, kind):
    classes = 3 if kind == "three" else 2
    model, loader = network(3 if kind == "three" else 1), labelled(200, classes)
    if kind == "spline":
        model = network(hidden=14)
    if kind == "new rows":
        loader = [(x, y, X[:, :1]) for x, y, X in loader]
    if kind == "gaussian":
        loader = [(x, 2.0 * y + wave(len(y)), X) for x, y, X in loader]
    options: dict[str, Any] = {
        "auto": {"l2": "auto"},
        "new rows": {"orthogonal_on": "new rows", "l2": 0.1},
        "outcome": {"given": "outcome"},
        "given": {"given": [1]},
        "budget": {"budget": 0.3},
        "spline": {"basis": "spline", "l2": 0.1},
    }.get(kind, {})
    found = refit_head(model, loader, "2", **options)
    c = found.certificate
    golden(
        [found.intercept, found.coef, c.loss, c.n_protected, c.rank_features, model(loader[0][0][:5])], relative=1e-4
    )


def test_the_recipe(golden):
    found = blind_and_refit(network(), labelled(200), ["1"], "2", l2=0.01)
    x, _, X = labelled(200)[0]
    golden([found.model.eval()(x, protected=X), found.head.coef, list(found.layers)], relative=1e-5)


@pytest.mark.parametrize("pool", [None, 1])
def test_audits_of_layers(golden, pool):
    found = audit_layer(network(), batches(120, 40), "1", pool=pool, n_permutations=19)
    first = found.evaluations[0]
    tests = [[test.name, test.statistic, test.p_value] for test in getattr(first, "tests", ())]
    golden([len(found.evaluations), tests, str(found).splitlines()[:3]], relative=1e-4)


def test_rows_of_tensors(golden):
    y, X = wave(3, 2, 4, 5), protected(3)
    values = []
    for rows in ("samples", "tokens", "pixels"):
        flat = row_axes.to_units(y, rows)
        back = row_axes.from_units(flat, y, rows)
        assert bool((back == y).all())
        values += [flat, row_axes.read_rows(X, y, rows, 2), row_axes.n_positions(y, rows)]
    mask = torch.ones(3, 4, 5)
    mask[1, 2:] = 0
    values += [row_axes.read_mask(mask, y, "pixels"), row_axes.read_mask(mask[:, None], y, "pixels")]
    values += row_axes.select_rows(y, X, mask, "pixels", 2)
    sequence = torch.nn.utils.rnn.pack_padded_sequence(
        wave(3, 4, 2), torch.tensor([2, 4, 1]), True, enforce_sorted=False
    )
    inside, counts = packed.unpack(sequence)
    golden([values, inside, counts, packed.repack(inside + 1.0, sequence).data])


def test_effects_and_sums(golden):
    X = torch.cat([protected(), protected()[:, :1] * 2.0, torch.ones(N, 1)], 1)
    D = torch.cat([torch.ones(N, 1), X / 40.0], 1)
    sums = held_out.Sums()
    sums.add(units(), X)
    sums.add(units() + 1e6, X + 3.0)
    flat = held_out.Sums()
    flat.add(torch.full((5, 2), 7.0), X[:5])
    limits = [held_out.chance(*one) for one in ((100, 50, 1), (1000, 1000, 8))]
    found = pho(protected(), units()[:, 0], torch.tensor([1.0, 2.0]), 0.5, sample_weight=1.0 + wave(N) ** 2)
    plain = pho(protected().float(), units()[:, 0].float())
    within = within_classes(protected(6), torch.tensor([0, 1, 2, 0, 1, 2]), 3)
    golden([moments.effects_of(D.T @ D / N), sums.correlations(), flat.correlations(), limits, found, within])
    assert plain.coef.dtype == torch.float32


def test_lists_of_layers(golden):
    golden([str(one) for one in list_layers(network(), wave(5, 3))])


def test_watched_weights():
    model = network()
    watch = weight_watch.WeightWatch.of(model.modules())
    assert not watch.has_moved() and not watch.has_moved(training=True)
    with torch.no_grad():
        model[0].weight[0, 0] += 1e-3
    assert watch.has_moved()
    with torch.no_grad():
        model[0].weight[0, 0] -= 1e-3


def test_rounding_of_layers(golden):
    rounding = layer_fit_checks.Rounding()
    rounding.add(units(), torch.bfloat16)
    fine = layer_fit_checks.Rounding()
    fine.add(units(), torch.float64)
    far = layer_fit_checks.Rounding()
    far.add(units() + 1e7, torch.float32)
    golden([rounding.is_coarse, fine.is_coarse, far.is_coarse])


def skewed() -> Any:
    model = network()
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))
    return model


def fitted(model: Any = None, loader: Any = None, **options: Any) -> Any:
    return fit_layer(blind(model or network(), ["1"]), loader or batches(), **options)


MISTAKES = {
    "activation": lambda: functional.generalized_project_out(units(), protected(), "swish"),
    "protected": lambda: functional.project_out(units(), None),
    "rows": lambda: functional.project_out(units(), protected()[:9]),
    "no rows": lambda: functional.project_out(units()[:0], protected()[:0]),
    "ids": lambda: functional.project_out(units(), torch.arange(N)),
    "text": lambda: functional.project_out(units(), ["a"] * N),
    "nan": lambda: functional.project_out(units() * float("nan"), protected()),
    "nan protected": lambda: functional.project_out(units(), protected() * float("inf")),
    "weights": lambda: functional.project_out(units(), protected(), -torch.ones(N)),
    "weights zero": lambda: functional.project_out(units(), protected(), torch.zeros(N)),
    "weights shape": lambda: functional.project_out(units(), protected(), torch.ones(3)),
    "whole": lambda: functional.project_out(torch.ones(N, 2, dtype=torch.long), protected()),
    "scalar": lambda: functional.project_out(torch.tensor(1.0), protected()),
    "array": lambda: functional.flatten([1.0]),
    "gelu": lambda: functional.generalized_project_out(units() - 9.0, protected(), "gelu"),
    "steps": lambda: functional.generalized_project_out(units(), protected(), "exp", max_iter=0),
    "where": lambda: Orthogonalize(2, where="before"),
    "inference": lambda: Orthogonalize(2, inference="none"),
    "n_protected": lambda: Orthogonalize(0),
    "momentum": lambda: Orthogonalize(2, momentum=0.0),
    "momentum 2": lambda: Orthogonalize(2, momentum=1.5),
    "rows word": lambda: Orthogonalize(2, rows="words"),
    "n_given": lambda: Orthogonalize(2, n_given=-1),
    "n_given alone": lambda: Orthogonalize(n_given=1),
    "n_given generalized": lambda: Orthogonalize(2, activation="relu", n_given=1),
    "moments": lambda: Orthogonalize(2, moments=3),
    "n_preserved": lambda: Orthogonalize(2, n_preserved=1),
    "moments generalized": lambda: Orthogonalize(2, moments=2, activation="relu"),
    "moments given": lambda: Orthogonalize(2, moments=2, n_given=1),
    "moments off": lambda: Orthogonalize(2, moments=2, inference="off"),
    "not seen": lambda: Orthogonalize(2).eval()(units(), protected()),
    "columns": lambda: Orthogonalize(1)(units(), protected()),
    "mask": lambda: Orthogonalize(2)(units(), protected(), torch.ones(N, 4)),
    "mask shape": lambda: Orthogonalize(2, rows="tokens")(wave(N, 3, 2), protected(), torch.ones(N, 4)),
    "mask values": lambda: Orthogonalize(2, rows="tokens")(wave(N, 3, 2), protected(), 2 * torch.ones(N, 3)),
    "mask nothing": lambda: Orthogonalize(2, rows="tokens")(wave(N, 3, 2), protected(), torch.zeros(N, 3)),
    "method": lambda: OrthogonalityConstraint(2, "newton"),
    "scale": lambda: OrthogonalityConstraint(2, scale=0.0),
    "scale inf": lambda: OrthogonalityConstraint(2, scale=float("inf")),
    "scale word": lambda: OrthogonalityConstraint(2, scale="own"),
    "constraint momentum": lambda: OrthogonalityConstraint(2, momentum=0.0),
    "penalty": lambda: OrthogonalityConstraint(2, penalty=-1.0),
    "rate": lambda: OrthogonalityConstraint(2, rate=-1.0),
    "constraint not seen": lambda: OrthogonalityConstraint(2).eval()(units(), protected()),
    "classes": lambda: within_classes(protected(), torch.arange(N), 3),
    "classes rows": lambda: within_classes(protected(), torch.arange(3), 3),
    "pho": lambda: pho(protected(), units()),
    "registered": lambda: register_activation("relu", torch.relu, torch.sign),
    "falls": lambda: register_activation("sine", torch.sin, torch.cos),
    "layer name": lambda: blind(network(), ["9"]),
    "no layer": lambda: fit_layer(network(), batches()),
    "nan inputs": lambda: fitted(skewed()),
    "no batches": lambda: fitted(loader=[(wave(0, 3), protected(0))]),
    "both": lambda: fitted(forward=lambda model, batch: None, protected=protected()),
    "foreign": lambda: fitted(layer=Orthogonalize(2)),
    "memory": lambda: fit_layer(blind(network(), ["1"], moments=2), batches(), max_bytes=10.0),
    "head": lambda: refit_head(network(), labelled(), "1"),
    "head outputs": lambda: refit_head(network(3), labelled(), "2"),
    "head family": lambda: refit_head(network(), labelled(), "2", "multinomial"),
    "head batches": lambda: refit_head(network(), [], "2"),
    "head batch": lambda: refit_head(network(), batches(), "2"),
    "head first": lambda: refit_head(network(), labelled(), "0"),
    "head given": lambda: refit_head(network(), labelled(), "2", given=[2]),
    "head all given": lambda: refit_head(network(), labelled(), "2", given=[0, 1]),
    "head expand": lambda: refit_head(network(), labelled(), "2", expand="auto"),
    "head half": lambda: refit_head(network().half(), labelled(), "2"),
    "head held out": lambda: refit_head(network(), labelled(), "2", given="outcome", held_out=labelled()),
    "head promise": lambda: refit_head(network(), labelled(), "2", max_correlation=0.001),
    "recipe": lambda: blind_and_refit(network(), labelled(), ["2"], "2"),
    "recipe iterator": lambda: blind_and_refit(network(), iter(labelled()), ["1"], "2"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(golden, name, monkeypatch):
    for registered in set(acts.ACTIVATIONS) - acts.BUILT_IN:  # by an example or a test before this one
        monkeypatch.delitem(acts.ACTIVATIONS, registered)
    with pytest.raises((SetsquareError, TypeError, ValueError)) as caught:
        MISTAKES[name]()
    golden([type(caught.value).__name__, str(caught.value).splitlines()[0][:300]])


def move_weights() -> None:
    own = blind(network(), ["1"])
    fit_layer(own, batches())
    with torch.no_grad():
        own.model[0].weight += 0.5
    own.eval()(batches()[0][0], protected=batches()[0][1])


WARNINGS = {
    "skipped": lambda: Orthogonalize(2)(torch.full((N, 2), float("nan")), protected()),
    "stale": move_weights,
    "left": lambda: held_out.warn_if_left("the output", [0.5], 100, 100, "do better."),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_warnings(golden, name):
    with pytest.warns(SetsquareWarning) as caught:
        WARNINGS[name]()
    golden([[type(one.message).__name__, str(one.message)] for one in caught])


def test_what_is_accepted_at_the_limits():
    Orthogonalize(1, momentum=1.0)
    OrthogonalityConstraint(1, momentum=1.0, penalty=0.0, rate=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert held_out.warn_if_left("x", [held_out.chance(100, 100, 1) - 1e-9], 100, 100, "") > 0.0
    register_activation("golden half", lambda u: 0.5 * u, lambda u: torch.full_like(u, 0.5))
    assert float(acts.ACTIVATIONS.pop("golden half").H(torch.tensor([2.0]).double())) == pytest.approx(1.0)
    assert copy.deepcopy(Orthogonalize(2)).n_protected == 2
