"""Score tests: whether columns explain the residuals of the model without them.

They need no estimate of the effect, so they exist where it is infinite (a group whose predictions are all 1) or leaves
no residuals. Each test is computed twice: with a robust covariance, which allows each group its own variance, and with
equal variances for all rows (the F test of a linear model). The first estimates the variance of a rare group from the
group itself, so seventeen equal values look certain; the second is wrong where variances differ. The larger p-value is
used: it is valid if either of them is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy import special

from setsquare._typing import Array, BoolArray, IntArray
from setsquare.auditing.bounds import cluster_sums, shared_noise
from setsquare.auditing.cells import CellRows
from setsquare.auditing.evaluations.records import ALL, Test, wald
from setsquare.auditing.protected import Predictions, Protected
from setsquare.glm.outcome_summary import OutcomeSummary
from setsquare.projection import Basis
from setsquare.projection.basis import CONSTANT
from setsquare.projection.moments import Moments
from setsquare.rows.blocks import ArrayRows, Block, Rows, all_rows
from setsquare.rows.parallel import Sums
from setsquare.rows.products import weighted_gram

#: A column of which the others leave less than this share unexplained has no effect of its own.
DETERMINED = 1e-6
#: Share of unexplained variance below which predictions are a linear function of the columns, up to rounding.
EXPLAINED = 1e-12


class Question(NamedTuple):
    """Whether the ``chosen`` columns have an effect, given the other ones that are not ``ignored``; masks (d,)."""

    name: str
    chosen: BoolArray
    ignored: BoolArray


@dataclass(frozen=True, slots=True)
class Answer:
    """Robust and equal-variance test of one hypothesis, with their statistics.

    Attributes
    ----------
    robust, pooled : Test
        With a variance per group, and with equal variances.
    score : ndarray of shape (r, k)
        Scores in an orthonormal basis of the columns.
    covariance : ndarray of shape (r, r) or (0, 0)
        Robust covariance of the scores of one response.
    variance : float
        Variance of the (last) response.
    """

    robust: Test
    pooled: Test
    score: Array
    covariance: Array
    variance: float

    @property
    def test(self) -> Test:
        """The test with the larger p-value."""
        return larger(self.robust, self.pooled)


@dataclass(frozen=True, slots=True)
class Sample:
    """Columns and responses with the moments that the tests need.

    Attributes
    ----------
    rows : Rows
        Blocks whose features are the columns (d) and whose outcome are the responses (k).
    moments : Moments
        Joint moments of columns and responses; weights sum to one.
    noise : ndarray of shape (d, d)
        ``sum_i w_i^2 x_i x_i'`` of the centred columns: the covariance of scores under equal variances.
    spread : ndarray of shape (d + k, d + k)
        Second moments of columns and responses, centred and unweighted: a group with large weights must not determine
        the variance of its own test.
    n_rows : int
        Number of rows, which may stand in cells.
    n : float
        Number of independent units: clusters, or the effective number of rows given the weights.
    equal_weights : bool
    cluster : integer ndarray of shape (n,) or None
    """

    rows: Rows
    moments: Moments
    noise: Array
    spread: Array
    n_rows: int
    n: float
    equal_weights: bool
    cluster: IntArray | None = None

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return len(self.noise)

    @classmethod
    def of(
        cls,
        rows: Rows,
        shift: Array,
        n_columns: int,
        *,
        n_rows: int,
        equal_weights: bool,
        cluster: IntArray | None = None,
    ) -> Sample:
        """Compute the moments; ``shift`` (d + k,) is close to the means, so that squares lose no digits."""
        d = n_columns
        first, second, *more = rows.reduce(partial(_sums, shift, d, equal_weights))
        moments = _without_rounding(Moments(1.0, shift + first, second - np.outer(first, first)))
        if cluster is not None:
            noise = _shared_noise(rows, moments, d, cluster)
            spread = moments.scatter if equal_weights else _unweighted(more[1], more[2], moments.scatter)
            return cls(rows, moments, noise, spread, n_rows, float(cluster.max()) + 1.0, equal_weights, cluster)
        if equal_weights:
            noise = moments.scatter[:d, :d] / n_rows
            return cls(rows, moments, noise, moments.scatter, n_rows, float(n_rows), True)
        step, heavy = first[:d], more[0]
        mixed = np.outer(heavy[1:, 0], step)
        noise = heavy[1:, 1:] - mixed - mixed.T + heavy[0, 0] * np.outer(step, step)
        spread = _unweighted(more[1], more[2], moments.scatter)
        return cls(rows, moments, noise, spread, n_rows, 1.0 / float(heavy[0, 0]), False)


def _without_rounding(moments: Moments) -> Moments:
    """Moments with variances that are pure rounding set to zero."""
    varies = np.sqrt(np.maximum(np.diag(moments.scatter), 0.0)) > CONSTANT * np.abs(moments.mean)
    return replace(moments, scatter=np.where(np.outer(varies, varies), moments.scatter, 0.0))


def _sums(shift: Array, d: int, equal_weights: bool, block: Block) -> Sums:
    both = np.empty((len(block.y), len(shift)), order="F")
    np.subtract(np.asarray(block.Z), shift[:d], out=both[:, :d])
    np.subtract(block.y, shift[d:], out=both[:, d:])
    sums = block.weight @ both, weighted_gram(both, block.weight)
    if equal_weights:
        return sums
    ones = np.column_stack([np.ones(len(both)), both[:, :d]])
    counted = block.weight > 0.0
    return (
        *sums,
        weighted_gram(ones, block.weight**2),
        np.append(both[counted].sum(axis=0), counted.sum()),
        both[counted].T @ both[counted],
    )


def _unweighted(first: Array, second: Array, scatter: Array) -> Array:
    """Centred second moments without weights; zero variances stay zero."""
    mean = first[:-1] / first[-1]
    return np.where(scatter == 0.0, 0.0, second / first[-1] - np.outer(mean, mean))


def _shared_noise(rows: Rows, moments: Moments, d: int, cluster: IntArray) -> Array:
    """Noise of rows that are correlated within clusters, as estimated from the residuals."""
    mean, S = moments.mean, moments.scatter
    block, T = all_rows(rows), orthonormal(S[:d, :d])
    X = np.asarray(block.Z) - mean[:d]
    residual = block.y - mean[d:] - X @ (T @ (T.T @ S[:d, d:]))
    return shared_noise(X, residual, block.weight, cluster)


def orthonormal(S: Array) -> Array:
    """Map to an orthonormal basis of columns with the scatter ``S``; constant columns are skipped."""
    size = np.sqrt(np.maximum(np.diag(S), 0.0))
    if not size.any():
        return S[:, :0]
    if len(S) == 1:
        return np.asarray(1.0 / size[:, None])
    inverse = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0.0)
    values, vectors = np.linalg.eigh(inverse[:, None] * S * inverse)
    kept = values > DETERMINED**2 * max(float(values[-1]), 0.0)
    return np.asarray(inverse[:, None] * vectors[:, kept] / np.sqrt(values[kept]))


class _Map(NamedTuple):
    """Orthonormal basis of the chosen columns given the others (d, r); the others' fit (d, k) and their number."""

    tested: Array
    fit: Array
    n_given: int


