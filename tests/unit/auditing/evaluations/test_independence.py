from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform
from sklearn.metrics import mutual_info_score

from setsquare.auditing.evaluations.independence import MEASURES, Dependence, _restore_references, independence
from setsquare.auditing.evaluations.permutation import permutation_test, row_blocks
from setsquare.errors import InputError, MissingValuesError

T = np.arange(12.0)


def run(y: np.ndarray, X: np.ndarray, sources: list[str] | None = None, **options: object) -> dict[str, Dependence]:
    options = {"rng": np.random.default_rng(0), "n_permutations": 19} | options
    found = independence(y, X, sources or ["x"] * X.shape[1], **options)
    return {one.measure: one for one in found}


def statistics(*arguments: object, **options: object) -> np.ndarray:
    return np.array([found.joint.statistic for found in run(*arguments, **options).values()])


def draw(n: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Probabilities that know the race but neither age nor pay; dummies of four races."""
    rng = np.random.default_rng(seed)
    race = rng.choice(4, size=n, p=[0.6, 0.2, 0.1, 0.1])
    X = np.column_stack([race[:, None] == np.arange(1, 4), rng.normal(40, 12, n), rng.exponential(size=n)])
    y = 1 / (1 + np.exp(-rng.normal(size=n) - 1.5 * (race == 2)))
    return y, X.astype(float), ["race"] * 3 + ["age", "pay"]


# ---------------------------------------------------------------------------------------------- known values
@pytest.mark.parametrize(
    ("x", "y", "known"),
    [  # dcor 0.7, u_distance_correlation_sqr(x, y)
        (np.column_stack([np.sin(T), np.cos(2 * T)]), np.sqrt(np.abs(T - 4)), -0.11913733711737474),
        (T[:, None], (T - 5) ** 2, 0.0868497085696126),
        (np.cos(T)[:, None], np.sin(3 * T), -0.11384152598088854),
    ],
)
def test_distance_correlation_equals_dcor(x: np.ndarray, y: np.ndarray, known: float) -> None:
    found = run(y, x, measures=["distance_correlation"])["distance_correlation"].joint
    assert found.statistic == pytest.approx(known, rel=1e-12)
    assert (found.n_rows, found.n_blocks) == (12, 1)


def test_hsic_equals_the_unbiased_estimate() -> None:
    """Song et al. (2012), equation 5, with kernel matrices without their diagonals."""

    def kernel(u: np.ndarray) -> np.ndarray:
        d = pdist(u.reshape(40, -1))
        K = np.exp(-0.5 * squareform(d / np.median(d)) ** 2)
        np.fill_diagonal(K, 0.0)
        return K

    def hsic(K: np.ndarray, L: np.ndarray) -> float:
        n = len(K)
        mixed = K.sum() * L.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * K.sum(0) @ L.sum(0)
        return float((np.trace(K @ L) + mixed) / (n * (n - 3)))

    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 1))
    y = x[:, 0] ** 2 + rng.normal(size=40)
    K, L = kernel(x), kernel(y)
    known = hsic(K, L) / np.sqrt(hsic(K, K) * hsic(L, L))
    assert statistics(y, x, measures=["hsic"]) == pytest.approx(known, rel=1e-10)


def test_mutual_information_equals_the_plug_in_estimate_of_categories() -> None:
    rng = np.random.default_rng(2)
    x = rng.integers(0, 4, 400)
    y = np.where(rng.random(400) < 0.3, x % 3, rng.integers(0, 3, 400))
    X = (x[:, None] == np.arange(1, 4)).astype(float)
    found = run(y, X, measures=["mutual_information"], n_permutations=2000)["mutual_information"].joint
    assert found.statistic == pytest.approx(mutual_info_score(x, y) - 2 * 3 / 800, rel=1e-10)
    shuffled = [mutual_info_score(x, rng.permutation(y)) - 2 * 3 / 800 for _ in range(500)]
    assert found.null_mean == pytest.approx(np.mean(shuffled), abs=5 * found.null_sd / np.sqrt(500))
    assert found.null_sd == pytest.approx(np.std(shuffled), rel=0.2)
    assert abs(found.null_mean) < 0.1 * 2 * 3 / 800  # the bias of the plug-in estimate is gone


# ---------------------------------------------------------------------------------------------- invariances
def test_scale_and_place_of_columns_do_not_matter() -> None:
    y, X, sources = draw()
    other = X * [1, 1, 1, 1e-3, 1e4] + [0, 0, 0, 7, -5]
    np.testing.assert_allclose(statistics(2 + 3 * y, other, sources), statistics(y, X, sources), rtol=1e-7)


def test_the_reference_level_does_not_matter() -> None:
    y, X, sources = draw()
    other = np.column_stack([1 - X[:, :3].sum(axis=1), X[:, [0, 2, 3, 4]]])  # the second race is the reference now
    np.testing.assert_allclose(statistics(y, other, sources), statistics(y, X, sources), rtol=1e-10)


def test_a_source_counts_as_one_variable() -> None:
    y, X, sources = draw()
    doubled, twice = np.column_stack([X, X[:, 3]]), [*sources, "age"]
    np.testing.assert_allclose(statistics(y, doubled, twice), statistics(y, X, sources), rtol=1e-10)
    assert not np.allclose(statistics(y, doubled, [*sources, "age again"]), statistics(y, X, sources), rtol=1e-3)


def test_mutual_information_of_increasing_transformations() -> None:
    y, X, sources = draw()
    other = np.column_stack([X[:, :3], np.exp(X[:, 3] / 10), np.log(X[:, 4])])
    before, after = statistics(y, X, sources), statistics(np.log(y / (1 - y)), other, sources)
    assert before[2] == pytest.approx(after[2], rel=1e-12)
    assert abs(before[0] - after[0]) > 1e-4


def test_both_columns_of_two_classes_say_what_one_says() -> None:
    y, X, sources = draw()
    one, two = (statistics(part, X, sources, measures=MEASURES[:2]) for part in (y, np.column_stack([1 - y, y])))
    np.testing.assert_allclose(one, two, rtol=1e-9)


# ------------------------------------------------------------------------------------------------ detection
def test_a_leak_of_one_category_is_found_and_named() -> None:
    for found in run(*draw(1000), n_permutations=99).values():
        assert found.joint.p_value <= 0.05
        assert found.by_source["race"].p_value == 0.01
        assert min(found.by_source[name].p_value for name in ("age", "pay")) > 0.01


def test_three_classes() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(300, 1))
    p = rng.dirichlet([2, 2, 2], size=300)
    for found in run(p, x).values():
        assert found.joint.p_value > 0.05
    first = x[:, 0] > 0  # half of the rows get their first two classes in order; the third stays as it is
    p[first] = np.column_stack([np.sort(p[first, :2]), p[first, 2]])
    for found in run(p, x).values():
        assert found.joint.p_value == 0.05


# ---------------------------------------------------------------------------------------------------- rows
def test_only_the_rows_that_were_asked_for() -> None:
    y, X, sources = draw(5000)
    found = run(y, X, sources, max_rows=1001, block_rows=200)
    assert [(one.joint.n_rows, one.joint.n_blocks) for one in found.values()] == [(996, 6), (996, 6), (5000, 1)]


def test_blocks_share_no_row() -> None:
    blocks = row_blocks(1000, np.random.default_rng(0), max_rows=999, block_rows=100)
    assert blocks.shape == (10, 99)
    assert len(np.unique(blocks)) == 990


def test_the_same_generator_gives_the_same_result() -> None:
    y, X, sources = draw()
    assert run(y, X, sources) == run(y, X, sources)
    assert run(y, X, sources) != run(y, X, sources, rng=np.random.default_rng(1))


# ------------------------------------------------------------------------------------------------- p-values
def test_ties_up_to_rounding_count_against_the_observed() -> None:
    null = np.array([0.3 * (1 - 1e-14), 0.1, 0.2])
    assert permutation_test(0.3, null, n_rows=9).p_value == 0.5
    assert permutation_test(0.3 * (1 + 1e-6), null, n_rows=9).p_value == 0.25
    assert permutation_test(0.3, np.full(3, np.nan), n_rows=9).p_value == 1.0


def test_constants_depend_on_nothing() -> None:
    y, X, sources = draw()
    for found in (run(np.full(300, 0.3), X, sources), run(y, np.full((300, 1), 0.7))):
        for one in found.values():
            assert (one.joint.statistic, one.joint.p_value) == (pytest.approx(0.0, abs=1e-15), 1.0)


# ------------------------------------------------------------------------------------------------ bad input
@pytest.mark.parametrize(
    ("y", "X", "options", "error", "message"),
    [
        (np.ones(9), np.ones((8, 1)), {}, InputError, "same rows"),
        (np.ones(9), np.ones(9), {"sources": ["x"]}, InputError, r"\(n, p\)"),
        (np.ones(5), np.ones((5, 1)), {}, InputError, "at least 8"),
        (np.full(9, np.nan), np.ones((9, 1)), {}, MissingValuesError, "missing"),
        (np.ones(9), np.ones((9, 1)), {"n_permutations": 0}, InputError, "99 or more"),
        (np.ones(9), np.ones((9, 1)), {"block_rows": 3}, InputError, "block_rows"),
        (np.ones(9), np.ones((9, 1)), {"measures": ["mic"]}, InputError, "'mic'.*choose from"),
        (np.ones(9), np.ones((9, 2)), {"sources": ["x"]}, InputError, "2 protected columns and 1 sources"),
    ],
)
def test_bad_input(y: np.ndarray, X: np.ndarray, options: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        run(y, X, **options)


def test_dcor_itself() -> None:
    dcor = pytest.importorskip("dcor")
    y, X, _ = draw(200)
    (found,) = statistics(y, X[:, 3:4], measures=["distance_correlation"])
    assert found == pytest.approx(dcor.u_distance_correlation_sqr(X[:, 3], y), rel=1e-10)


def test_every_measure_by_default() -> None:
    assert tuple(run(*draw(50))) == MEASURES


def test_the_reference_level_is_restored_for_dummies_only():
    dummies = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    overlapping, numbers = np.array([[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]]), np.array([[2.0], [0.0], [1.0]])
    groups = {"level": [0, 1], "marks": [2, 3], "number": [4]}
    restored = _restore_references(np.column_stack([dummies, overlapping, numbers]), groups)
    np.testing.assert_array_equal(restored[0], np.column_stack([dummies, [0.0, 0.0, 1.0]]))
    np.testing.assert_array_equal(restored[1], overlapping)  # several may be 1 in a row: no level is left out
    np.testing.assert_array_equal(restored[2], numbers)
