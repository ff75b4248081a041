"""Table of coefficients of a corrected model, with standard errors from a sandwich or from refits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special
from sklearn.utils.validation import check_is_fitted

from setsquare._typing import Array, BoolArray, Table
from setsquare.document import Document, Documented, section, table
from setsquare.document.formats import joined, percent
from setsquare.errors import InputError
from setsquare.estimators.refits import check_refits, problem_again, refit_few_rows, refit_problem, without_fit
from setsquare.glm.solution import Solution
from setsquare.notes import Note
from setsquare.tables.frame import to_frame
from setsquare.tables.validation import check_confidence

#: Number of clusters below which a table says that its intervals are too narrow. In simulations (600 and 1200 rows, six
#: features with effects of their cluster, 300 fits) intervals at 95 % covered 0.87 with 10 clusters, 0.90 with 20, 0.93
#: with 40 and 0.95 with 120; with normal quantiles 0.83, 0.89, 0.92 and 0.95.
FEW_CLUSTERS = 50


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
    few_rows : ndarray of bool of shape (k, 1 + q)
        Coefficients that rest on so few rows that a sandwich standard error can be far off.
    by_refits : ndarray of bool of shape (k, 1 + q)
        Coefficients whose standard errors come from refits to resampled rows.
    n_clusters : int or None
        Number of clusters of cluster-robust standard errors: intervals and p-values are those of a t distribution
        with one degree of freedom less. Without clusters they are normal.
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    estimate: Array
    std_error: Array
    confidence: float
    about: tuple[str, ...]
    few_rows: BoolArray
    by_refits: BoolArray
    n_clusters: int | None = None

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per coefficient."""
        df = None if self.n_clusters is None else max(self.n_clusters - 1.0, 1.0)
        middle = 0.5 + 0.5 * self.confidence
        half = float(special.ndtri(middle) if df is None else special.stdtrit(df, middle))
        found = []
        for c, label in enumerate(self.classes or ("",)):
            for j, name in enumerate(self.names):
                b, s = float(self.estimate[c, j]), float(self.std_error[c, j])
                z = b / s if s > 0.0 else math.nan
                row: dict[str, Any] = {"class": label} if self.classes else {}
                row |= {"term": name, "estimate": b, "std_error": s, "statistic": z}
                tail = special.ndtr(-abs(z)) if df is None else special.stdtr(df, -abs(z))
                row["p_value"] = float(2.0 * tail) if z == z else math.nan
                row |= {"ci_low": b - half * s, "ci_high": b + half * s}
                source = "refits" if self.by_refits[c, j] else "sandwich"
                found.append(row | {"few_rows": bool(self.few_rows[c, j]), "source": source})
        return found

    def table(self, backend: str = "pandas") -> Table:
        """Dataframe with a row per coefficient.

        Columns: term, estimate, std_error, statistic, p_value, ci_low, ci_high, few_rows, and the source of the
        standard error, "sandwich" or "refits".
        """
        rows = self.rows()
        return to_frame({key: [row[key] for row in rows] for key in rows[0]}, backend)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"confidence": self.confidence, "about": list(self.about), "coefficients": self.rows()}

    def document(self) -> Document:
        """The table, for every renderer."""
        keys = ("estimate", "std_error", "statistic", "ci_low", "ci_high", "p_value")
        rows = [[_label(row), *(row[key] for key in keys)] for row in self.rows()]
        columns = [("text", "term"), ("number", "estimate", "std. error", "statistic", "low", "high"), ("p", "p")]
        shown = table(f"Coefficients, {percent(self.confidence)} intervals", columns, rows)
        part = section("coefficients", "Coefficients", text=self.about, tables=[shown])
        return Document("Coefficients of a corrected model", (), (part,))


def _label(row: dict[str, Any]) -> str:
    """Name of a coefficient in the printed table, with a star if it rests on few rows."""
    name = f"{row['class']}: {row['term']}" if "class" in row else row["term"]
    return f"{name} *" if row["few_rows"] else str(name)