def _map(sample: Sample, question: Question) -> _Map:
    d, S = sample.n_columns, sample.moments.scatter
    given = ~question.chosen & ~question.ignored
    others = orthonormal(np.where(np.outer(given, given), S[:d, :d], 0.0))
    chosen = np.eye(d)[:, question.chosen]
    chosen = chosen - others @ (others.T @ (S[:d, :d] @ chosen))
    left = chosen.T @ S[:d, :d] @ chosen
    whole = np.diag(S)[:d][question.chosen]
    lost = np.diag(left) <= DETERMINED**2 * whole
    left[lost] = left[:, lost] = 0.0
    return _Map(chosen @ orthonormal(left), others @ (others.T @ S[:d, d:]), others.shape[1])


def answer(sample: Sample, questions: Sequence[Question], *, robust: bool = True) -> tuple[Answer, ...]:
    """Test several questions in one pass over the rows; without ``robust``, the equal-variance tests need no pass.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    >>> sample = sample_of(x + np.tile([0.0, 0.1], 4), Protected(x[:, None], ("x",), ("x",)))
    >>> found = answer(sample, questions_of(("x",), ("x",)))[0]
    >>> found.robust.statistic.__round__(3), found.robust.p_value.__round__(4)
    (7.921, 0.0049)
    """
    maps = [_map(sample, question) for question in questions]
    k = len(sample.moments.mean) - sample.n_columns
    squares = _squares(sample, maps) if robust else [np.zeros((0, 0))] * len(maps)
    answers = []
    for question, found, V in zip(questions, maps, squares, strict=True):
        score = found.tested.T @ sample.moments.scatter[: sample.n_columns, sample.n_columns :]
        own = pooled = _pooled(question.name, sample, found, score)
        if robust and len(score):
            own = wald(question.name, score.T.ravel(), V, math.inf)
            own = replace(own, method=f"score, chi-squared({own.df:g})")
        V = V if k == 1 else V[:0, :0]
        answers.append(Answer(own, pooled, score, V, float(sample.moments.scatter[-1, -1])))
    return tuple(answers)


