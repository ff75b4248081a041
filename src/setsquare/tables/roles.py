"""Roles of columns: which are features, which are protected, and how both become matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from setsquare import tables
from setsquare._typing import Array, BoolArray, Matrix, Table
from setsquare.errors import InputError, MissingValuesError
from setsquare.notes import Note, Option, message
from setsquare.tables.design import Design, Encoded, read_stored
from setsquare.tables.frame import Frame, dense, is_dataframe, is_formula, open_table, resolve
from setsquare.tables.mixed_matrix import MixedMatrix
from setsquare.tables.partly_missing import encode_partly, learn_partly
from setsquare.tables.validation import (
    check_alignment,
    check_roles,
    check_same_rows,
    refuse_constant_protected,
)


@dataclass(frozen=True, slots=True)
class Columns:
    """Protected columns and the coding of columns: the settings that all estimators share.

    Attributes
    ----------
    protected : str, int, sequence of either, or None
        Columns inside the feature table, or a formula over them; None when ``fit`` gets them as a table.
    use_protected : bool
        Whether protected columns inside the feature table stay among the features.
    basis : {"linear", "cells", "spline", "kernel"}, formula or transformer
        Functions of the protected columns.
    reference : mapping of column to level, optional
    missing : {"error", "drop", "level", "model"}
        "model" is for protected columns, and for estimators that model their missing values.
    unseen : {"error", "pool"}
    given : str, int, sequence of either, or None
        Columns inside the feature table that predictions may depend on the protected columns through: controls.
    """

    protected: str | int | Sequence[str | int] | None = None
    use_protected: bool = False
    basis: Any = "linear"
    reference: Mapping[str, Any] | None = None
    missing: str = "error"
    unseen: str = "error"
    given: str | int | Sequence[str | int] | None = None


def check_controls(given: Design) -> None:
    """Refuse controls that control for nothing."""
    if not given.names:
        listed = ", ".join(given.columns) or "none"
        raise InputError(f"Nothing is given: the given column(s) ({listed}) are constant. Name columns that vary.")


#: Bases that grow with the number of rows, as far as the features leave room.
GROWING = ("spline", "kernel")


class TrainingMatrices(NamedTuple):
    """Features (n, q), protected columns (n, p), which rows of the input they are (None: all), and controls (n, c).

    ``features`` is the table of these rows that the features were read from.
    """

    Z: Matrix
    X: Matrix
    keep: BoolArray | None
    C: Array | None = None
    features: Table | None = None


@dataclass(frozen=True, slots=True)
class Reader:
    """Designs of the features and of the protected columns, learned by ``fit``.

    Attributes
    ----------
    features : Design or None
        None if the features are not coded, because they go to a model of the user.
    protected : Design
    inside : tuple of str
        Protected columns inside the feature table; empty if they came as a separate table.
    use_protected : bool
    given : Design or None
        Controls inside the feature table.
    """

    features: Design | None
    protected: Design
    inside: tuple[str, ...]
    use_protected: bool
    given: Design | None = None

    def feature_table(self, table: Table) -> Table:
        """Return the features, without protected columns that are not to be used."""
        names = tables.column_names(table)
        unused = [] if self.use_protected else [name for name in self.inside if name in names]
        if isinstance(table, Frame):
            return table.without(unused)
        kept = [j for j, name in enumerate(names) if name not in unused]
        if unused and isinstance(table, np.ndarray) and kept and kept[-1] - kept[0] < len(kept):
            return table[:, kept[0] : kept[-1] + 1]  # side by side: no copy
        return tables.drop(table, unused) if unused else table

    def lacks_protected(self, table: Table) -> bool:
        """Whether protected columns are absent from this feature table; a corrected model does not need them."""
        if self.use_protected or not self.inside or not is_dataframe(table):
            return False
        return not set(self.inside) <= set(tables.column_names(table))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the coded features."""
        return () if self.features is None else self.features.names

    def protected_matrix(
        self, table: Table, protected: Table | None, *, as_codes: bool = False
    ) -> tuple[Matrix, Mapping[str, int]]:
        """Protected columns of new rows, from inside the feature table or beside it, and pooled rows by column.

        With ``as_codes``, categories of many levels are not written out as dummies: the matrix is a MixedMatrix.
        """
        if self.inside and protected is not None:
            raise InputError(
                "Protected columns are given twice: they are inside the feature table, so leave out protected=."
            )
        if not self.inside and protected is None:
            raise InputError(
                "This method needs the protected columns of the rows that it corrects: pass protected=, or fit it with "
                "columns of the feature table, which it then finds there."
            )
        if not self.inside:
            check_alignment(table, protected, "protected")
        design = replace(self.protected, missing=_strict(self.protected))
        with _after_fitting():
            encoded = _written(design, table if self.inside else protected, as_codes)
        check_same_rows("protected has", encoded.values.shape[0], "the features have", tables.n_rows(table))
        return encoded.values, encoded.n_pooled

    def given_matrix(self, table: Table) -> Array | None:
        """Controls of new rows, from inside the feature table."""
        if self.given is None:
            return None
        with _after_fitting():
            return dense(replace(self.given, missing=_strict(self.given)).apply(table).values)

    def stored_matrix(self, table: Table, *, learned: bool, as_codes: bool = False) -> tuple[Matrix, Mapping[str, int]]:
        """As :meth:`feature_matrix`, but a floating-point array that needs no coding is returned as it is.

        With ``learned`` the table is the training table, which has no missing values left.
        """
        assert self.features is not None
        stored = read_stored(self.features, table, learned=learned)
        return self.feature_matrix(table, as_codes=as_codes) if stored is None else (stored, {})

    def feature_matrix(self, table: Table, *, as_codes: bool = False) -> tuple[Matrix, Mapping[str, int]]:
        """Coded features of new rows, and rows with an unseen level that were pooled, by column.

        With ``as_codes``, categories of many levels are not written out as dummies: the matrix is a MixedMatrix.
        """
        assert self.features is not None
        design = replace(self.features, missing=_strict(self.features))
        with _after_fitting():
            encoded = design.split(table) if as_codes else design.apply(table)
        return encoded.values, encoded.n_pooled