class Summarised:
    """Base of estimators whose coefficients can be shown with standard errors."""

    solution_: Solution

    def summary(self, confidence: float = 0.95, *, refits: int | None = None) -> Coefficients:
        """Table of the coefficients: estimates, standard errors, intervals and p-values.

        The standard errors are those of the constrained estimator, cluster-robust after ``fit(..., cluster=)``, from
        a sandwich, which takes the coefficients as nearly linear in the weights of the rows. That fails for a
        coefficient that rests on few rows, for example because its feature is nearly collinear with others but for a
        few rows, or because one row has an extreme value: its sandwich can be half of the true standard error. Such
        coefficients have a star in the printed table and ``few_rows`` in ``table()``, and their standard errors come
        from refits to resampled rows, as in :meth:`bootstrap`, always with the same draws. They are made when the
        table is first read, as long as the model has the rows of its fit: not after it was loaded from a file, which
        keeps what was computed before, and not for more than 128 MB. On two real sets all 47 standard errors are
        within 5 % of those of 2000 other refits (``python -m benchmarks.summary``).

        Parameters
        ----------
        confidence : float
        refits : int, optional
            Number of refits for coefficients with a star; 0 for sandwich standard errors throughout. By default as
            many as it takes for a relative error of 1.5 %, at most 2000, and none if these would take minutes: the
            table says so.

        Returns
        -------
        Coefficients
            Prints as text, and has ``table()`` (dataframe), ``to_latex()`` and ``to_html()``.
        """
        check_is_fitted(self, "solution_")
        check_confidence(confidence)
        check_refits(refits)
        errors = self.solution_.std_error
        if errors is None:
            _refuse(self)
        assert errors is not None
        kind = "cluster-robust sandwich" if self.solution_.by_cluster else "sandwich"
        how = f"{kind} of the constrained estimator, with the protected columns as random as the other columns"
        found, few = refit_few_rows(self, refits), self.solution_.few_rows
        assert few is not None
        use = few & np.isfinite(found.errors)
        n = self.solution_.n_clusters
        return summarise(self, np.where(use, found.errors, errors), confidence, how, few, use, found.sentence, n)

    def bootstrap(
        self,
        X: Table,
        y: Any,
        protected: Table | None = None,
        sample_weight: Any = None,
        offset: Any = None,
        cluster: Any = None,
        *,
        n_samples: int = 2000,
        confidence: float = 0.95,
        random_state: Any = 0,
    ) -> Coefficients:
        """Table of the coefficients as in :meth:`summary`, with standard errors from refits to resampled rows.

        Nothing is assumed to be linear, and it works with ``budget`` and ``threshold``. Levels, hinges, products and
        the ridge stay those of the fit. The rows of the fit are needed once more. What a resample changes to first
        order has a known variance; only the rest is estimated from the refits, so that few of them are enough.

        Parameters
        ----------
        X, y, protected, sample_weight, offset, cluster
            The rows of the fit, in memory. Clusters are resampled as a whole.
        n_samples : int
            Number of refits; with 2000, standard errors have a relative error of 0.5 % on COMPAS (median; at most
            2.5 %). Without the known part it is 1.6 to 3.6 %.
        confidence : float
        random_state : int, numpy.random.Generator or None

        Returns
        -------
        Coefficients
        """
        check_is_fitted(self, "solution_")
        check_confidence(confidence)
        if not isinstance(n_samples, int | np.integer) or n_samples < 2:
            raise InputError(f"n_samples must be an integer of at least 2, got {n_samples!r}.")
        problem = problem_again(self, X, y, protected, sample_weight, offset, cluster)
        found = refit_problem(self, problem, int(n_samples), np.random.default_rng(random_state))
        if found.n_refits < max(2, n_samples // 2):
            raise InputError(f"{without_fit(found)}: pool rare levels, or use more rows.")
        unit = "rows" if cluster is None else "clusters"
        failed = f" ({found.n_failed} more had no solution)" if found.n_failed else ""
        how = f"standard deviation over {found.n_refits} refits to resampled {unit}{failed}"
        n, every = None if cluster is None else problem.n_units, np.ones_like(found.std_error, dtype=bool)
        return summarise(self, found.std_error, confidence, how, by_refits=every, n_clusters=n)


def _refuse(model: Any) -> None:
    """Say why there are no sandwich standard errors."""
    if model.relax is not None:
        raise InputError("summary() has no standard errors with relax=: limits that are just met have no simple ones.")
    if model.budget or model.threshold is not None:
        option = "budget=" if model.budget else "threshold="
        raise InputError(
            f"Sandwich standard errors are not available with {option}, whose constraint rests on estimates from the "
            "same rows: use bootstrap(X, y, ...) instead of summary()."
        )
    raise InputError(
        'Standard errors need solver="sqp" and training rows that are in memory and unchanged; of fits to more than '
        "128 MB, the last one has them: fit again so, save the model after summary(), or use bootstrap(X, y, ...)."
    )


def summarise(
    model: Any,
    std_error: Array,
    confidence: float,
    how: str,
    few_rows: BoolArray | None = None,
    by_refits: BoolArray | None = None,
    sentence: str = "",
    n_clusters: int | None = None,
) -> Coefficients:
    """Table of the coefficients of a fitted classifier or regressor; ``how`` the standard errors were found.

    ``sentence`` is about coefficients that rest on few rows.
    """
    solution, certificate = model.solution_, model.solution_.certificate
    names = ("intercept", *map(str, model.coefficient_names_))
    classes = tuple(map(str, model.classes_)) if len(solution.coef) > 1 else ()
    about: tuple[str, ...] = (
        f"{certificate.n_rows:,} rows, {model.family_}; {_constraint(model)}. Standard errors: {how}.",
    )
    if n_clusters is not None and n_clusters < FEW_CLUSTERS:
        text = (
            "{n} clusters are few: intervals and p-values are those of a t distribution, and are still too narrow (in "
            "simulations, intervals at 95 % covered 87 % with 10 clusters, 90 % with 20 and 93 % with 40)."
        )
        about += (Note("few-clusters", text, severity="warning", n=n_clusters),)
    if model.l2_:
        about += ("With a ridge, coefficients are shrunk: the intervals are about their expectation.",)
    if certificate.missing_protected:
        gone = ", ".join(certificate.missing_protected)
        about += (f"Partly missing: {gone}. The values that stand for them are taken as known.",)
    if certificate.flat_features and np.isnan(std_error).any():
        gone = joined(certificate.flat_features)
        about += (f"The data hardly determine {gone} (quasi-separation), so no standard error is given there.",)
    estimate = np.column_stack([solution.intercept, solution.coef])
    about += (sentence,) if sentence else ()
    few, refitted = (np.zeros(estimate.shape, dtype=bool) if mask is None else mask for mask in (few_rows, by_refits))
    return Coefficients(names, classes, estimate, std_error, confidence, about, few, refitted, n_clusters)


def _constraint(model: Any) -> str:
    """What the fit is orthogonal to."""
    certificate = model.solution_.certificate
    given = f" given {', '.join(certificate.given)}" if certificate.given else ""
    columns = f"{certificate.n_protected} protected column(s){given} on {certificate.orthogonal_on}"
    if model.threshold is not None:
        return f"decisions at {model.threshold:g} are orthogonal to {columns}"
    if model.budget:
        return f"predictions keep at most {percent(model.budget)} of their covariance with {columns}"
    return f"predictions are orthogonal to {columns}"


__all__ = ["Coefficients", "Summarised", "summarise"]
