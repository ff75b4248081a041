"""File format for a tree of plain values and arrays: a zip of ``.npy`` arrays and a JSON text, with a checksum.

Nothing is compressed, so that a small file cannot unpack to a large one, and nothing is pickled, so that reading never
runs code. The zip comment is the sha256 of all bytes before it: it detects damage, but does not authenticate the file.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import struct
import zipfile
from typing import Any

import numpy as np

from setsquare.errors import InputError

TREE = "model.json"
#: Length of a sha256 checksum in hexadecimal digits.
DIGEST = 64
#: First bytes of a zip file.
MAGIC = b"PK\x03\x04"
#: Flag of a zip member whose name is written in UTF-8; all others are refused.
UTF8 = 0x800
#: What reading a zip file, JSON or an array raises where they are not what they should be.
_FAULTS: tuple[type[Exception], ...] = (zipfile.BadZipFile, struct.error, EOFError, MemoryError, RuntimeError)
_FAULTS = (*_FAULTS, ArithmeticError, LookupError, TypeError, ValueError)
FOREIGN = "is not a saved model: pass a file that setsquare.save has written"


def pack(tree: dict[str, Any]) -> bytes:
    """Return the bytes of a file with a tree of dicts, lists, plain values and arrays.

    Examples
    --------
    >>> tree = {"coef": np.array([0.5, 1.0]), "names": ["a", "b"], "loss": float("inf")}
    >>> unpack(pack(tree))
    {'coef': array([0.5, 1. ]), 'names': ['a', 'b'], 'loss': inf}
    """
    arrays: dict[str, Any] = {}
    plain = _flatten(tree, "", arrays)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        text = json.dumps(plain, allow_nan=False, ensure_ascii=False, indent=1)
        archive.writestr(_entry(TREE), text.encode())
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, allow_pickle=False)
            archive.writestr(_entry(f"{name}.npy"), member.getvalue())
        archive.comment = b"0" * DIGEST
    content = stream.getvalue()[:-DIGEST]
    return content + hashlib.sha256(content).hexdigest().encode()


def unpack(content: bytes) -> dict[str, Any]:
    """Undo :func:`pack`; errors are raised as the end of a sentence that starts with the file name."""
    if not content.startswith(MAGIC):
        raise InputError(FOREIGN)
    if hashlib.sha256(content[:-DIGEST]).hexdigest().encode() != content[-DIGEST:]:
        raise InputError("is damaged or was changed (its checksum does not match): save the model again")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check_members(archive.infolist(), len(content))
            plain = json.loads(archive.read(TREE), parse_constant=_refuse)
            tree = _restore(plain, archive, {name.removesuffix(".npy") for name in archive.namelist()})
    except _FAULTS as error:
        raise InputError(FOREIGN) from error
    if not isinstance(tree, dict):
        raise InputError(FOREIGN)
    return tree


def _entry(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))  # a fixed date: the same model gives the same bytes


def _flatten(value: Any, place: str, arrays: dict[str, Any]) -> Any:
    """Replace arrays by their names, and numbers that JSON does not support by text."""
    if isinstance(value, dict):
        return {key: _flatten(item, f"{place}.{key}" if place else key, arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_flatten(item, f"{place}.{i}", arrays) for i, item in enumerate(value)]
    if isinstance(value, np.ndarray):
        arrays[place] = value
        return {"$array": place}
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and not math.isfinite(value):
        return {"$number": str(value)}
    if value is None or type(value) in (str, int, float, bool):
        return value
    raise InputError(f"{place} is of type {type(value).__name__}, which cannot be saved: use plain values")


def _check_members(members: list[zipfile.ZipInfo], size: int) -> None:
    """Refuse members that are compressed, encrypted, or together larger than the file."""
    if any(m.compress_type != zipfile.ZIP_STORED or m.flag_bits & ~UTF8 for m in members):
        raise ValueError("compressed or encrypted")
    if sum(m.file_size for m in members) > size or any(m.file_size != m.compress_size for m in members):
        raise ValueError("larger than the file")


def _restore(value: Any, archive: zipfile.ZipFile, unread: set[str]) -> Any:
    """Put arrays and numbers in their places; each array once, so that the file bounds the memory."""
    if isinstance(value, list):
        return [_restore(item, archive, unread) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"$array"}:
        unread.remove(value["$array"])
        return _read_array(archive.read(f"{value['$array']}.npy"))
    if set(value) == {"$number"}:
        return float(value["$number"])
    return {key: _restore(item, archive, unread) for key, item in value.items()}


def _read_array(content: bytes) -> Any:
    """Read an array of numbers whose declared size is that of the bytes that are there."""
    stream = io.BytesIO(content)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, is_fortran, dtype = read_header[np.lib.format.read_magic(stream)](stream)
    length = math.prod(shape)
    if dtype.kind not in "biuf" or dtype.itemsize > 8 or length * dtype.itemsize != len(content) - stream.tell():
        raise ValueError("not an array of numbers")
    # Empty along one axis, such an array can be endless along the others.
    if math.prod(max(side, 1) for side in shape) > max(length, 1 << 20):
        raise ValueError("no sensible shape")
    values = np.frombuffer(content, dtype, offset=stream.tell()).reshape(shape, order="F" if is_fortran else "C")
    return values.copy(order="K")


def _refuse(constant: str) -> None:
    raise ValueError(constant)
