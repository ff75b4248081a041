"""Nonlinear evaluation models with permutation tests: ReLU, random forest, measures of dependence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from setsquare._typing import Array, IntArray
from setsquare.auditing.evaluations.forest import forest_importances, forest_r2
from setsquare.auditing.evaluations.independence import independence
from setsquare.auditing.evaluations.permutation import PermutationTest, columns_by_source, permutation_test, sample_rows
from setsquare.auditing.evaluations.records import ALL, Effect, Evaluation, Test
from setsquare.auditing.evaluations.relu import ReluFit, fit_relu
from setsquare.auditing.protected import Protected
from setsquare.errors import InputError
from setsquare.notes import Note

#: Code of the note on the loss explained by a ReLU unit.
RELU_GAIN = "relu-gain"
#: Default largest number of rows in a permutation test.
RELU_ROWS, FOREST_ROWS, DEPENDENCE_ROWS = 5000, 20_000, 10_000
#: An Altmann test fits one forest per permutation; more than these add little.
FOREST_PERMUTATIONS, FOREST_IMPORTANCE_ROWS = 99, 2000


def evaluate_relu(
    y: Array,
    protected: Protected,
    *,
    rng: np.random.Generator,
    n_permutations: int = 199,
    max_rows: int | None = None,
    intercept: bool = True,
) -> Evaluation:
    """Fit a ReLU unit of the protected columns to the predictions.

    The unit is fitted to all rows. The permutation tests compare the gain of the unit where it is exact, otherwise the
    largest gain along a protected column or along the direction of the linear fit.
    """
    if y.ndim > 1:
        raise InputError("The relu evaluation model takes one column of predictions: audit each class or unit alone.")
    X, names = protected.values, protected.names
    fit = fit_relu(y, X, intercept=intercept, weight=protected.weight, rng=rng)
    rows = sample_rows(len(y), max_rows or RELU_ROWS, rng)
    part, target = X[rows], y[rows]
    orders = [rng.permutation(len(rows)) for _ in range(n_permutations)]
    tests: dict[tuple[int, ...], Test] = {}

    def test(name: str, columns: Sequence[int]) -> Test:
        """Test some of the columns; each distinct set of columns is tested once."""
        key = tuple(columns)
        if key not in tests:
            tests[key] = _relu_test(target, part[:, columns], orders, intercept, rng)
        return replace(tests[key], name=name)

    joint = test(ALL, range(len(names)))
    groups = columns_by_source(protected.sources, len(names))
    by_source = tuple(test(source, columns) for source, columns in groups.items())
    effects = []
    for j, (name, source) in enumerate(zip(names, protected.sources, strict=True)):
        alone = test(name, [j])
        effects.append(_effect(name, source, float(fit.coef[j]), alone.statistic, alone.p_value))
    notes = [_relu_note(fit), *_sample_note("relu", len(rows), len(y))]
    if not intercept:
        text = (
            "Without an intercept hardly any predictions pass: an effect of 0 is optimal only if they are 0 wherever a "
            "protected column is not. Use the model with an intercept to judge a correction."
        )
        notes.append(Note("no-intercept", text, severity="caution"))
    name = "relu" if intercept else "relu without intercept"
    title = "ReLU evaluation model" + ("" if intercept else " without intercept")
    return Evaluation(name, title, tuple(effects), joint, by_source, notes=tuple(notes))


def _gain(y: Array, X: Array, *, intercept: bool, rng: np.random.Generator) -> float:
    """Gain of a ReLU unit, exact or along the candidates that can be searched exactly."""
    varies = np.ptp(X, axis=0) > 0.0
    if not varies.any():
        return math.nan
    X = X[:, varies]
    if X.shape[1] > 1:
        centred = X - X.mean(axis=0) if intercept else X
        slope = np.linalg.lstsq(centred, y - y.mean() if intercept else y, rcond=None)[0]
        X = np.column_stack([X, X @ slope])
    return max(fit_relu(y, x[:, None], intercept=intercept, rng=rng).gain for x in X.T if np.ptp(x) > 0.0)


def _relu_test(y: Array, X: Array, orders: Sequence[IntArray], intercept: bool, rng: np.random.Generator) -> Test:
    observed = _gain(y, X, intercept=intercept, rng=rng)
    if math.isnan(observed):
        return Test("", math.nan, math.nan, math.nan, "nothing to test")
    null = np.array([_gain(y[order], X, intercept=intercept, rng=rng) for order in orders])
    return _as_test("", permutation_test(observed, null, n_rows=len(y)), "the loss explained by a ReLU unit")


def _relu_note(fit: ReluFit) -> Note:
    if fit.exact:
        how = f"the global optimum ({fit.method})"
    else:
        how = f"the best of {fit.n_starts} descents; no such unit can explain more than {fit.gain_bound:.2%}"
    text = "The ReLU unit of all protected columns explains {gain:.2%} of the loss, {how}."
    return Note(RELU_GAIN, text, gain=fit.gain, how=how)


def evaluate_forest(
    y: Array, protected: Protected, *, rng: np.random.Generator, n_permutations: int = 199, max_rows: int | None = None
) -> Evaluation:
    """Random forests: importances with Altmann's p-values, and the out-of-bag R² of all columns."""
    X, names, sources = protected.values, protected.names, protected.sources
    r2 = forest_r2(y, X, rng=rng, n_permutations=n_permutations, max_rows=max_rows or FOREST_ROWS)
    found = forest_importances(
        y,
        X,
        names,
        sources,
        rng=rng,
        n_permutations=min(n_permutations, FOREST_PERMUTATIONS),
        max_rows=min(max_rows or FOREST_IMPORTANCE_ROWS, FOREST_IMPORTANCE_ROWS),
    )
    effects = tuple(
        _effect(name, source, test.statistic, test.statistic, test.p_value)
        for (name, test), source in zip(found.by_column.items(), sources, strict=True)
    )
    by_source = tuple(_as_test(name, test, "importance (Altmann)") for name, test in found.by_source.items())
    joint = _as_test(ALL, r2, "out-of-bag R²")
    notes = (
        Note(
            "meaning-of-estimates",
            "Estimates are importances: the share of the variance that is lost when the column is shuffled.",
        ),
        *_sample_note("forest", r2.n_rows, len(y)),
    )
    return Evaluation("forest", "Random forest evaluation model", effects, joint, by_source, notes=notes)


