"""``setsquare correct``: fit a corrected model, certify it, audit it on held-out rows, save it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from sklearn.base import clone

from setsquare import families
from setsquare._typing import Array
from setsquare.auditing import Comparison
from setsquare.auditing.audit_models import audit_given, predict_held_out
from setsquare.auditing.comparison.compare import side_by_side
from setsquare.auditing.comparison.compared_rows import read_compared
from setsquare.auditing.held_out import HeldOut, audit_held_out
from setsquare.cli.apply import predict_table
from setsquare.cli.files import read_rows
from setsquare.cli.options import Fitting, Options, about_command, is_outcome, render_results
from setsquare.cli.sources import open_source
from setsquare.cli.terminal import Screen, collected_warnings, working
from setsquare.cli.written_tables import check_format, render_table
from setsquare.document import Headline
from setsquare.errors import InputError, NotOrthogonalError, PooledLevelWarning
from setsquare.estimators import OrthogonalGLMClassifier, OrthogonalGLMRegressor, PredictionOrthogonalizer
from setsquare.estimators.controls import residuals
from setsquare.estimators.folds import pools_unseen
from setsquare.estimators.unconstrained import PlainGLMClassifier, PlainGLMRegressor
from setsquare.glm.certificate import MAX_CORRELATION, TRAINING_ROWS
from setsquare.notes import Note, message
from setsquare.report import model_card
from setsquare.storage import write_files
from setsquare.storage.models import dump
from setsquare.tables.outcome import Guess, class_name, positive_class, read_family, refuse_positive

METHODS = {
    "constrained": "The model was fitted under the constraint that its predictions are orthogonal to the protected "
    "columns; it does not need them to predict.",
    "generalized": "The scores of an ordinary model were shifted by as little as makes its predictions orthogonal to "
    "the protected columns; it needs these columns to predict.",
    "budget": "The model was fitted with a budget of {budget:g}: that share of the covariance of its predictions with "
    "the protected columns may stay on the training rows, so it is not orthogonal to them. It does not need these "
    "columns to predict.",
    "relaxed": "The model was fitted under bounds on its correlation with each protected column, so it is not "
    "orthogonal to them. It does not need these columns to predict.",
    "linear": "The linear effect of the protected columns was subtracted from the predictions of an ordinary model; it "
    "needs these columns to predict, and predictions can leave their range.",
}


@dataclass(frozen=True, slots=True)
class Training:
    """Training rows by role."""

    table: Any
    outcome: Any
    features: list[str]
    protected: list[str]
    cluster: Any
    guess: Guess
    notes: tuple[Note, ...]
    origin: dict[str, str]
    given: str | list[str] | None = None
    formula: str | None = None


def correct(
    file: str,
    fitting: Fitting,
    saved: Path,
    apply: str | None,
    predictions: Path | None,
    options: Options,
    card: Path | None = None,
) -> int:
    """Fit, certify, audit, save and apply."""
    if fitting.seed < 0:
        raise InputError(f"--seed {fitting.seed} is negative: use 0 or a larger whole number.")
    if predictions is not None:
        check_format(predictions)
    if card is not None and card.suffix not in (".md", ".json"):
        raise InputError(f"--card {card} is neither Markdown nor JSON: use a name that ends in .md or .json.")
    with working(f"Reading {file}", quiet=options.quiet) as say:
        rows = read_training(file, fitting, options)
        positive = _positive(rows, fitting.positive)
        say("Fitting")
        plain, model = make_models(rows, fitting, options)
        with collected_warnings() as noted:
            model.fit(rows.table.select(rows.features + rows.protected), rows.outcome, cluster=rows.cluster)
        if fitting.l2 == "auto":
            plain.set_params(l2=model.l2_)
        certificate = model.solution_.certificate if hasattr(model, "solution_") else None
        left = _largest_correlation(model, rows)
        comparison = _audit(plain, model, rows, fitting, options, positive, tuple(map(message, noted)), say)
        contents = {saved: dump(model)}
        if apply is not None and predictions is not None:
            say(f"Predicting {apply}")
            predicted, _ = predict_table(model, open_source(apply, options), ())
            contents[predictions] = render_table(predicted, predictions)
        say("Writing")
        audited = comparison.sides[-1].audit
        about = about_command(rows.origin)
        if card is not None:
            contents[card] = _render_card(card, model, comparison, rows, fitting)
        document = comparison.document(certificate=certificate, method=[_about(fitting)], **about)
        more = {
            "verdict": str(audited.verdict),
            "reason": audited.reason,
            "statistics": audited.statistics,
            "method": fitting.method,
            "model": str(saved),
            "largest_correlation_in_training": left,
            "certificate": None if certificate is None else certificate.to_dict(),
        }
        brief = document.brief()
        contents |= render_results(options, document, lambda: about | comparison.to_dict() | more)
        write_files(contents)
    screen = Screen()
    screen.verdict(
        Headline(
            "Corrected model, on rows that it has not seen", str(audited.verdict), audited.reason, audited.statistics
        )
    )
    if not options.quiet:
        screen.say(_about(fitting))
        screen.show(brief)
        if certificate is None:
            screen.title("Correlation on the training rows")
            screen.say(
                f"Largest |corr| with a protected column: {left:.1e} ({rows.table.num_rows} rows). The correction was "
                "learned on cross-fitted predictions, so that it holds on new rows; it is not exact on the training "
                "rows."
            )
        screen.written(list(contents))
    return int(options.fail_on_leak and audited.is_leak)


def _render_card(path: Path, model: Any, comparison: Comparison, rows: Training, fitting: Fitting) -> bytes:
    """The model card, in the format of its file name."""
    origin = f"{rows.origin['file']} (sha256 {rows.origin['sha256']}); numbers are those of held-out rows."
    card = model_card(model, comparison, name=f"Corrected model of {fitting.outcome}", data=origin)
    return (card.to_json() if path.suffix == ".json" else card.to_markdown()).encode()


def _about(fitting: Fitting) -> str:
    """What the method does."""
    if fitting.relax != "none":
        return METHODS["relaxed"]
    return METHODS["budget" if fitting.budget else fitting.method].format(budget=fitting.budget)


def read_training(file: str, fitting: Fitting, options: Options) -> Training:
    """Read the training rows by role, and guess their family."""
    asked: dict[str, Sequence[str] | str | None] = {"features": fitting.features}
    asked |= {"outcome": fitting.outcome, "protected": fitting.protected, "cluster": fitting.cluster}
    controls = {} if is_outcome(fitting.given) else {"given": fitting.given}
    rows = read_rows(
        file,
        asked,
        options,
        others="features",
        exclude=fitting.exclude,
        again=controls,
        arrays=("outcome", "cluster"),
    )
    features, outcome, name = rows.roles["features"], rows.arrays["outcome"], rows.roles["outcome"][0]
    if not features:
        raise InputError(
            f"{rows.origin['file']} has no columns besides the outcome and the protected ones: add features."
        )
    guess = read_family(
        outcome,
        None if fitting.family is None else families.family(fitting.family),
        name=name,
        is_category=bool(pa.types.is_dictionary(rows.table.column(name).type)),
    )
    given: str | list[str] | None = "outcome" if is_outcome(fitting.given) else rows.roles["given"] or None
    for control in given if isinstance(given, list) else ():
        if control not in features:
            raise InputError(f"The given column {control!r} is not among the features: add it to --features.")
    return Training(
        rows.table,
        outcome,
        features,
        rows.roles["protected"],
        rows.arrays.get("cluster"),
        guess,
        rows.notes if guess.reason is None else (guess.reason, *rows.notes),
        rows.origin,
        given,
        rows.formula,
    )


def make_models(rows: Training, fitting: Fitting, options: Options) -> tuple[Any, Any]:
    """The uncorrected and the corrected model."""
    reading: dict[str, Any] = {"missing": options.missing_rule, "unseen": fitting.unseen}
    shared: dict[str, Any] = {"protected": rows.protected, "basis": options.functions(rows.formula), **reading}
    shared["given"] = rows.given
    family = rows.guess.family.name
    if fitting.l2 == "auto" and fitting.method != "constrained":
        raise InputError("--l2 auto needs --method constrained: give a number, such as --l2 0.01.")
    if options.missing == "model" and fitting.method != "constrained":
        raise InputError("--missing model needs --method constrained: the others need protected columns to predict.")
    fitted = {"l2": 0.0 if fitting.l2 == "auto" else fitting.l2, **reading}
    fitted["missing"] = "error" if options.missing == "model" else reading["missing"]  # the features have no gaps
    plain = PlainGLMClassifier(**fitted) if rows.guess.is_classes else PlainGLMRegressor(family, **fitted)
    if fitting.method == "constrained":
        shared |= {"l2": fitting.l2, "max_correlation": fitting.max_correlation}
        shared["expand"] = None if fitting.expand == "none" else fitting.expand
        shared["relax"] = None if fitting.relax == "none" else fitting.relax
        shared |= {"orthogonal_on": fitting.orthogonal_on.replace("-", " "), "confidence": options.confidence}
        shared["budget"] = fitting.budget
        if rows.guess.is_classes:
            return plain, OrthogonalGLMClassifier(**shared)
        return plain, OrthogonalGLMRegressor(family, **shared)
    if fitting.budget:
        raise InputError("--budget needs --method constrained: the other corrections have no budget.")
    if fitting.relax != "none":
        raise InputError("--relax is for the constrained method: leave out --method.")
    if fitting.expand != "none":
        raise InputError("--expand widens the features of the constrained method: leave out --method.")
    if fitting.orthogonal_on == "new-rows" or fitting.max_correlation is not None:
        option = "--orthogonal-on" if fitting.orthogonal_on == "new-rows" else "--max-correlation"
        raise InputError(f"{option} needs --method constrained, whose leave-one-out predictions are known.")
    activation = None if rows.guess.is_classes else families.family(family).activation.name
    shared |= {"cv": fitting.folds, "random_state": fitting.seed}
    return plain, PredictionOrthogonalizer(plain, fitting.method, activation=activation, **shared)


def _predict(model: Any, table: Any) -> Array:
    return np.asarray(model.predict_proba(table) if hasattr(model, "predict_proba") else model.predict(table))


def _largest_correlation(model: Any, rows: Training) -> float:
    """Largest correlation of a protected column with the predictions on the training rows.

    It must be zero, unless the correction is that of new rows.
    """
    found = model.solution_.certificate if hasattr(model, "solution_") else None
    if found is not None and (rows.given is not None or found.missing_protected or found.box is not None):
        return float(found.max_correlation)
    table = rows.table.select(rows.features + rows.protected)
    X, _ = model.reader_.protected_matrix(table, None)
    X = residuals(model.reader_, getattr(model, "controls_", None), table, X)
    p = _predict(model, table).reshape(len(X), -1)
    X, p = X - X.mean(axis=0), p - p.mean(axis=0)
    size = np.outer(np.linalg.norm(X, axis=0), np.linalg.norm(p, axis=0))
    left = float(np.max(np.abs(X.T @ p) / np.where(size > 0.0, size, np.inf)))
    exact = getattr(model, "orthogonal_on", None) == TRAINING_ROWS and not getattr(model, "budget", 0.0)
    if exact and left > MAX_CORRELATION:
        raise NotOrthogonalError(
            f"The predictions are still correlated with the protected columns (largest |corr| {left:.1e}): add a small "
            "ridge (--l2 0.0001)."
        )
    return left


def _positive(rows: Training, asked: str | None) -> str | None:
    """The positive class: the second of the model's two, as in scikit-learn, unless another is asked for."""
    classes = [class_name(value) for value in np.unique(rows.outcome)] if rows.guess.is_classes else []
    if len(classes) != 2:
        if asked is not None:
            refuse_positive(asked)
        return None
    return classes[1] if asked is None else positive_class(classes, asked)


