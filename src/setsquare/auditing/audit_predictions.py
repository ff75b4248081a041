"""Audit of predictions: is there a leak, how large is it, and how certain is that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from setsquare import tables
from setsquare._typing import Table
from setsquare.auditing.certificate import Certificate
from setsquare.auditing.evaluations.run import Settings, run_evaluations
from setsquare.auditing.given import Controlled, choose_evaluations, control
from setsquare.auditing.groups.audited import GroupRequest, number_audited
from setsquare.auditing.groups.partitions import MIN_GROUP
from setsquare.auditing.groups.result import GroupNumbers
from setsquare.auditing.options import DEFAULT, AuditOptions
from setsquare.auditing.predictions import Raw, Subject, open_predictions, read_predictions
from setsquare.auditing.protected import Coded, Protected, cluster_numbers, code_protected
from setsquare.auditing.result import AuditResult
from setsquare.auditing.verdict import Limits, Verdict, decide
from setsquare.errors import InputError, MissingValuesError
from setsquare.families import Family
from setsquare.families import family as make_family
from setsquare.notes import Note, message
from setsquare.rows import Stream
from setsquare.tables.arrow import accept_unread
from setsquare.tables.frame import backend_of
from setsquare.tables.partly_missing import MODEL
from setsquare.tables.validation import check_alignment, check_same_rows, read_weight, refuse_coding


@accept_unread
@refuse_coding
def audit(
    predictions: Any,
    protected: Any,
    family: str | Family | None = None,
    vcov: str = "HC3",
    *,
    evaluation: str | Sequence[str] = DEFAULT,
    given: Any = None,
    cluster: Any = None,
    sample_weight: Any = None,
    classes: Sequence[Any] | None = None,
    basis: Any = "linear",
    reference: Mapping[str, Any] | None = None,
    missing: str = "error",
    confidence: float = 0.95,
    tolerance: float | Limits = 0.05,
    setting: str = "as given",
    n_permutations: int = 499,
    max_rows: int | None = None,
    random_state: int = 0,
    positive: object = None,
    threshold: float | None = None,
    decisions: Any = None,
    outcome: Any = None,
    min_group: int = MIN_GROUP,
    standard: str | None = None,
) -> AuditResult:
    """Test whether predictions depend on protected columns, how strongly, and how certain that is.

    Parameters
    ----------
    predictions : array, series or dataframe of shape (n,), (n, K) or (n, ...), or a column of a stream
        Probabilities (also as the two columns of ``predict_proba``), class probabilities, counts, scores, class labels,
        or a tensor or embedding with one row per observation. A column of a :class:`setsquare.Stream`, such as
        ``stream["score"]``, is read in batches; its evaluation model is the generalised linear model.
    protected : dataframe, series or array of n rows, or columns of the same stream
        The protected columns; text and categories are dummy-coded. At most 1000 columns after coding.
    family : str or Family, optional
        Family of the evaluation model, by name or, with a link or a parameter, as in
        ``sq.families.family("tweedie", parameter=1.5)``. By default binomial for values in [0, 1], multinomial for
        class probabilities, gaussian for other numbers and for the units of a tensor or embedding. With another family
        each unit has its own model of that family (several labels of a row: binomial).
    vcov : {"HC3", "HC2", "HC1", "HC0", "model", "cluster"}
        Covariance estimator of the effects. "model" is the paper's, as printed by R's ``glm``; it is meant for 0/1
        outcomes and has almost no power on predicted probabilities.
    evaluation : str or sequence of str
        Evaluation models: "glm", "linear", "shape" (curvature, combinations of groups, and spread), "relu", "relu
        without intercept", "forest", "independence", and with ``given`` also "gcm". The effects of the first are the
        result's table; the verdict rests on all of them, with adjusted p-values.
    given : table of n rows, or "outcome", optional
        Controls, through which predictions may depend on the protected columns: the effects are those in a linear
        regression of the predictions on both. "outcome" (with ``outcome``) compares mean predictions within each class.
        The evaluation model is then "linear"; add "gcm", the generalised covariance measure with splines of the
        controls, where these may act along curves.
    cluster : array or series of n values, optional
        Rows with the same value are not independent (a patient, a site); standard errors are then cluster-robust.
    sample_weight : array of n values, optional
    classes : sequence of names, optional
        Names of the columns of class probabilities.
    basis : {"linear", "cells", "spline", "kernel"}, formula or transformer
        Functions of the protected columns whose effects are tested: the columns themselves, every combination of their
        levels, cubic splines of numeric columns, leading functions of a Gaussian kernel, a formula or a transformer.
    reference : mapping of column to level, optional
        Reference groups of categorical columns, for effects and numbers by group; by default the largest group of a
        column.
    missing : {"error", "drop", "level", "model"}
        Treatment of missing values in the protected columns; "drop" also drops rows without a prediction. "model"
        weights the rows that have these columns by the inverse of the probability that they do, given predictions,
        outcome and complete protected columns; it assumes that values are missing at random given these.
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
        True or "yes" among labels, and the second of two columns. Also the positive class of decisions and outcome.
    threshold : float, optional
        Predictions of at least this are positive decisions; :meth:`AuditResult.groups` then has selection rates.
    decisions : array of n values, optional
        Decisions instead of a threshold: 0 and 1, or two classes.
    outcome : array of n values, optional
        Observed outcomes; :meth:`AuditResult.groups` then has calibration and, with decisions, error rates.
    min_group : int
        Groups with fewer rows have no numbers in :meth:`AuditResult.groups`.
    standard : {"four-fifths", "ll144"}, optional
        Also make the table of this standard, ``result.numbers.standard``: the four-fifths rule, or New York City's
        Local Law 144, where scores above their median count as selected if there are no decisions. Not legal advice.

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
    options = AuditOptions(
        family=family,
        vcov=vcov,
        evaluation=evaluation,
        given=given,
        cluster=cluster,
        sample_weight=sample_weight,
        classes=classes,
        basis=basis,
        reference=reference,
        missing=missing,
        confidence=confidence,
        tolerance=tolerance,
        setting=setting,
        n_permutations=n_permutations,
        max_rows=max_rows,
        random_state=random_state,
        positive=positive,
        threshold=threshold,
        decisions=decisions,
        outcome=outcome,
        min_group=min_group,
        standard=standard,
    )
    return audit_rows(predictions, protected, options).result


