"""Warnings and errors raised from certificates and counts."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from setsquare.errors import (
    BoundaryWarning,
    DroppedColumnWarning,
    FewRowsWarning,
    HardlyObservedWarning,
    LabelSignalWarning,
    NewRowsWarning,
    NotOrthogonalError,
    OffsetWarning,
    PooledLevelWarning,
    SecondMomentsWarning,
    SeparationWarning,
    SetsquareWarning,
    SolverWarning,
    TrainingRowsWarning,
    WeightWarning,
    WorseThanConstantWarning,
)
from setsquare.glm.certificate import NEW_ROWS, TRAINING_ROWS
from setsquare.glm.mdmm import MULTIPLIER_METHODS
from setsquare.glm.new_rows_bound import NewRows
from setsquare.glm.solver import Certificate, Solution, Status
from setsquare.notes import Note, Option
from setsquare.projection import Eraser

#: Share of the outcome's variance explained by the protected columns from which to warn.
LABEL_SHARE = 0.5
#: Correlation left on new rows from which to warn.
LEFT_ON_NEW_ROWS = 0.25
#: Correlation of squares with protected columns that is rounding error, and that is too large for a correction.
EXACT_SQUARES, LEFT_OF_SQUARES = 1e-8, 0.1
#: Share of the rows in which a protected column is hardly ever known from which to warn.
HARDLY = 0.05
#: Largest number of features that a warning names.
MOST_NAMES = 10


def judge(
    solution: Solution, constant: Sequence[str] = (), *, coefficients: bool = True, automatic: bool = False
) -> None:
    """Raise if the guarantee does not hold, and warn about any other problem.

    ``constant`` names protected columns with a single level, which have no column in the problem. ``coefficients`` says
    whether they are of interest, or only the predictions; ``automatic`` whether the ridge was chosen.
    """
    certificate = solution.certificate
    if not certificate.is_kept or solution.status is Status.INFEASIBLE:
        _refuse_leak(solution, automatic=automatic)
    warn_dropped((*constant, *certificate.constant_protected), certificate.collinear_protected)
    _warn_determined(certificate)
    warn_label_share(certificate.label_share)
    _warn_few_rows(certificate)
    warn_worse_than_constant(certificate, automatic=automatic)
    if coefficients:
        _warn_undetermined(certificate)
    if certificate.is_kept and not certificate.is_optimal:
        kept = "The predictions are within the budget" if certificate.budget else "The predictions are orthogonal"
        kept = kept if certificate.box is None else "The correlations are within the box"
        _warn(
            f"{kept}, but the loss may not be the lowest possible: {solution.status} "
            f"(relative gradient {certificate.kkt_residual:.1e}); increase max_iter or n_restarts.",
            SolverWarning,
        )


def _refuse_new_rows(solution: Solution, found: NewRows, *, automatic: bool) -> None:
    """Raise if a fit is not orthogonal on new rows, with the reason in numbers."""
    ridge = "" if automatic else " a ridge ({ridge}),"
    units = "clusters" if found.by_cluster else "rows"
    other = Option("orthogonal_on", TRAINING_ROWS)
    fields: dict[str, Any] = {"ridge": Option("l2", "auto"), "other": other, "units": units, "n": found.n_units}
    fields["features"] = solution.certificate.n_features
    fields |= {"used": f"{found.n_parameters:.0f}", "left": f"{found.correlation:.2g}"}
    if solution.status is Status.NO_INFORMATION or found.upper >= 1.0:
        text = (
            "{n} {units} are too few for {features} features to be orthogonal on new rows: most rows determine their "
            f"own predictions, or the outcome is separated. Use fewer features,{ridge} or {{other}}, which "
            "leaves part of the correlation on new rows."
        )
    else:
        text = (
            "The predictions could not be made orthogonal on new rows (leave-one-out correlation {left} with {n} "
            "{units} and {used} parameters): the features predict some protected columns in the training rows only. "
            f"Use fewer features,{ridge} fewer protected columns, or {{other}}, which leaves part of the "
            "correlation on new rows."
        )
    raise NotOrthogonalError(Note("not-orthogonal", text, **fields))


def _refuse_leak(solution: Solution, *, automatic: bool) -> None:
    found = solution.certificate.new_rows
    if solution.certificate.orthogonal_on != TRAINING_ROWS and found is not None:
        _refuse_new_rows(solution, found, automatic=automatic)
    if solution.status is Status.INFEASIBLE:
        raise NotOrthogonalError(
            "With this offset no coefficients were found that make the predictions orthogonal to the protected "
            "columns, unless all predictions move to the edge of their range (|corr| "
            f"{solution.certificate.max_correlation:.2g}): the offset itself depends on the protected columns, and the "
            "features cannot compensate for it. Model the rate instead (outcome divided by the exposure, "
            "sample_weight=exposure, no offset), or add features that vary with the offset."
        )
    if solution.certificate.budget:
        share = solution.certificate.covariance_share
        raise NotOrthogonalError(
            f"The predictions keep {share:.4g} of the covariance with the protected columns, more than "
            f"budget={solution.certificate.budget:g} ({solution.status}): increase max_iter, or add a small ridge."
        )
    message = (
        f"The predictions are still correlated with the protected columns (largest |corr| "
        f"{solution.certificate.max_correlation:.1e}) after {solution.n_iter} iterations of {solution.solver} "
        f"({solution.status})"
    )
    if solution.solver not in MULTIPLIER_METHODS:  # the paper's optimiser always leaves a residual
        text = "{message}: increase max_iter, or add a small ridge penalty ({ridge})."
        raise NotOrthogonalError(Note("not-orthogonal", text, message=message, ridge=Option("l2", 1e-4)))
    _warn(f'{message}: use solver="sqp".', SolverWarning)


def warn_dropped(constant: Sequence[str], collinear: Sequence[str]) -> None:
    """Warn about redundant protected columns, which need no separate constraint."""
    kinds = [f"constant: {', '.join(constant)}"] if constant else []
    kinds += [f"linear combinations of others: {', '.join(collinear)}"] if collinear else []
    if kinds:
        _warn(
            f"Some protected columns are redundant and need no separate constraint ({'; '.join(kinds)}).",
            DroppedColumnWarning,
        )


def _warn_determined(certificate: Certificate) -> None:
    """Warn about protected columns of which nothing is left beside what is given."""
    if not certificate.determined_protected:
        return
    names = certificate.determined_protected
    listed = ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")
    _warn(
        f"Nothing of {listed} is left to protect beside what is given, so the predictions may follow these columns: "
        "leave what determines them out of given.",
        DroppedColumnWarning,
    )


def warn_left_out(solution: Solution, features: Sequence[str]) -> None:
    """Warn about features left out of the fit; with a ridge penalty, aliased features share an effect and stay."""
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
            f"The features have rank {rank}, no more than the protected columns, so the correction replaces every "
            'feature by its mean; use more features, or using="protected".',
            SetsquareWarning,
        )


def warn_new_rows(eraser: Eraser, orthogonal_on: str) -> None:
    """Warn if an erasure leaves much on new rows, or if there are too few rows to tell."""
    if eraser.left <= LEFT_ON_NEW_ROWS:
        return
    known = eraser.left == eraser.left  # not NaN
    limit, before = LEFT_ON_NEW_ROWS**2, eraser.before**2 if known else 1.0
    n_components = int(eraser.n_rows * limit * before / (before - limit))  # so that the limit is kept
    found = "Of the correlation {before:.2f}, about {left:.2f} remains on new rows, because "
    text = (
        (found if known else "How much remains on new rows cannot be estimated, because ")
        + "{n:.0f} rows are few for {q} features: reduce the features first (PrincipalComponents(n_components={k})), "
        + ("" if orthogonal_on == "new rows" else "use {option}, ")
        + "adapt the correction to the features of more rows (adapt), or pass more rows with protected columns."
    )
    fields = {"n": eraser.n_rows, "q": eraser.loadings.shape[1], "k": max(n_components, 1)}
    option = Option("orthogonal_on", "new rows")
    _warn(Note("new-rows", text, before=eraser.before, left=eraser.left, option=option, **fields), NewRowsWarning)


def warn_squares(eraser: Eraser, parameter: str = "using") -> None:
    """Warn if second moments could not be erased exactly, and name the parameter to change; raise if much is left."""
    if not eraser.squares > EXACT_SQUARES:  # NaN: only means were erased
        return
    text = (
        "No directions of the features were found whose squares are all uncorrelated with the protected columns: a "
        "correlation of {left:.3f} is left ({before:.3f} before). This happens where one group varies more in every "
        "direction. Correct with the protected columns instead ({option})."
    )
    note = Note(
        "second-moments", text, option=Option(parameter, "protected"), left=eraser.squares, before=eraser.squares_before
    )
    if eraser.squares > LEFT_OF_SQUARES:
        raise NotOrthogonalError(str(note))
    _warn(note, SecondMomentsWarning)


def warn_unknown_cells(n_unknown: int, n_rows: int) -> None:
    """Warn if rows are in cells of the protected columns that had no training rows."""
    if n_unknown:
        _warn(
            f"{n_unknown} of {n_rows} rows have a combination of protected columns without training rows: they got the "
            "linear correction alone.",
            PooledLevelWarning,
        )


def warn_label_share(share: float) -> None:
    """Warn if the correction removes much of the outcome's variance."""
    if share >= LABEL_SHARE:
        _warn(
            f"The protected columns explain {share:.0%} of the outcome's variance, and the correction removes that "
            "part; check that none of them is the outcome or a copy of it.",
            LabelSignalWarning,
        )


