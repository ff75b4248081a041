"""Warnings and errors from certificates and counts."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence

from setsquare.errors import (
    BoundaryWarning,
    DroppedColumnWarning,
    FewRowsWarning,
    LabelSignalWarning,
    NotOrthogonalError,
    OffsetWarning,
    PooledLevelWarning,
    SeparationWarning,
    SetsquareWarning,
    SolverWarning,
    WeightWarning,
)
from setsquare.glm.solver import Certificate, Solution, Status
from setsquare.notes import Note, Option

#: Share of the outcome's variance explained by the protected columns from which a warning is due.
LABEL_SHARE = 0.5
#: Largest number of features that a warning names.
MOST_NAMES = 10


def judge(solution: Solution, constant: Sequence[str] = ()) -> None:
    """Raise if the guarantee does not hold, and warn of every other problem.

    ``constant`` names protected columns of a single level, which have no column in the problem.
    """
    certificate = solution.certificate
    if not certificate.is_orthogonal or solution.status is Status.INFEASIBLE:
        _refuse_leak(solution)
    warn_dropped((*constant, *certificate.constant_protected), certificate.collinear_protected)
    warn_label_share(certificate.label_share)
    _warn_few_rows(certificate)
    _warn_undetermined(certificate)
    if certificate.is_orthogonal and not certificate.is_optimal:
        _warn(
            f"The predictions are orthogonal but the loss may not be the lowest possible: {solution.status} "
            f"(relative gradient {certificate.kkt_residual:.1e}); raise max_iter or n_restarts.",
            SolverWarning,
        )


def _refuse_leak(solution: Solution) -> None:
    if solution.status is Status.INFEASIBLE:
        raise NotOrthogonalError(
            "With this offset no coefficients were found that make the predictions orthogonal to the protected "
            "columns, unless all predictions run to the edge of their range (|corr| "
            f"{solution.certificate.max_correlation:.2g}): the offset itself depends on the protected columns, and the "
            "features cannot compensate for it. Model the rate instead (outcome divided by the exposure, "
            "sample_weight=exposure, no offset), or add features that vary with the offset."
        )
    message = (
        f"The predictions are still correlated with the protected columns (largest |corr| "
        f"{solution.certificate.max_correlation:.1e}) after {solution.n_iter} iterations of {solution.solver} "
        f"({solution.status})"
    )
    if solution.solver != "mdmm":  # the paper's optimiser always leaves a residual
        text = "{message}: raise max_iter, or add a small ridge ({ridge})."
        raise NotOrthogonalError(Note("not-orthogonal", text, message=message, ridge=Option("l2", 1e-4)))
    _warn(f'{message}: use solver="sqp".', SolverWarning)


def warn_dropped(constant: Sequence[str], collinear: Sequence[str]) -> None:
    """Warn of protected columns that need no constraint of their own."""
    kinds = [f"constant: {', '.join(constant)}"] if constant else []
    kinds += [f"linear combinations of others: {', '.join(collinear)}"] if collinear else []
    if kinds:
        _warn(f"Protected columns that need no constraint of their own ({'; '.join(kinds)}).", DroppedColumnWarning)


def warn_left_out(solution: Solution, features: Sequence[str]) -> None:
    """Warn of features that were left out of the fit; with a ridge, aliased ones share an effect and stay."""
    aliased = set(solution.certificate.aliased_features)
    zero = (solution.coef == 0.0).all(axis=0)
    dropped = [name for name, none in zip(features, zero, strict=True) if none and name in aliased]
    if dropped:
        listed = ", ".join(dropped[:MOST_NAMES]) + (", ..." if len(dropped) > MOST_NAMES else "")
        _warn(
            f"{len(dropped)} feature(s) were left out of the fit, because they are constant or linear combinations of "
            f"earlier ones: {listed}. Their coefficients are 0.",
            DroppedColumnWarning,
        )


def warn_erased(n_directions: int, rank: int) -> None:
    """Warn if the features span no more directions than are removed."""
    if n_directions == rank:
        _warn(
            f"The features have rank {rank}, no more than the protected columns: nothing is left of them but their "
            'means; give more features, or choose using="protected".',
            SetsquareWarning,
        )


def warn_label_share(share: float) -> None:
    """Warn if the correction removes much of the outcome's own variance."""
    if share >= LABEL_SHARE:
        _warn(
            f"The protected columns explain {share:.0%} of the outcome's variance: that much of the label's own signal "
            "is removed with them; check that none of them is the outcome or a copy of it.",
            LabelSignalWarning,
        )


def _warn_few_rows(certificate: Certificate) -> None:
    """Warn if the constraint is met only through a few extreme predictions."""
    if certificate.rests_on_few_rows:
        _warn(
            f"A few extreme predictions carry the correction: without {certificate.n_left_out} of {certificate.n_rows} "
            f"rows the correlation with the protected columns is {certificate.correlation_without or 0.0:.2f}, and the "
            f"farthest prediction lies {certificate.reach:.3g} times as far from the mean as the farthest outcome. Use "
            'a family that weighs large predictions more ("poisson" or "gaussian" instead of "gamma"), raise l2 (try '
            "0.1 and 1), or transform skewed features and outcomes.",
            FewRowsWarning,
        )


def _warn_undetermined(certificate: Certificate) -> None:
    if certificate.flat_features:
        text = (
            "The data hardly determine the coefficient(s) of {features} (quasi-separation: a level whose outcome "
            "hardly varies); predictions are fine; {ridge} would settle it."
        )
        features = ", ".join(certificate.flat_features[:5])
        _warn(Note("undetermined", text, features=features, ridge=Option("l2", 1e-6)), SeparationWarning)


def warn_pooled(n_pooled: Mapping[str, int]) -> None:
    """Warn of rows whose level was unseen in training."""
    if n_pooled:
        listed = ", ".join(f"{name} ({count})" for name, count in n_pooled.items())
        _warn(f"Rows with a level unseen in training count as the reference level: {listed}.", PooledLevelWarning)


def warn_no_offset(has_offset: bool) -> None:
    """Warn of predictions without an offset from a model fitted with one."""
    if has_offset:
        _warn(
            "The model was fitted with an offset: without one, predictions are those of an offset of 0, and are not "
            "orthogonal to the protected columns; pass offset=.",
            OffsetWarning,
        )


def warn_unweighted(model: str) -> None:
    """Warn that the inner model was fitted without the sample weights."""
    _warn(
        f"{model} takes no sample_weight, so the weights are those of the correction only; give it an estimator that "
        "takes them, or fit it before and pass prefit=True.",
        WeightWarning,
    )


def warn_boundary(count: int, n_rows: int, distance: float) -> None:
    """Warn of predictions that were moved off the boundary of their range."""
    if count:
        _warn(
            f"{count} of {n_rows} predictions lie on the boundary of their range; they were moved inside by "
            f"{distance:.2g} before the correction (half the distance of the nearest other prediction).",
            BoundaryWarning,
        )


def warn_outside(count: int, n_rows: int) -> None:
    """Warn of corrected predictions outside their range."""
    if count:
        text = "The linear correction takes {count} of {n} predictions out of their range; {method} keeps them inside."
        method = Option("method", "generalized")
        _warn(Note("outside-range", text, count=count, n=n_rows, method=method), BoundaryWarning)


def _warn(message: str, category: type[SetsquareWarning]) -> None:
    """Warn at the line of the caller's own code, however deep in this package it was noticed."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("setsquare."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
