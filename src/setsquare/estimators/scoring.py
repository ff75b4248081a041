"""Refuse cross-validation whose scorers cannot pass the protected columns on.

scikit-learn routes ``protected=`` to ``fit`` and to an estimator's own ``score``, but its scorers (``"roc_auc"``) and
``cross_val_predict`` call ``predict_proba(X)`` with nothing beside ``X``. A model that needs the protected columns to
predict fails there, and scikit-learn turns what a scorer raises into a score of NaN: every candidate of a search is
then as good as any other, and the first one wins. scikit-learn does report what ``fit`` raises, so ``fit`` refuses.
"""

from __future__ import annotations

import inspect
from types import FrameType
from typing import Any

from setsquare.errors import InputError

_MODULE = "sklearn.model_selection._validation"


def refuse_blind_scorers(example: str) -> None:
    """Refuse a fit, on protected columns beside the features, that is scored without these columns.

    Parameters
    ----------
    example : str
        Constructor call of an estimator whose protected columns are inside the feature table.
    """
    # Only the caller knows the scorer, and scikit-learn does not pass it to fit.
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == _MODULE and (blind := _blind(frame)):
            raise InputError(
                f"scikit-learn's {blind} does not pass protected= on to predictions, which need it here: "
                f"put the protected columns into the feature table and name them, {example}, or score by the "
                "model's own score method (leave out scoring=, call set_score_request(protected=True))."
            )
        frame = frame.f_back


def _blind(frame: FrameType) -> str:
    """Name of a caller that predicts without the protected columns that it passes to ``fit``; empty if none does."""
    seen: dict[str, Any] = frame.f_locals
    if not set(seen.get("fit_params") or ()) - {"sample_weight", "cluster"}:
        return ""  # the columns come from within the model that is scored, which then also has them to predict
    if frame.f_code.co_name == "_fit_and_predict":
        return "cross_val_predict"
    if frame.f_code.co_name != "_fit_and_score":
        return ""
    scorer = seen.get("scorer")
    scorers = getattr(scorer, "_scorers", None) or {"": scorer}
    # A scorer of a metric has one; that of the estimator's own score, or one of a user, passes on what it is given.
    metrics = (getattr(one, "_score_func", None) for one in scorers.values())
    return next((f"scorer of {getattr(metric, '__name__', metric)}" for metric in metrics if metric is not None), "")
