"""Both sides of conditions of model files: formulas, activations and numbers of features."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from setsquare.errors import InputError
from setsquare.storage.checks import _check_cells, _check_names, check_design
from setsquare.storage.states import _check_formula, _write_activation
from setsquare.tables.coders import Numeric, SavedTerms
from setsquare.tables.design import Design


def saved(text: Any = "log(a)", sources: tuple[str, ...] = ("a",)) -> SavedTerms:
    return SavedTerms(text, ("a",), ("log(a)",), sources, ())


def test_a_formula_is_text_with_a_source_for_each_column():
    check_design(Design((saved(),), "error", "error"))
    for wrong in (saved(text=3), saved(sources=("a", "b"))):
        with pytest.raises(InputError, match="formula"):
            check_design(Design((wrong,), "error", "error"))


def test_a_formula_beside_a_column_is_not_saved_where_it_would_be_evaluated():
    def model(using: str, *coders: Any) -> Any:
        return SimpleNamespace(using=using, reader_=SimpleNamespace(protected=SimpleNamespace(coders=coders)))

    number = Numeric("a", None, False)
    with pytest.raises(InputError, match="with this formula cannot be saved"):
        _check_formula(model("predictions", number, saved()))
    _check_formula(model("features", number, saved()))
    _check_formula(model("predictions", number))
    _check_formula(SimpleNamespace(using="predictions"))


def test_an_activation_without_a_name_of_ours_is_not_saved():
    with pytest.raises(InputError, match="The activation mine cannot be saved: use one of identity"):
        _write_activation(SimpleNamespace(name="mine"))
    assert _write_activation(SimpleNamespace(name="exp")) == "exp"


def test_a_model_may_have_no_features_but_not_fewer():
    _check_names(SimpleNamespace(n_features_in_=0))
    for wrong in (-1, True, 2.0):
        with pytest.raises(InputError, match="number of features"):
            _check_names(SimpleNamespace(n_features_in_=wrong))


def test_cells_of_one_column_and_one_cell():
    def cells(levels: Any = (("a", "b"),), columns: Any = ("x",), cells: Any = ((0,), (1,))) -> Any:
        return SimpleNamespace(levels=levels, columns=columns, cells=cells)

    _check_cells(cells())
    _check_cells(cells(cells=((1,),)))
    for wrong in (cells((), (), ((),)), cells(cells=()), cells(cells=((1,), (0,))), cells(cells=((2,),))):
        with pytest.raises(InputError, match="cells"):
            _check_cells(wrong)
