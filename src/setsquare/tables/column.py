"""One column of any table as plain arrays: numbers, or integer codes into a short tuple of levels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import Any, Literal, TypeAlias

import narwhals.stable.v2 as nw
import numpy as np

from setsquare._typing import Array, BoolArray, IntArray, Table
from setsquare.errors import InputError, MissingValuesError
from setsquare.notes import Note, Option
from setsquare.tables.frame import Frame, is_sparse, open_table, to_numpy
from setsquare.tables.text_values import stray_values
from setsquare.tables.validation import is_missing, refuse_no_rows

#: A level as plain data, fit for JSON; None stands for "missing" where that is a level of its own.
Level: TypeAlias = str | int | float | bool | None
Missing: TypeAlias = Literal["error", "drop", "level"]
#: Columns from which, and rows up to which, reading many columns at once is faster than one after the other.
MANY_COLUMNS, SHORT = 100, 10_000


@dataclass(frozen=True, slots=True)
class Numbers:
    """A numeric column: `values` (n,) float64, NaN where missing."""

    values: Array

    @property
    def missing(self) -> BoolArray:
        """Mask (n,) of missing entries."""
        return np.isnan(self.values)

    def take(self, keep: BoolArray) -> Numbers:
        """Keep some rows."""
        return Numbers(self.values[keep])


@dataclass(frozen=True, slots=True)
class Levels:
    """A categorical column: `codes` (n,) into `levels` (declared or sorted order), -1 where missing.

    `declared` has all levels that the column's type names, in its order; empty for text. `is_category` says whether the
    type of the column, and not only the text in it, makes it categorical.
    """

    codes: IntArray
    levels: tuple[Level, ...]
    declared: tuple[Level, ...] = ()
    is_category: bool = False

    @property
    def missing(self) -> BoolArray:
        """Mask (n,) of missing entries."""
        return self.codes < 0

    def take(self, keep: BoolArray) -> Levels:
        """Keep some rows; levels that no longer occur stay in `levels`."""
        return Levels(self.codes[keep], self.levels, self.declared, self.is_category)


Column: TypeAlias = Numbers | Levels


@dataclass(frozen=True, slots=True)
class TableRows:
    """The rows of a table that are used, read column by column.

    `columns` are all that are in use, so that an error can name every one with missing values; `keep` (n,) marks the
    rows without a missing value, when some are dropped.
    """

    frame: Frame
    columns: tuple[str, ...]
    missing: Missing
    keep: BoolArray | None = None

    @property
    def n(self) -> int:
        """Number of rows that are used."""
        return self.frame.n_rows if self.keep is None else int(self.keep.sum())

    def column(self, name: str) -> Column:
        """Read one column; under ``missing="error"`` it has no missing values."""
        column = read(self.frame, name)
        if self.missing == "error" and column.missing.any():
            refuse_missing({name: int(read(self.frame, name).missing.sum()) for name in self.columns})
        return column if self.keep is None else column.take(self.keep)

    def numbers(self, name: str) -> Array:
        """Read a column that was numeric in training."""
        column = self.column(name)
        if isinstance(column, Numbers):
            return column.values
        if column.levels:
            strays = ", ".join(map(repr, stray_values(column.levels)[:5]))
            raise InputError(
                f"Column {name!r} was numeric in training and now holds "
                f"{f'other values too ({strays})' if strays else 'text or categories'}; convert it to numbers."
            )
        return np.full(self.n, np.nan)

    def levels(self, name: str) -> Levels:
        """Read a column that was categorical in training."""
        column = self.column(name)
        if isinstance(column, Levels):
            return column
        # Without any value, a dataframe library may have called a text column numeric.
        if column.missing.all():
            return Levels(np.full(self.n, -1), ())
        raise InputError(
            f"Column {name!r} was categorical in training and is now numeric; convert it to the type it had."
        )


def open_rows(frame: Frame, columns: tuple[str, ...], missing: Missing) -> TableRows:
    """Choose the rows to use under the rule for missing values."""
    if missing != "drop":
        return TableRows(frame, columns, missing)
    keep = complete_rows(frame, columns)
    if not keep.any():
        refuse_no_rows(columns)
    return TableRows(frame, columns, missing, None if keep.all() else keep)


def complete_rows(frame: Frame, columns: Sequence[str]) -> BoolArray:
    """Mask (n,) of the rows without a missing value in `columns`."""
    keep = np.ones(frame.n_rows, dtype=bool)
    for name in columns:
        keep &= ~read(frame, name).missing
    return keep


def read(frame: Frame, name: str) -> Column:
    """Read one column as numbers or as codes, whatever holds it."""
    if not frame.seen:
        _read_many(frame)
    if name not in frame.seen:
        frame.seen[name] = _finite(_read(frame, name), name)
    column: Column = frame.seen[name]
    return column


def _read(frame: Frame, name: str) -> Column:
    j = frame.position(name)
    if not frame.n_rows:
        return Numbers(np.zeros(0))  # the kind of an empty column is unknown
    if is_sparse(frame.source):
        return Numbers(frame.take([j]).toarray().ravel().astype(np.float64))
    series = frame.column(name)
    return _from_series(series, name) if isinstance(series, nw.Series) else _from_array(series, name)


def _read_many(frame: Frame) -> None:
    """Read all float64 columns at once where they are many and short; by itself each takes a fraction of a ms."""
    source = frame.source
    if len(frame.names) < MANY_COLUMNS or not 0 < frame.n_rows <= SHORT or not isinstance(source, nw.DataFrame):
        return
    native = source.to_native()
    if source.implementation.is_pyarrow():
        (batch, *others) = native.to_batches()
        if others:
            return
        plain = [column.type == "double" and not column.null_count for column in batch.columns]
        values = [column.to_numpy() for column, is_plain in zip(batch.columns, plain, strict=True) if is_plain]
    elif source.implementation.is_pandas():
        plain = [dtype == np.float64 for dtype in native.dtypes]
        values = list(np.asfortranarray(native.loc[:, plain].to_numpy()).T)
    else:
        return
    names = [name for name, is_plain in zip(frame.names, plain, strict=True) if is_plain]
    frame.seen.update((name, Numbers(x)) for name, x in zip(names, values, strict=True) if not np.isinf(x).any())


def read_column(table: Table, name: str) -> Column:
    """Read one column of any table; plain numbers are read without opening the whole table, which would take longer."""
    for values in plain_columns(table, [name]):
        return _finite(Numbers(values.astype(np.float64)), name)
    return read(open_table(table), name)


def plain_columns(table: Table, names: Sequence[str]) -> Iterator[np.ndarray[Any, Any]]:
    """Numeric columns of a pyarrow table or batch without a copy; ends at the first that would need one."""
    if type(table).__module__ != "pyarrow.lib":
        return
    batches = table.to_batches() if hasattr(table, "to_batches") else [table]
    if len(batches) != 1:
        return
    from pyarrow.types import is_floating, is_integer

    (batch,) = batches
    for name in names:
        position = batch.schema.get_field_index(name)
        if position < 0:
            return
        column = batch.column(position)
        if column.null_count or not (is_floating(column.type) or is_integer(column.type)):
            return
        yield column.to_numpy()


def label(level: Level) -> str:
    """Write a level as it stands in a column name."""
    return "missing" if level is None else str(level)


def _from_series(series: nw.Series[Any], name: str) -> Column:
    dtype = series.dtype
    if dtype.is_numeric():
        series = series if dtype == nw.Float64 else _as_float(series)
        return Numbers(np.asarray(to_numpy(series), dtype=np.float64))
    if isinstance(dtype, nw.String | nw.Boolean | nw.Categorical | nw.Enum):
        return _from_levels(series)
    if isinstance(dtype, nw.Object):
        return _from_objects(series.to_numpy(), name)
    if series.is_null().all():
        return Levels(np.full(len(series), -1), ())
    if dtype.is_temporal():
        raise InputError(
            f"Column {name!r} holds dates or times: leave it out, or convert it to numbers (years, or days since a "
            "first day)."
        )
    if isinstance(dtype, nw.List | nw.Array):
        raise _lists(name)
    raise _uncodable(name, str(dtype))


def _as_float(series: nw.Series[Any]) -> nw.Series[Any]:
    if series.implementation.is_pyarrow():  # its cast refuses integers beyond 2**53, which have no exact float
        return nw.from_native(series.to_native().cast("float64", safe=False), series_only=True)
    return series.cast(nw.Float64)


def _from_array(values: np.ndarray[Any, Any], name: str) -> Column:
    kind = values.dtype.kind
    if kind in "fiu":
        return Numbers(values.astype(np.float64, copy=False))
    if kind == "b":
        return Levels(values.astype(np.int64), (False, True))
    if kind in "OUT":
        return _from_objects(values.astype(object), name)
    raise _uncodable(name, str(values.dtype))


def _from_levels(series: nw.Series[Any]) -> Levels:
    codes, found = _factorize(series)
    declared = _declared(series)
    order = declared or sorted(found)
    rank = {level: i for i, level in enumerate(order)}
    sequence = sorted(range(len(found)), key=lambda i: rank[found[i]])
    if sequence != list(range(len(found))):
        recode = np.full(len(found) + 1, -1)
        recode[sequence] = np.arange(len(found))
        codes = recode[codes]
    is_category = isinstance(series.dtype, nw.Categorical | nw.Enum)
    return Levels(codes, tuple(_plain(found[i]) for i in sequence), tuple(map(_plain, declared)), is_category)


def _factorize(series: nw.Series[Any]) -> tuple[IntArray, list[Any]]:
    if series.implementation.is_pandas_like():
        native = series.to_native()
        if series.implementation.is_pandas() and native.dtype == "category":  # it has codes of its own
            declared = np.asarray(native.cat.codes, dtype=np.int64)
            counts = np.bincount(declared + 1, minlength=len(native.cat.categories) + 1)
            occurs = np.flatnonzero(counts[1:])
            if len(occurs) == len(counts) - 1:
                return declared, native.cat.categories.tolist()
            place = np.full(len(counts), -1)  # the last for -1, a missing value
            place[occurs] = np.arange(len(occurs))
            return place[declared], native.cat.categories[occurs].tolist()
        # Ten times as fast as replace_strict, which merges in pandas.
        numbers, distinct = native.factorize()
        return np.asarray(numbers, dtype=np.int64), distinct.tolist()
    if series.implementation.is_pyarrow():
        native = series.to_native()
        if isinstance(series.dtype, nw.Categorical):  # its dictionary may hold nulls, and levels that do not occur
            native = native.cast(native.type.value_type)
        encoded = native.dictionary_encode(null_encoding="encode").combine_chunks()
        found, codes = encoded.dictionary.to_pylist(), np.from_dlpack(encoded.indices).astype(np.int64)
        if None in found:
            place = found.index(None)
            codes = np.where(codes == place, -1, codes - (codes > place))
        return codes, [level for level in found if level is not None]
    found = series.drop_nulls().unique().to_list()
    if not found:
        return np.full(len(series), -1), []
    coded = series.replace_strict(found, list(range(len(found))), default=-1, return_dtype=nw.Int64)
    return coded.to_numpy(), found


def _declared(series: nw.Series[Any]) -> list[Any]:
    if not isinstance(series.dtype, nw.Categorical | nw.Enum):
        return []
    # The categories of a polars Categorical stand in the order in which the process met them.
    if isinstance(series.dtype, nw.Categorical) and series.implementation.is_polars():
        return []
    try:
        return series.cat.get_categories().to_list()
    except AttributeError:
        # A pandas column of pyarrow dictionaries has no .cat.
        return []


def _from_objects(values: np.ndarray[Any, Any], name: str) -> Column:
    items = values.tolist()
    try:
        distinct = list(dict.fromkeys(items))
    except TypeError as error:
        listed = any(isinstance(item, list | tuple | np.ndarray) for item in items)
        raise (_lists(name) if listed else _uncodable(name, "object")) from error
    present = [value for value in distinct if not is_missing(value)]
    kinds = {_kind(of) for of in set(map(type, items))} - {None}
    if not any(isinstance(value, Real | Decimal) for value in present):
        kinds.discard("number")
    if not kinds <= {"text"} and not kinds <= {"boolean"} and not kinds <= {"number"}:
        texts = [repr(value) for value in present if isinstance(value, str)][:5]
        such = f", such as {', '.join(texts)}" if "number" in kinds and texts else ""
        raise InputError(
            f"Column {name!r} mixes types ({', '.join(sorted(map(str, kinds)))}{such}); convert it to numbers or to "
            "text."
        )
    position = {value: i for i, value in enumerate(distinct)}
    codes = np.fromiter(map(position.__getitem__, items), dtype=np.int64, count=len(items))
    if kinds == {"number"}:
        return Numbers(np.array([np.nan if is_missing(v) else float(v) for v in distinct])[codes])
    rank = {value: i for i, value in enumerate(sorted(present))}
    recode = np.array([-1 if is_missing(v) else rank[v] for v in distinct], dtype=np.int64)
    return Levels(recode[codes], tuple(_plain(value) for value in rank))


def _kind(of: type) -> str | None:
    if of.__name__ in ("NoneType", "NAType", "NaTType"):
        return None
    if issubclass(of, str):
        return "text"
    if issubclass(of, bool | np.bool_):
        return "boolean"
    return "number" if issubclass(of, Real | Decimal) else of.__name__


def _plain(level: Any) -> Level:
    level = level.item() if isinstance(level, np.generic) else level
    return level if type(level) in (str, int, float, bool) else str(level)


def _finite(column: Column, name: str) -> Column:
    if isinstance(column, Numbers):
        n_infinite = int(np.isinf(column.values).sum())
        if n_infinite:
            raise MissingValuesError(
                f"Column {name!r} has {n_infinite} infinite value{_s(n_infinite)}; replace or remove them."
            )
    return column


def refuse_missing(counts: Mapping[str, int]) -> None:
    """Refuse columns with missing values, with a count for each."""
    listed = ", ".join(f"{name!r} ({count})" for name, count in counts.items() if count)
    text = (
        "Missing (NaN) values in {columns}; fill them, or {drop:pass} to leave out those rows or {level} to give them "
        "a level of their own."
    )
    columns = f"column{_s(listed.count('('))} {listed}"
    drop, level = Option("missing", "drop"), Option("missing", "level")
    raise MissingValuesError(Note("missing-values", text, columns=columns, drop=drop, level=level))


def _lists(name: str) -> InputError:
    return InputError(
        f"Column {name!r} holds a list of values in each row: pass them as a matrix with one column per value, such as "
        f"np.stack(table[{name!r}]), or leave the column out."
    )


def _uncodable(name: str, dtype: str) -> InputError:
    return InputError(
        f"Column {name!r} of type {dtype} cannot be read; convert it to numbers or to text, or leave it out."
    )


def _s(count: int) -> str:
    return "" if count == 1 else "s"