def _warn_few_rows(certificate: Certificate) -> None:
    """Warn if the constraint depends on a few extreme predictions."""
    if certificate.rests_on_few_rows:
        _warn(
            f"The correction depends on a few extreme predictions: without {certificate.n_left_out} of "
            f"{certificate.n_rows} rows the correlation with the protected columns is "
            f"{certificate.correlation_without or 0.0:.2f}, and the most extreme prediction is {certificate.reach:.3g} "
            "times as far from the mean as the most extreme outcome. Increase l2 (try 0.1 and 1), or transform skewed "
            'features and outcomes; instead of family="gamma" use "poisson" or "gaussian".',
            FewRowsWarning,
        )


def warn_worse_than_constant(certificate: Certificate, *, automatic: bool = False) -> None:
    """Warn if a fit for new rows predicts them worse than a constant, beyond the standard error of the difference.

    A fit to the training rows is not measured here: its leave-one-out loss is computed when it is first read.
    """
    found = certificate.new_rows if certificate.orthogonal_on == NEW_ROWS else None
    if found is None or not found.is_worse_than_constant:
        return
    first = "" if automatic else "{ridge}, "
    text = (
        "On new rows these predictions are worse than a constant: the leave-one-out loss is {loss:.4g}, that of a "
        "constant {null:.4g} (standard error of the difference {error:.2g}). To be orthogonal on new rows costs more "
        f"than these features gain ({{n}} {{units}}, {{used:.0f}} parameters): use {first}fewer features or protected "
        "columns, more {units}, or features that say more ({expand}). Otherwise {other} leaves part of the correlation "
        "on new rows, and {method} needs the protected columns to predict."
    )
    options = {"ridge": Option("l2", "auto"), "other": Option("orthogonal_on", TRAINING_ROWS)}
    method = Option("method", "generalized", words="PredictionOrthogonalizer")
    options |= {"expand": Option("expand", "auto"), "method": method}
    fields: dict[str, Any] = {"loss": found.loss, "null": found.loss_constant, "error": found.loss_error}
    fields |= {"n": found.n_units, "units": "clusters" if found.by_cluster else "rows", "used": found.n_parameters}
    _warn(Note("worse-than-constant", text, severity="warning", **fields, **options), WorseThanConstantWarning)


