"""Verdict of an audit: leak, trace, no leak found, or too few rows; and the adjusted p-values that it rests on.

The adjustment controls the probability of any false alarm. The joint test of the effects receives most of the error
rate; the tests of each source column, and those of curvature, combinations and spread, share the rest. A test that
rejects passes its share on: the joint test to the source columns, the others back to it (a graphical procedure, Bretz
et al. 2009). A verdict and the tests that it names come from the same adjusted p-values, so they cannot contradict each
other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from setsquare._typing import Array
from setsquare.auditing.certificate import Certificate, ColumnBound
from setsquare.auditing.evaluations.records import Evaluation, Test
from setsquare.auditing.evaluations.shape import COMBINATIONS, CURVATURE, SPREAD
from setsquare.document.formats import capital, joined, percent, term_name

if TYPE_CHECKING:
    from setsquare.auditing.groups.result import GroupNumbers
#: Share of the error rate for the tests of shape; share of the rest for single source columns.
SHAPE_SHARE, SOURCE_SHARE = 0.15, 0.06
#: Share that a source column passes on to the tests outside its own evaluation model.
LITTLE = 1e-3


@dataclass(frozen=True, slots=True)
class Member:
    """A test of the family, with its adjusted p-value."""

    evaluation: Evaluation
    test: Test
    adjusted: float


def adjust(evaluations: Sequence[Evaluation]) -> tuple[Member, ...]:
    """Adjusted p-values of the joint tests, the source columns and the tests of shape; untested ones are absent.

    Examples
    --------
    >>> sources = (Test("age", 9.0, 1.0, 0.003, ""), Test("sex", 0.1, 1.0, 0.75, ""))
    >>> effects = Evaluation("glm", "", (), Test("all", 9.1, 2.0, 0.01, ""), sources)
    >>> [round(member.adjusted, 3) for member in adjust([effects])]
    [0.011, 0.011, 0.75]
    """
    members: list[tuple[Evaluation, Test]] = []
    weights: list[float] = []
    has_shape = any(e.name == "shape" for e in evaluations)
    n_effects = sum(e.name != "shape" for e in evaluations)
    groups: list[list[int]] = []
    for evaluation in evaluations:
        if evaluation.name == "shape":
            share, tests, parts = SHAPE_SHARE if n_effects else 1.0, evaluation.further, evaluation.further
        else:
            share = (1.0 - SHAPE_SHARE if has_shape else 1.0) / n_effects
            tests = (evaluation.joint, *_sources(evaluation))
            parts = tests[1:]
        known = [test for test in tests if not math.isnan(test.p_value)]
        parts = tuple(test for test in known if test in parts)
        for test in known:
            whole = SOURCE_SHARE if len(parts) < len(known) else 1.0
            weights.append(share * (whole / len(parts) if test in parts else 1.0 - SOURCE_SHARE * bool(parts)))
        groups.append(list(range(len(members), len(members) + len(known))))
        members += [(evaluation, test) for test in known]
    p = np.asarray([test.p_value for _, test in members])
    adjusted = graphical(p, np.asarray(weights) / max(sum(weights), 1e-300), _handing_on(members, groups))
    for group in groups:
        if group and members[group[0]][0].name != "shape":  # if one column has an effect, all together have one
            adjusted[group[0]] = max(adjusted[group].min(), p[group[0]])
    return tuple(Member(*member, float(value)) for member, value in zip(members, adjusted, strict=True))


def _sources(evaluation: Evaluation) -> tuple[Test, ...]:
    """Tests of the source columns; a single one is the joint test itself."""
    return evaluation.by_source if len(evaluation.by_source) > 1 else ()


def _handing_on(members: Sequence[tuple[Evaluation, Test]], groups: Sequence[Sequence[int]]) -> Array:
    """Transition weights of a test that rejects: within its group first, then to the others."""
    G = np.zeros((len(members),) * 2)
    for group in groups:
        outside = [i for i in range(len(members)) if i not in group]
        for i in group:
            inside = [j for j in group if j != i]
            if members[i][0].name != "shape" and len(group) > 1 and i == group[0]:
                inside = list(group[1:])
            for targets, share in ((inside, 1.0 - LITTLE if outside else 1.0), (outside, LITTLE if inside else 1.0)):
                for j in targets:
                    G[i, j] = share / len(targets)
    return G


def graphical(p: Array, weights: Array, G: Array) -> Array:
    """Adjusted p-values of a graphical procedure with the transition matrix ``G`` (m, m).

    Examples
    --------
    >>> everywhere = np.full((3, 3), 0.5) - 0.5 * np.eye(3)
    >>> graphical(np.array([0.01, 0.04, 0.03]), np.full(3, 1 / 3), everywhere).round(12)  # Holm's procedure
    array([0.03, 0.06, 0.06])
    """
    w, G = weights.astype(np.float64).copy(), G.copy()
    adjusted, left, largest = np.full(len(p), np.nan), list(range(len(p))), 0.0
    while left:
        ratios = [p[i] / w[i] if w[i] > 0.0 else math.inf for i in left]
        j = left.pop(int(np.argmin(ratios)))
        largest = max(largest, min(float(min(ratios)), 1.0))
        adjusted[j] = largest
        w += w[j] * G[j]
        through = 1.0 - G[:, j] * G[j]
        G = (
            np.where(through > 0.0, 1.0, 0.0)[:, None]
            * (G + np.outer(G[:, j], G[j]))
            / np.maximum(through, 1e-12)[:, None]
        )
        np.fill_diagonal(G, 0.0)
        G[:, j] = 0.0
    return adjusted


#: A correlation below this is small by convention; an audit that cannot rule out a larger one is inconclusive.
SMALL = 0.1
#: The same for the distance of a group from all other rows, in standard deviations of the predictions.
SMALL_DIFFERENCE = 0.2
#: Joint statistics below this are rare by chance (for one column 1 in 4000 audits): these rows were corrected.
TAUTOLOGY = 1e-7
#: Evaluation models whose effects are measured by a correlation.
LINEAR = ("glm", "linear", "tensor")
#: Kind of dependence that they find, and how p-values of the kinds are named.
EFFECTS = "effects"
_NAMES = {EFFECTS: "Effects on means"}
#: Setting of predictions by a model that was fitted to the same rows.
IN_SAMPLE = "in-sample"


class Verdict(StrEnum):
    """Verdict of an audit."""

    LEAK = "leak"
    TRACE = "trace"
    NONE = "no leak found"
    INCONCLUSIVE = "inconclusive: n too small"


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest dependence that counts as a trace instead of a leak, once it is detected.

    Attributes
    ----------
    correlation : float
        Multiple correlation with the protected columns.
    difference : float
        Distance of a group's mean prediction from all other rows, in standard deviations of the predictions.
    shape : float
        Multiple correlation of the predictions with curves and combinations of the columns, and of their spread with
        the columns. It explains 4 % of the variance at 0.2, less than a medium effect by Cohen's convention.
    """

    correlation: float = 0.05
    difference: float = 0.1
    shape: float = 0.2


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict with its reason and its tests.

    Attributes
    ----------
    verdict : Verdict
    reason : str
        The finding in plain words.
    statistics : str
        Tests and bounds that it rests on.
    found : tuple of str
        Kinds of dependence that were found: ``effects``, ``curvature``, ``combinations``, ``spread``, or the name of
        another evaluation model.
    members : tuple of Member
        Tests with adjusted p-values.
    """

    verdict: Verdict
    reason: str
    statistics: str
    found: tuple[str, ...]
    members: tuple[Member, ...]


def judge(
    evaluations: Sequence[Evaluation],
    certificate: Certificate,
    *,
    confidence: float,
    limits: Limits,
    what: str = "The predictions",
    numbers: GroupNumbers | None = None,
) -> Decision:
    """Verdict and reason; ``what`` names the audited predictions in sentences, ``numbers`` has those of the groups.

    A leak is a dependence that one of the tests detects (with adjusted p-values), unless its upper bounds show it to be
    small: then it is a trace. If none is detected, the certificate must rule out a correlation of more than 0.1 (or the
    limit of a trace), otherwise n was too small.
    """
    alpha = (1.0 - confidence) * (1.0 + 1e-9)  # p = 0.05 is significant at 95 %, despite the rounding of 1 - 0.95
    members = adjust(evaluations)
    if not members:
        return Decision(Verdict.INCONCLUSIVE, "No protected column could be tested; see the notes.", "", (), ())
    rejected = [member for member in members if member.adjusted <= alpha]
    if not rejected:
        smallest = _p(min(member.adjusted for member in members))
        verdict, reason, statistics = _nothing_found(smallest, certificate, max(SMALL, limits.correlation))
        if is_tautology(certificate):
            reason += " The correction was made on these same rows; new rows can differ."
        return Decision(verdict, _text((reason, _rates(numbers))), statistics, (), members)
    kinds: dict[str, list[Member]] = {}
    for member in rejected:
        kinds.setdefault(kind_of(member), []).append(member)
    verdict, caveat, size = _size(rejected, certificate, limits, alpha)
    reason = _text((_finding(what, kinds), caveat, _extremes(rejected, numbers) or _rates(numbers)))
    return Decision(verdict, reason, _text((_further(what, kinds), size)), tuple(kinds), members)


def _text(parts: Sequence[str]) -> str:
    return " ".join(filter(None, parts))


def _extremes(rejected: Sequence[Member], numbers: GroupNumbers | None) -> str:
    """Sentence on the two most different groups, among the columns that have an effect."""
    effects = [member for member in rejected if kind_of(member) == EFFECTS]
    if numbers is None or not effects:
        return ""
    known = [part.source for part in numbers.partitions]
    single = [m.test.name for m in effects if m.test is not m.evaluation.joint]
    return numbers.sentence(among=[name for name in dict.fromkeys(single) if name in known])


def _rates(numbers: GroupNumbers | None) -> str:
    """Sentence on the two groups whose selection rates differ most, where there are decisions: these are not tested."""
    return numbers.sentence() if numbers is not None and "selection_rate" in numbers.numbers else ""


def is_tautology(certificate: Certificate) -> bool:
    """Whether the predictions are closer to orthogonal than chance would allow."""
    left = certificate.correlation_sample
    return not math.isnan(certificate.correlation) and left**2 * certificate.n < TAUTOLOGY


def kind_of(member: Member) -> str:
    """Kind of dependence that a test is about."""
    if member.evaluation.name in LINEAR:
        return EFFECTS
    return member.test.name if member.evaluation.name == "shape" else member.evaluation.name


def _finding(what: str, kinds: Mapping[str, Sequence[Member]]) -> str:
    """The finding on means, or else those of the other tests."""
    if EFFECTS in kinds:
        return f"{_sentence(what, EFFECTS, kinds[EFFECTS])}."
    found = "; ".join(_other(kind, members) for kind, members in kinds.items())
    return f"Mean predictions show no linear effect, but there is another dependence: {found}."


def _other(kind: str, members: Sequence[Member]) -> str:
    """A dependence that is not one of the means."""
    columns = _columns(members)
    known = {CURVATURE: f"a curve along {columns}", COMBINATIONS: f"combinations of {columns}"}
    known[SPREAD] = f"a spread that differs with {columns}"
    return known.get(kind, f"on {columns} ({members[0].evaluation.title})")


def _further(what: str, kinds: Mapping[str, Sequence[Member]]) -> str:
    """P-values of the findings, with a sentence on those that the reason leaves out."""
    said = []
    for kind, members in kinds.items():
        p = _p(min(member.adjusted for member in members))
        is_said = kind == EFFECTS or EFFECTS not in kinds
        said.append(
            f"{_NAMES.get(kind, capital(kind))}: {p}." if is_said else f"{_sentence(what, kind, members)} ({p})."
        )
    return " ".join(said)


def _single(members: Sequence[Member]) -> list[str]:
    """Source columns that stand out."""
    return [m.test.name for m in members if m.test is not m.evaluation.joint]


def _columns(members: Sequence[Member]) -> str:
    """Columns that a finding is about, in a sentence."""
    every = [test.name for test in members[0].evaluation.by_source]
    found = members[0].test.sources or tuple(dict.fromkeys(_single(members) or every))
    return joined(found, most=9) or "the protected columns"


def _sentence(what: str, kind: str, members: Sequence[Member]) -> str:
    """A finding, without a full stop."""
    evaluation, columns = members[0].evaluation, _columns(members)
    if kind == EFFECTS:
        alone = len(evaluation.by_source) < 2 or _single(members)
        return f"{what} depend on {columns}{'' if alone else ' taken together; no single column stands out'}"
    if kind == CURVATURE:
        return f"{what} follow {columns} along a curve"
    if kind == COMBINATIONS:
        return f"{what} depend on combinations of {columns}, beyond what each explains"
    if kind == SPREAD:
        return f"The spread of {what[:1].lower()}{what[1:]} differs with {columns}"
    return f"{what} depend on {columns} ({evaluation.title})"


def _size(
    rejected: Sequence[Member], certificate: Certificate, limits: Limits, alpha: float
) -> tuple[Verdict, str, str]:
    """Whether the dependence found is small with confidence, a caveat in plain words, and the numbers.

    The upper bounds must be below the limits. If only curvature, combinations or spread were found, the means are
    judged as if nothing was found.
    """
    upper, confidence = certificate.correlation_upper, f"with {percent(certificate.confidence)} confidence"
    shapes = [m.test for m in rejected if m.evaluation.name == "shape"]
    effects = any(m.evaluation.name in LINEAR for m in rejected)
    groups = [c for c in certificate.groups if (c.difference_upper or 0.0) > limits.difference]
    small = all(m.evaluation.name in (*LINEAR, "shape") for m in rejected) and limits.correlation > 0.0
    small &= all(test.upper is not None and test.upper <= limits.shape for test in shapes)
    small &= upper <= (limits.correlation if effects else max(SMALL, limits.correlation))
    small &= not (groups if effects else _certain(groups, certificate, alpha))
    limit = f"; limit {limits.correlation:g}" if effects else ""
    numbers = [f"Correlation {certificate.correlation:.3f} (at most {upper:.3f} {confidence}{limit})."]
    for test in shapes:
        if test.upper is not None:
            numbers.append(f"{capital(test.name)}: correlation at most {test.upper:.3f} (limit {limits.shape:g}).")
    if groups and effects:
        numbers.append(_largest(groups, limits))
    if not small:
        titles = "; ".join(dict.fromkeys(m.evaluation.title for m in rejected))
        return Verdict.LEAK, "", f"{' '.join(numbers)} Test: {titles}."
    unknown = [] if effects else [c for c in groups if (c.difference_upper or 0.0) > SMALL_DIFFERENCE]
    within = f" No group differs by more than {limits.difference:g} standard deviations." if effects else ""
    return Verdict.TRACE, f"The dependence is small.{_too_few(unknown)}", f"{' '.join(numbers)}{within}"


def _largest(groups: Sequence[ColumnBound], limits: Limits) -> str:
    """Sentence on the group that differs most, beyond the limit."""
    group = max(groups, key=lambda c: c.difference or 0.0)
    return (
        f"The mean of {term_name(group.term, group.source)} is {group.difference or 0.0:.2f} standard deviations from "
        f"that of the other rows (at most {group.difference_upper or 0.0:.2f}; limit {limits.difference:g})."
    )


def _certain(groups: Sequence[ColumnBound], certificate: Certificate, alpha: float) -> list[ColumnBound]:
    """Groups whose mean certainly differs from that of all other rows."""
    z = -float(special.ndtri(alpha / (2.0 * max(len(certificate.groups), 1))))
    return [c for c in groups if c.correlation > z * c.error]


def _nothing_found(smallest: str, certificate: Certificate, limit: float) -> tuple[Verdict, str, str]:
    """Verdict, reason and statistics where no test rejects."""
    upper, n = certificate.correlation_upper, certificate.n
    found = "No dependence on the protected columns was found"
    bound = f"{capital(smallest)}. Correlation at most {upper:.3f} with {percent(certificate.confidence)} confidence"
    if upper <= limit:
        unknown = [c for c in certificate.groups if (c.difference_upper or 0.0) > SMALL_DIFFERENCE]
        reason = f"{found}, and a correlation above {limit:g} is ruled out.{_too_few(unknown)}"
        return Verdict.NONE, reason, f"{bound} (n = {n})."
    more = ""
    if certificate.correlation <= 0.7 * limit:
        needed = _round_up(n * (upper / limit) ** 2)
        more = f"; ruling out {limit:g} takes about {needed} rows"
    reason = f"{found}, but a correlation of up to {upper:.3f} cannot be ruled out with {n} rows{more}."
    return Verdict.INCONCLUSIVE, reason, f"{bound} (n = {n})."


def _too_few(groups: Sequence[ColumnBound]) -> str:
    """Sentence on groups that are too small to rule out a difference."""
    if not groups:
        return ""
    ordered = sorted(groups, key=lambda c: -(c.difference_upper or 0.0))
    listed = ", ".join(
        f"{term_name(c.term, c.source)} (up to {c.difference_upper:.2f}, {c.n_group} rows)" for c in ordered[:4]
    )
    more = f" and {len(groups) - 4} more" if len(groups) > 4 else ""
    return (
        f" For these groups a difference above {SMALL_DIFFERENCE:g} standard deviations of the predictions cannot be "
        f"ruled out: {listed}{more}."
    )


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}" if p < 0.1 else f"p = {p:.2f}"


def _round_up(n: float) -> int:
    digits = 10 ** max(int(math.log10(n)) - 1, 0)
    return int(math.ceil(n / digits) * digits)