@dataclass(frozen=True, slots=True)
class Audited:
    """An audit, and the rows as it has read them: who needs them too does not read them again.

    Attributes
    ----------
    result : AuditResult
    subject : Subject
        Predictions of the audited rows.
    coded : Coded
        Protected columns of these rows.
    """

    result: AuditResult
    subject: Subject
    coded: Coded


def audit_rows(predictions: Any, protected: Any, options: AuditOptions, coded: Coded | None = None) -> Audited:
    """Audit predictions, as :func:`audit` does; with the rows that were read.

    Parameters
    ----------
    predictions, protected
        See :func:`audit`.
    options : AuditOptions
    coded : Coded, optional
        The protected columns as an audit of other predictions with the same options has coded them.
    """
    options.check()
    stated: tuple[Note, ...] = ()
    if options.missing == MODEL:
        from setsquare.auditing.partly_missing import weigh_known  # brings the solvers

        o = options
        weight, stated = weigh_known(predictions, protected, o.sample_weight, o.cluster, o.outcome)
        options = replace(options, sample_weight=weight, missing="drop" if stated else "error")
    if isinstance(predictions, Stream) or isinstance(protected, Stream):
        subject, coded = _open_stream(predictions, protected, options)
        result = _audit(subject, coded.columns, (*stated, *coded.notes), options.evaluations, options.settings)
    else:
        raw, coded = _complete(predictions, protected, options, coded)
        subject = _read_subject(raw, options.family, options.about_groups)
        result = _audit_in_memory(subject, coded, protected, stated, options, backend_of(protected, predictions))
    result = replace(
        result,
        setting=options.setting,
        positive=subject.positive,
        is_clustered=options.cluster is not None,
        is_weighted=options.sample_weight is not None,
        references=coded.columns.references,
    )
    return Audited(result, subject, coded)


def _open_stream(predictions: Any, protected: Any, options: AuditOptions) -> tuple[Subject, Coded]:
    """Predictions and protected columns that are read in batches."""
    from setsquare.auditing.open_stream import open_stream, refuse_in_memory  # brings scikit-learn

    refuse_in_memory(predictions, protected, options.evaluations, options.cluster, options.classes)
    options.about_groups.refuse("predictions and protected columns in memory, not a stream")
    if options.given is not None:
        raise InputError("given= needs predictions and protected columns in memory, not a stream.")
    asked = None if options.family is None else make_family(options.family)
    return open_stream(predictions, protected, options.sample_weight, asked, **options.column_coding)


def _audit_in_memory(
    subject: Subject, coded: Coded, protected: Table, stated: tuple[Note, ...], options: AuditOptions, backend: str
) -> AuditResult:
    """Audit rows in memory: numbers by group, then the tests, given controls if there are any."""
    settings, names = options.settings, options.evaluations
    numbers = _number_groups(options.about_groups, subject, protected, coded, options.missing, settings, backend)
    columns, notes, held = coded.columns, (*stated, *coded.notes), None
    if options.given is not None:
        held = control(subject, columns, options.given, options.outcome, coded.keep, options.missing, protected)
        names = choose_evaluations(names, DEFAULT)
        subject, columns, notes = held.subject, held.protected, (*notes, *held.notes)
    return replace(_audit(subject, columns, notes, names, settings, numbers, held), backend=backend)


