"""One name for each method, in every table and figure of the study."""

from __future__ import annotations

#: No correction; the classical projection of features; the constrained fit (exact unless an optimiser is named); the
#: projection of predictions; and the paper's optimiser of the constrained fit.
WITHOUT, CLASSICAL, CONSTRAINED = "without", "classical (C^l)", "constrained (C^h)"
GENERALISED, MDMM = "generalised", "MDMM"
#: The paper's names of the comparators, and those of others.
COMPARATORS = {
    "komiyama-sp": "Komiyama1",
    "komiyama-eo": "Komiyama2",
    "berk-if": "Berk",
    "zafar": "Zafar",
    "xu": "Xu",
    "linear": CLASSICAL,
    "correlation-remover": "CorrelationRemover",
    "leace": "LEACE",
}


def symbol(name: str) -> str:
    """A name with the paper's symbols, for figures.

    Examples
    --------
    >>> symbol("constrained (C^h), splines")
    'constrained ($C^h$), splines'
    """
    return name.replace("C^h", "$C^h$").replace("C^l", "$C^l$")
