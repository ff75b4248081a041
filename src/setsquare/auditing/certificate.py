"""Certificate of an audit: upper confidence bounds on the remaining effects, with n and p."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from setsquare._typing import Array
from setsquare.auditing.bounds import Association, associate
from setsquare.auditing.cells import CellRows
from setsquare.auditing.documents import sections
from setsquare.auditing.evaluations.glm import Fit
from setsquare.auditing.evaluations.score import rows_of, summary_of, summed_rows_of
from setsquare.auditing.evaluations.tensor import unit_correlations
from setsquare.auditing.protected import Predictions, Protected
from setsquare.document import Document, Documented, Headline
from setsquare.document.formats import percent
from setsquare.families import Family
from setsquare.glm.outcome_summary import OutcomeSummary
from setsquare.projection import Basis, basis_of_moments
from setsquare.projection.moments import Moments
from setsquare.rows.blocks import Block, all_rows

#: Effects that are ratios.
ODDS_RATIO, RATE_RATIO = "odds ratio", "rate ratio"
#: Above this number of units, they are not bounded one by one.
MANY = 20


@dataclass(frozen=True, slots=True)
class ColumnBound:
    """Upper confidence bounds for one protected column.

    Attributes
    ----------
    term, source : str
    correlation, correlation_upper : float
        Absolute correlation with the predictions, and its upper bound.
    unit : str
        Unit of the effect: ``group``, or a standard deviation of the column.
    effect, effect_upper : float
        Odds ratio, rate ratio or difference in either direction (a ratio is at least 1), holding the other protected
        columns fixed; infinite where the data give no bound.
    n_group : int or None
        Rows in the group.
    error : float
        Standard error of the correlation.
    difference, difference_upper : float or None
        Distance of the group's mean prediction from that of all other rows, in standard deviations of the predictions,
        and its upper bound; None for a column that is not a group.
    scale : float
        Size of the unit: 1 for a group, the standard deviation of another column.
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
    scale: float = 1.0

    def widened(self, correlation_upper: float, effect_upper: float, grown: float) -> ColumnBound:
        """Return the bounds with standard errors ``grown`` times as large."""
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
    """Upper confidence bounds on the dependence that an audit does not rule out, at 95 % or another level.

    Attributes
    ----------
    n, p : int
        Rows, and protected columns.
    confidence : float
    correlation, correlation_upper : float
        Multiple correlation of the predictions with all protected columns, and its upper bound. The part that columns
        after the first explain by chance is subtracted.
    correlation_sample : float
        Multiple correlation in these rows, without that correction.
    references : tuple of ColumnBound
        The same for the reference groups, which have no column of their own and no effect of their own.
    effect_kind : str
        ``odds ratio``, ``rate ratio`` or ``difference (sd of predictions)``; empty for units of a tensor.
    columns : tuple of ColumnBound
        Each bound holds individually with this confidence.
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


def certify(y: Predictions, protected: Protected, glm: Family, fit: Fit | None, confidence: float) -> Certificate:
    """Bound every association of predictions."""
    whole, single = _largest(y, protected, protected.basis, confidence)
    summary = summary_of(y, protected)
    scale = summary.spread if glm.activation.name == "identity" and len(summary.mean) == 1 else 1.0
    found = _bound_effects(whole, single, protected, glm, fit, confidence, scale)
    return replace(found, references=_bound_references(y, protected, confidence))


def _bound_references(y: Predictions, protected: Protected, confidence: float) -> tuple[ColumnBound, ...]:
    """Bounds for the reference groups, which have no column of their own."""
    moments = protected.found.moments
    found = _find_references(moments.mean, protected.sources, protected.group_sizes)
    if not found.sources:
        return ()
    scatter = found.members.T @ moments.scatter @ found.members
    basis = basis_of_moments(Moments(moments.weight, found.share, scatter), found.sources)
    single = _largest(y, protected, basis, confidence, partial(_rest, found.members))[1]
    total = np.asarray([0 if size is None else size for size in protected.group_sizes])
    sizes, names, bounds = protected.n_rows - total @ found.members, dict(protected.references), []
    for source, one, share, size in zip(found.sources, single, found.share, sizes, strict=True):
        spread = math.sqrt(float(share * (1.0 - share)))
        level, numbers = names.get(source), (one.estimate / spread, one.upper / spread)
        name = f"{source} (reference group)" if level is None else f"{source}[{level}]"
        effects = (math.inf, math.inf)  # a reference group has no effect of its own
        bounds.append(
            ColumnBound(name, source, one.estimate, one.upper, "group", *effects, int(size), one.error, *numbers)
        )
    return tuple(bounds)


def _rest(members: Array, block: Block) -> Block:
    return replace(block, Z=1.0 - np.asarray(block.Z) @ members)


class References(NamedTuple):
    """Reference groups: their source columns, and which columns are the other groups of each (p, m); shares (m,)."""

    sources: tuple[str, ...]
    members: Array
    share: Array


def _find_references(mean: Array, sources: Sequence[str], group_sizes: Sequence[int | None]) -> References:
    """Reference groups of columns with these (weighted) means; the two groups of a single column mirror each other."""
    found, members = [], []
    for source in dict.fromkeys(sources):
        own = np.asarray([s == source for s in sources])
        if (
            own.sum() > 1
            and all(size is not None for size, o in zip(group_sizes, own, strict=True) if o)
            and mean @ own < 1.0 - 1e-12
        ):
            found.append(source)
            members.append(own.astype(np.float64))
    A = np.column_stack(members) if members else np.zeros((len(mean), 0))
    return References(tuple(found), A, 1.0 - mean @ A)


def _bound_effects(
    whole: Association,
    single: Sequence[Association],
    protected: Protected,
    glm: Family,
    fit: Fit | None,
    confidence: float,
    scale: float,
) -> Certificate:
    """Combine bounds on correlations and on effects; differences are in units of ``scale``."""
    bounds = []
    terms = zip(protected.names, protected.sources, protected.group_sizes, protected.spreads.tolist(), strict=True)
    for j, (name, source, n_group, spread) in enumerate(terms):
        unit = "group" if n_group is not None else f"sd ({spread:.3g})" if spread > 0.0 else "-"
        found = single[j]
        size = 1.0 if n_group is not None or spread <= 0.0 else spread
        effect, upper = _effect(fit, j, size, confidence, scale, ratio=_is_ratio(glm))
        distances: tuple[float | None, float | None] = (None, None)
        if n_group is not None and spread > 0.0:  # the correlation with an indicator is a difference of means
            distances = found.estimate / spread, found.upper / spread
        bounds.append(
            ColumnBound(
                name, source, found.estimate, found.upper, unit, effect, upper, n_group, found.error, *distances, size
            )
        )
    kind, n = "" if fit is None else _kind(glm), protected.n_rows
    return Certificate(n, len(bounds), confidence, whole.estimate, whole.upper, kind, tuple(bounds), whole.sample)


def _largest(
    y: Predictions,
    protected: Protected,
    basis: Basis,
    confidence: float,
    change: Callable[[Block], Block] | None = None,
) -> tuple[Association, tuple[Association, ...]]:
    """Largest associations over the columns of ``y``, at a level that holds for all of them together.

    They are associations with the protected columns, or with their transform by ``change``, whose basis is ``basis``.
    """
    given: list[Predictions] = [y]
    k = 1
    if not isinstance(y, OutcomeSummary):
        Y = y.reshape(len(y), -1)
        if Y.shape[1] == 2 and np.ptp(Y.sum(axis=1)) < 1e-6:
            Y = Y[:, 1:]  # two shares that sum to 1 are one number
        k = Y.shape[1]
        if k > MANY:  # of many units, those with the highest correlation
            X = protected.values if change is None else change(all_rows(protected.rows)).Z
            weight = protected.weight
            tops = [unit_correlations(Y, part, weight).argmax() for part in (X, *(x[:, None] for x in X.T))]
            Y = Y[:, sorted(set(map(int, tops)))]
        given = list(Y.T)
    found = []
    for one in given:
        rows = summed_rows_of(one, protected)
        if isinstance(rows, CellRows) and not rows.varies_within:
            rows = rows_of(one, protected)
        mean, share = float(summary_of(one, protected).mean[0]), 1.0 - (1.0 - confidence) / k
        found.append(associate(rows, mean, basis, protected.found.concentration, share, protected.cluster, change))
    whole = max((total for total, _ in found), key=lambda a: a.upper)
    single = [max((own[j] for _, own in found), key=lambda a: a.upper) for j in range(len(basis.names))]
    return whole, tuple(single)


def _is_ratio(glm: Family) -> bool:
    return glm.is_vector or glm.activation.name in ("sigmoid", "exp", "exp-below-one")


def _kind(glm: Family) -> str:
    if glm.is_vector or glm.activation.name == "sigmoid":
        return ODDS_RATIO
    return RATE_RATIO if _is_ratio(glm) else "difference (sd of predictions)"


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
    z = special.ndtri(share) if math.isinf(fit.df) else special.stdtrit(fit.df, share)
    with np.errstate(over="ignore"):
        both = np.array([np.max(estimate), np.max(estimate + z * errors)]) * unit / scale
        effect, upper = np.exp(both) if ratio else both
    return float(effect), float(upper)
