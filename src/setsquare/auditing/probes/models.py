"""Targets, models and folds of the probes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy import special
from scipy.stats import rankdata
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import GroupKFold
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import _safe_indexing

from setsquare import tables
from setsquare._typing import Array, BoolArray, IntArray, Table
from setsquare.auditing.audit_models import asked_for
from setsquare.auditing.comparison.metric import Metric
from setsquare.auditing.comparison.performance import performance
from setsquare.auditing.verdict import SMALL
from setsquare.errors import InputError
from setsquare.notes import Note
from setsquare.tables import Categorical
from setsquare.tables.frame import dense

Kind: TypeAlias = Literal["linear", "logistic", "mlp", "boosting"]
KINDS: tuple[Kind, ...] = ("linear", "logistic", "mlp", "boosting")
#: Slow probes, fitted on at most ``max_rows`` rows.
SLOW = ("mlp", "boosting")
#: A level with fewer rows (or clusters) per fold than this is too rare to fit and score a model.
RARE = 4
Targets: TypeAlias = "Mapping[tuple[str, Kind], Attribute]"


@dataclass(frozen=True, slots=True)
class Attribute:
    """A protected column as a target.

    Attributes
    ----------
    name : str
    values : ndarray of shape (n,)
        Numbers, or the level code of each row.
    n_levels : int
        0 for a continuous column.
    known : ndarray of bool of shape (n,)
        False for rows with a rare level.
    measure : str
    """

    name: str
    values: Array
    n_levels: int
    known: BoolArray
    measure: str

    @property
    def chance(self) -> float:
        """Chance level of the score."""
        return 0.5 if self.n_levels else 0.0

    @property
    def small(self) -> float:
        """Score for a correlation of :data:`SMALL`: its square, or the AUC of two equally large groups."""
        return float(special.ndtr(math.sqrt(2.0) * SMALL)) if self.n_levels else SMALL**2

    def halved(self) -> Attribute:
        """Return a continuous attribute as two classes, above the median or not, for a logistic model."""
        if self.n_levels:
            return self
        median = np.median(self.values)
        above = self.values > median if (self.values > median).any() else self.values >= median
        return Attribute(self.name, above.astype(np.float64), 2, self.known, "auc above median")


def read_attributes(protected: Table, cluster: IntArray, folds: int) -> tuple[tuple[Attribute, ...], tuple[Note, ...]]:
    """Protected columns as targets, and notes on dropped rows; numbers with two values count as levels."""
    learned = tables.learn(protected)
    encoded = learned.apply(protected)
    values, sources = dense(encoded.values), np.asarray(encoded.sources)
    attributes, notes = [], []
    for coder in learned.coders:
        name = coder.columns[0]
        columns = values[:, sources == name]
        levels: tuple[Any, ...] = ()
        if isinstance(coder, Categorical):
            levels, target = coder.levels, columns @ np.arange(1.0, len(coder.levels))
        elif len(distinct := np.unique(target := columns[:, 0])) <= 2:
            levels, target = tuple(distinct), (target == distinct[-1]).astype(np.float64)
        if len(levels) == 1:
            raise InputError(f"Protected column {name} is constant, so there is nothing to recover: leave it out.")
        known = np.ones(len(target), dtype=bool)
        rare = [j for j in range(len(levels)) if len(np.unique(cluster[target == j])) < RARE * folds]
        if rare:
            known = ~np.isin(target, rare)
            text = "{column}: {count} row(s) of level(s) that are too rare for {folds} folds were left out ({levels})."
            listed = ", ".join(str(levels[j]) for j in rare)
            notes.append(Note("rare-levels", text, column=name, count=int((~known).sum()), folds=folds, levels=listed))
        if levels and len(levels) - len(rare) < 2:
            raise InputError(f"Protected column {name} has too few rows in all levels but one: use fewer folds.")
        kept = [j for j in range(len(levels)) if j not in rare]
        if levels:
            target = np.searchsorted(kept, target).astype(np.float64)
        attributes.append(Attribute(name, target, len(kept), known, "auc" if levels else "r2"))
    return tuple(attributes), tuple(notes)


def recover(
    kind: Kind, A: Array, target: Array, n_levels: int, B: Array, seed: int, units: IntArray
) -> tuple[Array, int]:
    """Fit a probe to the rows of ``A`` (with clusters `units`) and predict the rows of ``B``.

    Returns
    -------
    scores : ndarray of shape (m, max(1, n_levels))
        Predicted numbers, or one score per level.
    n_warnings : int
        Number of convergence warnings.
    """
    # Early stopping needs validation rows of each level, of which there may be too few.
    can_stop = not n_levels or bool(np.unique(target, return_counts=True)[1].min() >= 10)
    model = _model(kind, n_levels, units, seed, can_stop)
    least_squares = kind == "linear" or not n_levels
    shift, scale = 0.0, 1.0
    if kind == "linear" and n_levels:
        target = (target[:, None] == np.arange(n_levels)).astype(np.float64)
    elif least_squares:
        shift, scale = float(target.mean()), float(target.std()) or 1.0
        target = (target - shift) / scale
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(A, target)
    others = [w for w in caught if not issubclass(w.category, ConvergenceWarning)]
    for w in others:
        warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    if least_squares:
        scores = shift + scale * np.asarray(model.predict(B)).reshape(len(B), -1)
    else:
        scores = np.zeros((len(B), n_levels))  # a level without training rows has no score
        scores[:, model.classes_.astype(int)] = model.predict_proba(B)
    return scores, len(caught) - len(others)


def _model(kind: Kind, n_levels: int, units: IntArray, seed: int, can_stop: bool) -> Any:
    early: dict[str, Any] = {"early_stopping": can_stop, "validation_fraction": 0.15, "n_iter_no_change": 10}
    if kind == "boosting":
        boosting = HistGradientBoostingClassifier if n_levels else HistGradientBoostingRegressor
        return boosting(max_iter=200, random_state=seed, **early)
    if kind == "linear":
        # Leave-one-row-out within clusters would choose too small a penalty.
        clustered = len(np.unique(units)) < len(units)
        apart = list(GroupKFold(5).split(units, groups=units)) if clustered else None
        return make_pipeline(StandardScaler(), RidgeCV(len(units) * np.logspace(-5.0, 1.0, 7), cv=apart))
    if kind == "logistic":
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    network = MLPClassifier if n_levels else MLPRegressor
    options = early | {"alpha": 1.0, "learning_rate_init": 3e-3, "max_iter": 200, "random_state": seed}
    return make_pipeline(StandardScaler(), network(hidden_layer_sizes=(64,), **options))


@dataclass(frozen=True, slots=True)
class Source:
    """A representation: a table, or a table of features with the transformer to apply."""

    table: Table
    correction: Any = None

    def take(self, protected: Table, fit: IntArray, *parts: IntArray) -> list[Array]:
        """Some of the rows, transformed by the correction fitted on the rows `fit`."""
        rows = [_safe_indexing(self.table, part) for part in parts]
        if self.correction is None:
            return [as_matrix(part) for part in rows]
        model = clone(self.correction)
        parameters = model.get_params().items()
        named = any(name.split("__")[-1] == "protected" and value is not None for name, value in parameters)

        def beside(method: str, part: IntArray) -> dict[str, Any]:
            """Protected columns, for a correction that takes them and does not find them among the features."""
            return {} if named else asked_for(model, method, _safe_indexing(protected, part))

        model.fit(_safe_indexing(self.table, fit), **beside("fit", fit))
        corrected = [model.transform(row, **beside("transform", part)) for row, part in zip(rows, parts, strict=True)]
        return [as_matrix(part) for part in corrected]


def as_matrix(rows: Any) -> Array:
    """Rows (n, q) as float64, or float32 where the input has that precision, as scikit-learn accepts everywhere."""
    A = np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows)
    A = A.astype(np.float32 if A.dtype in (np.float16, np.float32) else np.float64, copy=False)
    return A.reshape(len(A), -1)


@dataclass(frozen=True, slots=True)
class Split:
    """Rows for corrections, for probes (with clusters; `few` for slow probes) and held out; and a seed."""

    fit: IntArray
    train: IntArray
    units: IntArray
    few: BoolArray
    test: IntArray
    seed: int


def split_rows(
    attributes: Sequence[Attribute], units: IntArray, folds: int, max_rows: int, rng: np.random.Generator
) -> tuple[Split, ...]:
    """Folds of whole clusters with about equal shares of each level.

    For each held-out fold, the next half of the other folds fits corrections, and the rest fits probes. So no two folds
    swap roles: if A scores probes of B, then B does not score probes of A. Under the null, the scores of the folds are
    then uncorrelated, as their standard error assumes. If all other folds fitted the probes, each pair would count
    twice, and 12 % of probes would be significant at the 5 % level.
    """
    first = np.unique(units, return_index=True)[1]
    strata = [attribute.halved().values[first] for attribute in reversed(attributes)]
    place = np.empty(len(first), dtype=np.int64)
    place[np.lexsort((rng.random(len(first)), *strata))] = np.arange(len(first)) % folds
    splits = []
    for k in range(folds):
        step = (place[units] - k) % folds
        train = np.flatnonzero(step > folds // 2)
        few, seed = rng.permutation(len(train)) < max_rows, int(rng.integers(2**31))
        fit = np.flatnonzero((step > 0) & (step <= folds // 2))
        splits.append(Split(fit, train, units[train], few, np.flatnonzero(step == 0), seed))
    return tuple(splits)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Scores (n, max(1, K)) of a probe, training rows of its first fold, and number of fits that did not converge."""

    scores: Array
    n_train: int
    n_not_converged: int = 0