def _warn_undetermined(certificate: Certificate) -> None:
    if certificate.flat_features:
        text = (
            "The data hardly determine the coefficient(s) of {features} (quasi-separation: a level whose outcome "
            "hardly varies); the predictions are not affected, and {ridge} makes the coefficients unique."
        )
        features = ", ".join(certificate.flat_features[:5])
        _warn(Note("undetermined", text, features=features, ridge=Option("l2", 1e-6)), SeparationWarning)


def warn_hardly_observed(count: int, n_rows: int) -> None:
    """Warn about rows like which almost none has the protected columns."""
    if count > HARDLY * n_rows:
        _warn(
            f"In {count} of {n_rows} rows a protected column is known with a probability below 1 %, given the features "
            "and the outcome: there the correction rests on the regression of the column on them alone.",
            HardlyObservedWarning,
        )


def warn_pooled(n_pooled: Mapping[str, int]) -> None:
    """Warn about rows whose level was unseen in training."""
    if n_pooled:
        listed = ", ".join(f"{name} ({count})" for name, count in n_pooled.items())
        _warn(f"Rows with a level unseen in training count as the reference level: {listed}.", PooledLevelWarning)


def warn_no_offset(has_offset: bool) -> None:
    """Warn about predictions without an offset from a model fitted with one."""
    if has_offset:
        _warn(
            "The model was fitted with an offset: without one, predictions assume an offset of 0, and are not "
            "orthogonal to the protected columns; pass offset=.",
            OffsetWarning,
        )


