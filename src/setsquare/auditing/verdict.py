"""Verdict of an audit: leak, trace, no leak found, or too few rows.

A verdict and the tests that it names come from the same adjusted p-values
(:func:`setsquare.auditing.evaluations.records.adjust`), so they cannot contradict each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from scipy import special

from setsquare.auditing.certificate import Certificate, ColumnBound
from setsquare.auditing.evaluations.records import Evaluation, Member, adjust
from setsquare.auditing.evaluations.shape import COMBINATIONS, CURVATURE, SPREAD
from setsquare.auditing.given import GIVEN
from setsquare.document.formats import capital, joined, percent, term_name

if TYPE_CHECKING:
    from setsquare.auditing.groups.result import GroupNumbers
    from setsquare.auditing.result import AuditResult

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


def decide(result: AuditResult) -> AuditResult:
    """The result with the verdict that its tests and bounds give."""
    decision = judge(
        result.evaluations,
        result.certificate,
        confidence=result.confidence,
        limits=result.limits,
        # Group means are not those given the controls.
        numbers=None if any(note.code == GIVEN for note in result.notes) else result.numbers,
    )
    return with_decision(result, decision)


def with_decision(result: AuditResult, decision: Decision) -> AuditResult:
    """The result with a verdict, its reason and its tests."""
    return replace(result, **{one.name: getattr(decision, one.name) for one in fields(decision)})


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


#: What was not found where a curve or combinations of groups were (among the statistics), or the spread alone.
NO_EFFECT = "Mean predictions show no linear effect."
NO_DIFFERENCE = "No difference between mean predictions was found."


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
    (first, members), *others = kinds.items()
    found = joined([_sentence(what, first, members), *(_other(kind, members) for kind, members in others)])
    return f"{found}. {NO_DIFFERENCE}" if set(kinds) == {SPREAD} else f"{found}."


def _other(kind: str, members: Sequence[Member]) -> str:
    """A dependence that is not one of the means."""
    columns = _columns(members)
    known = {CURVATURE: f"they follow {columns} along a curve"}
    known |= {COMBINATIONS: f"they depend on combinations of {columns}", SPREAD: f"their spread differs with {columns}"}
    return known.get(kind, f"they depend on {columns} ({members[0].evaluation.title})")


def _further(what: str, kinds: Mapping[str, Sequence[Member]]) -> str:
    """P-values of the findings, with a sentence on those that the reason leaves out."""
    said = [] if EFFECTS in kinds or set(kinds) == {SPREAD} else [NO_EFFECT]
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
    small_groups, bounds = _too_few(unknown)
    return Verdict.TRACE, f"The dependence is small.{small_groups}", f"{' '.join(numbers)}{within}{bounds}"


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
    bound = f"Tests: {smallest}. Correlation at most {upper:.3f} with {percent(certificate.confidence)} confidence"
    if upper <= limit:
        unknown = [c for c in certificate.groups if (c.difference_upper or 0.0) > SMALL_DIFFERENCE]
        sure = f"with {percent(certificate.confidence)} confidence"
        small_groups, bounds = _too_few(unknown)
        reason = f"{found}, and a correlation above {upper:.3f} is ruled out {sure}.{small_groups}"
        return Verdict.NONE, reason, f"{bound} (n = {n}).{bounds}"
    more = ""
    if certificate.correlation <= 0.7 * limit:
        needed = _round_up(n * (upper / limit) ** 2)
        more = f"; ruling out {limit:g} takes about {needed} rows"
    reason = f"{found}, but a correlation of up to {upper:.3f} cannot be ruled out with {n} rows{more}."
    return Verdict.INCONCLUSIVE, reason, f"{bound} (n = {n})."


def _too_few(groups: Sequence[ColumnBound]) -> tuple[str, str]:
    """Sentences on groups that are too small to rule out a difference: in plain words, and with the bounds."""
    if not groups:
        return "", ""
    ordered = sorted(groups, key=lambda c: -(c.difference_upper or 0.0))
    names = [(term_name(c.term, c.source), c) for c in ordered[:4]]
    more = f" and {len(groups) - 4} more" if len(groups) > 4 else ""
    plain = ", ".join(f"{name} ({c.n_group} rows)" for name, c in names)
    bounds = ", ".join(f"{name} (up to {c.difference_upper:.2f})" for name, c in names)
    return (
        f" Too few rows for a firm answer on {plain}{more}.",
        f" For these groups a difference above {SMALL_DIFFERENCE:g} standard deviations of the predictions cannot be "
        f"ruled out: {bounds}{more}.",
    )


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}" if p < 0.1 else f"p = {p:.2f}"


def _round_up(n: float) -> int:
    digits = 10 ** max(int(math.log10(n)) - 1, 0)
    return int(math.ceil(n / digits) * digits)
