"""``setsquare apply``: predictions of a saved model for the rows of a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from setsquare.cli.files import check_names, resolve
from setsquare.cli.options import Reading
from setsquare.cli.read_columns import read_columns
from setsquare.cli.sources import PLAIN, Source, open_source
from setsquare.cli.terminal import Screen, as_option_of_fit, collected_warnings, phrase, working
from setsquare.cli.written_tables import check_format, render_table
from setsquare.errors import InputError, MissingValuesError, UnseenLevelError
from setsquare.estimators import PredictionOrthogonalizer
from setsquare.estimators.glm import OrthogonalGLM
from setsquare.notes import Note, message
from setsquare.storage import check_targets, load, write_files
from setsquare.tables import Categorical, Cells, Design


def apply(
    file: str,
    model: Path,
    predictions: Path | None,
    keep: Sequence[str],
    quiet: bool,
    *,
    raw_text: bool = False,
    reading: Reading = PLAIN,
) -> int:
    """Predict, and write to a file or to standard output."""
    if predictions is not None:
        check_format(predictions)
        check_targets([predictions], [model, *([] if file == "-" else [Path(file)])])
    with working(f"Reading {model}", quiet=quiet) as say, collected_warnings() as noted:
        fitted = load(model)
        say(f"Predicting {file}")
        table, read = predict_table(fitted, open_source(file, reading), keep)
    notes = Screen(stderr=True, quiet=quiet)
    notes.notes([*read, *map(message, noted)])
    if predictions is None:
        left = memoryview(render_table(table, Path("-.csv"), raw_text=raw_text))
        while left:  # unbuffered, a write may be partial
            left = left[sys.stdout.buffer.write(left) :]
    else:
        write_files({predictions: render_table(table, predictions, raw_text=raw_text)})
        notes.say(f"{table.num_rows} rows written to {predictions}.")
    return 0


def predict_table(model: Any, source: Source, keep: Sequence[str]) -> tuple[pa.Table, tuple[Note, ...]]:
    """Predictions for the rows of a file, next to the columns to keep; with notes on how the file was read."""
    kept = resolve(source, {"keep": keep})["keep"]
    designs = _designs(model)
    needed = _in_fitted_order(model, [name for design in designs for name in design.columns])
    text = [name for design in designs for name in _text_columns(design)]
    check_names(source, needed)
    table, notes = read_columns(source, list(dict.fromkeys([*needed, *kept])), text)
    columns = {name: table.column(name) for name in kept}
    try:
        made = _predictions(model, table.select(needed))
    except (MissingValuesError, UnseenLevelError) as error:  # what they advise is decided when a model is fitted
        raise InputError(phrase(message(error), as_option_of_fit)) from None
    for name, values in made.items():
        if name in columns:
            raise InputError(f"The model also makes a column {name!r}: leave it out of --keep.")
        columns[name] = pa.array(values)
    return pa.table(columns), notes


def _predictions(model: Any, table: pa.Table) -> dict[str, Any]:
    if hasattr(model, "transform"):
        return dict(zip(model.get_feature_names_out(), np.asarray(model.transform(table)).T, strict=True))
    if not hasattr(model, "predict_proba"):
        return {"prediction": model.predict(table)}
    p = model.predict_proba(table)
    shares = {f"probability[{label}]": p[:, j] for j, label in enumerate(model.classes_)}
    return {"prediction": model.classes_[p.argmax(axis=1)], **shares}


def _designs(model: Any) -> list[Design]:
    """Designs of the columns that a model needs: no protected ones for a corrected GLM or features corrected alone."""
    reader = getattr(model, "reader_", None)
    if reader is None:
        return [model.design_]
    if not reader.inside:
        raise InputError(
            "The model was fitted with protected columns beside the features, as arrays: use it from Python, or name "
            "the columns when fitting it."
        )
    alone = isinstance(model, OrthogonalGLM) and not reader.use_protected
    if alone or getattr(model, "using", None) == "features":
        return [reader.features]
    inner = model.estimator_.design_ if isinstance(model, PredictionOrthogonalizer) else reader.features
    return [inner, reader.protected]


def _in_fitted_order(model: Any, columns: Sequence[str]) -> list[str]:
    """Each column once, in the order of the table that the model was fitted to."""
    fitted = {name: place for place, name in enumerate(getattr(model, "feature_names_in_", ()))}
    return sorted(dict.fromkeys(columns), key=lambda name: fitted.get(name, len(fitted)))


def _text_columns(design: Design) -> list[str]:
    """Columns whose groups are texts, even if all rows of a file look numeric."""
    groups: list[tuple[str, Any]] = []
    for coder in design.coders:
        if isinstance(coder, Categorical):
            groups.append((coder.name, coder.levels))
        elif isinstance(coder, Cells):
            groups += zip(coder.columns, coder.levels, strict=True)
    return [name for name, levels in groups if any(isinstance(level, str) for level in levels)]
