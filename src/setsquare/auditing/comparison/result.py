"""Result of a comparison of several predictions of one outcome."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from setsquare._typing import Table
from setsquare.auditing.comparison.calibration import Calibration
from setsquare.auditing.comparison.metric import Interval
from setsquare.auditing.comparison.performance import Score
from setsquare.auditing.documents.assemble import assemble
from setsquare.auditing.result import AuditResult
from setsquare.document import Document, Documented, Section
from setsquare.families import Family
from setsquare.notes import Note, describe
from setsquare.tables.frame import to_frame


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
