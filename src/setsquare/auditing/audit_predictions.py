"""Audit of predictions: is there a leak, how large is it, and how certain is that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from setsquare import tables
from setsquare._typing import Array, BoolArray, IntArray, Table
from setsquare.auditing.certificate import certify
from setsquare.auditing.conclusion import Settings, conclude_audit, nothing_to_leak
from setsquare.auditing.evaluations.covariance import KINDS
from setsquare.auditing.evaluations.glm import Fit, evaluate_glm
from setsquare.auditing.evaluations.nonlinear import PERMUTATION_BASED
from setsquare.auditing.evaluations.records import Evaluation
from setsquare.auditing.evaluations.score import sample_of
from setsquare.auditing.evaluations.shape import evaluate_shape
from setsquare.auditing.evaluations.tensor import EffectMap, evaluate_tensor
from setsquare.auditing.predictions import Raw, Subject, check_mean, open_predictions, read_predictions
from setsquare.auditing.protected import Protected, note_constant, note_left_out, reference_groups
from setsquare.auditing.result import AuditResult
from setsquare.auditing.verdict import Limits
from setsquare.errors import InputError, MissingValuesError
from setsquare.families import Family
from setsquare.families import family as make_family
from setsquare.glm.outcome_summary import OutcomeSummary
from setsquare.notes import Note
from setsquare.rows import Stream
from setsquare.tables import Design
from setsquare.tables.frame import backend_of, dense
from setsquare.tables.validation import (
    check_alignment,
    check_choice,
    check_confidence,
    check_max_rows,
    check_same_rows,
    read_cluster,
    read_weight,
)

EVALUATIONS = ("glm", "linear", "shape", *PERMUTATION_BASED)


@dataclass(frozen=True, slots=True)
class Rows:
    """Weights and clusters of the rows, or None."""

    weight: Array | None
    cluster: IntArray | None

    def take(self, keep: BoolArray) -> Rows:
        """Return those of some rows."""
        return Rows(
            None if self.weight is None else self.weight[keep],
            None if self.cluster is None else np.unique(self.cluster[keep], return_inverse=True)[1],
        )


def audit(
    predictions: Any,
    protected: Any,
    family: str | Family | None = None,
    vcov: str = "HC3",
    *,
    evaluation: str | Sequence[str] = ("glm", "shape"),
    cluster: Any = None,
    sample_weight: Any = None,
    classes: Sequence[Any] | None = None,
    coding: str = "dummy",
    reference: Mapping[str, Any] | None = None,
    missing: str = "error",
    confidence: float = 0.95,
    tolerance: float | Limits = 0.05,
    setting: str = "as given",
    n_permutations: int = 499,
    max_rows: int | None = None,
    random_state: int = 0,
    positive: object = None,
) -> AuditResult:
    """Test whether predictions depend on protected columns, how strongly, and how certain that is.

    Parameters
    ----------
    predictions : array, series or dataframe of shape (n,), (n, K) or (n, ...), or a column of a stream
        Probabilities (also as the two columns of ``predict_proba``), class probabilities, counts, scores, class labels,
        or a tensor or embedding with one row per observation. A column of a :class:`setsquare.Stream`, such as
        ``stream["score"]``, is read in batches; its evaluation model is the generalised linear model.
    protected : dataframe, series or array of n rows, or columns of the same stream
        The protected columns; text and categories are dummy-coded.
    family : str or Family, optional
        Family of the evaluation model, by name or, with a link or a parameter, as in
        ``sq.families.family("tweedie", parameter=1.5)``. By default binomial for values in [0, 1], multinomial for
        class probabilities, gaussian for other numbers.
    vcov : {"HC3", "HC2", "HC1", "HC0", "model", "cluster"}
        Covariance estimator of the effects. "model" is the paper's, as printed by R's ``glm``; it is meant for 0/1
        outcomes and has almost no power on predicted probabilities.
    evaluation : str or sequence of str
        Evaluation models: "glm", "linear", "shape" (curvature, combinations of groups, and spread), "relu", "relu
        without intercept", "forest", "independence". The effects of the first are the result's table; the verdict rests
        on all of them, with adjusted p-values.
    cluster : array or series of n values, optional
        Rows with the same value are not independent (a patient, a site); standard errors are then cluster-robust.
    sample_weight : array of n values, optional
    classes : sequence of names, optional
        Names of the columns of class probabilities.
    coding : {"dummy", "cells"}
        "cells" gives each combination of categorical columns its own effect.
    reference : mapping of column to level, optional
        Reference levels of categorical columns.
    missing : {"error", "drop", "level"}
        Treatment of missing values in the protected columns; "drop" also drops rows without a prediction.
    confidence : float
        Confidence level of intervals and bounds; 1 - confidence is the probability of a false alarm.
    tolerance : float or Limits
        A detected dependence is a trace, not a leak, if the upper bound on its correlation is at most this. With 0,
        every detected dependence is a leak. :class:`setsquare.auditing.Limits` also sets the limits for differences
        between groups and for the shape of the dependence.
    setting : str
        Origin of the predictions, used to label the result: "as given", "in-sample", "held out".
    n_permutations, max_rows, random_state : int
        Number of permutations, largest number of rows and seed of the permutation tests (relu, forest, independence,
        units), which use a random sample if there are more rows. No p-value is below ``1 / (1 + n_permutations)``.
    positive : class, optional
        Which of two classes is audited, if the predictions are labels or two columns of probabilities. By default 1,
        True or "yes" among labels, and the second of two columns.

    Returns
    -------
    AuditResult

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> group = rng.choice(["a", "b", "c"], size=3000)
    >>> score = rng.normal(size=3000)
    >>> print(audit(score, group).verdict)
    no leak found
    >>> print(audit(score + 0.3 * (group == "b"), group).verdict)
    leak
    """
    limits = tolerance if isinstance(tolerance, Limits) else Limits(tolerance)
    settings = Settings(vcov, confidence, limits, n_permutations, max_rows, random_state)
    names = (evaluation,) if isinstance(evaluation, str) else tuple(evaluation)
    _check(settings, names, cluster)
    if isinstance(predictions, Stream) or isinstance(protected, Stream):
        from setsquare.auditing.open_stream import open_stream, refuse_in_memory  # brings scikit-learn

        asked = None if family is None else make_family(family)
        refuse_in_memory(predictions, protected, names, cluster, classes)
        subject, columns, learned, notes = open_stream(
            predictions, protected, sample_weight, asked, coding, reference, missing
        )
        result = _audit(subject, columns, notes, names, settings)
        return replace(
            result, setting=setting, is_weighted=sample_weight is not None, references=reference_groups(learned)
        )
    raw = open_predictions(predictions, classes)
    check_same_rows("The predictions have", raw.n_rows, "the protected columns have", tables.n_rows(protected))
    for values, what in ((predictions, "the predictions"), (cluster, "cluster"), (sample_weight, "sample_weight")):
        check_alignment(protected, values, what)
    rows = Rows(read_weight(sample_weight, raw.n_rows), cluster_numbers(cluster, raw.n_rows))
    raw, columns, learned, notes = _complete(raw, protected, rows, coding, reference, missing)
    subject = read_predictions(raw, family, positive)
    return replace(
        _audit(subject, columns, notes, names, settings),
        setting=setting,
        backend=backend_of(protected, predictions),
        positive=subject.positive,
        is_clustered=cluster is not None,
        is_weighted=sample_weight is not None,
        references=reference_groups(learned),
    )


def _check_subject(subject: Subject, names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse predictions that an evaluation model cannot take; units have a single linear model, under either name."""
    if subject.shape:
        names = tuple(dict.fromkeys("glm" if name == "linear" else name for name in names if name != "shape"))
        if not names:
            raise InputError("The tests of shape take predictions, not units of a tensor: use 'glm'.")
    if subject.classes and "linear" in names:
        raise InputError("The linear evaluation model takes one column of predictions: use 'glm' for classes.")
    if not subject.classes and not subject.is_constant:
        check_mean(subject.mean, subject.family)
    return names


