"""Coloured MNIST: a 0 or a 9, where colour gives the digit away in training and tells nothing afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from setsquare.datasets import Dataset, assemble, locate
from setsquare.errors import InputError
from studies.arrays import IntArray
from studies.datasets.registry import REGISTRY
from studies.requirements import require

COLOURS = ("red", "green", "blue")


def load_colored_mnist(
    seed: int | np.random.Generator = 0,
    *,
    test_colours: Literal["counterfactual", "all"] = "counterfactual",
    verify: bool = True,
) -> Dataset:
    """Load the digits 0 and 9 of MNIST, coloured as in the paper's online orthogonalisation.

    The grey values fill one of the three channels, the other two are black. In the training rows every 0 is red and
    every 9 green or blue at random: red *is* the label there. In the test rows both digits are green or blue.

    Parameters
    ----------
    seed : int or numpy.random.Generator, default 0
        Draws the colours.
    test_colours : {"counterfactual", "all"}, default "counterfactual"
        "all" draws the colours of the test rows from red, green and blue, for both digits: on such rows the influence
        of red can be measured.
    verify : bool, default True
        Whether a file found on this machine must have the registered checksum.

    Returns
    -------
    Dataset
        11872 training rows and 1989 test rows: the column ``split`` says which. Outcome ``digit`` (1 is "9"), protected
        ``red``, and the array ``images`` of shape (13861, 3, 28, 28), uint8, which is the only feature.

    Examples
    --------
    With the file in place::

        data = load_colored_mnist(seed=1)
        train = data.table["split"] == "train"
        data.arrays["images"][train], data.y[train]
    """
    if test_colours not in ("counterfactual", "all"):
        raise InputError(f'test_colours must be "counterfactual" or "all", not {test_colours!r}.')
    require("Data sets need", "pandas")
    import pandas as pd

    info = REGISTRY["colored_mnist"]
    grey, digit, is_train = _read(locate(info.files[0], verify=verify))
    rng = np.random.default_rng(seed)
    # All draws are made whatever is asked for, so that one seed gives one colour to each training row.
    fair, any_colour = rng.integers(1, 3, len(digit)), rng.integers(0, 3, len(digit))
    colour = np.where(is_train & (digit == 0), 0, fair)
    if test_colours == "all":
        colour = np.where(is_train, colour, any_colour)
    table = pd.DataFrame(
        {
            "digit": pd.Categorical(digit.astype(str), categories=["0", "9"]),
            "colour": pd.Categorical(np.array(COLOURS)[colour], categories=list(COLOURS)),
            "red": (colour == 0).astype(np.int64),
            "split": pd.Categorical(np.where(is_train, "train", "test"), categories=["train", "test"]),
        }
    )
    return assemble(info, table, features=(), arrays={"images": paint(grey, colour)})


def paint(grey: NDArray[Any], colour: IntArray) -> NDArray[Any]:
    """Put grey images (n, height, width) into the channel of their colour (n,): (n, 3, height, width).

    Examples
    --------
    >>> import numpy as np
    >>> paint(np.array([[[7]], [[9]]]), np.array([0, 2]))[:, :, 0, 0]
    array([[7, 0, 0],
           [0, 0, 9]])
    """
    images = np.zeros((len(grey), 3, *grey.shape[1:]), dtype=grey.dtype)
    images[np.arange(len(grey)), colour] = grey
    return images


def _read(path: Path) -> tuple[NDArray[np.uint8], IntArray, NDArray[np.bool_]]:
    """Grey images, digits, and whether a row is one of MNIST's training rows."""
    with np.load(path) as arrays:
        if missing := {"x_train", "y_train", "x_test", "y_test"} - set(arrays):
            raise InputError(f"The file {path} lacks the array(s) {', '.join(sorted(missing))}: see its origin.")
        grey = np.concatenate([arrays["x_train"], arrays["x_test"]])
        digit = np.concatenate([arrays["y_train"], arrays["y_test"]]).astype(np.int64)
        is_train = np.arange(len(digit)) < len(arrays["y_train"])
    if not np.isin(digit, (0, 9)).all():
        raise InputError(f"The file {path} holds digits other than 0 and 9: leave them out.")
    return grey, digit, is_train
