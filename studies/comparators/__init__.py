"""Methods to compare with, behind one small interface.

>>> from studies.comparators import COMPARATORS, available
>>> available("poisson")[:3]
['komiyama-sp', 'komiyama-eo', 'berk-if']

Each has ``fit(Z, y, protected)`` and ``predict(Z, protected)``; its docstring defines it, says what it promises and
what it does not. A method of your own joins the experiments with ``COMPARATORS["mine"] = Mine``, where ``Mine`` takes
``family=`` and has these two functions (:class:`Comparator`); :class:`LinearComparator` brings the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from studies.comparators.base import Comparator, Fit, LinearComparator
from studies.comparators.fair_ridge import (
    BerkIndividual,
    FairRidge,
    KomiyamaOpportunity,
    KomiyamaParity,
    fit_fair_ridge,
)
from studies.comparators.linear import LinearFeatures
from studies.comparators.removers import CorrelationRemover, Leace
from studies.comparators.xu import Xu, published_xu
from studies.comparators.zafar import Zafar, fit_zafar

#: Methods by name, in the order of the experiments; each is called with ``family=``.
COMPARATORS: dict[str, Callable[..., Comparator]] = {
    "komiyama-sp": KomiyamaParity,
    "komiyama-eo": KomiyamaOpportunity,
    "berk-if": BerkIndividual,
    "zafar": Zafar,
    "xu": Xu,
    "linear": LinearFeatures,
    "correlation-remover": CorrelationRemover,
    "leace": Leace,
}


def available(family: str) -> list[str]:
    """Names of the comparators that are defined for a family and whose packages are installed.

    Examples
    --------
    >>> "xu" in available("binomial"), "xu" in available("poisson")
    (True, False)
    """
    names = []
    for name, kind in COMPARATORS.items():
        package = getattr(kind, "package", None)
        if family in getattr(kind, "families", (family,)) and (package is None or find_spec(package) is not None):
            names.append(name)
    return names


__all__ = [
    "COMPARATORS",
    "BerkIndividual",
    "Comparator",
    "CorrelationRemover",
    "FairRidge",
    "Fit",
    "KomiyamaOpportunity",
    "KomiyamaParity",
    "Leace",
    "LinearComparator",
    "LinearFeatures",
    "Xu",
    "Zafar",
    "available",
    "fit_fair_ridge",
    "fit_zafar",
    "published_xu",
]