def larger(test: Test, pooled: Test) -> Test:
    """Return the test with the larger p-value."""
    return pooled if pooled.p_value > test.p_value else test


def _squares(sample: Sample, maps: Sequence[_Map]) -> list[Array]:
    """Sums of the squared scores, each (k r, k r); over clusters where there are some."""
    mean = sample.moments.mean
    if sample.equal_weights and sample.cluster is None:  # a row of a cell stands for many
        return [square / sample.n_rows for square in sample.rows.reduce(partial(_square_sums, mean, maps))]
    if sample.cluster is None:
        return list(sample.rows.reduce(lambda block: tuple(_square(s) for s in _scores(mean, maps, block))))
    scores = _scores(mean, maps, all_rows(sample.rows))
    return [_square(cluster_sums(part, sample.cluster)) for part in scores]


def _square(scores: Array) -> Array:
    return np.asarray(scores @ scores.T)


def _square_sums(mean: Array, maps: Sequence[_Map], block: Block) -> Sums:
    """Sums of the squared scores without weights, each row by its weight."""
    root = np.sqrt(block.weight)
    return tuple(_square(scores) for scores in _scores(mean, maps, replace(block, weight=root)))


def _scores(mean: Array, maps: Sequence[_Map], block: Block) -> list[Array]:
    """Scores of the rows of a block, response by response, (k r, b) of each question."""
    X = np.asarray(block.Z)
    d = X.shape[1]
    X, gap = X - mean[:d], block.y - mean[d:]
    scores = []
    for tested, fit, _ in maps:
        residual = (gap - X @ fit) * block.weight[:, None]
        along = tested.T @ X.T
        scores.append(np.asarray(residual.T[:, None, :] * along).reshape(-1, len(X)))
    return scores


def _pooled(name: str, sample: Sample, found: _Map, score: Array) -> Test:
    """F test of the chosen columns, assuming equal variances."""
    T, (r, k) = found.tested, score.shape
    if r == 0:
        return Test(name, math.nan, 0.0, math.nan, "nothing to test")
    slopes = np.vstack([-(found.fit + T @ score), np.eye(k)])
    residual, total = slopes.T @ sample.spread @ slopes, np.diag(sample.spread)[-k:]
    lost = np.diag(residual) <= EXPLAINED * total  # rounding errors are not a variance
    residual[lost] = residual[:, lost] = 0.0
    spent = r + found.n_given + k
    df = max(sample.n - spent, 1.0)
    U = orthonormal(T.T @ sample.noise @ T)
    V = orthonormal(np.maximum(residual, 0.0) if k == 1 else residual)
    tested = r * V.shape[1]
    if not tested or (np.sum(score**2, axis=0) > EXPLAINED * total)[lost].any():  # a perfect fit
        return Test(name, math.inf, float(r), 0.0, f"F({r}, {df:g}), equal variances")
    statistic = float(np.sum((U.T @ score @ V) ** 2)) * df / (df + spent)
    p = float(special.fdtrc(tested, df, statistic / tested))
    return Test(name, statistic, float(tested), p, f"F({tested}, {df:g}), equal variances")


def sample_of(y: Predictions, protected: Protected) -> Sample:
    """Sample of the protected columns and predictions ``y``."""
    shift = np.concatenate([protected.found.moments.mean, summary_of(y, protected).mean])
    equal, cluster = protected.equal_weights, protected.cluster
    rows, p, n = summed_rows_of(y, protected), len(protected.names), protected.n_rows
    return Sample.of(rows, shift, p, n_rows=n, equal_weights=equal, cluster=cluster)


def rows_of(y: Predictions, protected: Protected) -> Rows:
    """Rows of the protected columns, with the predictions as the outcome."""
    if isinstance(y, OutcomeSummary):
        return protected.rows
    return ArrayRows(protected.values, y.reshape(len(y), -1), np.zeros((len(y), 0)), protected.shares)


