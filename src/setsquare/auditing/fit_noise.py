"""P-value of an audit of one of our fitted models on other rows, with the sampling error of the fit allowed for.

A constraint that is exact on the n rows of a fit is off in the population by the sampling error of these n rows. A Wald
test on m other rows finds that: its statistic is ``1 + m / n`` times a chi-squared variable, although no fit to n rows
can be better. The finding is true of this one model. Divided by ``1 + m / n``, the statistic tells whether there is
more than that: an overfitted constraint, or rows that are not like those of the fit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy import special

from setsquare.auditing.result import AuditResult
from setsquare.estimators.glm import OrthogonalGLM
from setsquare.notes import Note

#: Level of the test whose share of rejections the note gives.
LEVEL = 0.05


def allow_for_fit_noise(result: AuditResult, model: Any) -> AuditResult:
    """Add a note to a significant audit of a fitted model on other rows; other results stay as they are."""
    n = _training_rows(model)
    test = result.evaluations[0].joint if result.evaluations else None
    if n is None or test is None or "Wald" not in test.method or not test.p_value < LEVEL:
        return result
    factor, q = 1.0 + result.n / n, test.df
    share = float(special.chdtrc(q, float(special.chdtri(q, LEVEL)) / factor))
    note = Note(
        "fit-noise",
        "The model was fitted to {fitted} rows and is exact on these, not in the population. By their sampling error "
        "alone, {share} of such models have p < {level} on {audited} other rows. Allowing for it, p is {p}.",
        fitted=f"{n:,}",
        audited=f"{result.n:,}",
        share=f"{100.0 * share:.0f} %",
        level=LEVEL,
        p=f"{float(special.chdtrc(q, test.statistic / factor)):.2g}",
    )
    return replace(result, notes=(*result.notes, note))


def _training_rows(model: Any) -> int | None:
    """Rows on which a fitted model is exactly orthogonal; None for other models and options."""
    if not isinstance(model, OrthogonalGLM) or not hasattr(model, "solution_"):
        return None
    if model.budget or model.threshold is not None or model.relax is not None or model.given is not None:
        return None
    n = int(model.solution_.certificate.n_rows)
    return n if np.isfinite(n) and n > 0 else None
