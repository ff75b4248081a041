"""Result of a trade-off: one row per budget, picks by rule, a figure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from setsquare._typing import Table
from setsquare.auditing.documents.sections import metric_name
from setsquare.auditing.tradeoffs.points import TradeoffPoint
from setsquare.document import Document, Documented, plain, section, table
from setsquare.document.formats import percent
from setsquare.errors import InputError
from setsquare.tables.frame import to_frame

#: Columns of the table that are on new rows.
_NEW = (
    "new_loss",
    "new_loss_low",
    "new_loss_high",
    "new_score",
    "new_score_low",
    "new_score_high",
    "new_correlation",
    "new_correlation_high",
)


@dataclass(frozen=True, slots=True)
class Tradeoff(Documented):
    """Loss, score and correlation of fits along a path of budgets; returned by :func:`setsquare.tradeoff`.

    Attributes
    ----------
    points : tuple of TradeoffPoint
        By increasing budget.
    score : str
        "auc", "r2" or "rmse".
    confidence : float
        Confidence of intervals and bounds.
    n_rows : int
    protected : tuple of str
        Coded protected columns.
    backend : str
        Dataframe library of :meth:`table`.
    notes : tuple of str
    """

    points: tuple[TradeoffPoint, ...]
    score: str
    confidence: float
    n_rows: int
    protected: tuple[str, ...]
    backend: str = "pandas"
    notes: tuple[str, ...] = ()

    @property
    def knows_new_rows(self) -> bool:
        """Whether some fits were measured on new rows."""
        return any(math.isfinite(point.new_loss.estimate) for point in self.points)

    def pick(self, *, max_correlation: float | None = None) -> TradeoffPoint:
        """Pick a fit by what it does on new rows.

        Without an argument: the smallest budget whose loss is within one standard error of the smallest loss. With
        `max_correlation`: the smallest loss among the fits whose upper bound on the correlation is at most this.
        """
        known = [point for point in self.points if math.isfinite(point.new_loss.estimate)]
        if not known:
            raise InputError(
                "Picking a budget needs numbers on new rows: call tradeoff with new_rows=True, the solver sqp and, "
                "given controls, two classes or a numeric outcome, no clusters and no modelled missing values."
            )
        best = min(known, key=lambda point: point.new_loss.estimate)
        if max_correlation is None:
            limit = best.new_loss.estimate + best.new_loss.std_error
            return next(point for point in known if point.new_loss.estimate <= limit or point is best)
        within = [point for point in known if point.new_correlation_upper <= max_correlation]
        if not within:
            least = min(point.new_correlation_upper for point in known)
            raise InputError(
                f"No budget has an upper bound of at most {max_correlation:g} on the correlation with the protected "
                f"columns on new rows: the smallest is {least:.3f}. More rows lower it."
            )
        return min(within, key=lambda point: point.new_loss.estimate)

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per budget."""
        return [_row(point) for point in self.points]

    def table(self) -> Table:
        """Dataframe with one row per budget.

        ``budget``, ``price``, ``loss``, ``score`` and ``correlation`` (training rows), ``new_loss`` and ``new_score``
        (each with ``_low`` and ``_high``), ``new_loss_std_error``, ``new_correlation`` and ``new_correlation_high``.
        """
        rows = self.rows()
        return to_frame({key: [row[key] for row in rows] for key in rows[0]}, self.backend)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        picked = self.pick().budget if self.knows_new_rows else None
        about = {"score": self.score, "confidence": self.confidence, "n_rows": self.n_rows, "picked": picked}
        return dict(plain(about | {"notes": list(self.notes), "points": self.rows()}))

    def document(self, *, max_correlation: float | None = None) -> Document:
        """The table, the figure and the budget that :meth:`pick` picks, for every renderer."""
        text = self._about(max_correlation)
        part = section("tradeoff", "Loss against correlation", text=text, notes=self.notes, tables=[self._shown()])
        figures = plain([self._figure("loss", "loss"), self._figure("score", metric_name(self.score))])
        return Document("How much does it cost to be orthogonal?", (), ({**part, "figures": figures},))

    def _about(self, max_correlation: float | None) -> list[str]:
        first, last = self.points[0], self.points[-1]
        text = [
            f"Budgets from {first.budget:g} to {last.budget:g}: the share of the covariance with the protected columns "
            f"({', '.join(self.protected)}) that may stay. On the {self.n_rows:,} training rows the loss goes from "
            f"{first.loss:.4g} to {last.loss:.4g}, and the correlation from {first.correlation:.3f} to "
            f"{last.correlation:.3f}. The price is the loss that a further unit of covariance would save.",
        ]
        if self.knows_new_rows:
            picked = self.pick(max_correlation=max_correlation)
            rule = (
                "The smallest budget within one standard error of the smallest loss on new rows"
                if max_correlation is None
                else f"The budget of the smallest loss with a correlation of at most {max_correlation:g} on new rows"
            )
            text.append(
                f"{rule} is {picked.budget:.3g}: loss {picked.new_loss.estimate:.4g}, correlation "
                f"{picked.new_correlation:.3f} (at most {picked.new_correlation_upper:.3f}). New rows: leave-one-out "
                "predictions."
            )
        return text

    def _shown(self) -> dict[str, Any]:
        name = metric_name(self.score)
        rows = [
            [row["budget"], row["price"], row["loss"], row["score"], row["correlation"], *(row[key] for key in _NEW)]
            for row in self.rows()
        ]
        new = ("loss", "low", "high", name, f"{name} low", f"{name} high", "correlation", "at most")
        columns = [
            ("plain", "budget"),
            ("number", "price", "loss", name, "correlation"),
            ("number", *(f"new rows: {label}" for label in new)),
        ]
        fine = [f"new rows: {label}" for label in (new[1], new[2], new[4], new[5])]
        return table(f"Fits by budget, {percent(self.confidence)} intervals", columns, rows, detail=fine)

    def _figure(self, key: str, label: str) -> dict[str, Any]:
        """Numbers against the correlation, on training and on new rows."""
        sides = {"training rows": [], "new rows": []}  # type: dict[str, list[dict[str, Any]]]
        for point in self.points:
            own = {"budget": point.budget, "x": point.correlation, "y": getattr(point, key)}
            sides["training rows"].append(own | {"low": None, "high": None})
            new = getattr(point, f"new_{key}")
            if math.isfinite(new.estimate):
                ends = {"low": new.ci_low, "high": new.ci_high}
                sides["new rows"].append(
                    {"budget": point.budget, "x": point.new_correlation, "y": new.estimate, **ends}
                )
        better = "up" if key == "score" and self.score != "rmse" else "down"
        return {
            "kind": "path",
            "title": f"{label[:1].upper()}{label[1:]} against correlation, by budget",
            "summary": f"Better is {better} and to the left. Bars are {percent(self.confidence)} intervals.",
            "x_axis": "correlation with the protected columns",
            "y_axis": label,
            "curves": [{"side": side, "points": points} for side, points in sides.items() if points],
            "sides": [side for side, points in sides.items() if points],
        }


def _row(point: TradeoffPoint) -> dict[str, Any]:
    own = {key: getattr(point, key) for key in ("budget", "price", "loss", "score", "correlation")}
    for key, one in (("new_loss", point.new_loss), ("new_score", point.new_score)):
        own |= {key: one.estimate, f"{key}_low": one.ci_low, f"{key}_high": one.ci_high}
    own |= {"new_loss_std_error": point.new_loss.std_error}
    return own | {"new_correlation": point.new_correlation, "new_correlation_high": point.new_correlation_upper}