def summed_rows_of(y: Predictions, protected: Protected) -> Rows:
    """The same, or two rows for each cell of equal columns, whose sums of squares are those of all rows."""
    cells = None if isinstance(y, OutcomeSummary) or y.ndim > 1 else protected.cells
    return rows_of(y, protected) if cells is None else cells.pairs(np.asarray(y))


def summary_of(y: Predictions, protected: Protected) -> OutcomeSummary:
    """Summary of the predictions, weighted as the protected columns are."""
    return y if isinstance(y, OutcomeSummary) else OutcomeSummary.of(y, protected.shares)


def select_tested(y: Predictions, protected: Protected) -> tuple[Predictions, Protected]:
    """Predictions and protected columns of the rows that can be tested; see :attr:`Protected.tested`."""
    if protected.tested is None:
        return y, protected
    assert not isinstance(y, OutcomeSummary)  # such rows of a stream are refused
    return y[protected.tested.taken], protected.tested


def questions_of(names: Sequence[str], sources: Sequence[str], *, single: bool = True) -> tuple[Question, ...]:
    """Questions on all columns, on each source and, if `single`, on each column given the others."""
    where, p = np.asarray(sources), len(names)
    none = np.zeros(p, dtype=bool)
    questions = [Question(ALL, ~none, none)]
    questions += [Question(source, where == source, none) for source in dict.fromkeys(sources)]
    if single:
        questions += [Question(name, np.arange(p) == j, none) for j, name in enumerate(names)]
    return tuple(questions)


def signed(answer: Answer) -> Test:
    """Test of a single column and prediction: signed root of the chi-squared(1) statistic."""
    test = answer.test
    if answer.score.shape != (1, 1):
        return test
    statistic = math.copysign(math.sqrt(test.statistic), float(answer.score[0, 0]))
    return replace(test, statistic=statistic, method="score, normal" if test is answer.robust else test.method)


def largest_score(y: Predictions, protected: Protected) -> float:
    """Largest share of one row in the variance of a joint score test, or an upper bound if below 0.2.

    It is the largest ``s'V^-1 s`` of a score ``s``, a row's weighted distance from the mean prediction times its place
    in the basis, with ``V`` the sum of their squares.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.tile([0.0, 1.0], 100)
    >>> y = np.arange(200.0)
    >>> y[7] = 1e6
    >>> largest_score(y, Protected(x[:, None], ("x",), ("x",))).__round__(3)
    0.995
    """
    rows, summary, basis = rows_of(y, protected), summary_of(y, protected), protected.basis
    mean, cells = summary.mean, summed_rows_of(y, protected)
    if isinstance(cells, CellRows):
        V = weighted_gram(basis.apply(cells.Z), cells.weight * np.square(cells.y[:, 0] - mean))[None] / protected.n_rows
        widest = np.maximum(mean - summary.low, summary.high - mean) / protected.n_rows
    else:
        V, widest = rows.reduce(partial(_score_squares, basis, mean), _merge_squares)
    values, vectors = np.linalg.eigh(V)
    if (values[:, 0] <= 1e-12 * values[:, -1]).any():
        return 1.0
    if (bound := float(((widest * protected.reach) ** 2 / values[:, 0]).max())) < 0.2:
        return bound
    roots = vectors / np.sqrt(values)[:, None, :]
    return rows.reduce(partial(_largest_share, basis, mean, roots), max)


def _score_squares(basis: Basis, mean: Array, block: Block) -> tuple[Array, Array]:
    """Sums of the squared scores, (k, r, r), and the largest weighted distance from the mean, (k,)."""
    Q, size = basis.apply(np.asarray(block.Z)), block.weight[:, None] * (block.y - mean)
    return np.stack([weighted_gram(Q, one * one) for one in size.T]), np.abs(size).max(axis=0)


def _merge_squares(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
    return a[0] + b[0], np.maximum(a[1], b[1])


def _largest_share(basis: Basis, mean: Array, roots: Array, block: Block) -> float:
    Q, size = basis.apply(np.asarray(block.Z)), block.weight[:, None] * (block.y - mean)
    shares = (np.square((Q @ root) * one[:, None]).sum(axis=1) for root, one in zip(roots, size.T, strict=True))
    return max(float(share.max()) for share in shares)