def evaluate_independence(
    y: Array, protected: Protected, *, rng: np.random.Generator, n_permutations: int = 199, max_rows: int | None = None
) -> Evaluation:
    """Tests of distance correlation, HSIC and mutual information."""
    found = independence(
        y,
        protected.values,
        protected.sources,
        rng=rng,
        n_permutations=n_permutations,
        max_rows=max_rows or DEPENDENCE_ROWS,
    )
    sources = tuple(dict.fromkeys(protected.sources))
    further = tuple(_as_test(d.measure.replace("_", " "), d.joint, "all protected columns") for d in found)
    by_source = tuple(_smallest(source, [d.by_source[source].p_value for d in found]) for source in sources)
    first = found[0]
    effects = tuple(
        _effect(s, s, first.by_source[s].statistic, first.by_source[s].statistic, first.by_source[s].p_value)
        for s in sources
    )
    notes = (
        Note(
            "meaning-of-estimates",
            "Estimates are values of the {measure}, one per source column.",
            measure=first.measure.replace("_", " "),
        ),
        *_sample_note("independence", first.joint.n_rows, len(y)),
    )
    joint = _smallest(ALL, [d.joint.p_value for d in found])
    return Evaluation("independence", "Measures of dependence", effects, joint, by_source, further, notes)


def _smallest(name: str, p_values: Sequence[float]) -> Test:
    """Bonferroni test: the smallest of several p-values, times their number."""
    p = min(1.0, len(p_values) * min(p_values))
    return Test(name, math.nan, math.nan, p, f"smallest of {len(p_values)} p-values, times {len(p_values)}")


def _as_test(name: str, test: PermutationTest, of: str) -> Test:
    return Test(name, test.statistic, math.nan, test.p_value, f"permutation ({test.n_permutations}) of {of}")


def _effect(term: str, source: str, estimate: float, statistic: float, p: float) -> Effect:
    return Effect(term, source, estimate, math.nan, statistic, p, math.nan, math.nan)


def _sample_note(name: str, used: int, n: int) -> tuple[Note, ...]:
    text = "The permutation tests of {name} used {used} of the {n} rows, drawn at random."
    return (Note("rows-sampled", text, name=name, used=used, n=n),) if used < n else ()


#: Evaluation models whose p-values come from permutations, by name.
PERMUTATION_BASED: dict[str, Callable[..., Evaluation]] = {
    "relu": evaluate_relu,
    "relu without intercept": partial(evaluate_relu, intercept=False),
    "forest": evaluate_forest,
    "independence": evaluate_independence,
}
