"""Probes: can a model recover the protected columns from a representation, before and after correction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
from scipy.special import stdtr
from threadpoolctl import threadpool_limits

from setsquare import tables
from setsquare._typing import IntArray, Table
from setsquare.auditing.comparison.metric import interval
from setsquare.auditing.evaluations.records import holm
from setsquare.auditing.probes.models import (
    KINDS,
    SLOW,
    HeldOut,
    Kind,
    Source,
    Split,
    Targets,
    as_matrix,
    hold_out,
    measure,
    read_attributes,
    split_rows,
)
from setsquare.auditing.probes.result import ProbeResult, ProbeScore
from setsquare.auditing.protected import cluster_numbers
from setsquare.errors import InputError
from setsquare.notes import Note
from setsquare.projection import Projector
from setsquare.tables.arrow import accept_unread
from setsquare.tables.frame import backend_of, dense
from setsquare.tables.validation import check_alignment, check_confidence, check_finite, check_max_rows, check_same_rows

#: Squared correlations times n below this do not occur by chance: the correction was fitted to these rows.
TAUTOLOGY = 1e-4
#: Scores and standard errors below this come from constant predictions.
ROUNDING = 1e-9


@accept_unread
def probe(
    representations: Mapping[str, Any] | Table,
    protected: Table,
    *,
    features: Table | None = None,
    cluster: Any = None,
    cv: int = 5,
    probes: Sequence[Kind] = KINDS,
    max_rows: int = 10_000,
    confidence: float = 0.95,
    random_state: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> ProbeResult:
    """Test how well probes recover each protected column from each representation, on held-out rows.

    Parameters
    ----------
    representations : mapping of name to representation, or one array
        A representation is an array or dataframe of n rows; or a transformer of `features`, such as
        ``LinearOrthogonalizer()``, which is cloned and fitted in each fold; or None for the features as they are.
    protected : dataframe, series or array of n rows
        Text, categories and numbers with two values are classified; other numbers are regressed.
    features : dataframe or array of n rows, optional
        Input of the transformers.
    cluster : array of n values, optional
        Rows with the same value (images of a patient) are kept in one fold; intervals are cluster-robust.
    cv : int
        Number of folds, at least 3; the same rows for all representations.
    probes : sequence of {"linear", "logistic", "mlp", "boosting"}
        Ridge regression (on indicators of levels), multinomial logistic regression (of a number: is it above its
        median), a network with one hidden layer of 64 units, and gradient boosted trees.
    max_rows : int
        The network and the trees are fitted on at most this many rows, drawn at random.
    confidence : float
        Confidence level of the intervals; about 1 - confidence is the probability of a finding in a representation
        without information.
    random_state : int
        Random seed for the folds and the rows of slow probes.
    progress : callable, optional
        Called as ``progress(done, total)`` after each fit.

    Returns
    -------
    ProbeResult

    Notes
    -----
    Pass corrections as transformers, not as corrected arrays. On its training rows a linear correction has zero
    covariance with the protected columns, so a linear probe fitted on these rows learns nothing, whatever is left on
    other rows; and a correction fitted to all rows has used the rows that the probe is scored on. Therefore each fold
    is scored by probes fitted on some of the other folds, with corrections fitted on the rest (with five folds, two and
    two). A transformer that takes ``protected`` in ``transform`` gets the columns of those rows.

    A correction is exact on its training rows. On new rows a squared correlation of about q/n is left, for q features
    and n rows, and with many features a linear probe finds it: a "trace" if it is small. A column that is "not found"
    may still be recovered by another probe or with more rows: the intervals show how well.

    Examples
    --------
    >>> import numpy as np
    >>> import setsquare as sq
    >>> rng = np.random.default_rng(0)
    >>> sex = rng.choice(["f", "m"], size=1000)
    >>> Z = rng.normal(size=(1000, 4)) * np.where(sex == "f", 1.0, 2.0)[:, None] + (sex == "f")[:, None]
    >>> found = sq.probe(
    ...     {"before": None, "erased": sq.LinearOrthogonalizer(using="features")},
    ...     sex, features=Z, probes=("linear", "boosting"),
    ... )
    >>> print(found.reason)
    before: x0 recovered (linear, boosting). erased: x0 recovered (boosting).
    """
    _check(cv, probes, max_rows, confidence)
    sources = _open(representations, features, protected)
    n = tables.n_rows(protected)
    clusters = cluster_numbers(cluster, n)
    units = np.arange(n) if clusters is None else clusters
    n_units = len(np.unique(units))
    if n_units < 4 * cv:
        raise InputError(f"{n_units} rows or clusters are too few for {cv} folds: use fewer folds, or more rows.")
    attributes, notes = read_attributes(protected, units, cv)
    targets: Targets = {(a.name, kind): a.halved() if kind == "logistic" else a for a in attributes for kind in probes}
    corrections = any(source.correction is not None for source in sources.values())
    splits = split_rows(attributes, units, cv, max_rows, np.random.default_rng(random_state))
    total, done = len(sources) * len(splits) * len(targets), count(1)

    def tick() -> None:
        if progress is not None:
            progress(next(done), total)

    scores: list[ProbeScore] = []
    for name, source in sources.items():
        # The fits are many and small: threads would mostly wait for each other, for very long on busy cores.
        with threadpool_limits(limits=1):
            found = hold_out(source, protected, targets, splits, tick)
        scores += _judge(name, targets, found, splits, units, confidence)
        notes += _tautology(name, source, protected)
    return ProbeResult(
        tuple(scores),
        n,
        cv,
        None if clusters is None else n_units,
        confidence,
        (*notes, *_remarks(scores, splits, max_rows, corrections)),
        backend_of(protected, features),
    )


def _check(cv: int, probes: Sequence[Kind], max_rows: int, confidence: float) -> None:
    if cv < 3:
        raise InputError(f"cv={cv} folds are too few: corrections, probes and scores need rows each; use 3 or more.")
    if not probes or len(set(probes)) < len(probes) or not set(probes) <= set(KINDS):
        raise InputError(f"probes={probes!r}: name one or more of {', '.join(KINDS)}, each once.")
    check_max_rows(max_rows)
    check_confidence(confidence)


def _open(representations: Any, features: Table | None, protected: Table) -> dict[str, Source]:
    """Representations by name, each with as many rows as the protected columns."""
    given = representations if isinstance(representations, Mapping) else {"representation": representations}
    if not given:
        raise InputError("There is no representation to probe: pass at least one.")
    sources, n = {}, tables.n_rows(protected)
    for name, value in given.items():
        is_model = hasattr(value, "fit") and hasattr(value, "transform")
        table = features if value is None or is_model else value
        if table is None:
            raise InputError(f"{name} is computed from the features: pass them as features=.")
        check_same_rows(f"{name} has", tables.n_rows(table), "the protected columns have", n)
        check_alignment(protected, table, str(name))
        if not is_model:
            is_numeric = getattr(getattr(table, "dtype", None), "kind", "O") in "fiub"
            table = as_matrix(table if is_numeric else tables.learn(table).apply(table).values)
            check_finite(table, [f"{name}[{j}]" for j in range(table.shape[1])], "column")
        sources[str(name)] = Source(table, value if is_model else None)
    return sources


def _judge(
    name: str,
    targets: Targets,
    found: Mapping[tuple[str, Kind], HeldOut],
    splits: Sequence[Split],
    units: IntArray,
    confidence: float,
) -> list[ProbeScore]:
    """Scores with intervals; p-values are adjusted over all probes of the representation."""
    rows = []
    for key, held_out in found.items():
        target = targets[key]
        own = units[target.known]
        metric = measure(target, held_out.scores, splits)
        span, above = interval(metric, confidence, own), metric.value - target.chance
        p_value = float(above <= ROUNDING)  # zero variance, or a perfect score
        if span.std_error > ROUNDING:
            p_value = float(stdtr(len(np.unique(own)) - 1, -above / span.std_error))
        rows.append((key, target, span, p_value, held_out))
    adjusted = holm([p_value for *_, p_value, _ in rows])
    return [
        ProbeScore(
            name,
            *key,
            span.estimate,
            span.ci_low,
            span.ci_high,
            target.chance,
            target.measure,
            p_value,
            "not found" if p > 1.0 - confidence else "trace" if span.ci_high < target.small else "recovered",
            held_out.n_train,
            held_out.n_not_converged,
        )
        for (key, target, span, p_value, held_out), p in zip(rows, adjusted, strict=True)
    ]


def _tautology(name: str, source: Source, protected: Table) -> tuple[Note, ...]:
    """Note representations that were corrected on the rows that they are probed on."""
    if source.correction is not None:
        return ()
    A = source.table
    effects = Projector.fit(A, dense(tables.learn(protected).apply(protected).values)).coefficients
    with np.errstate(invalid="ignore"):
        correlations = effects / A.std(axis=0, dtype=np.float64)
    if not len(A) * np.nanmax(correlations**2, initial=0.0) < TAUTOLOGY:
        return ()
    text = (
        "{name} is orthogonal to the protected columns up to rounding, so it was corrected on these same rows, and "
        "linear probes find nothing by construction: pass the correction itself, to be fitted in folds."
    )
    return (Note("corrected-rows", text, severity="warning", name=name),)


def _remarks(scores: Sequence[ProbeScore], splits: Sequence[Split], max_rows: int, corrections: bool) -> list[Note]:
    """Notes on the rows used for fitting, and on convergence."""
    remarks, split = [], splits[0]
    if corrections:
        text = (
            "Corrections were fitted on {fit} rows, probes on {train} others (first fold): all scores are for "
            "rows that the correction has not seen."
        )
        remarks.append(Note("rows-of-fits", text, fit=len(split.fit), train=len(split.train)))
    slow = dict.fromkeys(s.probe for s in scores if s.probe in SLOW)
    if slow and len(split.train) > max_rows:
        text = "Fitted on {count} of these rows only: {probes}."
        remarks.append(Note("rows-sampled", text, count=max_rows, probes=", ".join(slow)))
    for kind in dict.fromkeys(s.probe for s in scores):
        if failed := sum(s.n_not_converged for s in scores if s.probe == kind):
            text = "{count} fit(s) of the {probe} probe did not converge."
            remarks.append(Note("not-converged", text, severity="caution", count=failed, probe=kind))
    return remarks
