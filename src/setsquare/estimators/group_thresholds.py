"""Decisions with equal selection rates or equalised odds: thresholds by group, for scores of any model."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from setsquare._typing import Array, IntArray, Table
from setsquare.errors import InputError, UnseenLevelError
from setsquare.estimators.odds_thresholds import Mixture, hull_of, meet, mix
from setsquare.tables.column import Levels, TableRows, label
from setsquare.tables.frame import backend_of, open_table, to_frame
from setsquare.tables.outcome import read_outcome
from setsquare.tables.validation import check_choice, check_cutoff, check_same_rows, read_scores, read_weight

#: Distinct numbers from which a protected column is a measurement, and has no groups.
MOST_VALUES = 12


class GroupThreshold(NamedTuple):
    """Rule of one group: scores above ``threshold`` are selected, and a share ``at_threshold`` of those equal to it."""

    group: str
    n: int
    threshold: float
    at_threshold: float

    def probability(self, s: Array) -> Array:
        """Probability of selection of each score."""
        return np.where(s > self.threshold, 1.0, np.where(s == self.threshold, self.at_threshold, 0.0))


class GroupThresholds(BaseEstimator):
    """Decisions from scores with thresholds for each group: equal selection rates, or equalised odds.

    A score that is uncorrelated with the protected columns can still select more of one group than of another at a
    threshold. With several protected columns, groups are their combinations. Needs the protected columns to decide.
    Within a group the order of the scores stays.

    With ``equalize="odds"``, true- and false-positive rates are equal instead, by mixing two thresholds and a coin in
    each group (Hardt, Price and Srebro, 2016). A coin that ignores the score is needed where scores predict one group
    better than another: its share is in :meth:`table`.

    Where many rows of a group share the score at its threshold, a share of them is selected: drawn at random, but in
    the number that the share gives (rounded at random), so that a decision depends on the other rows of its batch. Each
    tied row has the same probability. On the rows of the fit, selection rates are equal within one row of each group;
    on new rows, within sampling error.

    Parameters
    ----------
    rate : float, optional
        Share of each group to select, above 0 and below 1. By default the share of all rows with a score of at least
        `threshold`. For equal selection rates only.
    equalize : {"rates", "odds"}
        Selection rates, or true- and false-positive rates.
    threshold : float
        Common threshold that the rate is taken from, if no rate is given. With ``equalize="odds"``, the price of a
        false positive, that of a false negative being one minus it: 0.5 gives the largest accuracy.
    random_state : int
        Seed of the draws among rows whose rule is random.

    Attributes
    ----------
    rate_ : float
        Share selected on the rows of the fit.
    thresholds_ : tuple of GroupThreshold, or of Mixture
    fpr_, tpr_ : float
        With ``equalize="odds"``: false- and true-positive rate of every group on the rows of the fit.

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

    def __init__(
        self,
        rate: float | None = None,
        *,
        equalize: Literal["rates", "odds"] = "rates",
        threshold: float = 0.5,
        random_state: int = 0,
    ) -> None:
        self.rate = rate
        self.equalize = equalize
        self.threshold = threshold
        self.random_state = random_state

    def fit(self, scores: Any, protected: Table, sample_weight: Any = None, outcome: Any = None) -> Self:
        """Learn the thresholds.

        Parameters
        ----------
        scores : array of shape (n,)
            Predictions of any model, best for rows that it was not fitted on.
        protected : dataframe or array of shape (n, p)
            Columns whose combinations are the groups.
        sample_weight : array of shape (n,), optional
        outcome : array of shape (n,), optional
            Outcome of two classes, the second of which a high score predicts. For ``equalize="odds"`` only.

        Returns
        -------
        self
        """
        check_choice("equalize", self.equalize, ("rates", "odds"))
        s = read_scores(scores)
        labels, codes = _read_groups(protected, len(s))
        w = read_weight(sample_weight, len(s))
        w = np.ones(len(s)) if w is None else w
        empty = [name for name, total in zip(labels, np.bincount(codes, w), strict=True) if not total > 0.0]
        if empty:
            raise InputError(f"The group {empty[0]!r} has no row of positive weight: leave it out, or weight it.")
        groups = [(name, np.flatnonzero(codes == code)) for code, name in enumerate(labels)]
        self.backend_ = backend_of(protected)
        if self.equalize == "odds":
            return self._fit_odds(s, w, groups, outcome)
        if outcome is not None:
            raise InputError('outcome= is used with equalize="odds" only: leave it out for equal selection rates.')
        rate = self._own_rate(s, w)
        self.rate_ = rate
        self.thresholds_: tuple[GroupThreshold, ...] | tuple[Mixture, ...] = tuple(
            GroupThreshold(name, len(own), *find_threshold(s[own], w[own], rate)) for name, own in groups
        )
        return self

    def _fit_odds(self, s: Array, w: Array, groups: list[tuple[str, IntArray]], outcome: Any) -> Self:
        """Learn the mixtures that equalise true- and false-positive rates."""
        if self.rate is not None:
            raise InputError('rate= is for equal selection rates: leave it out with equalize="odds".')
        if not isinstance(self.threshold, int | float) or not 0.0 < self.threshold < 1.0:
            raise InputError(f'With equalize="odds", threshold must be above 0 and below 1, not {self.threshold!r}.')
        y = _read_classes(outcome, len(s))
        for name, own in groups:
            if not 0.0 < w[own] @ y[own] < w[own].sum():
                raise InputError(
                    f"The group {name!r} has rows of one outcome class only, so it has no true- or no false-positive "
                    "rate: merge it with another group."
                )
        hulls = [hull_of(s[own], y[own], w[own]) for _, own in groups]
        positive = float(w @ y) / float(w.sum())
        self.fpr_, self.tpr_ = meet(hulls, positive, float(self.threshold))
        self.rate_ = positive * self.tpr_ + (1.0 - positive) * self.fpr_
        if not 0.0 < self.rate_ < 1.0:
            who = "nobody" if self.rate_ == 0.0 else "everybody"
            raise InputError(
                f"With equalised odds, the best decisions at threshold {self.threshold:g} select {who}: pass another "
                "threshold, or scores that predict the outcome in every group."
            )
        self.thresholds_ = tuple(
            mix(name, len(own), hull, self.fpr_, self.tpr_) for (name, own), hull in zip(groups, hulls, strict=True)
        )
        return self

    def decide(self, scores: Any, protected: Table) -> IntArray:
        """Decisions, 0 or 1, of shape (n,)."""
        check_is_fitted(self, "thresholds_")
        s = read_scores(scores)
        labels, codes = _read_groups(protected, len(s))
        known = {rule.group: rule for rule in self.thresholds_}
        unseen = [name for name in labels if name not in known]
        if unseen:
            raise UnseenLevelError(
                f"The group {unseen[0]!r} was not among the rows of the fit, so it has no threshold: fit again with "
                "rows of it, or merge it with another group."
            )
        rng = np.random.default_rng(self.random_state)
        selected = np.zeros(len(s), dtype=np.int64)
        for code, name in enumerate(labels):
            own = np.flatnonzero(codes == code)
            p = known[name].probability(s[own])
            selected[own[p == 1.0]] = 1
            for share in np.unique(p[(p > 0.0) & (p < 1.0)]):
                drawn = own[p == share]
                selected[rng.permutation(drawn)[: int(np.floor(share * len(drawn) + rng.random()))]] = 1
        return selected

    def table(self) -> Table:
        """Dataframe with one row per group: ``group``, ``n`` and its rule.

        For equal rates ``threshold`` and ``at_threshold``, the share of the scores equal to it that is selected. For
        equalised odds ``low`` and ``high``, the share selected ``between`` them, and the share of rows that a ``coin``
        decides with probability ``coin_rate``.
        """
        check_is_fitted(self, "thresholds_")
        columns = zip(self.thresholds_[0]._fields, zip(*self.thresholds_, strict=True), strict=True)
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


def _read_classes(outcome: Any, n: int) -> Array:
    """Outcome as 0 and 1."""
    if outcome is None:
        raise InputError('equalize="odds" needs the outcome of the rows: pass outcome= to fit.')
    y = np.asarray(outcome)
    check_same_rows("The outcome has", len(y) if y.ndim else 0, "the scores have", n)
    classes, codes = np.unique(read_outcome(outcome, n), return_inverse=True)
    if len(classes) != 2:
        raise InputError(f'equalize="odds" needs an outcome of two classes, not of {len(classes)}.')
    return np.asarray(codes, dtype=np.float64)


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
