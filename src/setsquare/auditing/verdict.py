"""From numbers to a verdict: leak, no leak found, or too few rows to tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from setsquare.auditing.certificate import Certificate
from setsquare.auditing.records import Evaluation, holm
from setsquare.typing import Array

#: A correlation below this is small by the usual convention; an audit that cannot rule out a larger one has not looked.
SMALL = 0.1
#: Evaluation models whose effects a correlation measures.
LINEAR = ("glm", "linear", "tensor")


class Verdict(StrEnum):
    """What an audit ends with."""

    LEAK = "leak"
    NONE = "no leak found"
    INCONCLUSIVE = "inconclusive: n too small"


def judge(
    evaluations: Sequence[Evaluation], certificate: Certificate, *, level: float, tolerance: float
) -> tuple[Verdict, str]:
    """Verdict and its reason.

    A leak is an association that the joint test of an evaluation model detects (with several models, Holm's adjusted
    p-value decides), unless the certificate shows it to be within the tolerance. If none is detected, the certificate
    must rule out a correlation of more than 0.1 (or the tolerance), otherwise n was too small.
    """
    alpha = (1.0 - level) * (1.0 + 1e-9)  # p = 0.05 counts at 95 %, whatever 1 - 0.95 is in binary
    adjusted = holm([evaluation.joint.p_value for evaluation in evaluations])
    found = [(evaluation, float(p)) for evaluation, p in zip(evaluations, adjusted, strict=True) if p <= alpha]
    upper, limit = certificate.correlation_upper, max(SMALL, tolerance)
    confidence = f"{100.0 * level:g} %"
    tolerated = [pair for pair in found if upper <= tolerance and pair[0].name in LINEAR]
    if serious := [pair for pair in found if pair not in tolerated]:
        evaluation, p = min(serious, key=lambda pair: pair[1])
        where = _where(evaluation, alpha)
        adjustment = f" (adjusted for {len(evaluations)} models)" if len(evaluations) > 1 else ""
        return (
            Verdict.LEAK,
            f"The predictions follow the protected columns{where}: {_p(p)}{adjustment}, {evaluation.title}; "
            f"correlation {certificate.correlation:.3f}, at most {upper:.3f}.",
        )
    if tolerated:
        size = f"{_p(tolerated[0][1])}; correlation {certificate.correlation:.3f}, at most {upper:.3f}"
        return Verdict.NONE, f"An effect is detectable ({size}), but within the tolerance of {tolerance:g}."
    if all(math.isnan(p) for p in adjusted):
        return Verdict.INCONCLUSIVE, "No protected column could be tested; see the notes."
    bound = f"the correlation is at most {upper:.3f} with {confidence} confidence (n = {certificate.n})"
    if upper <= limit:
        return Verdict.NONE, f"No effect was detected ({_smallest(adjusted)}), and {bound}.{_rare(certificate)}"
    more = ""
    if certificate.correlation <= 0.7 * limit:
        needed = _round_up(certificate.n * (upper / limit) ** 2)
        more = f"; about {needed} would be needed to rule out {limit:g}"
    return (
        Verdict.INCONCLUSIVE,
        f"No effect was detected ({_smallest(adjusted)}), but a correlation of up to {upper:.3f} cannot be ruled out "
        f"with {certificate.n} rows{more}.",
    )


def _where(evaluation: Evaluation, alpha: float) -> str:
    tests = [test for test in evaluation.by_source if not math.isnan(test.p_value)]
    adjusted = holm([test.p_value for test in tests])
    names = [test.name for test, p in zip(tests, adjusted, strict=True) if p <= alpha]
    return f" ({', '.join(names)})" if names else ""


def _rare(certificate: Certificate) -> str:
    """Name groups that are too small to be sure of."""
    groups = [c for c in certificate.columns if c.n_group is not None and c.n_group < 30]
    if not groups:
        return ""
    listed = ", ".join(f"{c.term} ({c.n_group} rows)" for c in groups[:4])
    more = f" and {len(groups) - 4} more" if len(groups) > 4 else ""
    return f" Of small groups little can be said: {listed}{more}."


def _smallest(adjusted: Array) -> str:
    return _p(min(float(p) for p in adjusted if not math.isnan(p)))


def _p(p: float) -> str:
    return "p < 1e-300" if p < 1e-300 else f"p = {p:.3g}" if p >= 1e-4 else f"p = {p:.1e}"


def _round_up(n: float) -> int:
    digits = 10 ** max(int(math.log10(n)) - 1, 0)
    return int(math.ceil(n / digits) * digits)