def _check(settings: Settings, names: tuple[str, ...], cluster: Any) -> None:
    check_choice("vcov", settings.vcov, KINDS)
    if settings.vcov == "cluster" and cluster is None:
        raise InputError("vcov='cluster' needs the clusters: pass cluster=.")
    check_confidence(settings.confidence)
    if not 0.0 <= settings.limits.correlation < 1.0:
        raise InputError(f"tolerance is a correlation between 0 and 1, not {settings.limits.correlation}.")
    if not 0.0 <= settings.limits.shape < 1.0:
        raise InputError(f"The limit for the shape is a correlation between 0 and 1, not {settings.limits.shape}.")
    if not settings.limits.difference >= 0.0:
        raise InputError(
            f"The limit for differences must be 0 or more standard deviations, not {settings.limits.difference}."
        )
    check_max_rows(settings.max_rows)
    if settings.n_permutations < 19:
        raise InputError(f"A permutation test needs at least 19 permutations, not {settings.n_permutations}.")
    for name in names:
        check_choice("evaluation", name, EVALUATIONS)
    if not names or len(set(names)) < len(names):
        raise InputError("Name at least one evaluation model, and each only once.")


def cluster_numbers(cluster: Any, n: int) -> IntArray | None:
    """Clusters as numbers from 0; missing labels and a wrong count are refused."""
    if cluster is None:
        return None
    codes = read_cluster(cluster, n)
    if not codes.any():
        raise InputError("Every row is in the same cluster: cluster-robust standard errors need at least two clusters.")
    return codes


