"""Comparison of several predictions of the same outcome: leakage and performance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from setsquare import tables
from setsquare._typing import Table
from setsquare.auditing.audit_predictions import audit
from setsquare.auditing.comparison.performance import Calibration, Interval, Score, calibration, interval, score_models
from setsquare.auditing.comparison.predicted_rows import PredictedRows, Sample, align, class_names, code_outcome
from setsquare.auditing.documents.assemble import assemble
from setsquare.auditing.documents.group_sections import describe_groups
from setsquare.auditing.groups.partitions import MIN_GROUP
from setsquare.auditing.predictions import LABELS, Raw, open_predictions
from setsquare.auditing.protected import cluster_numbers
from setsquare.auditing.result import AuditResult
from setsquare.document import Document, Documented, Section
from setsquare.errors import InputError
from setsquare.families import Family
from setsquare.families import family as make_family
from setsquare.notes import Note, describe, lead, message
from setsquare.tables.frame import backend_of, to_frame
from setsquare.tables.outcome import read_family
from setsquare.tables.validation import (
    check_alignment,
    check_one_column,
    check_same_rows,
    read_weight,
    refuse_missing_outcome,
)


@dataclass(frozen=True, slots=True)
class Side:
    """One set of predictions: its audit, its scores and its calibration.

    ``in_the_large`` (ideally 0) and ``slope`` (ideally 1) summarise the calibration.
    """

    name: str
    audit: AuditResult
    scores: tuple[Score, ...]
    calibration: Calibration
    in_the_large: Interval
    slope: Interval


@dataclass(frozen=True, slots=True)
class Comparison(Documented):
    """Result of a comparison; differences are to the first set of predictions.

    Attributes
    ----------
    sides : tuple of Side
    glm : Family
        Family of outcome and predictions; ``family`` is its name.
    n : int
    confidence : float
    backend : str
        Dataframe library of the tables.
    positive : str
        The positive class of a binary outcome; empty for other outcomes.
    notes : tuple of Note
        Notes on the outcome.
    groups : tuple of Section
        Predictions and calibration by protected group, as sections of the document.

    Examples
    --------
    >>> import numpy as np
    >>> import setsquare as sq
    >>> rng = np.random.default_rng(0)
    >>> sex, signal = rng.integers(2, size=2000), rng.normal(size=2000)
    >>> y = rng.random(2000) < 1 / (1 + np.exp(-signal - sex))
    >>> comparison = sq.compare(
    ...     {"with sex": 1 / (1 + np.exp(-signal - sex)), "without": 1 / (1 + np.exp(-signal - 0.5))}, y, sex
    ... )
    >>> comparison.table().round(2)[["model", "verdict", "correlation", "accuracy"]]
          model        verdict  correlation  accuracy
    0  with sex           leak         0.46      0.70
    1   without  no leak found         0.02      0.67
    """

    sides: tuple[Side, ...]
    glm: Family
    n: int
    confidence: float
    backend: str = "pandas"
    positive: str = ""
    notes: tuple[Note, ...] = ()
    groups: tuple[Section, ...] = field(default=(), repr=False, compare=False)

    @property
    def family(self) -> str:
        """Name of the family of outcome and predictions."""
        return str(self.glm)

    def __getitem__(self, name: str) -> Side:
        for side in self.sides:
            if side.name == name:
                return side
        raise KeyError(f"There is no {name!r} in this comparison: it has {', '.join(s.name for s in self.sides)}.")

    def table(self) -> Table:
        """One row per set of predictions: verdict, leakage, scores."""
        columns: dict[str, list[Any]] = {
            "model": [s.name for s in self.sides],
            "verdict": [str(s.audit.verdict) for s in self.sides],
            "p_value": [s.audit.p_value for s in self.sides],
            "correlation": [s.audit.certificate.correlation for s in self.sides],
            "correlation_upper": [s.audit.certificate.correlation_upper for s in self.sides],
        }
        for j, score in enumerate(self.sides[0].scores):
            columns[score.metric] = [s.scores[j].value.estimate for s in self.sides]
        columns["calibration_in_the_large"] = [s.in_the_large.estimate for s in self.sides]
        columns["calibration_slope"] = [s.slope.estimate for s in self.sides]
        return to_frame(columns, self.backend)

    def scores(self) -> Table:
        """One row per set of predictions and metric, with intervals and the difference to the first set."""
        rows = [
            {
                "model": side.name,
                "metric": score.metric,
                "estimate": score.value.estimate,
                "std_error": score.value.std_error,
                "ci_low": score.value.ci_low,
                "ci_high": score.value.ci_high,
                "difference": score.difference.estimate,
                "difference_low": score.difference.ci_low,
                "difference_high": score.difference.ci_high,
                "difference_p": score.difference.p_value,
            }
            for side in self.sides
            for score in side.scores
        ]
        return to_frame({name: [row[name] for row in rows] for name in rows[0]}, self.backend)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "family": self.family,
            "positive": self.positive or None,
            "n": self.n,
            "confidence": self.confidence,
            "notes": list(map(describe, self.notes)),
            "models": [
                {
                    "name": side.name,
                    "audit": side.audit.to_dict(),
                    "scores": [asdict(score) for score in side.scores],
                    "calibration": {
                        "in_the_large": asdict(side.in_the_large),
                        "slope": asdict(side.slope),
                        "bins": [asdict(one) for one in side.calibration.bins],
                    },
                }
                for side in self.sides
            ],
        }

    def document(self, **more: Any) -> Document:
        """The comparison as a document; `more` are further arguments of :func:`setsquare.report.build`."""
        return assemble(
            {side.name: side.audit for side in self.sides},
            scores={side.name: side.scores for side in self.sides},
            sides=self.sides,
            groups=self.groups,
            notes=self.notes,
            **more,
        )


def compare(
    predictions: Mapping[str, Any],
    y: Any,
    protected: Any,
    family: str | Family | None = None,
    *,
    cluster: Any = None,
    sample_weight: Any = None,
    confidence: float = 0.95,
    positive: object = None,
    **options: Any,
) -> Comparison:
    """Compare several predictions of one outcome: leakage, performance and calibration.

    Parameters
    ----------
    predictions : mapping of name to predictions
        Each as for :func:`audit`; the others are compared with the first.
    y : array or series of n values
        The outcome: numbers, or two or more class labels.
    protected : dataframe, series or array of n rows
    family : str or Family, optional
        Family of outcome and predictions. By default it is guessed from the outcome (two values: binomial, text:
        classes, whole numbers from 0: poisson, other numbers: gaussian).
    cluster, sample_weight, confidence
        As for :func:`audit`.
    positive : class of the outcome, optional
        The class whose probability is predicted, for a binary outcome. By default 1, True or "yes", or else the class
        that a set of predictions is named after; of two columns of probabilities, the second class, as in scikit-learn.
    **options
        Everything else goes to :func:`audit`.

    Returns
    -------
    Comparison
    """
    rows, notes, reason = read_compared(
        predictions,
        y,
        protected,
        family,
        cluster=cluster,
        sample_weight=sample_weight,
        confidence=confidence,
        positive=positive,
        missing=options.get("missing", "error"),
    )
    given = {"sample_weight": rows.sample.weight, "cluster": rows.sample.cluster, "confidence": confidence, **options}
    given |= {} if rows.family.is_vector else {"outcome": rows.outcome}
    audits = {}
    for name, values in rows.values.items():
        with _naming(name):
            found = audit(values, rows.protected, rows.family, **given)
            kept = (note for note in found.notes if note.code != LABELS)
            audits[name] = replace(found, notes=(*notes[name], *kept), positive=rows.positive)
    compared = side_by_side(rows, audits, min_group=options.get("min_group", MIN_GROUP))
    return replace(compared, backend=backend_of(protected, *predictions.values()), notes=reason)


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Lead an error with the name of the predictions that it is about."""
    try:
        yield
    except InputError as error:
        raise type(error)(lead(name, message(error))) from error


