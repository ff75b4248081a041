"""Save and load fitted models."""

from __future__ import annotations

import os
import platform
import stat
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from setsquare.errors import InputError, excerpt
from setsquare.storage.container import FOREIGN, MAGIC, pack, unpack
from setsquare.storage.files import read_bounded, write_files
from setsquare.storage.states import read_state, write_state

FORMAT = "setsquare model"
#: Version of the file format. Later versions are refused; earlier ones must always be readable.
SCHEMA = 1
#: Largest model file, and the largest that is read from a pipe, in bytes.
MAX_BYTES, MAX_PIPED = 1 << 32, 1 << 28


def save(model: Any, path: str | Path) -> None:
    """Write a fitted model to one file, without pickle.

    Parameters
    ----------
    model : estimator
        A fitted OrthogonalGLMClassifier, OrthogonalGLMRegressor or LinearOrthogonalizer, or a PredictionOrthogonalizer
        around a ``PlainGLMClassifier`` or ``PlainGLMRegressor`` of ``setsquare.estimators``; with any other estimator
        inside it cannot be saved.
    path : str or Path
        Target file, replaced if it exists; it is written completely or not at all.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import setsquare as sq
    >>> rng = np.random.default_rng(0)
    >>> age = rng.normal(size=200)
    >>> Z = age[:, None] + rng.normal(size=(200, 3))
    >>> model = sq.OrthogonalGLMRegressor().fit(Z, Z[:, 0] + rng.normal(size=200), protected=age)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sq.save(model, f"{folder}/model.setsquare")
    ...     again = sq.load(f"{folder}/model.setsquare")
    >>> bool((again.predict(Z) == model.predict(Z)).all())
    True
    """
    write_files({Path(path): dump(model)})


def dump(model: Any) -> bytes:
    """Return the bytes of the file of a fitted model."""
    libraries = {name: version(name) for name in ("setsquare", "numpy", "scipy", "scikit-learn")}
    versions = {"python": platform.python_version(), **libraries}
    return pack({"format": FORMAT, "schema": SCHEMA, "versions": versions, "model": write_state(model)})


def load(path: str | Path) -> Any:
    """Read a model that :func:`save` has written; no code in the file is executed.

    The fitted model makes the same predictions. The trace of the solver is not saved.
    """
    try:
        with Path(path).open("rb") as stream:
            start = stream.read(len(MAGIC))
            tree = unpack(start + _rest(stream) if start == MAGIC else start)
        return _model(tree)
    except OSError as error:
        raise InputError(f"The model file {path} cannot be read ({error.strerror or error}).") from error
    except InputError as error:
        raise InputError(f"The file {path} {error}.") from error


def _rest(stream: BinaryIO) -> bytes:
    """What is left of a file, if it is not absurdly large; a device or a pipe may be endless."""
    known = os.fstat(stream.fileno())
    if stat.S_ISREG(known.st_mode):
        return stream.read() if known.st_size <= MAX_BYTES else _refuse_size(MAX_BYTES)
    return read_bounded(stream, MAX_PIPED, lambda: _refuse_size(MAX_PIPED))


def _refuse_size(limit: int) -> NoReturn:
    raise InputError(f"is larger than {limit >> 20} MB, which no saved model is")


def _model(tree: dict[str, Any]) -> Any:
    if tree.get("format") != FORMAT:
        raise InputError(FOREIGN)
    if tree.get("schema") != SCHEMA:
        raise InputError(
            f"has format version {excerpt(tree.get('schema'), 60)}, but this setsquare reads version {SCHEMA}: update "
            "setsquare"
        )
    try:
        return read_state(tree["model"])
    except InputError as error:
        raise InputError(excerpt(str(error).rstrip("."), 300)) from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InputError(f"lacks a part of the model ({excerpt(error, 100)}): save the model again") from error
