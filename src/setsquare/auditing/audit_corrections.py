"""Audit of a correction for confound leakage: whether a learner can read the protected columns in corrected features.

Subtracting ``(x - mean)'b`` from a feature with few values encodes ``x`` in the differences from these values, however
small ``b`` is. A tree can read it there, and with it any information that ``x`` has about the target (Hamdan et al.,
GigaScience 2023). The control: shuffle each feature separately, so that it is unrelated to target and protected
columns, and correct it as before. Any held-out score above chance then comes from the correction.

Chance is measured, not assumed: the same is done with a permuted target. A t-test over shuffles alone would mistake the
chance association of target and protected columns in *these* rows, which all shuffles share, for leakage. The statistic
is ``(mean over S shuffles - mean of S permuted) / (sd of permuted * sqrt(1 + 1/S))``, its distribution Student's t with
S - 1 degrees of freedom. The test is conservative, because a mean over shuffles varies less than the single scores that
it is compared with. Classifiers are compared by their score, regressors by the correlation of prediction and target: R²
falls with the noise of the target, and a permuted target is noisier than one that the protected columns explain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtr
from sklearn.base import clone, is_classifier
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.metrics import get_scorer
from sklearn.model_selection import KFold, StratifiedKFold

from setsquare import tables
from setsquare._typing import Array, Table
from setsquare.errors import InputError
from setsquare.projection import Projector
from setsquare.tables.arrow import accept_unread
from setsquare.tables.frame import dense
from setsquare.tables.outcome import read_family, read_outcome
from setsquare.tables.validation import check_alignment, check_finite, check_same_rows


@dataclass(frozen=True, slots=True)
class ConfoundLeakage:
    """Held-out scores with and without the correction, for original and shuffled features.

    Attributes
    ----------
    scoring : str
    raw, corrected : float
        Mean score over the folds.
    shuffled, shuffled_corrected : float
        The same with each feature shuffled separately, mean over the shuffles.
    chance : float
        The same as ``shuffled_corrected`` with a permuted target.
    p_value : float
        One-sided, for "shuffled features score above chance once they are corrected".
    confidence : float
        Leakage is flagged where the p-value is below ``1 - confidence``.
    n_shuffles, n_folds : int
    """

    scoring: str
    raw: float
    corrected: float
    shuffled: float
    shuffled_corrected: float
    chance: float
    p_value: float
    confidence: float
    n_shuffles: int
    n_folds: int

    @property
    def flagged(self) -> bool:
        """Whether the score is above chance and above the score without the correction."""
        return self.p_value < 1.0 - self.confidence and self.shuffled_corrected > self.shuffled

    def __str__(self) -> str:
        return self.reason

    @property
    def reason(self) -> str:
        """One sentence."""
        scores = (
            f"Shuffled features score {self.scoring} {self.shuffled:.3f} before the correction "
            f"and {self.shuffled_corrected:.3f} after it (chance {self.chance:.3f}, p = {self.p_value:.2g})"
        )
        if self.flagged:
            return f"{scores}: the correction itself leaks the protected columns to the learner."
        return f"{scores}: no sign that the correction leaks the protected columns to the learner."


def confound_leakage(
    Z: Array,
    y: Array,
    X: Array,
    *,
    estimator: Any,
    classification: bool,
    rng: np.random.Generator,
    cv: int = 5,
    n_shuffles: int = 20,
    scoring: str | None = None,
    confidence: float = 0.95,
) -> ConfoundLeakage:
    """Test whether the linear correction of ``Z`` (n, q) by ``X`` (n, p) leaks ``X`` to a learner of ``y`` (n,).

    The correction is fitted on the training rows of each fold, drawn anew each time, and applied to the held-out ones,
    as by ``LinearOrthogonalizer``; cv (3 n_shuffles + 2) fits. A ``random_state`` of None in the estimator is drawn
    from ``rng``; `scoring` is the name of a scikit-learn scorer.
    """
    n_classes = _check(Z, y, X, classification, cv, n_shuffles)
    scoring = scoring or ("r2" if not classification else "roc_auc" if n_classes == 2 else "roc_auc_ovr")
    score, folds = get_scorer(scoring), StratifiedKFold if classification else KFold

    def held_out(Z: Array, y: Array, *, correct: bool) -> Array:
        """Mean over new folds of the score, and of the statistic that the test compares."""
        scores = []
        for train, test in folds(cv, shuffle=True, random_state=_seed(rng)).split(Z, y):
            seen, unseen = Z[train], Z[test]
            if correct:
                projector = Projector.fit(seen, X[train])
                seen, unseen = projector.apply(seen, X[train]), projector.apply(unseen, X[test])
            learner = _fresh(estimator, rng).fit(seen, y[train])
            value = score(learner, unseen, y[test])
            scores.append((value, value if classification else _correlation(learner.predict(unseen), y[test])))
        return np.asarray(np.mean(scores, axis=0))

    raw, corrected = (held_out(Z, y, correct=correct)[0] for correct in (False, True))
    shuffled, fed, null = np.empty((3, n_shuffles, 2))
    for s in range(n_shuffles):
        noise = rng.permuted(Z, axis=0)  # each column separately
        shuffled[s], fed[s] = (held_out(noise, y, correct=correct) for correct in (False, True))
        null[s] = held_out(rng.permuted(Z, axis=0), rng.permutation(y), correct=True)
    mean, mean_fed, chance = (float(scores[:, 0].mean()) for scores in (shuffled, fed, null))
    gap, sd = fed[:, 1].mean() - null[:, 1].mean(), null[:, 1].std(ddof=1) * np.sqrt(1.0 + 1.0 / n_shuffles)
    # A learner with the same score for any target has learned nothing.
    p_value = float(stdtr(n_shuffles - 1, -gap / sd)) if sd > 0.0 else float(gap <= 0.0)
    return ConfoundLeakage(
        scoring, float(raw), float(corrected), mean, mean_fed, chance, p_value, confidence, n_shuffles, cv
    )


def _correlation(a: Array, b: Array) -> float:
    """Pearson correlation, 0 for a constant."""
    return float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) > 0.0 < np.ptp(b) else 0.0


def _check(Z: Array, y: Array, X: Array, classification: bool, cv: int, n_shuffles: int) -> int:
    """Refuse data that cannot be split or scored; return the number of distinct targets."""
    if Z.ndim != 2 or X.ndim != 2 or y.shape != Z.shape[:1] or len(X) != len(Z):
        raise InputError(
            f"Features of shape {Z.shape}, target {y.shape} and protected columns {X.shape} do not fit together: "
            "give two tables and one column with the same rows."
        )
    for part, what in ((Z, "feature"), (y[:, None], "target"), (X, "protected column")):
        check_finite(part, [str(j) for j in range(part.shape[1])], what)
    values, counts = np.unique(y, return_counts=True)
    smallest = int(counts.min()) if classification else len(y) // 2
    if cv < 2 or n_shuffles < 2:
        raise InputError(f"cv = {cv} folds and {n_shuffles} shuffles are too few: use at least 2 of each.")
    if len(values) < 2 or smallest < cv:
        raise InputError(
            f"{cv} folds need {cv} rows of each class, or {2 * cv} rows for a number that varies: lower cv."
        )
    return len(values)


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


def _fresh(estimator: Any, rng: np.random.Generator) -> Any:
    """Clone an estimator and set each random state of None, also in nested estimators."""
    parameters = estimator.get_params().items()
    states = [name for name, value in parameters if name.split("__")[-1] == "random_state" and value is None]
    return clone(estimator).set_params(**{name: _seed(rng) for name in states})


@accept_unread
def audit_correction(
    Z: Table,
    y: Any,
    protected: Table,
    estimator: Any = None,
    *,
    cv: int = 5,
    n_shuffles: int = 10,
    random_state: int = 0,
) -> ConfoundLeakage:
    """Test for confound leakage: information that the linear correction of features adds for a nonlinear learner.

    Features are shuffled, so that they carry no information; if they predict the outcome once they are corrected, the
    correction encoded the protected columns in them (Hamdan et al., GigaScience 2023).

    Parameters
    ----------
    Z : dataframe or array of n rows
        Features; categorical ones are dummy-coded.
    y : array of n values
        Outcome.
    protected : dataframe or array of n rows
    estimator : scikit-learn estimator, optional
        The learner fitted to the corrected features; a random forest by default.
    cv, n_shuffles, random_state : int
        Folds, shuffles of the features, seed.

    Returns
    -------
    ConfoundLeakage
        With ``flagged``, a ``reason`` in words, and the scores.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> age = rng.normal(size=300)
    >>> y = age + 0.5 * rng.normal(size=300) > 0
    >>> symptoms = rng.integers(2, size=(300, 3))  # unrelated to age and outcome
    >>> audit_correction(symptoms, y, age, n_shuffles=2).flagged
    True
    """
    n = tables.n_rows(Z)
    outcome = read_outcome(y, n)
    check_same_rows("protected has", tables.n_rows(protected), "the features have", n)
    check_alignment(Z, protected, "protected")
    check_alignment(Z, y, "the outcome")
    classification = is_classifier(estimator) if estimator is not None else read_family(outcome).is_classes
    if estimator is None:
        forest = RandomForestClassifier if classification else RandomForestRegressor
        estimator = forest(n_estimators=50, min_samples_leaf=2)
    features, columns = (dense(tables.learn(table).apply(table).values) for table in (Z, protected))
    if classification:
        outcome = np.unique(outcome, return_inverse=True)[1]
    rng = np.random.default_rng(random_state)
    return confound_leakage(
        features,
        outcome.astype(np.float64),
        columns,
        estimator=estimator,
        classification=classification,
        cv=cv,
        n_shuffles=n_shuffles,
        rng=rng,
    )
