"""Embeddings from files: arrays in memory, and rows of files that stay on the disk until they are read."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from setsquare.errors import InputError
from studies.arrays import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class MappedRows:
    """Chosen rows of memory-mapped arrays as if they were one array; only what is asked for is read.

    A slice, a mask or a list of rows in brackets reads these rows into memory; :meth:`take` chooses rows without
    reading any. ``numpy.asarray`` reads everything.

    Attributes
    ----------
    parts : tuple of ndarray of shape (n_k, q)
        One below the other, as :func:`map_file` opens them.
    rows : ndarray of shape (n,)
        Numbers of the chosen rows, counted through all parts.

    Examples
    --------
    >>> import numpy as np
    >>> mapped = MappedRows.stack([np.zeros((2, 3)), np.ones((2, 3))]).take([1, 2, 3])
    >>> mapped.shape, mapped[:2].mean(axis=1)
    ((3, 3), array([0., 1.]))
    """

    parts: tuple[NDArray[Any], ...]
    rows: IntArray

    @classmethod
    def stack(cls, parts: Sequence[NDArray[Any]]) -> Self:
        """All rows of arrays that have the same columns."""
        return cls(tuple(parts), np.arange(sum(len(part) for part in parts)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""
        return (len(self.rows), *self.parts[0].shape[1:])

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision in which rows are read."""
        return np.result_type(*self.parts)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: Any) -> NDArray[Any]:
        rows = np.atleast_1d(self.rows[chosen])
        out = np.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        start = 0
        for part in self.parts:
            here = (rows >= start) & (rows < start + len(part))
            out[here] = part[rows[here] - start]
            start += len(part)
        return out[0] if isinstance(chosen, int | np.integer) else out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("Rows of a file cannot be had without a copy.")
        return self[:].astype(dtype or self.dtype, copy=False)

    def take(self, chosen: Any, axis: int = 0) -> Self | NDArray[Any]:
        """Choose rows by number, without reading them; `axis` is 0, as in ``numpy.ndarray.take``.

        Consecutive rows of one part are that part of the file itself, which everything that takes an array can read.
        """
        if axis != 0:
            raise InputError(f"Only rows can be chosen without reading them: axis must be 0, not {axis}.")
        rows = self.rows.take(np.asarray(chosen, dtype=np.intp))
        start = 0
        for part in self.parts:
            first = rows[0] - start if len(rows) else -1
            if first >= 0 and first + len(rows) <= len(part) and (np.diff(rows) == 1).all():
                return part[first : first + len(rows)]
            start += len(part)
        return type(self)(self.parts, rows)


def read_npz(path: Path, n_rows: int, name: str = "emb") -> NDArray[Any]:
    """Read one array of an npz file, in the precision that it has there; it must have as many rows as its table."""
    try:
        with path.open("rb") as stream, np.load(stream) as arrays:
            array: NDArray[Any] | None = arrays.get(name)
    except (ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"The file {path} is not a whole npz file: fetch it again.") from error
    if array is None:
        raise InputError(f"The file {path} lacks the array {name}: see its origin.")
    _check(path, array, n_rows)
    return array


def map_file(path: Path, n_rows: int) -> NDArray[Any]:
    """Map a npy file of numbers into memory without reading it; it must have as many rows as its table."""
    try:
        array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"The file {path} is not a whole npy file of numbers: fetch it again.") from error
    _check(path, array, n_rows)
    return array


def _check(path: Path, array: NDArray[Any], n_rows: int) -> None:
    if array.ndim != 2 or array.dtype.kind != "f":
        raise InputError(
            f"The file {path} holds {array.dtype} of shape {array.shape}: an embedding has a row of floating-point "
            "numbers for each image."
        )
    if len(array) != n_rows:
        raise InputError(f"The file {path} has {len(array)} rows, its table {n_rows}: both must be of the same images.")
