"""UTKFace: embeddings of faces with sex, age and race."""

from __future__ import annotations

from typing import Literal

import numpy as np

from setsquare.datasets import Dataset, assemble, locate, read_parquet
from setsquare.errors import InputError
from studies.datasets.embeddings import read_npz
from studies.datasets.registry import REGISTRY

#: Position of each embedding's file in the registry.
EMBEDDINGS = {"recognition": 1, "imagenet": 2}


def load_utkface(
    embedding: Literal["recognition", "imagenet"] = "recognition", *, in_paper: bool = True, verify: bool = True
) -> Dataset:
    """Load an embedding of the faces of UTKFace with the labels of the faces.

    Parameters
    ----------
    embedding : {"recognition", "imagenet"}, default "recognition"
        128 features of a network that was trained to tell people apart, or 128 principal components of one that was
        trained on ImageNet (EfficientNet-lite0).
    in_paper : bool, default True
        Whether to keep only the faces of the paper (16514 to train and 4129 to test, age 10 or more); else all 23707,
        three of which have no label.
    verify : bool, default True
        Whether files found on this machine must have the registered checksums.

    Returns
    -------
    Dataset
        20643 rows, outcome ``sex`` (1 is "Male"), protected ``age`` and ``race`` ("Asian" is the reference, as in the
        paper), and the array ``embedding`` of shape (20643, 128), float16, the only feature. The column ``split`` says
        which rows are for training; it was drawn for this library, since the paper's own is not known.

    Examples
    --------
    With the files in place::

        data = load_utkface("imagenet")
        train = data.take(data.table["split"] == "train")
        train.arrays["embedding"], train.y, train.protected_table()
    """
    if embedding not in EMBEDDINGS:
        raise InputError(f"embedding must be {' or '.join(map(repr, EMBEDDINGS))}, not {embedding!r}.")
    info = REGISTRY["utkface"]
    table = read_parquet(locate(info.files[0], verify=verify))
    array = read_npz(locate(info.files[EMBEDDINGS[embedding]], verify=verify), len(table))
    data = assemble(info, table, features=(), arrays={"embedding": array})
    if not in_paper:
        return data
    kept = np.asarray(table["in_paper"], dtype=bool)
    return data.take(kept, reason="not in the paper (age below 10, or no label)")
