"""Movies: how many votes a movie got, from its description, with the gender of its main actor and its director."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from setsquare.datasets import Dataset, assemble, locate, read_parquet
from setsquare.errors import InputError
from studies.datasets.embeddings import read_npz
from studies.datasets.registry import REGISTRY

if TYPE_CHECKING:
    import pandas as pd

#: Genders by their code at TMDB; the reference comes first in the table.
GENDERS = ("unknown", "female", "male")
#: Names of our columns, and those of the file.
COLUMNS = {
    "title": "original_title",
    "overview": "overview_clean",
    "votes": "vote_count",
    "actor": "gender_main_actor",
    "first_crew": "gender_first_crew",
    "director": "gender_director_credited",
    "first_crew_job": "first_crew_job",
    "split": "split",
}
#: What the authors' code made of a movie without a description.
NO_OVERVIEW = "na"
#: Words of a description that are used: the first ones.
LENGTH = 100
#: Keras uses the words of a smaller rank than this.
N_WORDS = 10_000


def load_movies(
    crew: Literal["director", "first"] = "director", *, in_paper: bool = True, verify: bool = True
) -> Dataset:
    """Load descriptions of movies and the number of votes that each got.

    The paper speaks of the director's gender, but its code takes the first person of the crew list, who is a director
    in 56 % of the rows. The table has both; `crew` says which one is protected.

    Parameters
    ----------
    crew : {"director", "first"}, default "director"
        Whose gender is protected besides the main actor's: the credited director's, or the first crew entry's.
    in_paper : bool, default True
        Whether to keep only the movies of the paper (34167 to train and 8538 to test). The others, of 45476, lack the
        number of votes or the gender entry of the main actor or the first of the crew.
    verify : bool, default True
        Whether files found on this machine must have the registered checksums.

    Returns
    -------
    Dataset
        42705 rows, outcome ``votes``, protected ``actor`` and ``director`` (or ``first_crew``). These are "male",
        "female" or "unknown", which is TMDB's code 0, a third of the rows; where no director is credited (100 rows)
        "unknown", too. The column ``split`` is the paper's; ``overview`` has no capitals, punctuation and stop words.
        The array ``tokens`` (n, 100) has the words of the description by their rank in the authors' list,
        the first 100 of those of a rank below 10 000, with 0 in front where there are fewer; a missing description is
        the word "na". All this is as in the authors' code. The array ``minilm`` (n, 100), float16, is a sentence
        embedding (all-MiniLM-L6-v2, principal components of all movies).

    Notes
    -----
    40 of the movies are in the table twice, as published.

    Examples
    --------
    With the files in place::

        data = load_movies()
        train = data.take(data.table["split"] == "train")
        train.arrays["minilm"], train.y, train.protected_table()
    """
    if crew not in ("director", "first"):
        raise InputError(f'crew must be "director" or "first", not {crew!r}.')
    info = REGISTRY["movies"]
    paths = [locate(file, verify=verify) for file in info.files]
    raw = read_parquet(paths[0])
    if missing := set(COLUMNS.values()) - set(raw.columns):
        raise InputError(f"The file {paths[0]} lacks the column(s) {', '.join(sorted(missing))}: see its origin.")
    table = raw[list(COLUMNS.values())].set_axis(list(COLUMNS), axis="columns")
    for column in ("actor", "first_crew", "director"):
        table[column] = _genders(table[column])
    words = _read_words(paths[1])
    arrays = {
        "tokens": tokenize(table["overview"], words[words < N_WORDS]),
        "minilm": read_npz(paths[2], len(table)),
    }
    protected = ("actor", "director" if crew == "director" else "first_crew")
    data = assemble(info, table, protected=protected, features=("overview",), arrays=arrays)
    if not in_paper:
        return data
    data = data.take(data.table["split"] != "excluded", reason="not in the paper (no votes, main actor or crew entry)")
    data.table["votes"] = data.table["votes"].astype(np.int64)
    data.table["split"] = data.table["split"].cat.set_categories(["train", "test"])
    return data


def tokenize(text: pd.Series[Any], words: pd.Series[Any], length: int = LENGTH) -> NDArray[np.int32]:
    """Turn texts into the ranks of their words, the first `length` of them, with 0 in front: (n, length).

    Words that are not in the list are left out, as Keras does.

    Parameters
    ----------
    text : pandas.Series of n texts
        Words with spaces between them; a missing text is the word "na".
    words : pandas.Series
        Rank of each word, by word; from 1.
    length : int

    Examples
    --------
    >>> import pandas as pd
    >>> ranks = pd.Series({"life": 1, "film": 2, "na": 3})
    >>> tokenize(pd.Series(["film of life", None, "life life film film film"]), ranks, length=4)
    array([[0, 0, 2, 1],
           [0, 0, 0, 3],
           [1, 1, 2, 2]], dtype=int32)
    """
    found = text.astype(object).fillna(NO_OVERVIEW).reset_index(drop=True).str.split().explode().map(words).dropna()
    text_of = found.groupby(level=0)
    order, n_words = text_of.cumcount().to_numpy(), text_of.transform("size").to_numpy()
    place, kept = length - np.minimum(n_words, length) + order, order < length
    tokens = np.zeros((len(text), length), dtype=np.int32)
    tokens[found.index.to_numpy()[kept], place[kept]] = found.to_numpy(dtype=np.int32)[kept]
    return tokens


def _genders(codes: pd.Series[Any]) -> pd.Categorical:
    import pandas as pd

    code = codes.fillna(0).to_numpy(dtype=np.int64)
    if not np.isin(code, range(len(GENDERS))).all():
        raise InputError(f"The column {codes.name} has gender codes other than 0, 1 and 2: see the file's origin.")
    return pd.Categorical(np.array(GENDERS)[code], categories=GENDERS[::-1])


def _read_words(path: Path) -> pd.Series[Any]:
    import pandas as pd

    words = pd.read_csv(path, keep_default_na=False)  # "null" and "na" are words
    if list(words.columns) != ["word", "id"]:
        raise InputError(f"The file {path} must have the columns word and id, not {', '.join(words.columns)}.")
    return words.set_index("word")["id"]
