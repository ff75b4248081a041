"""Decisions with equal selection rates: one threshold per group, for scores of any model."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from setsquare._typing import Array, IntArray, Table
from setsquare.errors import InputError, UnseenLevelError
from setsquare.tables.column import Levels, TableRows, label
from setsquare.tables.frame import backend_of, open_table, to_frame
from setsquare.tables.validation import check_cutoff, check_same_rows, read_weight

#: Distinct numbers from which a protected column is a measurement, and has no groups.
MOST_VALUES = 12


class GroupThreshold(NamedTuple):
    """Rule of one group: scores above ``threshold`` are selected, and a share ``at_threshold`` of those equal to it."""

    group: str
    n: int
    threshold: float
    at_threshold: float


class GroupThresholds(BaseEstimator):
    """Decisions from scores, with a threshold for each group, so that the same share of every group is selected.

    A score that is uncorrelated with the protected columns can still select more of one group than of another at a
    threshold. With several protected columns, groups are their combinations. Needs the protected columns to decide.
    Within a group the order of the scores stays.

    Where many rows of a group share the score at its threshold, a share of them is selected: drawn at random, but in
    the number that the share gives (rounded at random), so that a decision depends on the other rows of its batch. Each
    tied row has the same probability. On the rows of the fit, selection rates are equal within one row of each group;
    on new rows, within sampling error.

    Parameters
    ----------
    rate : float, optional
        Share of each group to select, above 0 and below 1. By default the share of all rows with a score of at least
        `threshold`.
    threshold : float
        Common threshold that the rate is taken from, if no rate is given.
    random_state : int
        Seed of the draws among tied scores.

    Attributes
    ----------
    rate_ : float
    thresholds_ : tuple of GroupThreshold

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> sex = rng.choice(["f", "m"], 1000)
    >>> score = rng.normal(size=1000) + (sex == "m")
    >>> rule = GroupThresholds(rate=0.3).fit(score, sex)
    >>> selected = rule.decide(score, sex)
    >>> [round(float(selected[sex == one].mean()), 2) for one in ("f", "m")]
    [0.3, 0.3]
    """

    def __init__(self, rate: float | None = None, *, threshold: float = 0.5, random_state: int = 0) -> None:
        self.rate = rate
        self.threshold = threshold
        self.random_state = random_state

    def fit(self, scores: Any, protected: Table, sample_weight: Any = None) -> Self:
        """Learn the thresholds.

        Parameters
        ----------
        scores : array of shape (n,)
            Predictions of any model, best for rows that it was not fitted on.
        protected : dataframe or array of shape (n, p)
            Columns whose combinations are the groups.
        sample_weight : array of shape (n,), optional

        Returns
        -------
        self
        """
        s = _read_scores(scores)
        labels, codes = _read_groups(protected, len(s))
        w = read_weight(sample_weight, len(s))
        w = np.ones(len(s)) if w is None else w
        empty = [name for name, total in zip(labels, np.bincount(codes, w), strict=True) if not total > 0.0]
        if empty:
            raise InputError(f"The group {empty[0]!r} has no row of positive weight: leave it out, or weight it.")
        rate = self._own_rate(s, w)
        rules = []
        for code, name in enumerate(labels):
            own = np.flatnonzero(codes == code)
            rules.append(GroupThreshold(name, len(own), *find_threshold(s[own], w[own], rate)))
        self.rate_, self.thresholds_, self.backend_ = rate, tuple(rules), backend_of(protected)
        return self

    def decide(self, scores: Any, protected: Table) -> IntArray:
        """Decisions, 0 or 1, of shape (n,)."""
        check_is_fitted(self, "thresholds_")
        s = _read_scores(scores)
        labels, codes = _read_groups(protected, len(s))
        known = {rule.group: rule for rule in self.thresholds_}
        unseen = [name for name in labels if name not in known]
        if unseen:
            raise UnseenLevelError(
                f"The group {unseen[0]!r} was not among the rows of the fit, so it has no threshold: fit again with "
                "rows of it, or merge it with another group."
            )
        limits = np.asarray([known[name].threshold for name in labels])[codes]
        selected = (s > limits).astype(np.int64)
        rng = np.random.default_rng(self.random_state)
        for code, name in enumerate(labels):
            tied = np.flatnonzero((codes == code) & (s == limits))
            count = int(np.floor(known[name].at_threshold * len(tied) + rng.random()))
            selected[rng.permutation(tied)[:count]] = 1
        return selected

    def table(self) -> Table:
        """Dataframe with one row per group: ``group``, ``n``, ``threshold``, ``at_threshold``."""
        check_is_fitted(self, "thresholds_")
        columns = zip(GroupThreshold._fields, zip(*self.thresholds_, strict=True), strict=True)
        return to_frame({name: list(values) for name, values in columns}, self.backend_)

    def _own_rate(self, s: Array, w: Array) -> float:
        """Share to select, from the option or from the common threshold."""
        if self.rate is not None:
            if isinstance(self.rate, bool) or not isinstance(self.rate, int | float) or not 0.0 < self.rate < 1.0:
                raise InputError(f"rate must be above 0 and below 1, not {self.rate!r}: it is the share to select.")
            return float(self.rate)
        check_cutoff(self.threshold)
        rate = float(w @ (s >= self.threshold)) / float(w.sum())
        if not 0.0 < rate < 1.0:
            who, where = ("nobody", "above") if rate == 0.0 else ("everybody", "at or below")
            raise InputError(
                f"The threshold {self.threshold:g} selects {who}: it is {where} all scores, which go from "
                f"{s.min():.4g} to {s.max():.4g}. Pass another threshold, or rate=."
            )
        return rate


def find_threshold(s: Array, w: Array, rate: float) -> tuple[float, float]:
    """Threshold of scores with weights, and the share of the rows equal to it that is selected, for a rate.

    Examples
    --------
    >>> find_threshold(np.array([1.0, 2.0, 2.0, 3.0]), np.ones(4), 0.5)
    (2.0, 0.5)
    """
    values, place = np.unique(s, return_inverse=True)
    mass = np.bincount(place, w)
    least = np.cumsum(mass[::-1])[::-1]  # weight of the scores of at least each value
    wanted = rate * least[0]
    at = int(np.flatnonzero(least >= wanted * (1.0 - 1e-12))[-1])
    above = least[at] - mass[at]
    return float(values[at]), float(np.clip((wanted - above) / mass[at], 0.0, 1.0))


def _read_scores(scores: Any) -> Array:
    try:
        s = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("The scores must be numbers: pass probabilities of the positive class.") from None
    s = s[:, 0] if s.ndim == 2 and s.shape[1] == 1 else s
    if s.ndim != 1 or not len(s):
        raise InputError(f"The scores must have one value per row, got shape {s.shape}: pass one column.")
    if count := int(np.count_nonzero(~np.isfinite(s))):
        raise InputError(f"The scores have {count} missing or infinite value(s): fill them in, or drop these rows.")
    return s


def _read_groups(protected: Table, n: int) -> tuple[tuple[str, ...], IntArray]:
    """Names of the groups that have a row, and the group of each row."""
    frame = open_table(protected)
    check_same_rows("The protected columns have", frame.n_rows, "the scores have", n)
    rows = TableRows(frame, tuple(frame.names), "error")
    names: tuple[str, ...] = ("",)
    codes: IntArray = np.zeros(n, dtype=np.int64)
    for column in frame.names:
        found = rows.column(column)
        if isinstance(found, Levels):
            own, labels = found.codes, tuple(map(label, found.levels))
        else:
            values, own = np.unique(found.values, return_inverse=True)
            if len(values) > MOST_VALUES:
                raise InputError(
                    f"Column {column!r} has {len(values)} different numbers, which are no groups: cut it into bands."
                )
            labels = tuple(f"{value:g}" for value in values)
        seen, codes = np.unique(codes * len(labels) + own, return_inverse=True)
        names = tuple(
            ", ".join(filter(None, (names[pair // len(labels)], labels[pair % len(labels)]))) for pair in seen
        )
    return names, np.asarray(codes, dtype=np.int64)
