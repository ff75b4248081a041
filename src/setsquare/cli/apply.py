"""``setsquare apply``: predictions of a saved model for the rows of a file."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, feather, parquet

from setsquare.cli.files import Source, open_source, resolve
from setsquare.cli.terminal import Screen, as_option_of_fit, collected_warnings, phrase, working
from setsquare.errors import InputError, MissingValuesError, UnseenLevelError
from setsquare.estimators import PredictionOrthogonalizer
from setsquare.estimators.glm import OrthogonalGLM
from setsquare.notes import message
from setsquare.storage import check_targets, load, write_files
from setsquare.tables import Categorical, Cells, Design


def apply(
    file: str, model: Path, predictions: Path | None, keep: Sequence[str], quiet: bool, *, raw_text: bool = False
) -> int:
    """Predict, and write to a file or to standard output."""
    if predictions is not None:
        check_targets([predictions], [model, *([] if file == "-" else [Path(file)])])
    with working(f"Reading {model}", quiet=quiet) as say, collected_warnings() as noted:
        fitted = load(model)
        say(f"Predicting {file}")
        table = predict_table(fitted, open_source(file), keep)
    notes = Screen(stderr=True, quiet=quiet)
    notes.notes([message(warning) for warning in noted])
    if predictions is None:
        left = memoryview(render_table(table, Path("-"), raw_text=raw_text))
        while left:  # unbuffered, a write may be partial
            left = left[sys.stdout.buffer.write(left) :]
    else:
        write_files({predictions: render_table(table, predictions, raw_text=raw_text)})
        notes.say(f"{table.num_rows} rows written to {predictions}.")
    return 0


def predict_table(model: Any, source: Source, keep: Sequence[str]) -> pa.Table:
    """Predictions for the rows of a file, next to the columns to keep."""
    kept = resolve(source, {"keep": keep})["keep"]
    designs = _designs(model)
    needed = _in_fitted_order(model, [name for design in designs for name in design.columns])
    text = [name for design in designs for name in _text_columns(design)]
    table = source.read(list(dict.fromkeys([*needed, *kept])), text)
    columns = {name: table.column(name) for name in kept}
    try:
        made = _predictions(model, table.select(needed))
    except (MissingValuesError, UnseenLevelError) as error:  # what they advise is decided when a model is fitted
        raise InputError(phrase(message(error), as_option_of_fit)) from None
    for name, values in made.items():
        if name in columns:
            raise InputError(f"The model also makes a column {name!r}: leave it out of --keep.")
        columns[name] = pa.array(values)
    return pa.table(columns)


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


#: Texts that spreadsheets evaluate, and those of them that are only numbers.
RISKY, NUMBER = r"^\s*[=+\-@\t\r]", r"^[+\-]?[0-9]*[.,]?[0-9]+([eE][+\-]?[0-9]+)?$"


def render_table(table: pa.Table, path: Path, *, raw_text: bool = False) -> bytes:
    """Bytes of a table in the format of its file name: Parquet, Feather, or else CSV.

    In CSV, texts that a spreadsheet would evaluate are neutralised unless ``raw_text``.
    """
    stream = io.BytesIO()
    if path.suffix == ".parquet":
        parquet.write_table(table, stream)
    elif path.suffix in (".feather", ".arrow"):
        feather.write_feather(table, stream)
    else:
        csv.write_csv(table if raw_text else neutralise(table), stream)
    return stream.getvalue()


def neutralise(table: pa.Table) -> pa.Table:
    """Put an apostrophe before texts that a spreadsheet would take for a formula, in cells and in names of columns.

    Examples
    --------
    >>> neutralise(pa.table({"name": ["=1+1", "Ann", None, "-3"], "age": [1, 2, 3, -4]})).to_pydict()
    {'name': ["'=1+1", 'Ann', None, '-3'], 'age': [1, 2, 3, -4]}
    """
    columns = []
    for column in table.columns:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            is_number = pc.match_substring_regex(column, NUMBER)
            risky = pc.and_(pc.match_substring_regex(column, RISKY), pc.invert(is_number))
            column = pc.if_else(risky, pc.binary_join_element_wise("'", column, ""), column)
        columns.append(column)
    names = [f"'{name}" if re.search(RISKY, name) else name for name in table.column_names]
    return pa.table(columns, names=names)
