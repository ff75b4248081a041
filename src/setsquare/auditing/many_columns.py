"""Test of many protected columns at once, also of more columns than rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from setsquare import tables
from setsquare._typing import Array, Table
from setsquare.auditing.evaluations.maximum import Maximum, largest_covariance
from setsquare.auditing.protected import cluster_numbers
from setsquare.document import Document, Documented, section, table
from setsquare.document.formats import percent
from setsquare.errors import InputError
from setsquare.tables.frame import dense, to_frame
from setsquare.tables.validation import (
    check_confidence,
    check_same_rows,
    check_weight,
    read_scores,
    read_weight,
    refuse_constant_protected,
)

#: Number of rows of the printed table.
SHOWN = 10


@dataclass(frozen=True, slots=True, repr=False)
class MaximumTest(Documented):
    """Result of :func:`maximum_test`; ``print`` it, or call ``table()``.

    Attributes
    ----------
    statistic : float
        Largest studentised covariance over the columns.
    p_value : float
        Probability of one as large if no column is correlated with the predictions.
    term, correlation
        Column with the largest statistic, and its correlation with the predictions.
    upper : float
        Upper confidence bound on the largest absolute correlation with any column.
    confidence : float
    n_rows, n_columns : int
    how : str
        Where the distribution under the null hypothesis comes from.
    terms : tuple of str
    found : Maximum
        Numbers of all columns.
    """

    statistic: float
    p_value: float
    term: str
    correlation: float
    upper: float
    confidence: float
    n_rows: int
    n_columns: int
    how: str
    terms: tuple[str, ...]
    found: Maximum

    def table(self, backend: str = "pandas") -> Table:
        """Dataframe with ``term``, ``correlation``, ``std_error``, ``statistic`` and adjusted ``p_value``."""
        return to_frame(self._columns(range(self.n_columns)), backend)

    def _columns(self, places: Any) -> dict[str, list[Any]]:
        found, chosen = self.found, list(places)
        numbers = {
            "correlation": found.correlation,
            "std_error": found.std_error,
            "statistic": found.statistics,
            "p_value": found.adjusted,
        }
        values = {name: [float(column[j]) for j in chosen] for name, column in numbers.items()}
        return {"term": [self.terms[j] for j in chosen], **values}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        names = ("statistic", "p_value", "term", "correlation", "upper", "confidence", "n_rows", "n_columns")
        return {name: getattr(self, name) for name in names} | {"columns": self._columns(range(self.n_columns))}

    def document(self) -> Document:
        """The largest correlations, for every renderer."""
        order = np.argsort(-np.abs(self.found.statistics), kind="stable")[:SHOWN]
        columns = [("text", "column"), ("number", "correlation", "std. error", "statistic"), ("p", "p, adjusted")]
        rows = [list(row) for row in zip(*self._columns(order).values(), strict=True)]
        text = (
            f"Of {self.n_columns:,} protected columns, {self.term} has the largest statistic: correlation "
            f"{self.correlation:.3f}. p-value that no column is correlated with the predictions: {self.p_value:.3g}. "
            f"No absolute correlation is above {self.upper:.3f} (confidence {percent(self.confidence)}, for all "
            f"columns at once). Test: largest studentised covariance, {self.how}, {self.n_rows:,} rows.",
        )
        shown = table("Largest correlations", columns, rows)
        return Document("Maximum test", (), (section("maximum", "Maximum test", text=text, tables=[shown]),))


def maximum_test(
    predictions: Any,
    protected: Table,
    sample_weight: Any = None,
    cluster: Any = None,
    *,
    confidence: float = 0.95,
    n_draws: int = 999,
    random_state: Any = 0,
) -> MaximumTest:
    """Test whether any of many protected columns is correlated with the predictions.

    :func:`audit` tests effects in a regression on all protected columns, which needs more rows than columns. This test
    looks at each column alone, and compares the largest studentised covariance with what chance gives over all
    columns.

    Parameters
    ----------
    predictions : array of shape (n,)
    protected : dataframe or array of shape (n, p)
        Categories become dummies; p may exceed n. Columns that do not vary are left out.
    sample_weight : array of shape (n,), optional
    cluster : array of shape (n,), optional
        Cluster of each row, for example the patient.
    confidence : float
    n_draws : int
        Number of permutations; with clusters, of random signs of clusters.
    random_state : int, numpy.random.Generator or None

    Returns
    -------
    MaximumTest

    Examples
    --------
    >>> import numpy as np
    >>> from setsquare import maximum_test
    >>> rng = np.random.default_rng(0)
    >>> genes = rng.normal(size=(200, 500))
    >>> score = 0.6 * genes[:, 3] + rng.normal(size=200)
    >>> found = maximum_test(score, genes)
    >>> found.p_value, found.term
    (0.001, 'x3')
    >>> maximum_test(rng.normal(size=200), genes).p_value > 0.05
    True
    """
    check_confidence(confidence)
    if not isinstance(n_draws, int | np.integer) or n_draws < 99:
        raise InputError(f"n_draws must be an integer of at least 99, got {n_draws!r}.")
    y = read_scores(predictions)
    learned = tables.learn(protected)
    encoded = learned.apply(protected)
    X = np.asarray(dense(encoded.values), dtype=np.float64)
    check_same_rows("The protected columns have", len(X), "the predictions have", len(y))
    w, groups = read_weight(sample_weight, len(y)), cluster_numbers(cluster, len(y))
    if w is not None:
        check_weight(w)
        kept = w > 0.0
        y, X, w = y[kept], X[kept], w[kept]
        groups = None if groups is None else np.unique(groups[kept], return_inverse=True)[1]
    varies = np.ptp(X, axis=0) > 0.0
    if not varies.any():
        refuse_constant_protected(learned.columns, "audit")
    if not np.ptp(y) > 0.0:
        raise InputError("The predictions are all equal, so nothing can be correlated with them: there is no test.")
    return _test(y, X[:, varies], w, groups, np.asarray(encoded.names)[varies], confidence, int(n_draws), random_state)


def _test(
    y: Array, X: Array, w: Array | None, groups: Any, names: Any, confidence: float, n_draws: int, seed: Any
) -> MaximumTest:
    rng = np.random.default_rng(seed)
    found = largest_covariance(y, X, w, groups, n_draws=n_draws, rng=rng)
    best = found.column
    return MaximumTest(
        found.statistic,
        found.p_value,
        str(names[best]),
        float(found.correlation[best]),
        found.upper(confidence),
        confidence,
        len(y),
        X.shape[1],
        f"{n_draws} {'permutations' if groups is None else 'random signs of clusters'}",
        tuple(map(str, names)),
        found,
    )
