"""Table of coefficients of a corrected model, with sandwich standard errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from setsquare._typing import Array, Table
from setsquare.document import Document, Documented, section, table
from setsquare.document.formats import percent
from setsquare.tables.frame import to_frame


@dataclass(frozen=True, slots=True)
class Coefficients(Documented):
    """Coefficients of a corrected model with standard errors, intervals and p-values.

    Attributes
    ----------
    names : tuple of str
        ``intercept``, then one name per coefficient.
    classes : tuple of str
        Names of the classes if there are three or more, otherwise empty.
    estimate, std_error : ndarray of shape (k, 1 + q)
    confidence : float
        Coverage of the intervals.
    about : tuple of str
        Sentences about the fit.
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    estimate: Array
    std_error: Array
    confidence: float
    about: tuple[str, ...]

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per coefficient."""
        half = float(special.ndtri(0.5 + 0.5 * self.confidence))
        found = []
        for c, label in enumerate(self.classes or ("",)):
            for j, name in enumerate(self.names):
                b, s = float(self.estimate[c, j]), float(self.std_error[c, j])
                z = b / s if s > 0.0 else math.nan
                row: dict[str, Any] = {"class": label} if self.classes else {}
                row |= {"term": name, "estimate": b, "std_error": s, "statistic": z}
                row["p_value"] = float(2.0 * special.ndtr(-abs(z))) if z == z else math.nan
                found.append(row | {"ci_low": b - half * s, "ci_high": b + half * s})
        return found

    def table(self, backend: str = "pandas") -> Table:
        """Dataframe with the columns term, estimate, std_error, statistic, p_value, ci_low and ci_high."""
        rows = self.rows()
        return to_frame({key: [row[key] for row in rows] for key in rows[0]}, backend)

    def to_latex(self) -> str:
        """LaTeX table."""
        return self.document().to_latex()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"confidence": self.confidence, "about": list(self.about), "coefficients": self.rows()}

    def document(self) -> Document:
        """The table, for every renderer."""
        keys = ("estimate", "std_error", "statistic", "ci_low", "ci_high", "p_value")
        rows = [
            [f"{row['class']}: {row['term']}" if self.classes else row["term"], *(row[key] for key in keys)]
            for row in self.rows()
        ]
        columns = [("text", "term"), ("number", "estimate", "std. error", "statistic", "low", "high"), ("p", "p")]
        shown = table(f"Coefficients, {percent(self.confidence)} intervals", columns, rows)
        part = section("coefficients", "Coefficients", text=self.about, tables=[shown])
        return Document("Coefficients of a corrected model", (), (part,))


def summarise(model: Any, std_error: Array, confidence: float, by_cluster: bool) -> Coefficients:
    """Table of the coefficients of a fitted classifier or regressor."""
    solution, certificate = model.solution_, model.solution_.certificate
    names = ("intercept", *map(str, model.coefficient_names_))
    classes = tuple(map(str, model.classes_)) if len(solution.coef) > 1 else ()
    given = f" given {', '.join(certificate.given)}" if certificate.given else ""
    errors = "cluster-robust " if by_cluster else ""
    about = (
        f"{certificate.n_rows:,} rows, {model.family_}; predictions are orthogonal to {certificate.n_protected} "
        f"protected column(s){given} on {certificate.orthogonal_on}. Standard errors: {errors}sandwich of the "
        "constrained estimator, with the protected columns as random as the other columns."
    )
    more = ("With a ridge, coefficients are shrunk: the intervals are about their expectation.",) if model.l2_ else ()
    estimate = np.column_stack([solution.intercept, solution.coef])
    return Coefficients(names, classes, estimate, std_error, confidence, (about, *more))


__all__ = ["Coefficients", "summarise"]