def _audit(
    plain: Any,
    model: Any,
    rows: Training,
    fitting: Fitting,
    options: Options,
    positive: str | None,
    notes: tuple[Note, ...],
    say: Any,
) -> Comparison:
    """Comparison of both models on held-out rows."""
    plain_held, _ = _hold_out(plain, "as trained", rows.features, rows, fitting, say)
    held, pooled = _hold_out(model, "corrected", rows.features + rows.protected, rows, fitting, say)
    models = {"as trained": plain_held, "corrected": held}
    held_out = {name: held.predictions for name, held in models.items()}
    protected = rows.table.select(rows.protected)
    family, confidence = rows.guess.family, options.confidence
    given = {"cluster": rows.cluster, "positive": positive, "sample_weight": None}
    compared = read_compared(held_out, rows.outcome, protected, family, confidence=confidence, **given)[0]
    given |= {"family": family, "setting": f"held out ({fitting.folds} folds)", **options.audit(rows.formula)}
    if rows.given is not None:
        given |= {"outcome": rows.outcome} if rows.given == "outcome" else {}
        given["given"] = rows.given if isinstance(rows.given, str) else rows.table.select(rows.given)
        audits = {name: audit_given(held, protected, **given) for name, held in models.items()}
    else:
        known = {"corrected": model.solution_.certificate.new_rows} if hasattr(model, "solution_") else {}
        audits = {
            name: audit_held_out(
                held,
                rows.outcome,
                protected,
                told=name == "corrected",
                features=rows.table.select(rows.features) if options.missing == "model" else None,
                left_out=known.get(name),
                **given,
            )
            for name, held in models.items()
        }
    text = "Rows with a level that the other folds do not have count as the reference level in the audit."
    more = (Note("levels-pooled", text),) if pooled else ()
    corrected = audits["corrected"]
    audits["corrected"] = replace(corrected, notes=(*notes, *corrected.notes, *more))
    return replace(side_by_side(compared, audits), notes=rows.notes)


def _hold_out(
    estimator: Any, name: str, columns: list[str], rows: Training, fitting: Fitting, say: Callable[[str], None]
) -> tuple[HeldOut, bool]:
    """Held-out predictions of a model, and whether a level of a fold was pooled, being absent from the others."""
    relaxed: dict[str, Any] = pools_unseen(estimator)
    if "max_correlation" in estimator.get_params():
        relaxed["max_correlation"] = None  # the promise is about all rows, of which a fold has fewer
    with collected_warnings() as warnings:  # most repeat those of the model itself
        held = predict_held_out(
            clone(estimator).set_params(**relaxed),
            rows.table.select(columns),
            rows.outcome,
            None,
            fitting.folds,
            rows.cluster,
            lambda done, total: say(f"Auditing the model {name}: {done} of {total} folds"),
            np.random.default_rng(fitting.seed),
        )
    return held, any(isinstance(warning, PooledLevelWarning) for warning in warnings)