def _read_subject(raw: Raw, family: str | Family | None, about: GroupRequest) -> Subject:
    """Predictions as means or shares; a positive class may be that of decisions or outcome alone."""
    try:
        return read_predictions(raw, family, about.positive)
    except InputError as error:
        others = about.decisions is not None or about.outcome is not None
        if not others or message(error).code != "positive-class-unused":
            raise
        return read_predictions(raw, family)


def _number_groups(
    about: GroupRequest,
    subject: Subject,
    protected: Table,
    coded: Coded,
    missing: str,
    settings: Settings,
    backend: str,
) -> GroupNumbers | None:
    """Numbers by group, where there is one prediction per row."""
    if subject.shape or subject.classes:
        about.refuse("one prediction per row, such as the probability of one class")
        return None
    return number_audited(
        about,
        subject.values,
        protected,
        coded.keep,
        coded.columns.weight,
        coded.columns.cluster,
        missing_group=missing == "level",
        confidence=settings.confidence,
        seed=settings.seed,
        backend=backend,
    )


def _check_subject(subject: Subject, names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse predictions that an evaluation model cannot take; units have a single model, linear by default."""
    if subject.shape:
        if "linear" in names and subject.family.name != "gaussian":
            raise InputError(
                f"Units have one evaluation model: leave 'linear' out for the {subject.family.name} family, or leave "
                "the family out."
            )
        names = tuple(dict.fromkeys("glm" if name == "linear" else name for name in names if name != "shape"))
        if not names:
            raise InputError("The tests of shape take predictions, not units of a tensor: use 'glm'.")
    if subject.classes and "linear" in names:
        raise InputError("The linear evaluation model takes one column of predictions: use 'glm' for classes.")
    low, high = subject.family.activation.range
    if not (subject.classes or subject.is_constant or low < subject.mean < high):
        percent = subject.family.name == "binomial" and 1.0 < subject.mean <= 100.0
        advice = "divide them by 100 if they are percentages, or choose" if percent else "choose"
        raise InputError(
            f"The mean of the predictions is {subject.mean:g}, which the {subject.family.name} family cannot have: "
            f"{advice} another family."
        )
    return names


def _complete(predictions: Any, protected: Table, options: AuditOptions, coded: Coded | None) -> tuple[Raw, Coded]:
    """Read predictions and protected columns of the same rows; incomplete rows can be dropped."""
    raw = open_predictions(predictions, options.classes)
    n, cluster, weight = raw.n_rows, options.cluster, options.sample_weight
    check_same_rows("The predictions have", n, "the protected columns have", tables.n_rows(protected))
    for values, what in ((predictions, "the predictions"), (cluster, "cluster"), (weight, "sample_weight")):
        check_alignment(protected, values, what)
    weight, codes = read_weight(weight, n), cluster_numbers(cluster, n)
    keep = np.ones(n, dtype=bool) if weight is None else weight > 0.0  # rows with weight 0 are not audited
    if options.missing == "drop":
        keep &= ~raw.missing
        if not keep.any():
            raise MissingValuesError("Every prediction is missing: there is nothing to audit.")
    raw.take(keep).check_complete()
    if coded is None or bool((coded.keep & ~keep).any()):
        coded = code_protected(protected, weight, codes, keep, options.column_coding)
    return raw.take(coded.keep), coded


def _audit(
    subject: Subject,
    protected: Protected,
    notes: tuple[Note, ...],
    names: tuple[str, ...],
    settings: Settings,
    numbers: GroupNumbers | None = None,
    held: Controlled | None = None,
) -> AuditResult:
    """Result of the tests, unless every prediction is the same."""
    n, p = protected.n_rows, len(protected.names)
    names = _check_subject(subject, names)
    blank = AuditResult(
        verdict=Verdict.NONE,
        reason="Every prediction is the same, so nothing can leak.",
        evaluations=(),
        certificate=Certificate(n, p, settings.confidence, 0.0, 0.0, "", ()),
        setting="",
        glm=subject.family,
        n=n,
        n_protected=p,
        confidence=settings.confidence,
        notes=(*notes, *subject.notes),
        numbers=numbers,
    )
    if subject.is_constant:
        return blank
    found = run_evaluations(subject, protected, names, settings, held)
    return decide(
        replace(
            blank,
            limits=settings.limits,
            evaluations=found.evaluations,
            certificate=found.bounds,
            notes=(*blank.notes, *found.notes),
            effect_map=found.effect_map,
        )
    )