def _complete(
    raw: Raw,
    protected: Table,
    rows: Rows,
    coding: Any,
    reference: Mapping[str, Any] | None,
    missing: Any,
) -> tuple[Raw, Protected, Design, tuple[Note, ...]]:
    """Code the protected columns, and drop incomplete rows on request."""
    n = raw.n_rows
    keep = np.ones(n, dtype=bool) if rows.weight is None else rows.weight > 0.0  # rows with weight 0 are not audited
    if missing == "drop":
        keep &= ~raw.missing
        if not keep.any():
            raise MissingValuesError("Every prediction is missing: there is nothing to audit.")
        known = tables.learn(protected, coding=coding, reference=reference, missing=missing).apply(protected).keep
        keep &= True if known is None else known
    notes: tuple[Note, ...] = ()
    if not keep.all():
        raw, rows, protected = raw.take(keep), rows.take(keep), tables.filter_rows(protected, keep)
        notes = note_left_out(n - raw.n_rows, n)
    raw.check_complete()
    learned = tables.learn(protected, coding=coding, reference=reference, missing=missing)
    encoded = learned.apply(protected)
    columns = Protected(dense(encoded.values), encoded.names, encoded.sources, rows.weight, rows.cluster)
    notes += note_constant(learned, bool(columns.varies.any()))
    return raw, columns, learned, notes


def _audit(
    subject: Subject, protected: Protected, notes: tuple[Note, ...], names: tuple[str, ...], settings: Settings
) -> AuditResult:
    n, p = protected.n_rows, len(protected.names)
    if n < p + 3:
        raise InputError(f"Too few rows ({n}) for {p} protected column(s): pass at least three more rows than columns.")
    names = _check_subject(subject, names)
    blank = nothing_to_leak(n, p, settings.confidence, subject.family)
    blank = replace(blank, notes=(*notes, *subject.notes))
    if subject.is_constant:
        return blank
    evaluations, fit, effect_map = _evaluate(subject, protected, names, settings)
    if not subject.shape and (fit is None or settings.vcov == "model"):
        # Bounds use robust standard errors, whichever ones the table shows.
        robust = "HC3" if protected.cluster is None else "cluster"
        fit = evaluate_glm(subject.predictions, protected, subject.family, vcov=robust)[1]
    bounds = certify(subject.predictions, protected, subject.family, fit, settings.confidence)
    return conclude_audit(blank, evaluations, bounds, settings, protected, effect_map=effect_map)


def _evaluate(
    subject: Subject, protected: Protected, names: tuple[str, ...], settings: Settings
) -> tuple[tuple[Evaluation, ...], Fit | None, EffectMap | None]:
    """Run the evaluation models in order, each with the same random seed."""
    y, confidence = subject.predictions, settings.confidence
    fit: Fit | None = None
    effect_map: EffectMap | None = None
    evaluations: list[Evaluation] = []
    for name in names:
        rng = np.random.default_rng(settings.seed)
        if name == "shape":
            tested = protected.without_lone_rows()
            sample = sample_of(y if isinstance(y, OutcomeSummary) else tested.part(y), tested)
            found = evaluate_shape(sample, tested.ends, tested.is_group, tested.sources, confidence)
        elif name in PERMUTATION_BASED:
            found = PERMUTATION_BASED[name](
                subject.values, protected, rng=rng, n_permutations=settings.n_permutations, max_rows=settings.max_rows
            )
        elif subject.shape:
            found, effect_map = evaluate_tensor(
                subject.values,
                protected,
                subject.shape,
                n_permutations=settings.n_permutations,
                max_rows=settings.max_rows,
                rng=rng,
            )
        else:
            glm = make_family("gaussian") if name == "linear" else subject.family
            vcov = "cluster" if protected.cluster is not None and settings.vcov != "model" else settings.vcov
            found, own = evaluate_glm(
                y, protected, glm, vcov=vcov, confidence=confidence, classes=subject.classes, seed=settings.seed
            )
            found = replace(found, name=name)
            fit = own if name == "glm" else fit
        evaluations.append(found)
    return tuple(evaluations), fit, effect_map
