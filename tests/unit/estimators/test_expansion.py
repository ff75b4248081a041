"""expand="auto": what it widens, what it keeps, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import setsquare as sq
from setsquare.errors import InputError
from setsquare.estimators.expansion import MOST_PRODUCTS, widen
from setsquare.tables import learn
from setsquare.tables.coders import Numeric
from setsquare.tables.column import TableRows
from setsquare.tables.design import Design
from setsquare.tables.expansion import RANK_POINTS, Hinges, Products, _range, learn_hinges, rank_curve
from setsquare.tables.frame import open_table


def people(n: int = 1500, seed: int = 0) -> tuple[pd.DataFrame, Any, Any]:
    """Outcome that depends on a curve and on a product; the protected column shifts one feature."""
    rng = np.random.default_rng(seed)
    sex = rng.integers(0, 2, n)
    a, b = rng.normal(size=n) + 0.8 * sex, rng.normal(size=n)
    job = np.array(["clerk", "cook", "nurse"])[rng.integers(0, 3, n)]
    eta = 1.5 * np.abs(b) + 1.5 * a * (job == "cook") - 1.0
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-eta))).astype(int)
    return pd.DataFrame({"a": a, "b": b, "job": job}), y, sex


@pytest.fixture(scope="module")
def fitted() -> sq.OrthogonalGLMClassifier:
    table, y, sex = people()
    return sq.OrthogonalGLMClassifier(expand="auto").fit(table, y, protected=sex)


def test_the_curve_and_the_product_are_found_and_new_rows_are_predicted_better(fitted: Any) -> None:
    table, y, sex = people()
    new, outcome, _ = people(4000, seed=1)
    exact = sq.OrthogonalGLMClassifier().fit(table, y, protected=sex)
    losses = [-np.log(model.predict_proba(new)[range(4000), outcome]).mean() for model in (exact, fitted)]
    assert losses[1] < losses[0] - 0.05
    names = list(fitted.coefficient_names_)
    assert "a:job[cook]" in names and any(name.startswith("b>") for name in names)
    assert len([name for name in names if ":" in name]) <= MOST_PRODUCTS
    assert fitted.l2_ > 0.0


def test_the_training_rows_are_exactly_orthogonal(fitted: Any) -> None:
    table, _, sex = people()
    assert abs(np.corrcoef(sex, fitted.predict_proba(table)[:, 1])[0, 1]) < 1e-8
    assert fitted.solution_.certificate.is_orthogonal


def test_a_saved_model_predicts_the_same(fitted: Any, tmp_path: Any) -> None:
    table, _, _ = people(200, seed=2)
    sq.save(fitted, tmp_path / "model")
    again = sq.load(tmp_path / "model")
    assert (again.predict_proba(table) == fitted.predict_proba(table)).all()
    assert again.expand == "auto" and list(again.coefficient_names_) == list(fitted.coefficient_names_)


def test_numbers_beyond_the_training_rows_are_clipped(fitted: Any) -> None:
    table, _, _ = people()
    ends = table.iloc[:2].copy()
    ends["b"] = [table["b"].min(), table["b"].max()]
    beyond = ends.assign(b=[-1e9, 1e9])
    assert np.allclose(fitted.predict_proba(beyond), fitted.predict_proba(ends), atol=1e-14)


def test_an_unseen_level_follows_the_rule_for_unseen_levels(fitted: Any) -> None:
    table, y, sex = people()
    other = table.iloc[:3].assign(job="pilot")
    with pytest.raises(InputError, match="'job' has 3 rows with levels that the training data did not have"):
        fitted.predict(other)
    pooled = sq.OrthogonalGLMClassifier(expand="auto", unseen="pool").fit(table, y, protected=sex)
    with pytest.warns(UserWarning, match="job"):
        p = pooled.predict_proba(other)
    assert np.allclose(p, pooled.predict_proba(other.assign(job="clerk")))


def test_a_ridge_that_was_given_is_kept() -> None:
    table, y, sex = people(400)
    assert sq.OrthogonalGLMClassifier(expand="auto", l2=0.02).fit(table, y, protected=sex).l2_ == 0.02


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_regressions_with_weights_offset_and_missing_values(family: str) -> None:
    table, y, sex = people(600)
    table.loc[:20, "b"] = np.nan
    weight = np.random.default_rng(0).integers(0, 3, 600).astype(float)
    offset = np.full(600, 0.1)
    model = sq.OrthogonalGLMRegressor(family, expand="auto", missing="level")
    model.fit(table, y.astype(float), protected=sex, sample_weight=weight, offset=offset)
    mu = model.predict(table, offset=offset)
    centred = sex - np.average(sex, weights=weight)
    assert abs(np.average(centred * mu, weights=weight)) < 1e-8 and mu.std() > 0.05
    assert "b[missing]" in model.coefficient_names_


def test_more_than_two_classes() -> None:
    table, y, sex = people(900)
    classes = np.array(["x", "y", "z"])[y + (table["b"].to_numpy() > 1.0)]
    model = sq.OrthogonalGLMClassifier(expand="auto").fit(table, classes, protected=sex)
    p = model.predict_proba(table)
    assert np.abs((sex - sex.mean()) @ p / len(p)).max() < 1e-8


def test_an_array_of_numbers_and_new_rows() -> None:
    table, y, sex = people(600)
    Z = table[["a", "b"]].to_numpy()
    model = sq.OrthogonalGLMClassifier(expand="auto", orthogonal_on="new rows").fit(Z, y, protected=sex)
    assert "x0:x1" in model.coefficient_names_ and model.n_features_in_ == 2
    assert model.solution_.certificate.new_rows.correlation < 0.01


@pytest.mark.parametrize("given", [["b"], "outcome"])
def test_what_the_predictions_are_given_holds_with_wider_features(given: Any) -> None:
    table, y, sex = people(1200)
    model = sq.OrthogonalGLMClassifier(expand="auto", l2=0.001, given=given, basis="kernel").fit(
        table, y, protected=sex
    )
    p = model.predict_proba(table)[:, 1]
    if given == "outcome":
        gaps = [abs(p[(sex == 1) & (y == k)].mean() - p[(sex == 0) & (y == k)].mean()) for k in (0, 1)]
        assert max(gaps) < 1e-7
    else:
        design = np.column_stack([np.ones(1200), table["b"], sex])
        assert abs(np.linalg.lstsq(design, p, rcond=None)[0][2]) < 1e-8
    assert model.ball_ is None  # its bound is for predictions that are given nothing


def test_few_rows_get_few_hinges_and_no_product() -> None:
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(45, 3))
    design = widen(learn(Z), TableRows(open_table(Z), ("x0", "x1", "x2"), "error"))
    assert len(design.names) == 3
    model = sq.OrthogonalGLMRegressor(expand="auto").fit(
        Z, Z[:, 0] + rng.normal(size=45), protected=rng.normal(size=45)
    )
    assert list(model.coefficient_names_) == ["x0", "x1", "x2"]


def test_what_cannot_be_expanded_is_refused() -> None:
    from scipy import sparse

    table, y, sex = people(300)
    Z = table[["a", "b"]].to_numpy()
    with pytest.raises(InputError, match="expand='yes' is not one of 'auto'"):
        sq.OrthogonalGLMClassifier(expand="yes").fit(Z, y, protected=sex)  # type: ignore[arg-type]
    with pytest.raises(InputError, match='expand="auto" needs the features as a table or array in memory'):
        sq.OrthogonalGLMClassifier(expand="auto").fit(sparse.csr_matrix(Z), y, protected=sex)
    stream = sq.Stream(lambda: iter([table.assign(y=y, sex=sex)]))
    with pytest.raises(InputError, match="not as rows that are read in batches"):
        sq.OrthogonalGLMClassifier("sex", expand="auto").fit(stream, "y")


def test_coders_survive_a_round_trip_through_plain_data() -> None:
    curve = ((0.0, 1.0), (0.25, 0.75))
    products = Products(("a", "b"), (curve, ()), ((), ("x", None)), (0.5, 0.0), ((0, 0, 1, 1),))
    design = Design((Hinges("a", 0.0, 1.0, (0.5,), (1.0, 2.0)), products), "level", "pool")
    assert Design.from_dict(design.to_dict()) == design
    assert design.columns == ("a", "b")
    assert products.names == ("a:b[missing]",)


@pytest.mark.parametrize(
    ("values", "knots"),
    [
        ([1.0, 1.0, 2.0], ()),
        ([3.0, 3.0, 3.0], ()),
        ([0.0, 1.0, 2.0, 3.0], (1.0, 2.0)),
        ([*[0.0] * 90, *range(1, 11)], (3.0, 5.0, 6.0, 8.0)),
    ],
)
def test_knots_go_where_the_values_are(values: list[float], knots: tuple[float, ...]) -> None:
    found = learn_hinges(Numeric("x"), np.array(values), 5)
    assert found.knots == knots
    assert min(found.scales) > 0.0


@pytest.mark.parametrize(("top", "knots"), [(5, (1.0,)), (6, (1.0, 2.0))])
def test_more_than_half_a_percent_of_the_rows_is_on_each_side_of_a_knot(top: int, knots: tuple[float, ...]) -> None:
    values = np.repeat([0.0, 1.0, 2.0, 3.0], [500, 480, 20 - top, top])
    for x, found in ((values, knots), (3.0 - values, tuple(sorted(3.0 - knot for knot in knots)))):
        assert learn_hinges(Numeric("x"), x, 5).knots == found


def test_a_column_that_hardly_varies_has_its_whole_range():
    """Of many values the inner 99 % of the rows count, unless they are all equal."""
    spread = np.sort(np.random.default_rng(0).normal(size=1000))
    assert spread[0] < _range(spread, spread)[0] < _range(spread, spread)[1] < spread[-1]
    rare = np.concatenate([np.zeros(29_970), np.arange(1.0, 31.0)])
    assert _range(rare, np.unique(rare)) == (0.0, 30.0)


def test_many_columns_get_a_knot_each() -> None:
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(2400, 60))
    names = tuple(f"x{j}" for j in range(60))
    design = widen(learn(Z), TableRows(open_table(Z), names, "error"))
    assert len(design.names) == 2 * 60


def test_curves_of_ranks_have_few_points() -> None:
    values = np.random.default_rng(0).permutation(np.arange(100.0))
    places, ranks = rank_curve(values)
    assert len(places) == RANK_POINTS and (places[0], places[-1]) == (0.0, 99.0)
    assert ranks == tuple((np.array(places) + 0.5) / 100.0)
    assert rank_curve(np.arange(RANK_POINTS) ** 3.0)[0] == tuple(np.arange(RANK_POINTS) ** 3.0)


def test_rows_of_weight_zero_do_not_move_knots() -> None:
    table, y, sex = people()
    weight = np.random.default_rng(1).integers(0, 3, len(y)).astype(float)
    table.loc[weight == 0.0, ["a", "b"]] *= 7.0
    used = weight > 0.0
    with_zeros = sq.OrthogonalGLMClassifier(expand="auto").fit(table, y, protected=sex, sample_weight=weight)
    without = sq.OrthogonalGLMClassifier(expand="auto").fit(
        table[used], y[used], protected=sex[used], sample_weight=weight[used]
    )
    assert with_zeros.coefficient_names_.tolist() == without.coefficient_names_.tolist()
    p, expected = (model.predict_proba(table[used]) for model in (with_zeros, without))
    np.testing.assert_allclose(p, expected, rtol=0.0, atol=1e-9)


def test_columns_may_have_the_names_of_hinges_and_products(fitted: Any) -> None:
    table, y, sex = people()
    new = next(name for name in fitted.coefficient_names_ if name.startswith("a:job"))
    rng = np.random.default_rng(2)
    both = table.assign(**{new: rng.normal(size=len(y)), "a:b": rng.normal(size=len(y))})
    model = sq.OrthogonalGLMClassifier(expand="auto").fit(both, y, protected=sex)
    other = both.rename(columns={new: "u", "a:b": "v"})
    same = sq.OrthogonalGLMClassifier(expand="auto").fit(other, y, protected=sex)
    np.testing.assert_allclose(model.predict_proba(both), same.predict_proba(other), rtol=0.0, atol=1e-9)


def test_a_solver_without_leave_one_out_losses_is_refused_in_the_words_of_the_option() -> None:
    table, y, sex = people(200)
    with pytest.raises(InputError, match=r'^expand="auto" needs leave-one-out losses'):
        sq.OrthogonalGLMClassifier(expand="auto", solver="mdmm").fit(table, y, protected=sex)


@pytest.mark.parametrize("far", [1e6, 1e300])
def test_values_outside_the_training_range_count_as_its_ends(fitted: Any, far: float) -> None:
    table, *_ = people()
    beyond = table[:2].assign(a=[far, -far], b=[-far, far])
    inside = table[:2].assign(a=[table.a.max(), table.a.min()], b=[table.b.min(), table.b.max()])
    np.testing.assert_array_equal(fitted.predict_proba(beyond), fitted.predict_proba(inside))