@contextmanager
def _after_fitting() -> Iterator[None]:
    """Advise on missing values in new rows, none of which can be dropped: every row has a prediction."""
    try:
        yield
    except MissingValuesError as error:
        found = message(error)
        if "columns" not in found.fields:
            raise
        text = (
            "Missing (NaN) values in {columns} of the rows to predict, and each row has a prediction: fill them, leave "
            "out those rows, or fit the model with {level}, which gives them a level of their own."
        )
        columns, level = found.fields["columns"], Option("missing", "level")
        raise MissingValuesError(Note("missing-values", text, columns=columns, level=level)) from None


def _strict(design: Design) -> Any:
    """Rule for missing values after fitting: rows are dropped only in a fit, later a missing value is an error."""
    return "error" if design.missing == "drop" else design.missing


def learn_reader(
    table: Table,
    protected: Table | None,
    columns: Columns,
    *,
    code_features: bool = True,
    as_stored: bool = False,
    as_codes: bool = False,
    protected_as_codes: bool = False,
    check: Callable[[Matrix, Design, Table, BoolArray | None], None] | None = None,
    models_missing: bool = False,
    widened: float = 1.0,
    weight: Array | None = None,
) -> tuple[Reader, TrainingMatrices]:
    """Learn from training tables how to read them, and read them.

    With ``as_stored``, an array of floating-point features that need no coding is not copied into a float64 matrix.
    With ``as_codes``, features that are categories of many levels are not written out as dummies, and with
    ``protected_as_codes`` protected columns are not.
    ``check`` is called with the coded features, the design and the table of the protected columns and the rows kept,
    before the protected columns are coded, and may refuse them.
    With ``models_missing``, ``missing="model"`` is allowed: missing values of protected columns then remain NaN.
    Features will be ``widened`` by this factor, which leaves more room for functions of the protected columns.
    Row weights (n,) are for knots of splines and functions of kernels.
    """
    partly = models_missing and columns.missing == "model"
    inside = _find_protected(table, protected, columns)
    source = table if inside else protected
    check_alignment(table, source, "protected")
    n_features = len(tables.column_names(table))
    if len(inside) == n_features and not columns.use_protected:
        raise InputError(f"All columns of the table are protected (n_features = {n_features}): add features.")
    check_same_rows("protected has", tables.n_rows(source), "the features have", tables.n_rows(table))
    if is_dataframe(table):  # a frame keeps the columns that were read: designs are learned from them, then applied
        table = open_table(table)
    source = table if inside else open_table(source) if is_dataframe(source) else source
    missing = "error" if partly else columns.missing
    coded = {"reference": columns.reference, "missing": missing, "unseen": columns.unseen}

    def learn(features: Table, source: Table, weight: Array | None) -> Reader:
        names = columns.protected if inside else None
        options: dict[str, Any] = {"basis": columns.basis, "weight": weight, **_known(coded, source, names)}
        design = learn_partly if partly else tables.learn
        given = columns.given
        used = design(source, names, **options)
        controls = None if given is None else tables.learn(features, given, **_known(coded, features, given))
        reader = Reader(None, used, inside, columns.use_protected, controls)
        if not code_features:
            return reader
        rest = reader.feature_table(features)
        reader = replace(reader, features=tables.learn(rest, **_known(coded, rest, None)))
        if isinstance(columns.basis, Mapping) or (isinstance(columns.basis, str) and columns.basis in GROWING):
            room = widened * len(reader.feature_names)
            reader = replace(reader, protected=design(source, names, **options, room=room))
        return reader

    reader = learn(table, source, weight)
    if reader.given is not None:
        check_controls(reader.given)
        check_roles({"protected": inside, "given": reader.given.columns})
    for name in columns.reference or ():
        if name not in (*reader.protected.columns, *(reader.features.columns if reader.features else ())):
            raise InputError(
                f"The reference names the column {name!r}, which is not in the tables; check its spelling."
            )
    keep = _complete_rows(reader, table, source) if columns.missing == "drop" else None
    if keep is not None:  # levels that only incomplete rows have are no levels of the training data
        table, source = tables.filter_rows(table, keep), tables.filter_rows(source, keep)
        reader = learn(table, source, None if weight is None else weight[keep])
    Z = None
    if reader.features is not None:
        read = partial(reader.stored_matrix, learned=True) if as_stored else reader.feature_matrix
        Z, _ = read(reader.feature_table(table), as_codes=as_codes)
    if not reader.protected.names:
        refuse_constant_protected(reader.protected.columns)
    if check is not None and Z is not None and not partly:
        check(Z, reader.protected, source, keep)
    as_codes = protected_as_codes
    X = encode_partly(reader.protected, source) if partly else _written(reader.protected, source, as_codes).values
    C = None if reader.given is None else reader.given_matrix(table)
    return reader, TrainingMatrices(Z, X, keep, C, reader.feature_table(table))


