"""Parquet and other Arrow files, read in batches of bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

from setsquare._extras import require
from setsquare.errors import DataNotFoundError, InputError
from setsquare.rows.passes import Piece, Source

#: Bytes of a column fetched at once; by default the reader fetches a whole row group.
BUFFER_BYTES = 2**18


@dataclass(frozen=True, slots=True)
class ArrowFiles(Source):
    """A ``pyarrow.dataset.Dataset``."""

    dataset: Any

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of all columns."""
        return tuple(self.dataset.schema.names)

    @property
    def n_rows(self) -> int:  # type: ignore[override]
        """Number of rows; Parquet files store theirs."""
        return int(self.dataset.count_rows())

    def _read(self, columns: Sequence[str], n_rows: int) -> Iterator[Piece]:
        import pyarrow as pa

        names = list(columns)
        if not self._is_plain():
            batches = self.dataset.scanner(
                columns=names, batch_size=n_rows, batch_readahead=1, fragment_readahead=1
            ).to_batches()
            for batch in batches:
                if batch.num_rows:
                    yield Piece(pa.Table.from_batches([batch]), batch.num_rows, "")
            return
        for fragment in self.dataset.get_fragments():
            for batch in _read_parquet(fragment, names, n_rows):
                yield Piece(pa.Table.from_batches([batch]), batch.num_rows, fragment.path)

    def _is_plain(self) -> bool:
        """Whether these are Parquet files that hold all columns: no filter, no partition keys in the paths."""
        import pyarrow.dataset as pads

        if not isinstance(self.dataset, pads.FileSystemDataset) or getattr(self.dataset, "_scan_options", None):
            return False
        first = next(iter(self.dataset.get_fragments()), None)
        parquet = isinstance(self.dataset.format, pads.ParquetFileFormat)
        return parquet and first is not None and set(first.physical_schema.names) >= set(self.columns)


def open_files(paths: Any) -> ArrowFiles:
    """Open files given by a path, a glob pattern, a folder, or a list of these."""
    require("Parquet files need", "pyarrow")
    import pyarrow as pa
    import pyarrow.dataset as pads

    asked = [paths] if isinstance(paths, str | Path) else list(paths)
    found: list[str] = []
    for path in map(str, asked):
        matches = sorted(glob(path)) if any(sign in path for sign in "*?[") else [path]
        if not matches or not Path(matches[0]).exists():
            raise DataNotFoundError(f"There is no file {path}: pass the path or glob pattern of Parquet files.")
        found += matches
    single = found[0] if len(found) == 1 else found
    try:
        kind = "feather" if Path(found[0]).suffix in (".feather", ".arrow", ".ipc") else "parquet"
        return ArrowFiles(pads.dataset(single, format=kind, partitioning="hive"))
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{found[0]} cannot be read as Parquet ({reason}): pass Parquet or Feather files.") from None


def _read_parquet(fragment: Any, names: list[str], n_rows: int) -> Iterator[Any]:
    # A dataset's scanner decodes whole row groups ahead; this reader fetches and decodes only what a batch needs.
    import pyarrow as pa
    import pyarrow.parquet as pq

    with fragment.filesystem.open_input_file(fragment.path) as handle:
        try:
            file = pq.ParquetFile(handle, pre_buffer=False, buffer_size=BUFFER_BYTES)
            lacking = [name for name in names if name not in file.schema_arrow.names]
            if lacking:
                raise InputError(f"{fragment.path} has no column {lacking[0]!r}, which other files have: drop it.")
            groups = [group.id for group in fragment.row_groups]
            # One thread: the other cores work on earlier batches.
            yield from file.iter_batches(n_rows, row_groups=groups, columns=names, use_threads=False)
        except (pa.ArrowInvalid, OSError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"{fragment.path} cannot be read ({reason}): rewrite or remove it.") from None