def warn_unweighted(model: str) -> None:
    """Warn that the inner model was fitted without the sample weights."""
    _warn(
        f"{model} takes no sample_weight, so the weights apply to the correction only; use an estimator that supports "
        "sample_weight, or fit it beforehand and pass prefit=True.",
        WeightWarning,
    )


def warn_training_rows(sign: str, assured: bool) -> None:
    """Warn that a fitted model has, or may have, seen these rows.

    ``sign`` says why they look like training rows; ``assured`` whether the user has confirmed that they are not.
    """
    harm = "A correction learned on the training rows of an overfitted model does not hold on new rows"
    if sign:
        _warn(
            f"These look like the rows that the model was fitted on: {sign}. {harm}: pass rows that it has not seen, "
            "or the unfitted model.",
            TrainingRowsWarning,
        )
    elif not assured:
        text = (
            "Whether the model was fitted on these rows cannot be seen. {harm}: pass rows that it has not seen and "
            "confirm it with {assurance}, or pass the unfitted model."
        )
        note = Note("training-rows", text, harm=harm, assurance=Option("prefit", "held out"))
        _warn(note, TrainingRowsWarning)


def warn_boundary(count: int, n_rows: int, distance: float) -> None:
    """Warn about predictions that were moved off the boundary of their range."""
    if count:
        _warn(
            f"{count} of {n_rows} predictions lie on the boundary of their range; they were moved inside by "
            f"{distance:.2g} before the correction (half the distance to the nearest other prediction).",
            BoundaryWarning,
        )


def warn_outside(count: int, n_rows: int) -> None:
    """Warn about corrected predictions outside their range."""
    if count:
        text = "The linear correction moves {count} of {n} predictions out of their range; {method} keeps them inside."
        method = Option("method", "generalized")
        _warn(Note("outside-range", text, count=count, n=n_rows, method=method), BoundaryWarning)


def _warn(message: str, category: type[SetsquareWarning]) -> None:
    """Warn at the line of the user's code that called this package, however deep the call stack."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _is_ours(frame: FrameType) -> bool:
    """Whether a frame is of this package, or of a context manager that decorates one of its functions."""
    return str(frame.f_globals.get("__name__", "")).startswith(("setsquare.", "contextlib"))
