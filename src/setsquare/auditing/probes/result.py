"""Result of the probes: scores, verdicts and document."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from setsquare._typing import Table
from setsquare.document import Document, Documented, Headline, section, table
from setsquare.document.formats import percent
from setsquare.errors import InputError
from setsquare.notes import Note, describe
from setsquare.tables.frame import to_frame


@dataclass(frozen=True, slots=True)
class ProbeScore:
    """How well one probe recovers one attribute from one representation, on rows that it was not fitted on.

    Attributes
    ----------
    representation, attribute, probe : str
    score, ci_low, ci_high : float
    chance : float
        Chance level of the score.
    measure : str
        "r2", "auc", or "auc above median" (a logistic probe of a continuous attribute).
    p_value : float
        One-sided p-value of a score no better than chance.
    verdict : str
        "not found", if the p-value is not significant after Holm adjustment over all probes of the representation;
        "trace", if it is, but the interval lies below the score for a correlation of 0.1 (R² 0.01, AUC 0.556);
        otherwise "recovered".
    n_train : int
        Number of training rows in the first fold.
    n_not_converged : int
        Number of fits, over all folds, that did not converge.
    """

    representation: str
    attribute: str
    probe: str
    score: float
    ci_low: float
    ci_high: float
    chance: float
    measure: str
    p_value: float
    verdict: str
    n_train: int
    n_not_converged: int


@dataclass(frozen=True, slots=True, repr=False)
class ProbeResult(Documented):
    """Result of :func:`probe`; ``print`` it, or call ``table()``.

    Attributes
    ----------
    scores : tuple of ProbeScore
    n, n_folds : int
    n_clusters : int or None
    confidence : float
    notes : tuple of Note
    backend : str
        Dataframe library of the table.
    """

    scores: tuple[ProbeScore, ...]
    n: int
    n_folds: int
    n_clusters: int | None
    confidence: float
    notes: tuple[Note, ...] = ()
    backend: str = "pandas"

    def score(self, representation: str, attribute: str, probe: str) -> ProbeScore:
        """One of the scores."""
        for one in self.scores:
            if (one.representation, one.attribute, one.probe) == (representation, attribute, probe):
                return one
        raise InputError(f"There is no {probe} probe of {attribute} from {representation!r} in this result.")

    @property
    def reason(self) -> str:
        """One sentence per representation on what was recovered."""
        return " ".join(self._sentence(name) for name in dict.fromkeys(s.representation for s in self.scores))

    def _sentence(self, representation: str) -> str:
        found: dict[str, dict[str, list[str]]] = {}
        for s in self.scores:
            if s.representation == representation:
                found.setdefault(s.attribute, {}).setdefault(s.verdict, []).append(s.probe)
        parts = []
        for name, by in found.items():
            most = next(verdict for verdict in ("recovered", "trace", "not found") if verdict in by)
            parts.append(f"{name} {most}" + (f" ({', '.join(by[most])})" if most != "not found" else ""))
        return f"{representation}: {'; '.join(parts)}."

    def table(self) -> Table:
        """One row per score, in the dataframe library of the protected columns."""
        rows = [asdict(score) for score in self.scores]
        return to_frame({name: [row[name] for row in rows] for name in rows[0]}, self.backend)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        plain = asdict(self)
        del plain["backend"]
        return plain | {
            "reason": self.reason,
            "scores": list(plain["scores"]),
            "notes": list(map(describe, self.notes)),
        }

    def show(self) -> None:
        """Print the result."""
        print(self)

    def __repr__(self) -> str:
        return f"ProbeResult({self.reason})"

    def document(self) -> Document:
        """The result as a document, with one table per attribute."""
        clusters = "" if self.n_clusters is None else f" of {self.n_clusters} clusters"
        about = f"{self.n:,} rows{clusters}, held out in {self.n_folds} folds."
        tables = [self._table_of(name) for name in dict.fromkeys(s.attribute for s in self.scores)]
        shown = section("scores", "What the probes recovered", text=[about], tables=tables)
        parts = (shown, *((section("notes", "Notes", notes=self.notes),) if self.notes else ()))
        return Document("What can be recovered?", (Headline("", "", self.reason),), parts)

    def _table_of(self, attribute: str) -> dict[str, Any]:
        rows = [
            [s.representation, s.probe, s.measure, [s.score, s.ci_low, s.ci_high], s.chance, s.verdict]
            for s in self.scores
            if s.attribute == attribute
        ]
        span = f"score [{percent(self.confidence)} interval]"
        columns = [("text", "representation", "probe", "measure"), ("interval", span), ("plain", "chance")]
        columns.append(("text", "verdict"))
        return table(attribute, columns, rows)
