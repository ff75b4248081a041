"""Coloured MNIST: red is the label in training and is in no counterfactual image."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from setsquare.datasets import Dataset
from setsquare.errors import InputError
from studies import datasets
from studies.datasets.colored_mnist import paint

FILE = "mnist/mnist_0_9.npz"


def put(folder: Path, **arrays: np.ndarray) -> Path:
    path = folder / FILE
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, **arrays)
    return path


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """A small file of made-up digits, 60 to train and 40 to test."""
    monkeypatch.setenv("SETSQUARE_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    arrays = {}
    for name, n in (("train", 60), ("test", 40)):
        arrays[f"x_{name}"] = rng.integers(1, 256, (n, 28, 28)).astype(np.uint8)
        arrays[f"y_{name}"] = rng.choice(np.array([0, 9], dtype=np.uint8), n)
    put(tmp_path, **arrays)
    return arrays


def check(data: Dataset) -> None:
    """What the paper says of the colours; nothing of it depends on the digits' shapes."""
    train = (data.table["split"] == "train").to_numpy()
    red, images = data.table["red"].to_numpy(), data.arrays["images"]
    np.testing.assert_array_equal(red[train], 1 - data.y[train])
    assert np.corrcoef(red[train], data.y[train])[0, 1] == pytest.approx(-1.0)
    assert not red[~train].any() and set(data.table["colour"][~train]) == {"green", "blue"}
    channel = images.reshape(len(images), 3, -1).any(axis=2)
    np.testing.assert_array_equal(channel.argmax(1), data.table["colour"].cat.codes)
    assert (channel.sum(1) == 1).all(), "one channel has the digit, two are black"


def test_colours_are_those_of_the_paper(digits: dict[str, np.ndarray]) -> None:
    data = datasets.load_colored_mnist(verify=False)
    check(data)
    assert (data.outcome, data.protected, data.features, data.family) == ("digit", ("red",), (), "binomial")
    assert data.arrays["images"].shape == (100, 3, 28, 28) and data.arrays["images"].dtype == np.uint8
    grey = np.concatenate([digits["x_train"], digits["x_test"]])
    np.testing.assert_array_equal(data.arrays["images"].max(1), grey)
    np.testing.assert_array_equal(data.y, np.concatenate([digits["y_train"], digits["y_test"]]) == 9)


def test_a_seed_is_a_colouring(digits: dict[str, np.ndarray]) -> None:
    def load(seed: int | np.random.Generator, **options: str) -> np.ndarray:
        return datasets.load_colored_mnist(seed=seed, verify=False, **options).table["colour"].to_numpy()

    assert (load(3) == load(np.random.default_rng(3))).all() and (load(3) != load(4)).any()
    mixed = load(3, test_colours="all")
    assert (mixed[:60] == load(3)[:60]).all(), "only the test rows are drawn anew"
    assert set(mixed[60:]) == {"red", "green", "blue"}


def test_painting_is_one_channel() -> None:
    grey = np.arange(1, 9).reshape(2, 2, 2)
    images = paint(grey, np.array([2, 1]))
    np.testing.assert_array_equal(images.sum(1), grey)
    np.testing.assert_array_equal(images[0, 2], grey[0])


def test_bad_files_and_options(digits: dict[str, np.ndarray], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="wrong checksum"):
        datasets.load_colored_mnist()
    with pytest.raises(InputError, match='"counterfactual" or "all"'):
        datasets.load_colored_mnist(test_colours="red")
    put(tmp_path, **(digits | {"y_test": np.full(40, 7, dtype=np.uint8)}))
    with pytest.raises(InputError, match="other than 0 and 9"):
        datasets.load_colored_mnist(verify=False)
    del digits["x_test"]
    put(tmp_path, **digits)
    with pytest.raises(InputError, match="lacks the array"):
        datasets.load_colored_mnist(verify=False)


def test_the_real_digits() -> None:
    folder = os.environ.get("SETSQUARE_DATA")
    if not folder or not (Path(folder) / FILE).is_file():
        pytest.skip(f"{FILE} is not in SETSQUARE_DATA")
    data = datasets.load_colored_mnist()
    check(data)
    assert data.n_rows == datasets.REGISTRY["colored_mnist"].n_rows == 13861
    counts = data.table.groupby("split", observed=True)["digit"].value_counts().sort_index()
    assert counts.tolist() == [5923, 5949, 980, 1009]
