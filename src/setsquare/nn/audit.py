"""Audit the output of a network's layer at test time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.utils.extmath import randomized_svd
from torch import Tensor, nn

from setsquare._typing import Array, IntArray
from setsquare.auditing import AuditResult, Evaluation, Test, audit
from setsquare.auditing.evaluations.nonlinear import PERMUTATION_BASED, RELU_GAIN
from setsquare.auditing.verdict import judge, with_decision
from setsquare.errors import InputError
from setsquare.nn.batches import MaskOf, check_mask_of
from setsquare.nn.layer_outputs import OutputCollector, collect_outputs
from setsquare.nn.row_axes import Rows, check_rows
from setsquare.notes import Note
from setsquare.tables.validation import check_choice

#: Evaluation models for a layer; all but the first use its leading principal components.
EVALUATIONS = ("tensor", *PERMUTATION_BASED)


def audit_layer(
    model: nn.Module,
    loader: Iterable[Any],
    layer: str,
    protected: Any = None,
    *,
    evaluation: str | Sequence[str] = "tensor",
    pool: int | tuple[int, ...] | Callable[[Tensor], Tensor] | None = None,
    n_components: int = 5,
    output: int | str | None = None,
    batch_dim: int = 0,
    rows: Rows = "samples",
    mask: MaskOf | None = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    max_values: int = 100_000_000,
    confidence: float = 0.95,
    n_permutations: int = 499,
    random_state: int = 0,
    **options: Any,
) -> AuditResult:
    """Audit the output of a layer at test time, for each unit and jointly.

    The network runs once over the loader, in ``eval`` mode and without gradients, and is not changed. For a blinded
    network, the output *after* the correction is audited. It does not cover the output of the network: later
    layers can recover what a blinded layer still contains, so audit the predictions too, with :func:`setsquare.audit`;
    :func:`~setsquare.nn.blind_and_refit` corrects both. Audit rows that the correction was not fitted on: on its own
    training rows it passes the audit whatever it does to new rows.

    Parameters
    ----------
    model : torch.nn.Module
        Any network, or one from :func:`~setsquare.nn.blind`.
    loader : iterable
        Batches ``(inputs, ..., protected)``. The last element is passed to the network as ``protected=`` if its
        ``forward`` has this parameter, as that of a blinded network does.
    layer : str
        Name of a layer of the original network, see :func:`~setsquare.nn.list_layers`; ``"relu#2"`` is its second call
        in a forward pass.
    protected : dataframe, series or array, optional
        Protected columns of all rows, in the order of the loader. By default, the last element of each batch.
    evaluation : str or sequence of str
        "tensor", a linear model of all units, is always included: it gives the effect map and the bounds. Further
        models are "relu", "relu without intercept", "forest" and "independence", see Notes. The verdict uses all of
        them, with Holm's adjustment.
    pool : int, tuple of int or callable, optional
        Axes of the output to average over, where axis 0 holds the rows, such as ``(2, 3)`` for the spatial axes of a
        convolution; or a function that is applied to the output first, such as ``torch.relu``.
    n_components : int
        Number of principal components, and of units, for the other evaluation models.
    output : int or str, optional
        Element to audit if the layer returns a tuple or a dict.
    batch_dim : int
        Axis that holds the samples; 1 for sequence-first transformers.
    rows : {"samples", "tokens", "pixels"}
        As in :func:`~setsquare.nn.blind`. Positions of one sample are not independent: with "tokens" or "pixels", each
        sample enters with the mean of its positions that count, weighted by their number, which has the covariance of
        the positions with the protected columns. Its correlation is higher than that of single positions.
    mask : callable, optional
        ``mask(batch)`` returns the positions that count, (n, positions); by default the ``attention_mask`` among the
        inputs, if there is one.
    forward : callable, optional
        ``forward(model, batch)``, for batches in another format.
    max_values : int
        Largest number of values (rows times units) to keep in memory. The audit needs about 40 bytes per value.
    confidence, n_permutations, random_state, **options
        As in :func:`setsquare.audit`; further options are ``cluster``, ``tolerance``, ``basis``, ``missing`` and
        ``max_rows``.

    Returns
    -------
    AuditResult
        Its ``effect_map`` has the shape of the layer's output, without the row axis.

    Notes
    -----
    The forest and the measures of dependence use the leading principal components of the standardised units. The R² of
    a forest does not change when the units are rotated, so this equals the forest of all units, up to the share of the
    variance that the components leave out. A ReLU unit models an activation, not a mixture of activations: it is fitted
    to the unit closest to each component, and the smallest p-value is multiplied by their number (Bonferroni). Neither
    choice uses the protected columns, so the permutation tests stay exact. A nonlinear dependence of a few units with
    low loadings can be missed: audit such units separately, with `pool`.

    All units have the same weight, however little they vary. A correction leaves a small trace in units that hardly
    vary, such as those at the border of an image: on new rows, these can correlate strongly with the protected columns.

    Examples
    --------
    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> sex = (torch.arange(600.0) % 2)[:, None]
    >>> images = torch.randn(600, 1, 6, 6) + 0.3 * sex[:, :, None, None]
    >>> network = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU())
    >>> result = audit_layer(network, list(zip(images.split(100), sex.split(100))), "1")
    >>> print(result.verdict)
    leak
    >>> result.effect_map.correlation.shape
    (2, 4, 4)
    """
    names = dict.fromkeys(("tensor", *((evaluation,) if isinstance(evaluation, str) else evaluation)))
    for name in names:
        check_choice("evaluation", name, EVALUATIONS)
    if n_components < 1:
        raise InputError(f"n_components={n_components} must be at least 1.")
    check_rows(rows)
    check_mask_of(mask)
    if rows != "samples" and pool is not None and not callable(pool):
        raise InputError(f'pool={pool!r} has no axes to average over with rows="{rows}": use rows="samples".')
    collector = OutputCollector(layer, output, batch_dim, pool, max_values, rows, mask)
    units, columns = collect_outputs(model, loader, collector, protected, forward)
    judged: Callable[..., AuditResult] = partial(
        audit,
        protected=columns,
        family="gaussian",  # the outputs are units, even where they sum to one in each row
        confidence=confidence,
        n_permutations=n_permutations,
        random_state=random_state,
        **options,
    )
    found = judged(units, setting=f"layer {layer!r} at test time")
    evaluations = found.evaluations
    if len(names) > 1 and evaluations:
        evaluations += _beyond_linear(units, tuple(names)[1:], n_components, random_state, judged)
    if evaluations:
        what = f"Units of layer {layer!r}"
        decision = judge(evaluations, found.certificate, confidence=confidence, limits=found.limits, what=what)
        found = with_decision(found, decision)
    notes = list(found.notes)
    if collector.n_calls > 1:
        text = "The network calls this layer {calls} times per forward pass; {name}#2 is the second call."
        notes.append(Note("layer-runs-again", text, calls=collector.n_calls, name=collector.name))
    n_tests = min(n_components, units[0].size) * len(evaluations)
    if any(name.startswith("relu") for name in names) and n_tests > (1.0 - confidence) * (n_permutations + 1):
        text = (
            "With {count} permutations no p-value of relu can be significant after adjustment for the number of units: "
            "increase n_permutations, or reduce n_components."
        )
        notes.append(Note("few-permutations", text, severity="warning", count=n_permutations))
    return replace(found, evaluations=evaluations, notes=tuple(notes))


def _beyond_linear(
    units: np.ndarray[Any, Any], names: Sequence[str], components: int, seed: int, judged: Callable[..., AuditResult]
) -> tuple[Evaluation, ...]:
    """Evaluate the leading principal components or, for ReLU, the units closest to them."""
    flat = units.reshape(len(units), -1)
    scores, nearest, share = _principal(flat, components, seed)
    places = [tuple(map(int, np.unravel_index(unit, units.shape[1:]))) for unit in nearest]
    text = (
        "The {name} evaluation model used {count} principal component(s) of the standardised units, {share:.0%} "
        "of their variance."
    )
    found = []
    for name in names:
        if name.startswith("relu"):
            alone = [judged(flat[:, unit], evaluation=name).evaluation(name) for unit in nearest]
            found.append(_merge(dict(zip(places, alone, strict=True))))
        else:
            joint = judged(scores, evaluation=name).evaluation(name)
            note = Note("components", text, name=name, count=scores.shape[1], share=share)
            found.append(replace(joint, notes=(*joint.notes, note)))
    return tuple(found)


def _principal(Y: np.ndarray[Any, Any], k: int, seed: int) -> tuple[Array, IntArray, float]:
    """Leading principal components (n, k) of the standardised units, the closest units, and the variance share."""
    mean = Y.mean(axis=0, dtype=np.float64)
    Z = Y - mean.astype(Y.dtype)
    spread = np.sqrt(np.einsum("ij,ij->j", Z, Z) / len(Z))
    varies = spread > 1e-12 * np.abs(mean)
    Z /= np.where(varies, spread, np.inf).astype(Z.dtype)
    k = min(k, int(varies.sum()))
    U, s, Vt = randomized_svd(Z, k, random_state=seed)
    loadings = np.where(varies, np.abs(Vt), -1.0)
    nearest = np.empty(k, dtype=np.intp)
    for j in range(k):
        nearest[j] = loadings[j].argmax()
        loadings[:, nearest[j]] = -1.0  # use each unit only once
    share = float(np.sum(s**2) / (len(Z) * varies.sum()))
    return np.asarray((U * s)[:, s > 1e-6 * s[0]], dtype=np.float64), nearest, share


def _merge(alone: Mapping[tuple[int, ...], Evaluation]) -> Evaluation:
    """Combine the evaluations of several units; each test gets the smallest p-value times their number (Bonferroni)."""
    first, *others = alone.values()
    if not others:
        return first

    def smallest(tests: Sequence[Test]) -> Test:
        best = min(tests, key=lambda test: (np.isnan(test.p_value), test.p_value))
        p = float(np.minimum(len(tests) * best.p_value, 1.0))
        return replace(best, p_value=p, method=f"smallest of {len(tests)} p-values, times {len(tests)}; {best.method}")

    return replace(
        first,
        effects=tuple(replace(e, term=f"{e.term}, unit {unit}") for unit, own in alone.items() for e in own.effects),
        joint=smallest([own.joint for own in alone.values()]),
        by_source=tuple(map(smallest, zip(*(own.by_source for own in alone.values()), strict=True))),
        notes=(
            *(note.of(f"Unit {unit}") for unit, own in alone.items() for note in own.notes if note.code == RELU_GAIN),
            *(note for note in first.notes if note.code != RELU_GAIN),
        ),
    )
