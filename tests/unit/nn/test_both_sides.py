"""Both sides of conditions of networks: one unit, row or column of several that is not like the others."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from setsquare.errors import InputError, NotOrthogonalError
from setsquare.families import family
from setsquare.nn.blinded import Blinded
from setsquare.nn.functional import _check_converged, _read_weight
from setsquare.nn.head import _problem, _warn_of_training_rows
from setsquare.nn.layer_fit import _Fitter
from setsquare.nn.layer_fit_checks import Rounding, switch_off
from setsquare.nn.layer_outputs import _inputs
from setsquare.nn.moment_maps import MomentMap, TransportMap
from setsquare.nn.row_axes import read_mask
from setsquare.nn.uncorrected import Marked, mark_others
from setsquare.nn.unit_axes import LastWeights
from setsquare.nn.weight_watch import WeightWatch, _version


@pytest.mark.parametrize("wrong", [[1.0, -1.0], [1.0, np.nan], [np.inf, 1.0], [0.0, 0.0], [1.0, 1.0, 1.0]])
def test_one_weight_that_is_wrong_is_refused(wrong):
    with pytest.raises(InputError, match="one finite, non-negative number per row"):
        _read_weight(torch.tensor(wrong), torch.zeros(2, 1))
    assert _read_weight(torch.tensor([0.0, 4.0]), torch.zeros(2, 1)).tolist() == [0.0, 1.0]


def test_one_unit_of_two_that_is_not_solved_is_refused():
    some, left = torch.tensor([True, False]), torch.tensor([1e-12, 0.25])
    with pytest.raises(NotOrthogonalError, match=r"1 of 2 units could not be made orthogonal .* 2\.5e-01"):
        _check_converged(some, left, True)
    _check_converged(some, left, False)
    _check_converged(some | True, left, True)
    fitter: Any = SimpleNamespace(shown="relu", n_passes=7)
    with pytest.raises(NotOrthogonalError, match="1 of 2 units of layer 'relu' were not solved in 7 passes"):
        _Fitter._refuse_unsolved(fitter, SimpleNamespace(residual=left), some)
    _Fitter._refuse_unsolved(fitter, SimpleNamespace(residual=left), some | True)


def test_one_unit_that_varies_is_not_switched_off():
    units, B = torch.tensor([[1.0, -2.0], [3.0, 4.0]]), torch.ones(2, 2)
    slopes = torch.tensor([0.0, 0.1])
    leaky: Any = SimpleNamespace(h=lambda eta: torch.where(eta > 0.0, eta, slopes * eta))
    with pytest.raises(NotOrthogonalError, match=r"^1 units of layer 'relu'"):
        switch_off("relu", B, torch.tensor([0, 1]), units, leaky)
    flat: Any = SimpleNamespace(h=lambda eta: eta.clamp_min(0.0))
    switch_off("relu", B, torch.tensor([0, 1]), units, flat)
    assert B.tolist() == [[500.0, 500.0], [0.0, 0.0]]


def test_one_unit_that_is_rounded_coarsely():
    def is_coarse(*far: float) -> bool:
        rounding = Rounding()
        rounding.add(torch.tensor([[0.0] * len(far), [1.0] * len(far)]) + torch.tensor(far), torch.bfloat16)
        return rounding.is_coarse

    assert is_coarse(0.0, 1e6) and not is_coarse(0.0, 0.0) and not Rounding().is_coarse


def test_one_mark_that_is_neither_one_nor_zero():
    y = torch.zeros(2, 3, 4)
    assert read_mask(torch.tensor([[1, 0, 1], [0, 0, 1]]), y, "tokens").tolist() == [
        True,
        False,
        True,
        False,
        False,
        True,
    ]
    with pytest.raises(InputError, match="must be 1 or True"):
        read_mask(torch.tensor([[1, 0, 2], [0, 0, 1]]), y, "tokens")


@pytest.mark.parametrize(
    ("given", "is_fine"), [([0], True), ([-2], True), ([0, 2], False), ([0, "a"], False), ([], False)]
)
def test_every_position_that_is_given_is_a_column(given, is_fine):
    rng = np.random.default_rng(0)
    data = rng.normal(size=(20, 3)), rng.normal(size=20), rng.normal(size=(20, 2))
    if is_fine:
        assert _problem(*data, family("gaussian"), given, "linear", None).protected.shape == (20, 1)
        return
    with pytest.raises(InputError, match="positions of columns of the protected tensor, which has 2"):
        _problem(*data, family("gaussian"), given, "linear", None)


def test_scores_beyond_one_are_no_probabilities():
    y = np.array([0.0, 1.0, 1.0])
    p = np.array([[0.4], [0.6], [0.6]])
    with pytest.warns(UserWarning, match="the network"):
        _warn_of_training_rows(np.array([[0.0], [1.0], [1.0]]), y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _warn_of_training_rows(np.array([[0.0], [1.0], [1.1]]), y)
        _warn_of_training_rows(p, y)


@pytest.mark.parametrize(
    ("module", "shape", "is_refused"),
    [
        (nn.Linear(2, 3), (2, 3, 3), True),
        (nn.Linear(2, 3), (2, 3, 4, 3), False),
        (nn.Conv1d(2, 3, 1), (2, 3, 3), False),
        (nn.Linear(2, 3), (2, 5, 3), True),
        (nn.Linear(2, 3), (2, 3, 5), False),
    ],
    ids=str,
)
def test_units_on_the_last_axis_are_no_pixels(module, shape, is_refused):
    def check(rows: Any) -> None:
        LastWeights(module).check("relu", torch.zeros(shape), rows)

    check("tokens")
    if is_refused:
        with pytest.raises(InputError, match='pass rows="tokens"'):
            check("pixels")
    else:
        check("pixels")


def test_a_result_with_a_tensor_among_others_is_a_use():
    uses: list[str] = []
    _, marked = mark_others((torch.zeros(2), torch.ones(2)), 0, uses)
    assert isinstance(marked, Marked)
    Marked.__torch_function__(lambda one: (one, 1), (), (marked,))
    assert uses == ["1"]
    Marked.__torch_function__(lambda one: (1, 2), (), (marked,))
    assert uses == ["1"]


def test_what_a_batch_without_a_call_of_its_own_hands_over():
    assert _inputs({"protected": 1, "x": 2}) == {"x": 2} and _inputs((3, 4)) == 3 and _inputs(5) == 5


def test_a_map_is_made_by_its_kind():
    for work in (lambda: MomentMap._fit(None, 0, 0, 0), lambda: MomentMap.correct(None, torch.zeros(1), None)):
        with pytest.raises(NotImplementedError):
            work()


def test_cuts_of_columns_with_more_and_fewer_levels():
    rng = np.random.default_rng(0)
    X = np.column_stack([np.arange(120) % 2, np.arange(120) % 3]).astype(float)
    found = TransportMap._fit(None, rng.normal(size=(120, 2)), X, None)["thresholds"]
    assert found.shape == (2, 2) and np.isinf(found).tolist() == [[False, True], [False, False]]


def test_a_network_whose_hooks_did_not_run():
    network: Any = SimpleNamespace(_n_passes=2, layers=("relu",))
    Blinded._check_passed(network, 1)
    with pytest.raises(NotOrthogonalError, match="so relu were not corrected"):
        Blinded._check_passed(network, 2)


def test_a_weight_that_is_gone_has_moved():
    layer = nn.Linear(2, 1)
    watch = WeightWatch.of([layer])
    assert not watch.has_moved()
    del layer.bias
    assert watch.has_moved()


def test_versions_of_tensors_without_an_address():
    tensor = torch.zeros(2, device="meta")
    assert _version(tensor) == (0, 0)
    tensor.add_(1.0)
    assert _version(tensor) == (0, 1)
    with torch.inference_mode():
        assert _version(torch.zeros(2))[1] == -1
