"""Which solver costs least: ``sqp`` with the whole Hessian, or ``large`` with products."""

from __future__ import annotations

from setsquare.glm.problem import Problem
from setsquare.rows.blocks import is_sparse

#: Work in units of one multiplication and addition inside a dense Gram matrix, as measured on two cores (binomial,
#: p = 4, n from 5000 to 100 000; dense with singular values k^-0.8, q from 100 to 1000; 5 to 25 one-hot columns, q from
#: 50 to 1000). A fit by ``sqp`` took about ten Gram matrices and decompositions that come to 25 m^3, all told
#: 3.4e-10 s (n q^2 + 25 m^3); stored values of sparse rows s, 200 n s^2 in place of n q^2. A fit by ``large`` took 200
#: products, 2.7e-7 s n q, or fewer and slower ones with sparse rows. ``python -m benchmarks.bench_wide`` shows both.
DECOMPOSITIONS, SPARSE_GRAM, PRODUCTS, SPARSE_PRODUCTS = 25.0, 200.0, 800.0, 2000.0
#: ``sqp`` also says how many features are independent, and which are not: ``large`` has to be so many times cheaper.
ADVANTAGE = 2.0
#: Work of ``sqp`` up to which there is nothing to gain: a third of a second.
SMALL = 1e9
#: Bytes of the float64 copy of the features that ``sqp`` works on, above which it is not made.
MOST_MEMORY = 2**32


def choose(problem: Problem) -> str:
    """Name of the solver that the shape of the features calls for.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.arange(1000.0)
    >>> choose(Problem(np.eye(1000, 20), y)), choose(Problem(np.eye(1000, 900), y))
    ('sqp', 'large')
    """
    if problem.rows.in_memory() is None:
        return "sqp"
    (n, q), k = problem.features.shape, problem.n_predictors
    pairs = k * (k + 1) / 2
    if is_sparse(problem.features):
        s = problem.features.nnz / n
        gram, products, memory = SPARSE_GRAM * n * s * s, SPARSE_PRODUCTS * n * s, 12.0 * n * s
    else:
        gram, products, memory = float(n) * q * q, PRODUCTS * n * q, 8.0 * n * q
    sqp = pairs * gram + DECOMPOSITIONS * (k * (1.0 + q)) ** 3
    return "large" if sqp > max(ADVANTAGE * k * products, SMALL) or memory > MOST_MEMORY else "sqp"
