"""Run the evaluation models of an audit by name, and note what they cannot show."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from setsquare.auditing.certificate import Certificate, certify
from setsquare.auditing.evaluations.glm import Fit, evaluate_glm
from setsquare.auditing.evaluations.records import Evaluation
from setsquare.auditing.evaluations.score import sample_of, select_tested
from setsquare.auditing.evaluations.shape import evaluate_shape
from setsquare.auditing.evaluations.tensor import EffectMap, evaluate_tensor
from setsquare.auditing.given import Controlled
from setsquare.auditing.predictions import Subject
from setsquare.auditing.protected import Protected
from setsquare.auditing.verdict import Limits, is_tautology
from setsquare.errors import InputError
from setsquare.families import family as make_family
from setsquare.notes import Note, Option

#: Evaluation models with permutation tests, by name; :mod:`setsquare.auditing.evaluations.nonlinear` has them.
PERMUTATION_BASED = ("relu", "relu without intercept", "forest", "independence")
EVALUATIONS = ("glm", "linear", "shape", "gcm", *PERMUTATION_BASED)


@dataclass(frozen=True, slots=True)
class Settings:
    """How an audit is done; see :func:`setsquare.audit`."""

    vcov: str
    confidence: float
    limits: Limits
    n_permutations: int
    max_rows: int | None
    seed: int


@dataclass(frozen=True, slots=True)
class Tested:
    """Evaluations in order, upper bounds, notes, and the effects on each unit of a tensor."""

    evaluations: tuple[Evaluation, ...]
    bounds: Certificate
    notes: tuple[Note, ...]
    effect_map: EffectMap | None


def run_evaluations(
    subject: Subject, protected: Protected, names: tuple[str, ...], settings: Settings, held: Controlled | None = None
) -> Tested:
    """Run the evaluation models, given the controls ``held`` if any, and bound what they can have missed."""
    evaluations, fit, effect_map = _evaluate(subject, protected, names, settings, held)
    if not subject.shape and (fit is None or settings.vcov == "model"):
        # Bounds use robust standard errors, whichever ones the table shows.
        robust = "HC3" if protected.cluster is None else "cluster"
        fit = evaluate_glm(subject.predictions, protected, subject.family, vcov=robust)[1]
    bounds = certify(subject.predictions, protected, subject.family, fit, settings.confidence)
    return Tested(evaluations, bounds, _cautions(evaluations, protected, bounds, settings), effect_map)


def _evaluate(
    subject: Subject, protected: Protected, names: tuple[str, ...], settings: Settings, held: Controlled | None
) -> tuple[tuple[Evaluation, ...], Fit | None, EffectMap | None]:
    """Run the evaluation models in order, each with the same random seed."""
    y, confidence = subject.predictions, settings.confidence
    fit: Fit | None = None
    effect_map: EffectMap | None = None
    evaluations: list[Evaluation] = []
    for name in names:
        rng = np.random.default_rng(settings.seed)
        if name == "shape":
            some, tested = select_tested(y, protected)
            is_group = tuple(size is not None for size in tested.group_sizes)
            ends = tested.found.low, tested.found.high
            found = evaluate_shape(sample_of(some, tested), ends, is_group, tested.sources, confidence)
        elif name == "gcm":
            if held is None:
                raise InputError("evaluation='gcm' needs controls: pass given=.")
            from setsquare.auditing.evaluations.gcm import evaluate_gcm  # brings scikit-learn

            found = evaluate_gcm(
                subject.values, protected.values, held.values, protected, confidence=confidence, seed=settings.seed
            )
        elif name in PERMUTATION_BASED:
            from setsquare.auditing.evaluations import nonlinear  # brings scikit-learn

            found = nonlinear.PERMUTATION_BASED[name](
                subject.values, protected, rng=rng, n_permutations=settings.n_permutations, max_rows=settings.max_rows
            )
        elif subject.shape:
            found, effect_map = evaluate_tensor(
                subject.values,
                protected,
                subject.shape,
                glm=subject.family,
                n_permutations=settings.n_permutations,
                max_rows=settings.max_rows,
                rng=rng,
            )
        else:
            glm = make_family("gaussian") if name == "linear" else subject.family
            vcov = "cluster" if protected.cluster is not None and settings.vcov != "model" else settings.vcov
            found, own = evaluate_glm(
                y, protected, glm, vcov=vcov, confidence=confidence, classes=subject.classes, seed=settings.seed
            )
            found = replace(found, name=name)
            fit = own if name == "glm" else fit
        evaluations.append(found)
    return tuple(evaluations), fit, effect_map


def _cautions(
    evaluations: tuple[Evaluation, ...], protected: Protected, bounds: Certificate, settings: Settings
) -> tuple[Note, ...]:
    """Notes on what the tests that were run cannot show."""
    notes = []
    factor = max((3 if e.name == "independence" else 1 for e in evaluations if e.name in PERMUTATION_BASED), default=0)
    if factor * len(evaluations) > (1.0 - settings.confidence) * (settings.n_permutations + 1):
        text = (
            "With {count} permutations no p-value can be significant after adjustment for this many tests: raise "
            "n_permutations."
        )
        notes.append(Note("few-permutations", text, severity="warning", count=settings.n_permutations))
    if settings.vcov != "HC3" and any(e.name == "tensor" for e in evaluations):
        text = "Standard errors in the effect map are HC3, not {vcov}."
        notes.append(Note("effect-map-errors", text, vcov=settings.vcov))
    blind = [e.name for e in evaluations if e.name in (*PERMUTATION_BASED, "tensor")]
    listed = ", ".join(blind)
    if blind and protected.cluster is not None:
        text = "The permutation test(s) of {tests} ignore the clusters."
        notes.append(Note("clusters-ignored", text, severity="caution", tests=listed))
    if any(name != "tensor" for name in blind) and protected.weight is not None:
        text = "The permutation test(s) of {tests} ignore the weights."
        notes.append(Note("weights-ignored", text, severity="caution", tests=listed))
    if is_tautology(bounds):
        text = (
            "The predictions are orthogonal to these columns up to rounding: they were corrected on these same rows. "
            "New rows can differ: audit held-out predictions."
        )
        notes.append(Note("corrected-rows", text, severity="warning"))
    if settings.vcov == "model" and any(evaluation.name == "glm" for evaluation in evaluations):
        text = (
            "Model-based standard errors are meant for observed outcomes. For predictions they are far too large, "
            "and the test hardly ever rejects. They are the paper's; use {robust} to find a leak."
        )
        notes.append(Note("model-based-errors", text, severity="warning", robust=Option("vcov", "HC3")))
    return tuple(notes)
