"""Why a correction that is exact on training rows leaves a correlation on new patients, and what does best there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from rich.progress import Progress
from scipy.special import expit
from sklearn.model_selection import GroupKFold, GroupShuffleSplit
from sklearn.preprocessing import StandardScaler

from setsquare import LinearOrthogonalizer, OrthogonalGLMClassifier, PredictionOrthogonalizer, Problem, solve, tables
from setsquare.auditing import interval
from setsquare.families import binomial
from studies.arrays import Array
from studies.paper.cells import Cells
from studies.paper.embeddings import Part, auc, correlation, logistic


@dataclass(frozen=True, slots=True)
class Setting:
    """A method with its settings.

    Attributes
    ----------
    predict : callable
        From training rows and new rows to probabilities of the new ones.
    components : int
        How many principal components it gets.
    needs_protected : bool
        Whether it reads the protected columns of the new rows.
    """

    predict: Callable[[Part, Part], Array]
    components: int = 111
    needs_protected: bool = False


def once_a_patient(part: Part) -> Array:
    """Weights with which every patient counts once, whatever the number of images."""
    _, codes, images = np.unique(part.cluster, return_inverse=True, return_counts=True)
    return 1.0 / images[codes]


def _plain(train: Part, new: Part) -> Array:
    """A GLM without a correction; features that were erased are collinear, which is no obstacle here."""
    found = solve(Problem(np.asarray(train.Z, dtype=np.float64), train.y, None, binomial))
    return np.asarray(expit(new.Z @ found.coef[0] + found.intercept[0]))


def _constrained(train: Part, new: Part, *, ridge: float = 0.0) -> Array:
    scale = StandardScaler().fit(train.Z)
    model = OrthogonalGLMClassifier(l2=ridge).fit(scale.transform(train.Z), train.y, protected=train.protected)
    return _second(model.predict_proba(scale.transform(new.Z)))


def _patients_equal(train: Part, new: Part) -> Array:
    model = OrthogonalGLMClassifier()
    model.fit(train.Z, train.y, protected=train.protected, sample_weight=once_a_patient(train))
    return _second(model.predict_proba(new.Z))


def _images_and_patients(train: Part, new: Part) -> Array:
    """Zero in both senses: a column times its weights, centred with them, has the weighted covariance as its own."""
    X, w = np.asarray(tables.learn(train.protected).apply(train.protected).values), once_a_patient(train)
    weighted = (X - np.average(X, axis=0, weights=w)) * w[:, None]
    model = OrthogonalGLMClassifier().fit(train.Z, train.y, protected=np.hstack([X, weighted]))
    return _second(model.predict_proba(new.Z))


def _erased(train: Part, new: Part) -> Array:
    eraser = LinearOrthogonalizer(using="features").fit(train.Z, protected=train.protected)
    return _plain(*(replace(part, Z=eraser.transform(part.Z)) for part in (train, new)))


def _linear(train: Part, new: Part) -> Array:
    removal = LinearOrthogonalizer().fit(train.Z, protected=train.protected)
    return _plain(*(replace(part, Z=removal.transform(part.Z, part.protected)) for part in (train, new)))


def _projected(train: Part, new: Part, *, cross_fitted: bool = False, adapted: str = "") -> Array:
    folds = list(GroupKFold(5).split(train.Z, groups=train.cluster)) if cross_fitted else None
    model = PredictionOrthogonalizer(logistic(), cv=folds).fit(train.Z, train.y, protected=train.protected)
    if adapted:
        weight = once_a_patient(new) if adapted == "patients" else None
        model.adapt(new.Z, protected=new.protected, sample_weight=weight)
    return _second(model.predict_proba(new.Z, protected=new.protected))


def _second(probabilities: Any) -> Array:
    return np.asarray(probabilities[:, 1], dtype=np.float64)


WITHOUT, CONSTRAINED = "without", "C^h"
ADAPTED = "generalised projection, adapted to the new rows"
SETTINGS = {
    WITHOUT: Setting(_plain),
    CONSTRAINED: Setting(_constrained),
    "C^h, 32 components": Setting(_constrained, 32),
    "C^h, 256 components": Setting(_constrained, 256),
    "C^h, ridge 0.1": Setting(partial(_constrained, ridge=0.1)),
    "C^h, every patient counts once": Setting(_patients_equal),
    "C^h, images and patients": Setting(_images_and_patients),
    "C^h, images and patients, 256 components": Setting(_images_and_patients, 256),
    "erased from the features, GLM": Setting(_erased),
    "C^l, GLM": Setting(_linear, needs_protected=True),
    "generalised projection": Setting(_projected, needs_protected=True),
    "generalised projection, cross-fitted": Setting(partial(_projected, cross_fitted=True), needs_protected=True),
    ADAPTED: Setting(partial(_projected, adapted="images"), needs_protected=True),
    f"{ADAPTED}, every patient counts once": Setting(partial(_projected, adapted="patients"), needs_protected=True),
}


def try_on(name: str, train: Part, new: Part) -> dict[str, Any]:
    """Correlations of a setting's predictions with each protected column on new rows, and their AUC.

    ``images`` counts every row, ``patients`` every patient once; errors are by patient.
    """
    setting = SETTINGS[name]
    p = setting.predict(*(replace(part, Z=part.Z[:, : setting.components]) for part in (train, new)))
    coded = tables.learn(new.protected).apply(new.protected)
    X, once = np.asarray(coded.values), once_a_patient(new)
    return {
        kind: {
            term: [found.estimate, found.std_error]
            for term, x in zip(coded.names, X.T, strict=True)
            for found in [interval(correlation(x, p, weight), cluster=new.cluster)]
        }
        for kind, weight in (("images", None), ("patients", once))
    } | {"auc": auc(new.y, p).value}


def repeat(
    part: Callable[[], Part],
    key: Mapping[str, Any],
    names: Sequence[str],
    splits: int,
    what: str,
    cells: Cells,
    progress: Progress,
) -> dict[str, list[dict[str, Any]]]:
    """Try settings on random fifths of the patients, fitted to the others; the numbers of the splits are the seeds."""
    task = progress.add_task(f"table1: splits of {what}", total=splits)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for seed in range(splits):
        for name in names:
            cell = {**key, "what": what, "setting": name, "seed": seed}
            found[name].append(cells(cell, partial(_try_split, part, seed, name)))
        progress.advance(task)
    return found


def _try_split(part: Callable[[], Part], seed: int, name: str) -> dict[str, Any]:
    whole = part()
    old, new = next(GroupShuffleSplit(1, test_size=0.2, random_state=seed).split(whole.Z, groups=whole.cluster))
    return try_on(name, _take(whole, old), _take(whole, new))


def _take(part: Part, rows: Any) -> Part:
    protected = part.protected.iloc[rows].reset_index(drop=True)
    return Part(part.Z[rows], part.y[rows], protected, part.cluster[rows])


def effective_patients(cluster: Any) -> float:
    """How many patients with equally many images would tell as much: ``(sum n)^2 / sum n^2``.

    Examples
    --------
    >>> effective_patients([1, 2, 3, 4]), round(effective_patients([1, 1, 1, 1, 1, 1, 1, 2, 3, 4]), 1)
    (4.0, 1.9)
    """
    images = np.unique(cluster, return_counts=True)[1].astype(np.float64)
    return float(images.sum() ** 2 / (images**2).sum())
