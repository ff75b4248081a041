"""Chest X-rays: the paper's embeddings of MIMIC-CXR, which need credentials, and an open stand-in from the NIH."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from setsquare.datasets import Dataset, assemble, locate, read_parquet
from setsquare.errors import InputError
from studies.datasets.embeddings import MappedRows, map_file, read_npz
from studies.datasets.registry import REGISTRY
from studies.requirements import require

if TYPE_CHECKING:
    import pandas as pd

#: Levels in the order of the paper's table, the reference first.
SEXES, RACES = ("Female", "Male"), ("Asian", "Black", "White")
#: Columns that say which patient an image is of, in MIMIC's words or in plain ones.
PATIENT = ("subject_id", "patient_id")


def load_nih_chest_xrays(*, verify: bool = True) -> Dataset:
    """Load an embedding of chest X-rays of the NIH, an open stand-in for MIMIC-CXR.

    Parameters
    ----------
    verify : bool, default True
        Whether files found on this machine must have the registered checksums.

    Returns
    -------
    Dataset
        7060 images of 1870 patients, outcome ``Effusion``, protected ``age`` and ``sex`` ("F" is the reference), and
        the array ``embedding`` of shape (7060, 256), float16: principal components of EfficientNet-lite0, which knows
        of no X-rays. ``cluster`` is ``patient_id``, and ``split`` keeps all images of a patient together.

    Examples
    --------
    With the files in place::

        data = load_nih_chest_xrays()
        data.table.groupby("split")[data.cluster].nunique()
    """
    info = REGISTRY["nih_chest_xrays"]
    table = read_parquet(locate(info.files[0], verify=verify))
    array = read_npz(locate(info.files[1], verify=verify), len(table))
    return assemble(info, table, features=(), arrays={"embedding": array}, cluster="patient_id")


def load_mimic_chest_xrays(
    *,
    uncertain: Literal["negative", "positive", "drop"] = "negative",
    not_mentioned: Literal["negative", "drop"] = "negative",
) -> Dataset:
    """Load the embeddings of MIMIC-CXR that the paper used, from the files of someone who has access to them.

    The folder ``mimic`` holds ``mimic_cfm_train_emb.npy`` and ``mimic_cfm_train_meta.csv``, row by row of the same
    images, and the same for ``test``. The tables need the columns ``age``, ``sex``, ``race`` and ``Pleural Effusion``;
    a column ``subject_id`` or ``patient_id`` tells which images are of one patient. Sex may be F/M or Female/Male; race
    is one of the paper's three groups or starts with its name, as MIMIC's own "BLACK/AFRICAN AMERICAN" does. Images of
    other or unknown groups, and those without age or sex, are left out and counted in ``dropped``.

    Parameters
    ----------
    uncertain : {"negative", "positive", "drop"}, default "negative"
        What to do with the label -1, a finding that the report is not sure of.
    not_mentioned : {"negative", "drop"}, default "negative"
        What to do with a blank label, a finding that the report does not mention. The defaults count as 1 only what a
        report asserts, and keep all images. The authors' code fits the column as it is, which works only where no
        label is -1 or blank: their files were coded in some such way before.

    Returns
    -------
    Dataset
        Outcome ``Pleural Effusion``, protected ``sex``, ``age`` and ``race`` (references "Female" and "Asian"), the
        column ``split``, and ``embedding``, a :class:`~studies.datasets.embeddings.MappedRows`: the rows stay on the
        disk until they are asked for. ``cluster`` is None where the tables have no column of patients.

    Examples
    --------
    With the files in place::

        data = load_mimic_chest_xrays(uncertain="drop")
        data.dropped
        data.arrays["embedding"][:1000]
    """
    _check_option("uncertain", uncertain, ("negative", "positive", "drop"))
    _check_option("not_mentioned", not_mentioned, ("negative", "drop"))
    require("Data sets need", "pandas")
    import pandas as pd

    info = REGISTRY["mimic_chest_xrays"]
    paths = [locate(file, verify=False) for file in info.files]  # nobody may publish their checksums
    tables = [_read_meta(path) for path in paths[::2]]
    parts = [map_file(path, len(table)) for path, table in zip(paths[1::2], tables, strict=True)]
    if parts[0].shape[1] != parts[1].shape[1]:
        raise InputError(
            f"The file {paths[1]} has {parts[0].shape[1]} columns and {paths[3]} {parts[1].shape[1]}: both must be of "
            "the same network."
        )
    common = [column for column in tables[0].columns if column in tables[1].columns]
    table = pd.concat([one[common] for one in tables], ignore_index=True)
    split = np.repeat(["train", "test"], [len(one) for one in tables])
    table["split"] = pd.Categorical(split, categories=["train", "test"])
    labels = {-1.0: {"negative": 0.0, "positive": 1.0}.get(uncertain, np.nan)}
    blank = table[info.outcome].isna()
    table[info.outcome] = table[info.outcome].replace(labels)
    if not_mentioned == "negative":
        table.loc[blank, info.outcome] = 0.0
    cluster = next((column for column in PATIENT if column in common), None)
    data = assemble(info, table, features=(), arrays={"embedding": MappedRows.stack(parts)}, cluster=cluster)
    for column in (info.outcome, *info.protected):
        data = data.take(np.asarray(data.table[column].notna()), reason=_REASONS[column])
    return data


_REASONS = {
    "Pleural Effusion": "uncertain or not mentioned",
    "sex": "sex unknown",
    "age": "age unknown",
    "race": f"race unknown or none of {', '.join(RACES)}",
}


def _check_option(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name} must be {' or '.join(map(repr, choices))}, not {value!r}.")


def _read_meta(path: Path) -> pd.DataFrame:
    """The table of one split; what cannot be told is missing in it, what makes no sense is an error."""
    import pandas as pd

    needed = ("age", "sex", "race", "Pleural Effusion")
    try:
        table = pd.read_csv(path, usecols=lambda name: name in (*needed, *PATIENT, "study_id", "dicom_id"))
    except (ValueError, OSError) as error:
        raise InputError(f"The file {path} is not a table of comma-separated values: fetch it again.") from error
    if missing := [column for column in needed if column not in table.columns]:
        raise InputError(f"The file {path} lacks the column(s) {', '.join(missing)}: add what the images are of.")
    for column in ("age", "Pleural Effusion"):
        try:
            table[column] = pd.to_numeric(table[column]).astype(np.float64)
        except (ValueError, TypeError) as error:
            raise InputError(f"The column {column} of the file {path} holds text: give numbers.") from error
    known = table["Pleural Effusion"].dropna()
    if not known.isin((-1.0, 0.0, 1.0)).all():
        raise InputError(
            f"The column Pleural Effusion of the file {path} holds {known[~known.isin((-1.0, 0.0, 1.0))].iloc[0]:g}: "
            "labels are 1, 0, -1 (uncertain) or blank (not mentioned)."
        )
    table["sex"] = _levels(table["sex"], r"^(F|M)(?:emale|ale)?$", {level[0]: level for level in SEXES}, path)
    table["race"] = _levels(table["race"], r"^(ASIAN|BLACK|WHITE)\b", {level.upper(): level for level in RACES}, path)
    return table


def _levels(text: pd.Series, pattern: str, levels: dict[str, str], path: Path) -> Any:
    """Levels in order; what the pattern does not know is missing, unless it knows nothing of the whole column."""
    import pandas as pd

    code = text.astype("str").str.strip().str.extract(pattern, flags=re.IGNORECASE, expand=False).str.upper()
    if len(text) and code.isna().all():
        raise InputError(
            f"The column {text.name} of the file {path} holds none of {', '.join(levels.values())}: its first value is "
            f"{str(text.iloc[0])!r}."
        )
    return pd.Categorical(code.map(levels), categories=list(levels.values()))