def side_by_side(rows: PredictedRows, audits: Mapping[str, AuditResult], *, min_group: int = MIN_GROUP) -> Comparison:
    """Compare audited predictions: scores, calibration, and predictions by group."""
    assert rows.outcome is not None
    weight, codes, confidence = rows.sample.weight, rows.sample.cluster, rows.sample.confidence
    scores, sides = score_models(rows), []
    for name, values in rows.values.items():
        with _naming(name):
            own = calibration(rows.outcome, values, rows.family, weight, confidence=confidence, cluster=codes)
        large, slope = (interval(m, confidence, codes) for m in (own.in_the_large, own.slope))
        sides.append(Side(name, audits[name], scores[name], own, large, slope))
    groups = describe_groups(rows.weighted(), named=len(sides) > 1, min_group=min_group)
    n = len(rows.outcome)
    return Comparison(tuple(sides), rows.family, n, confidence, positive=rows.positive, groups=groups)


def read_compared(
    predictions: Mapping[str, Any],
    y: Any,
    protected: Any,
    family: str | Family | None,
    *,
    cluster: Any,
    sample_weight: Any,
    confidence: float,
    positive: object,
    missing: str = "error",
) -> tuple[PredictedRows, dict[str, tuple[Note, ...]], tuple[Note, ...]]:
    """Read predictions and outcome as numbers; with notes on each set of predictions, and on the guess of a family."""
    if not isinstance(predictions, Mapping) or not predictions:
        raise InputError("Pass the predictions as a mapping of names to arrays, such as {'plain': p, 'corrected': q}.")
    given = {str(name): open_predictions(values) for name, values in predictions.items()}
    outcome = open_predictions(y)
    _check_rows(outcome, protected, predictions, given, y)
    check_alignment(protected, cluster, "cluster")
    weight = read_weight(sample_weight, outcome.n_rows)
    if missing == "drop":
        keep = ~np.logical_or.reduce([outcome.missing, *(raw.missing for raw in given.values())])
        known = tables.learn(protected, missing="drop").apply(protected).keep
        keep &= True if known is None else known
        outcome, given = outcome.take(keep), {name: raw.take(keep) for name, raw in given.items()}
        protected = tables.filter_rows(protected, keep)
        cluster, weight = (None if v is None else np.asarray(v)[keep] for v in (cluster, weight))
    refuse_missing_outcome(int(outcome.missing.sum()))
    glm, reason = _family(outcome, given, family)
    classes = class_names(outcome, given, glm, positive)
    values, notes = {}, {}
    for name, raw in given.items():
        with _naming(name):
            values[name], notes[name] = align(raw, glm, classes)
    codes = cluster_numbers(cluster, outcome.n_rows)
    sample = Sample(weight, codes, confidence)
    rows = PredictedRows(values, glm, classes, protected, code_outcome(outcome, classes), sample)
    return rows, notes, reason


def _check_rows(outcome: Raw, protected: Any, predictions: Mapping[str, Any], given: Mapping[str, Raw], y: Any) -> None:
    check_one_column(outcome.array)
    check_alignment(protected, y, "the outcome")
    for name, raw in given.items():
        check_same_rows(f"{name}: The predictions have", raw.n_rows, "the outcome has", outcome.n_rows)
        check_alignment(y, predictions[name], f"{name}, a set of predictions,")


def _family(outcome: Raw, given: Mapping[str, Raw], family: Any) -> tuple[Family, tuple[Note, ...]]:
    """The family requested, or a guess with a note that gives the reason."""
    columns = [raw.array for raw in given.values()]
    numbers = [array for array in columns if array.dtype.kind in "fiu" and array.ndim == 1]
    guess = read_family(
        outcome.array,
        None if family is None else make_family(family),
        name=outcome.names[0] if outcome.names else "",
        n_columns=max((array.shape[1] for array in columns if array.ndim == 2), default=1),
        lowest_prediction=min((float(np.nanmin(array)) for array in numbers), default=np.inf),
        is_category=outcome.is_category,
    )
    return guess.family, () if guess.reason is None else (guess.reason,)