def _written(design: Design, table: Table, as_codes: bool) -> Encoded:
    """The coded table; dense, unless categories of many levels are to remain codes."""
    encoded = design.split(table) if as_codes else design.apply(table)
    return encoded if isinstance(encoded.values, MixedMatrix) else replace(encoded, values=dense(encoded.values))


def _find_protected(table: Table, protected: Table | None, columns: Columns) -> tuple[str, ...]:
    """Names of the protected columns inside the feature table; none when they are a table of their own."""
    _check_kinds(columns.protected, protected)
    if columns.protected is None and protected is None:
        raise InputError(
            "Nothing is protected: name columns of the feature table in the constructor (protected=[...]) "
            "or pass a table to fit (protected=...)."
        )
    if columns.protected is not None and protected is not None:
        raise InputError(
            "Protected columns are given twice: name them in the constructor or pass them to fit, not both."
        )
    if columns.protected is None:
        if columns.use_protected:
            raise InputError(
                "use_protected=True needs the protected columns inside the feature table: name them there."
            )
        return ()
    if is_formula(columns.protected, tables.column_names(table)):
        return tables.learn(table, columns.protected, missing="drop").columns
    return _names(table, columns.protected)


def _check_kinds(named: Any, given: Any) -> None:
    """Refuse names where a table belongs, and a table where names belong."""
    if isinstance(given, str) or (isinstance(given, list | tuple) and given and all(isinstance(g, str) for g in given)):
        raise InputError(
            "fit(protected=...) takes the protected columns themselves; name columns of the feature table in the "
            "constructor (protected=[...])."
        )
    if named is None or isinstance(named, str | int | np.integer):
        return
    if getattr(named, "ndim", 1) > 1 or hasattr(named, "dtype") or not isinstance(named, Sequence):
        raise InputError(
            "protected in the constructor takes names or positions of columns, or a formula such as '~ sex * race'; "
            "pass the columns themselves to fit(protected=...)."
        )
    if not len(named):
        raise InputError("Nothing is protected: the list of protected columns is empty.")


def _known(coded: dict[str, Any], table: Table, columns: Any) -> dict[str, Any]:
    """The coding options, with references for the columns of this table only."""
    reference = coded["reference"]
    if not reference:
        return coded | {"reference": {}}
    names = _names(table, None if isinstance(columns, str) else columns)
    return coded | {"reference": {name: level for name, level in reference.items() if name in names}}


def _names(table: Table, columns: Any) -> tuple[str, ...]:
    """Names in the whole table of the columns asked for."""
    frame = open_table(table)
    return tuple(frame.names[j] for j in resolve(frame, columns))


def _complete_rows(reader: Reader, table: Table, source: Table) -> BoolArray | None:
    masks = [reader.protected.apply(source).keep]
    if reader.features is not None:
        masks.append(reader.features.apply(reader.feature_table(table)).keep)
    elif reader.given is not None:  # otherwise these are among the features
        masks.append(reader.given.apply(table).keep)
    present = [mask for mask in masks if mask is not None]
    if not present:
        return None
    keep: BoolArray = np.logical_and.reduce(present)
    if not keep.any():
        raise InputError("No row is complete in both features and protected columns: fill missing values instead.")
    return keep
