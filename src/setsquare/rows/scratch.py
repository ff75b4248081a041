"""Temporary file of encoded row blocks, so that repeated passes of a solver need not decode the source again."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np

from setsquare._typing import Array, Matrix
from setsquare.rows.blocks import Block
from setsquare.rows.passes import LocalParts, Parts, Piece, apply
from setsquare.tables.mixed_matrix import MixedMatrix

#: Bytes to leave free on the disk, and bytes written between checks of the free space.
SPARE, LOOK = 2**30, 2**27

U = TypeVar("U")


class Stored(NamedTuple):
    """Location of a block in the file: its columns in sequence, in single precision if that is lossless.

    ``widths`` are the numbers of columns of features, protected columns, outcome, weights and offset; constant weights
    are stored in ``weight`` instead. Of a :class:`MixedMatrix`, the numbers are the features here, ``form`` is the same
    matrix without rows, and the codes are stored at ``codes``, in the smallest type that holds them.
    """

    position: int
    n_rows: int
    dtype: type[np.floating]
    widths: tuple[int, ...]
    weight: float
    form: MixedMatrix | None = None
    codes: int = 0


@dataclass(slots=True, weakref_slot=True)
class Store:
    """An unnamed temporary file, which the operating system deletes when it is closed."""

    folder: str | None = None
    file: IO[bytes] | None = None  # opened for the first block
    blocks: list[Stored] | None = None  # in the order of the rows, once all are written
    is_full: bool = False  # whether the disk had no room for them
    _checked: int = 0
    _lock: Any = field(default_factory=Lock, repr=False)

    def save(self, block: Block) -> Stored | None:
        """Write a block; return None if there is no room for it."""
        if self.is_full:
            return None
        same = bool(np.ptp(block.weight) == 0.0) if len(block.weight) else True
        weight = np.zeros((0, len(block.weight))) if same else block.weight[None]
        split = block.Z if isinstance(block.Z, MixedMatrix) else None
        features = block.Z[:, 1:].T if split is None else split.dense.T
        parts = [features, *(() if block.X is None else (block.X.T,)), block.y.T, weight]
        parts += [] if block.offset is None else [block.offset.T]
        numbers: Any = np.concatenate(parts)
        with np.errstate(over="ignore"):  # overflow gives inf, which differs from the original
            short = numbers.astype(np.float32)
        numbers = short if np.array_equal(short, numbers) else numbers
        widths = (
            len(features),
            0 if block.X is None else block.X.shape[1],
            block.y.shape[1],
            len(weight),
            0 if block.offset is None else block.offset.shape[1],
        )
        position = self._append(_content(numbers))
        codes = 0 if split is None else self._append(_content(split.codes.astype(_code_type(split))))
        if position is None or codes is None:
            return None
        level = float(block.weight[0]) if same and len(block.weight) else np.nan
        return Stored(position, len(block.weight), numbers.dtype.type, widths, level, split and split[:0], codes)

    def _append(self, content: memoryview) -> int | None:
        """Append to the file and return the position; if there is no room, empty the file and return None."""
        with self._lock:  # another thread may have found it full
            try:
                return None if self.is_full else self._write(content)
            except OSError:
                if self.file is not None:
                    self.file.truncate(0)
                self.is_full = True  # last, because other threads read it without the lock
                return None

    def _write(self, content: memoryview) -> int:
        if self.file is None:
            self.file = tempfile.TemporaryFile(prefix="setsquare", dir=self.folder, buffering=0)  # noqa: SIM115
            weakref.finalize(self, self.file.close)
        position = self.file.seek(0, os.SEEK_END)
        if position >= self._checked:
            self._checked = position + LOOK
            if shutil.disk_usage(self.folder or tempfile.gettempdir()).free < SPARE:
                raise OSError(errno.ENOSPC, "There is too little free space on the disk.")
        while content:
            content = content[self.file.write(content) :]
        return position

    def load(self, stored: Stored) -> Block:
        """Read a block as new arrays."""
        assert self.file is not None
        n, (q, p, k, v, _) = stored.n_rows, stored.widths
        numbers = self._read(stored.position, np.empty((sum(stored.widths), n), stored.dtype))
        A = np.empty((1 + q + p, n))
        A[0], A[1:] = 1.0, numbers[: q + p]
        y, weight, offset = (part.astype(np.float64) for part in np.split(numbers[q + p :], [k, k + v]))
        w = weight[0] if v else np.full(n, stored.weight)
        X: Array | None = A[1 + q :].T if p else None
        Z: Matrix = A[: 1 + q].T
        if stored.form is not None:
            codes = self._read(stored.codes, np.empty((n, stored.form.codes.shape[1]), _code_type(stored.form)))
            Z = dataclasses.replace(stored.form, dense=A[1 : 1 + q].T, codes=codes.astype(np.int32))
        return Block(Z, y.T, np.zeros((n, 0)), w, offset.T if len(offset) else None, X)

    def _read(self, position: int, out: Any) -> Any:
        """Fill an array from the file."""
        assert self.file is not None
        room = _content(out)
        with self._lock:
            self.file.seek(position)
            while room:
                count = self.file.readinto(room)  # type: ignore[attr-defined]
                if not count:
                    raise OSError("The temporary file of the rows was truncated while in use.")
                room = room[count:]
        return out


def _code_type(split: MixedMatrix) -> Any:
    return np.min_scalar_type(max(split.n_levels - 1, 0))


def _content(numbers: Any) -> memoryview:
    """Bytes of an array; an empty one cannot be cast."""
    return memoryview(numbers).cast("B") if numbers.size else memoryview(b"")


@dataclass(frozen=True, slots=True)
class ScratchParts(Parts[Any]):
    """Blocks that the first full pass reads from the source and writes to a store, and later passes read from it."""

    source: LocalParts[Block]
    store: Store
    functions: tuple[Callable[[Any], Any], ...] = ()

    def __iter__(self) -> Iterator[Any]:
        store, functions = self.store, self.functions
        if (blocks := store.blocks) is not None:
            pieces = (Piece(stored, stored.n_rows, "") for stored in blocks)
            yield from LocalParts(lambda: pieces, (store.load, *functions), self.source.progress)
            return

        def save_and_apply(block: Block) -> tuple[Any, Any]:
            stored = store.save(block)  # before a function changes it
            return stored, apply(functions, Piece(block, len(block.weight), ""))

        found = []
        for stored, value in self.source.map(save_and_apply):
            found.append(stored)
            yield value
        if not store.is_full:
            store.blocks = found


def scratch_folder(asked: bool | str | Path) -> str | None:
    """Folder for temporary files: as requested, or the system's for large ones, which is rarely a RAM disk."""
    if not isinstance(asked, bool):
        return str(asked)
    named = any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    return None if named or not os.path.isdir("/var/tmp") else "/var/tmp"
