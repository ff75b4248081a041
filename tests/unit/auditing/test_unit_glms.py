"""Tensors audited by the model of a family: every unit as if it were audited alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import setsquare as sq
from setsquare.auditing.evaluations.glm import fit_glm
from setsquare.auditing.protected import Protected
from setsquare.errors import InputError
from setsquare.families import Family, family

N, SHAPE = 400, (2, 3)
FAMILIES = [family("binomial"), family("poisson"), family("gamma"), family("negative_binomial", parameter=2.0)]


def draw(glm: Family, seed: int = 0) -> tuple[np.ndarray, pd.DataFrame]:
    """Units (n, 2, 3) whose effects differ, with a group and a number."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"group": rng.choice(["a", "b", "c"], N), "age": rng.normal(40.0, 10.0, N)})
    x = np.column_stack([table["group"] == "b", table["group"] == "c", (table["age"] - 40.0) / 10.0])
    eta = np.tensordot(x, rng.normal(size=(3, *SHAPE)) * 0.4, axes=1) + 0.5 * rng.normal(size=(N, *SHAPE))
    return glm.activation(eta), table


@pytest.mark.parametrize("weighted", [False, True], ids=["equal weights", "weighted"])
@pytest.mark.parametrize("glm", FAMILIES, ids=str)
def test_each_unit_is_audited_as_if_alone(glm: Family, weighted: bool) -> None:
    Y, table = draw(glm)
    weight = np.random.default_rng(1).uniform(0.2, 2.0, N) if weighted else None
    found = sq.audit(Y, table, glm, sample_weight=weight, n_permutations=19)
    assert found.effect_map is not None and found.effect_map.estimate.shape == (3, *SHAPE)
    assert found.glm == glm
    for place in np.ndindex(*SHAPE):
        alone = sq.audit(Y[:, *place], table, glm, sample_weight=weight).evaluation()
        own = [(effect.estimate, effect.std_error) for effect in alone.effects]
        both = np.stack([found.effect_map.estimate[:, *place], found.effect_map.std_error[:, *place]], axis=1)
        np.testing.assert_allclose(both, own, rtol=1e-7, atol=1e-10)
    assert np.nanmax(np.abs(found.effect_map.estimate)) > 0.2


@pytest.mark.parametrize("glm", FAMILIES, ids=str)
def test_the_p_value_of_a_unit_is_that_of_its_own_wald_test(glm: Family) -> None:
    Y, table = draw(glm, seed=3)
    Y[:, 0, 0] = glm.activation(np.random.default_rng(4).normal(size=N))  # nothing to find
    x = np.column_stack([table["group"] == "b", table["group"] == "c", table["age"]]).astype(float)
    columns = Protected(x, ("b", "c", "age"), ("group", "group", "age"))
    found = sq.audit(Y, table, glm, n_permutations=19).effect_map
    assert found is not None
    p = [fit_glm(Y[:, *place], columns, glm).all.p_value for place in np.ndindex(*SHAPE)]
    np.testing.assert_allclose(found.p_value.ravel(), p, rtol=1e-5, atol=1e-300)
    assert found.p_value[0, 0] > 0.01 and np.median(found.p_value) < 1e-6


@pytest.mark.parametrize("glm", FAMILIES, ids=str)
def test_the_joint_test_and_the_correlations_are_those_of_the_linear_model(glm: Family) -> None:
    """With an intercept all families have the same hypothesis: no covariance with the protected columns."""
    Y, table = draw(glm)
    own, linear = (sq.audit(Y, table, one, n_permutations=19) for one in (glm, None))
    assert own.p_value == linear.p_value and own.verdict == linear.verdict
    np.testing.assert_array_equal(own.effect_map.correlation, linear.effect_map.correlation)
    assert not np.allclose(own.effect_map.estimate, linear.effect_map.estimate, atol=0.01)


def test_after_a_correction_every_effect_of_every_family_is_zero() -> None:
    Y, table = draw(family("binomial"))
    X = pd.get_dummies(table, drop_first=True).to_numpy(float)
    corrected = sq.projection.GeneralizedProjector.fit(np.log(Y / (1.0 - Y)), X, "sigmoid")
    Yc = corrected.predict(np.log(Y / (1.0 - Y)), X)
    before, after = (sq.audit(units, table, "binomial", n_permutations=19).effect_map for units in (Y, Yc))
    assert np.abs(before.estimate).max() > 0.2 and np.abs(after.estimate).max() < 1e-8
    assert ((Yc > 0.0) & (Yc < 1.0)).all()


def test_several_labels_of_a_row_are_units_of_the_binomial_family() -> None:
    """Rows of a matrix that sum to one are classes; labels that may hold together are not."""
    Y, table = draw(family("binomial"))
    labels = Y.reshape(N, -1)
    found = sq.audit(labels, table, "binomial", n_permutations=19)
    assert found.effect_map is not None and found.effect_map.estimate.shape == (3, 6)
    assert "logistic regression of 6 units" in found.evaluation().title
    with pytest.raises(InputError, match="do not sum to 1"):
        sq.audit(labels, table, "multinomial")


def test_a_unit_on_the_boundary_of_a_group_is_named_and_still_tested() -> None:
    Y, table = draw(family("binomial"))
    Y[:, 1, 1] = np.where(table["group"] == "b", 0.0, Y[:, 1, 1])
    found = sq.audit(Y, table, "binomial", n_permutations=19)
    assert found.effect_map is not None and np.isnan(found.effect_map.estimate[:, 1, 1]).all()
    assert np.isfinite(np.delete(found.effect_map.estimate.reshape(3, -1), 4, axis=1)).all()
    assert found.effect_map.p_value[1, 1] < 1e-8
    assert any("1 of 6 units have no finite effect" in note for note in found.evaluation().notes)


def test_constant_units_and_a_column_that_others_determine() -> None:
    Y, table = draw(family("poisson"))
    Y[:, 0, 1] = 2.0
    table["again"] = 2.0 * table["age"]
    found = sq.audit(Y, table, "poisson", n_permutations=19).effect_map
    assert (
        found is not None and np.isnan(found.p_value[0, 1]) and np.isfinite(np.delete(found.p_value.ravel(), 1)).all()
    )
    assert np.isnan(found.estimate[3]).all() or np.isnan(found.estimate[2]).all()


def test_units_that_cannot_be_means_of_a_family_are_refused() -> None:
    Y, table = draw(family("binomial"))
    with pytest.raises(InputError, match="cannot be means of the binomial family"):
        sq.audit(Y + 1.0, table, "binomial")
    with pytest.raises(InputError, match="cannot be means of the multinomial family"):
        sq.audit(Y, table, "multinomial")
    with pytest.raises(InputError, match="leave 'linear' out"):
        sq.audit(Y, table, "binomial", evaluation=["glm", "linear"])