def hold_out(
    source: Source, protected: Table, targets: Targets, splits: Sequence[Split], tick: Callable[[], None]
) -> dict[tuple[str, Kind], HeldOut]:
    """Score each row with probes that were not fitted to it."""
    found: dict[tuple[str, Kind], HeldOut] = {}
    for split in splits:
        A, B = source.take(protected, split.fit, split.train, split.test)
        for key, target in targets.items():
            use = target.known[split.train] & (split.few | (key[1] not in SLOW))
            rows = split.train[use]
            scores, failed = recover(
                key[1], A[use], target.values[rows], target.n_levels, B, split.seed, split.units[use]
            )
            blank = np.empty((len(target.values), scores.shape[1]))
            so_far = found.setdefault(key, HeldOut(blank, len(rows)))
            so_far.scores[split.test] = scores
            found[key] = replace(so_far, n_not_converged=so_far.n_not_converged + failed)
            tick()
    return found


def measure(target: Attribute, scores: Array, splits: Sequence[Split]) -> Metric:
    """R² of predicted numbers, AUC of levels (mean of one against the rest), on the rows with a known level.

    Scores of levels are ranked within their fold: models of different folds are calibrated differently, and their
    intercepts are negatively related to the share of a level in the held-out rows.
    """
    values, known = target.values[target.known], target.known
    if not target.n_levels:
        return next(m for m in performance(values, scores[known, 0], "gaussian") if m.name == "r2")
    ranks = np.empty_like(scores)
    for split in splits:
        rows = split.test[known[split.test]]
        ranks[rows] = (rankdata(scores[rows], axis=0) - 0.5) / len(rows)
    ranks, family = (ranks[known, 1], "binomial") if target.n_levels == 2 else (ranks[known], "multinomial")
    return next(m for m in performance(values, ranks, family) if m.name == "auc")
