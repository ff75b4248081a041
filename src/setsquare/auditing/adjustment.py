"""Multiplicity adjustment of the tests behind a verdict, which controls the probability of any false alarm.

The joint test of the effects receives most of the error rate; the tests of each source column, and those of curvature,
combinations and spread, share the rest. A test that rejects passes its share on: the joint test to the source columns,
the others back to it (a graphical procedure, Bretz et al. 2009). A verdict and the tests that it names come from the
same adjusted p-values, so they cannot contradict each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from setsquare._typing import Array
from setsquare.auditing.evaluations.records import Evaluation, Test

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
