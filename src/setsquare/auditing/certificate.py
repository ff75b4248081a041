"""The certificate: how large a remaining effect can be, with n and p stated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from setsquare._typing import Array
from setsquare.auditing.bounds import Association, association
from setsquare.auditing.documents import sections
from setsquare.auditing.evaluations.glm import Fit
from setsquare.auditing.evaluations.tensor import unit_correlations
from setsquare.auditing.protected import Protected
from setsquare.document import Document, Documented, Headline
from setsquare.document.formats import percent
from setsquare.families import Family
from setsquare.rows.blocks import mean_weight

#: Kinds of effects that are ratios.
ODDS_RATIO, RATE_RATIO = "odds ratio", "rate ratio"
#: More units than this are not bounded one by one.
MANY = 20


@dataclass(frozen=True, slots=True)
class ColumnBound:
    """Upper confidence bounds for one protected column.

    Attributes
    ----------
    term, source : str
    correlation, correlation_upper : float
        Absolute correlation with the predictions, and what it is at most.
    unit : str
        What the effect is of: ``group``, or a standard deviation of the column.
    effect, effect_upper : float
        Odds ratio, rate ratio or difference in either direction (a ratio is at least 1), holding the other protected
        columns fixed; infinite where the data set no limit.
    n_group : int or None
        Rows in the group.
    error : float
        Standard error of the correlation.
    difference, difference_upper : float or None
        Distance of the group's mean prediction from that of all other rows, in standard deviations of the predictions,
        and what it is at most; None for a column that is no group.
    """

    term: str
    source: str
    correlation: float
    correlation_upper: float
    unit: str
    effect: float
    effect_upper: float
    n_group: int | None
    error: float = 0.0
    difference: float | None = None
    difference_upper: float | None = None

    def widened(self, correlation_upper: float, effect_upper: float, grown: float) -> ColumnBound:
        """Bounds of a larger standard error, ``grown`` times this one."""
        upper, distance = min(correlation_upper, 1.0), self.difference_upper
        if distance is not None and self.correlation_upper > 0.0:
            distance *= upper / self.correlation_upper
        return replace(
            self,
            correlation_upper=upper,
            effect_upper=effect_upper,
            error=grown * self.error,
            difference_upper=distance,
        )


@dataclass(frozen=True, slots=True)
class Certificate(Documented):
    """What can still be there, with 95 % confidence (or another level).

    Attributes
    ----------
    n, p : int
        Rows, and protected columns.
    confidence : float
    correlation, correlation_upper : float
        Multiple correlation of the predictions with all protected columns, and what it is at most. Independent columns
        explain something by chance; what more than one would is taken off.
    correlation_sample : float
        Multiple correlation in these rows, with nothing taken off.
    references : tuple of ColumnBound
        The same for the reference groups, which have no column; their effects are those of the others.
    effect_kind : str
        ``odds ratio``, ``rate ratio`` or ``difference (sd of predictions)``; empty for units of a tensor.
    columns : tuple of ColumnBound
        Each bound holds on its own with the confidence given.
    """

    n: int
    p: int
    confidence: float
    correlation: float
    correlation_upper: float
    effect_kind: str
    columns: tuple[ColumnBound, ...]
    correlation_sample: float = 0.0
    references: tuple[ColumnBound, ...] = ()

    @property
    def is_ratio(self) -> bool:
        """Whether effects are ratios; otherwise they are differences."""
        return self.effect_kind in (ODDS_RATIO, RATE_RATIO)

    @property
    def groups(self) -> tuple[ColumnBound, ...]:
        """Bounds for each group, the reference groups included."""
        return tuple(c for c in (*self.columns, *self.references) if c.difference_upper is not None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def document(self) -> Document:
        """The bounds as a table, and as a figure."""
        whole = (
            f"With {percent(self.confidence)} confidence the correlation with the protected columns is at most "
            f"{self.correlation_upper:.3f} (n = {self.n}, p = {self.p})."
        )
        found = sections.bounds({"": self})
        return Document("", (Headline("", "", whole),), () if found is None else (found,))


def certify(
    y: Array,
    protected: Protected,
    glm: Family,
    fit: Fit | None,
    confidence: float,
) -> Certificate:
    """Bound every association of predictions ``y``, (n,) or (n, k)."""
    whole, single = _largest(y.reshape(len(y), -1), protected, confidence)
    scale = _spread(y, protected.weight) if glm.activation.name == "identity" and y.ndim == 1 else 1.0
    spreads = [_spread(x, protected.weight) for x in protected.columns]
    terms = tuple(zip(protected.names, protected.sources, protected.group_sizes, spreads, strict=True))
    found = bound_effects(whole, single, terms, glm, fit, confidence, scale, len(y))
    return replace(found, references=_bound_references(y, protected, confidence))


def _bound_references(y: Array, protected: Protected, confidence: float) -> tuple[ColumnBound, ...]:
    """Bounds for the groups that others are compared with, which have no column of their own."""
    w = mean_weight(len(y), protected.weight)
    found = find_references(w @ protected.values, protected.sources, protected.is_group)
    if not found.sources:
        return ()
    rest = 1.0 - protected.values @ found.members
    names = tuple(f"{source} (reference group)" for source in found.sources)
    references = replace(protected, values=rest, names=names, sources=found.sources)
    single = _largest(y.reshape(len(y), -1), references, confidence)[1]
    return bound_references(found, single, rest.sum(axis=0))


class References(NamedTuple):
    """Reference groups: their source columns, and which columns are the other groups of each (p, m); shares (m,)."""

    sources: tuple[str, ...]
    members: Array
    share: Array


def find_references(mean: Array, sources: Sequence[str], is_group: Sequence[bool]) -> References:
    """Reference groups of columns with these (weighted) means; a source of one column has two groups that mirror."""
    found, members = [], []
    for source in dict.fromkeys(sources):
        own = np.asarray([s == source for s in sources])
        if (
            own.sum() > 1
            and all(group for group, o in zip(is_group, own, strict=True) if o)
            and mean @ own < 1.0 - 1e-12
        ):
            found.append(source)
            members.append(own.astype(np.float64))
    A = np.column_stack(members) if members else np.zeros((len(mean), 0))
    return References(tuple(found), A, 1.0 - mean @ A)


def bound_references(references: References, single: Sequence[Association], sizes: Array) -> tuple[ColumnBound, ...]:
    """Bounds for reference groups of these ``sizes`` (m,), from those of their correlations."""
    bounds = []
    for source, found, share, size in zip(references.sources, single, references.share, sizes, strict=True):
        spread = math.sqrt(float(share * (1.0 - share)))
        name, numbers = f"{source} (reference group)", (found.estimate / spread, found.upper / spread)
        effects = (math.inf, math.inf)  # they are those of the other groups
        bounds.append(
            ColumnBound(name, source, found.estimate, found.upper, "group", *effects, int(size), found.error, *numbers)
        )
    return tuple(bounds)


def bound_effects(
    whole: Association,
    single: Sequence[Association],
    terms: Sequence[tuple[str, str, int | None, float]],
    glm: Family,
    fit: Fit | None,
    confidence: float,
    scale: float,
    n: int,
) -> Certificate:
    """Put bounds on correlations beside those on effects.

    ``terms`` has name, source, size of the group and standard deviation of each column; ``scale`` is what effects that
    are differences are measured in.
    """
    bounds = []
    for j, (name, source, n_group, spread) in enumerate(terms):
        unit = "group" if n_group is not None else f"sd ({spread:.3g})" if spread > 0.0 else "-"
        found = single[j]
        effect, upper = _effect(fit, j, 1.0 if n_group is not None else spread, confidence, scale, ratio=_is_ratio(glm))
        distances: tuple[float | None, float | None] = (None, None)
        if n_group is not None and spread > 0.0:  # the correlation with an indicator is a difference of means
            distances = found.estimate / spread, found.upper / spread
        bounds.append(
            ColumnBound(
                name, source, found.estimate, found.upper, unit, effect, upper, n_group, found.error, *distances
            )
        )
    kind = "" if fit is None else _kind(glm)
    return Certificate(n, len(terms), confidence, whole.estimate, whole.upper, kind, tuple(bounds), whole.sample)


def _largest(Y: Array, protected: Protected, confidence: float) -> tuple[Association, tuple[Association, ...]]:
    """Largest associations over the columns of ``Y``, at a level that holds for all of them together."""
    k, X, weight, cluster = Y.shape[1], protected.values, protected.weight, protected.cluster
    if k == 2 and np.ptp(Y.sum(axis=1)) < 1e-6:
        Y, k = Y[:, 1:], 1  # two shares are one number
    share = 1.0 - (1.0 - confidence) / k
    if k > MANY:  # of many units, those that follow the columns most closely
        tops = [unit_correlations(Y, part, weight).argmax() for part in (X, *(x[:, None] for x in X.T))]
        Y = Y[:, sorted(set(map(int, tops)))]
    basis = protected.basis
    found = [association(y, X, weight=weight, cluster=cluster, confidence=share, basis=basis) for y in Y.T]
    whole = max((total for total, _ in found), key=lambda a: a.upper)
    single = [max((own[j] for _, own in found), key=lambda a: a.upper) for j in range(X.shape[1])]
    return whole, tuple(single)


def _is_ratio(glm: Family) -> bool:
    return glm.is_vector or glm.activation.name in ("sigmoid", "exp", "exp-below-one")


def _kind(glm: Family) -> str:
    if glm.is_vector or glm.activation.name == "sigmoid":
        return ODDS_RATIO
    return RATE_RATIO if _is_ratio(glm) else "difference (sd of predictions)"


def _spread(x: Array, weight: Array | None) -> float:
    w = mean_weight(len(x), weight)
    return math.sqrt(float(w @ (x - w @ x) ** 2))


def _effect(
    fit: Fit | None, j: int, unit: float, confidence: float, scale: float, *, ratio: bool
) -> tuple[float, float]:
    """Largest effect over the classes, in either direction, and its upper bound."""
    if fit is None:
        return math.nan, math.nan
    if np.isnan(fit.coef[:, j]).any():
        return math.nan, math.nan if fit.converged else math.inf
    p = fit.coef.shape[1]
    estimate = np.abs(fit.coef[:, j])
    errors = np.sqrt(np.maximum(np.diag(fit.cov)[j::p], 0.0))
    share = 1.0 - (1.0 - confidence) / len(estimate)
    z = stats.norm.ppf(share) if math.isinf(fit.df) else stats.t.ppf(share, fit.df)
    with np.errstate(over="ignore"):
        both = np.array([np.max(estimate), np.max(estimate + z * errors)]) * unit / scale
        effect, upper = np.exp(both) if ratio else both
    return float(effect), float(upper)
