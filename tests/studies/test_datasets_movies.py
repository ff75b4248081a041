"""Movies: the paper's rows, genders as levels, and words as the authors' code has them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from setsquare.errors import InputError
from studies import datasets
from studies.datasets.movies import load_movies, tokenize

WORDS = {"life": 1, "film": 2, "na": 3, "null": 4}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six made-up movies, one of which has no crew."""
    monkeypatch.setenv("SETSQUARE_DATA", str(tmp_path))
    (tmp_path / "movies").mkdir()
    integers = "Int32"
    table = pd.DataFrame(
        {
            "original_title": list("abcdef"),
            "overview_clean": ["film life", None, "", "null zebra", "life " * 150 + "film", "film"],
            "vote_count": pd.array([5, 0, 2, 3, 7, None], dtype=integers),
            "gender_main_actor": pd.array([0, 1, 2, 0, 1, 2], dtype=integers),
            "gender_first_crew": pd.array([2, 1, 0, 2, 1, None], dtype=integers),
            "gender_director_credited": pd.array([2, 1, 0, None, 1, 2], dtype=integers),
            "first_crew_job": ["Director"] * 5 + [None],
            "split": pd.Categorical(["train", "test", "train", "train", "test", "excluded"]),
        }
    )
    table.to_parquet(tmp_path / "movies/movies_full.parquet")
    pd.DataFrame({"word": list(WORDS), "id": list(WORDS.values())}).to_csv(
        tmp_path / "movies/authors_words.csv.gz", index=False
    )
    np.savez(tmp_path / "movies/movies_full_minilm_pca100.npz", emb=np.arange(12.0).reshape(6, 2).astype(np.float16))
    return tmp_path


def test_rows_and_genders(folder: Path) -> None:
    data = load_movies(verify=False)
    assert data.n_rows == 5 and list(data.dropped.values()) == [1]
    assert (data.outcome, data.protected, data.family) == ("votes", ("actor", "director"), "poisson")
    np.testing.assert_array_equal(data.y, [5, 0, 2, 3, 7])
    assert list(data.table["actor"]) == ["unknown", "female", "male", "unknown", "female"]
    assert list(data.table["director"]) == ["male", "female", "unknown", "unknown", "female"], "no director: unknown"
    assert list(data.table["actor"].cat.categories) == ["male", "female", "unknown"]
    assert list(data.table["split"].cat.categories) == ["train", "test"]
    np.testing.assert_array_equal(data.arrays["minilm"][:, 0], [0, 2, 4, 6, 8])
    assert load_movies("first", verify=False).protected == ("actor", "first_crew")
    assert load_movies(in_paper=False, verify=False).n_rows == 6


def test_tokens_are_padded_in_front_and_cut_behind(folder: Path) -> None:
    tokens = load_movies(verify=False).arrays["tokens"]
    assert tokens.shape == (5, 100)
    assert [list(row[row > 0]) for row in tokens[:4]] == [[2, 1], [3], [], [4]], "a missing text is the word na"
    np.testing.assert_array_equal(tokens[0, -2:], [2, 1])
    np.testing.assert_array_equal(tokens[4], [1] * 100)


def test_tokens_against_a_loop() -> None:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["life", "film", "zebra", "na"], size=rng.integers(0, 9))) for _ in range(50)]
    expected = np.zeros((50, 5), dtype=int)
    for row, text in zip(expected, texts, strict=True):
        ranks = [WORDS[word] for word in text.split() if word in WORDS][:5]
        row[5 - len(ranks) :] = ranks
    np.testing.assert_array_equal(tokenize(pd.Series(texts, index=range(7, 57)), pd.Series(WORDS), 5), expected)


def test_bad_files_and_options(folder: Path) -> None:
    with pytest.raises(InputError, match="wrong checksum"):
        load_movies()
    with pytest.raises(InputError, match='"director" or "first"'):
        load_movies("producer")  # type: ignore[arg-type]
    path = folder / "movies/movies_full.parquet"
    table = pd.read_parquet(path)
    table.assign(gender_main_actor=3).to_parquet(path)
    with pytest.raises(InputError, match="column actor has gender codes other than"):
        load_movies(verify=False)
    table.drop(columns="split").to_parquet(path)
    with pytest.raises(InputError, match="lacks the column"):
        load_movies(verify=False)
    table.to_parquet(path)
    (folder / "movies/authors_words.csv.gz").unlink()
    pd.DataFrame({"w": []}).to_csv(folder / "movies/authors_words.csv.gz", index=False)
    with pytest.raises(InputError, match="columns word and id"):
        load_movies(verify=False)


def test_the_real_movies() -> None:
    if not datasets.available("movies"):
        pytest.skip("the data set movies is not on this machine: set SETSQUARE_DATA")
    data = load_movies()
    assert data.n_rows == datasets.REGISTRY["movies"].n_rows == 42705
    assert data.table["split"].value_counts().to_dict() == {"train": 34167, "test": 8538}
    assert list(data.dropped.values()) == [2771]
    # A quarter of the actors are of no known gender, and of the crew a third: too many to leave out or to call -1.
    shares = {name: (data.table[name] == "unknown").mean() for name in ("actor", "first_crew", "director")}
    assert shares == pytest.approx({"actor": 0.221, "first_crew": 0.352, "director": 0.371}, abs=1e-3)
    assert (data.table["first_crew_job"] == "Director").mean() == pytest.approx(0.556, abs=1e-3)
    texts = pd.read_parquet(Path(os.environ["SETSQUARE_DATA"]) / "movies/movies_full.parquet")[
        "overview_clean"
    ].dropna()
    assert (texts == texts.str.lower()).all() and not texts.str.contains(r"[!-/:-@\[-`{-~]").any()
    assert texts.str.contains(r"\b(?:the|and|of)\b").sum() == 2  # of 44517: parts of addresses, joined by underscores
    tokens = data.arrays["tokens"]
    assert tokens.max() == 9_999 and (tokens == 0).mean() == pytest.approx(0.781, abs=1e-3)
    assert data.arrays["minilm"].shape == (42705, 100) and data.arrays["minilm"].dtype == np.float16
