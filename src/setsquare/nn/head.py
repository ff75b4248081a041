"""Refit the last layer of a trained network exactly, leaving the other layers unchanged."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from setsquare.errors import InputError, NotOrthogonalError, SolverWarning, TrainingRowsWarning
from setsquare.estimators.promise import check_promise, keep_promise
from setsquare.estimators.training_rows import too_good
from setsquare.estimators.warn import warn_worse_than_constant
from setsquare.families import Family, family
from setsquare.glm.budget import check_budget
from setsquare.glm.problem import Problem
from setsquare.glm.ridge import choose_ridge
from setsquare.glm.solver import Solution, solve
from setsquare.nn.batches import refuse_shuffled
from setsquare.nn.functional import read_protected
from setsquare.nn.held_out import Sums, warn_if_left
from setsquare.nn.network_layers import call_model, check_layer, eval_mode, takes_protected
from setsquare.tables.frame import dense
from setsquare.tables.learn import learn
from setsquare.tables.outcome import Values, guess_family
from setsquare.tables.validation import check_same_rows, require_finite


def refit_head(
    model: nn.Module,
    loader: Iterable[tuple[Any, Tensor, Tensor]],
    head: str = "fc",
    family: str | Family | None = None,
    *,
    l2: float | Literal["auto"] = 0.0,
    orthogonal_on: str = "training rows",
    max_correlation: float | None = None,
    confidence: float = 0.95,
    given: Literal["outcome"] | Sequence[int] | None = None,
    budget: float = 0.0,
    basis: Any = "linear",
    expand: None = None,
    cluster: Any = None,
    held_out: Iterable[tuple[Any, Tensor, Tensor]] | None = None,
) -> Solution:
    """Refit a network's last linear layer so that its predictions are orthogonal to the protected columns.

    One pass over the loader collects the inputs of the head (n × q numbers, in the precision of the network). The exact
    solver fits the constrained generalised linear model of the outcome on them, and its coefficients replace those of
    the head. Prediction does not need the protected columns. In float64 the predictions on these rows, in ``eval``
    mode, have a correlation of at most 1e-8 with every protected column; in float32 the rounding of the coefficients
    leaves about 1e-7 (times the size of the linear predictor's terms relative to its standard deviation). On new rows
    sampling error is left (see `orthogonal_on`). Refit last: weights that change afterwards undo it, without a warning.

    Parameters
    ----------
    model : torch.nn.Module
        The weight and bias of its head are changed in place.
    loader : iterable of (inputs, outcome, protected)
        Batches in any order; ``inputs`` is a tensor, or a tuple or dict of arguments of the model. Use rows that the
        network was not trained on; a :class:`~setsquare.errors.TrainingRowsWarning` says if the network fits these far
        better than its own probabilities expect.
    head : str
        Name of the ``torch.nn.Linear`` that produces the output, as in ``model.named_modules()``.
    family : str or Family, optional
        Family of the outcome. By default, several outputs are the classes 0, 1, ... (softmax); one output is binomial
        (sigmoid) if all outcomes are 0 or 1, otherwise gaussian.
    l2 : float or "auto"
        Ridge penalty on the coefficients, for wide heads; "auto" chooses it by the leave-one-out loss.
    orthogonal_on : {"training rows", "new rows"}
        Rows on which the predictions are orthogonal: exactly on those of the loader, or on new ones, by leave-one-out
        predictions of the head (the network's other layers stay as they are).
    max_correlation : float, optional
        Largest correlation on new rows that is promised, at this `confidence`. If the upper bound exceeds it,
        :class:`~setsquare.errors.BrokenPromiseError` is raised and the head is not changed.
    confidence : float
    given : "outcome", or positions of columns of the protected tensor, optional
        Predictions may depend on the protected columns through these: "outcome" equalises mean predictions within
        each outcome class; the columns at these positions are controls and not protected.
    budget : float
        Share of the covariance with the protected columns that may stay, from 0 (orthogonal) to 1 (no correction).
    basis : {"linear", "cells", "spline", "kernel"} or transformer
        Functions of the protected columns that predictions must not depend on, as in
        :class:`~setsquare.OrthogonalGLMClassifier`.
    expand : None
        The head is linear in its inputs, so they cannot be expanded: anything else is refused.
    cluster : array of shape (n,), optional
        Cluster of each row, for example the patient, in the order of the loader, which must not shuffle. Whole clusters
        are then left out where rows are left out one at a time: for ``orthogonal_on="new rows"``, ``l2="auto"`` and
        `max_correlation`.
    held_out : iterable of (inputs, outcome, protected), optional
        Further rows, on which the correlation of the new predictions is compared with chance; a
        :class:`~setsquare.errors.TrainingRowsWarning` says if it is larger.

    Returns
    -------
    Solution
        The fit with its certificate. If it does not hold, :class:`~setsquare.errors.NotOrthogonalError` is raised and
        the head is not changed.

    Examples
    --------
    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> sex = (torch.arange(200.0) % 2)[:, None]
    >>> x = torch.randn(200, 3) + sex
    >>> y = (x[:, 0] + torch.randn(200) > 0.5).float()
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    >>> solution = refit_head(model, [(x.double(), y, sex)], head="2")
    >>> solution.certificate.is_orthogonal
    True
    """
    check_promise(max_correlation)
    check_budget(budget)
    if expand is not None:
        raise InputError(
            "The inputs of a head cannot be expanded, because it is linear in them: leave out expand, or fit "
            "OrthogonalGLMClassifier(expand=...) to the activations."
        )
    if held_out is not None and (given is not None or budget or cluster is not None):
        raise InputError(
            "held_out compares the correlation on further rows with that of independent rows by chance, but given and "
            "budget allow a correlation, and clusters are not independent rows: leave out held_out, and audit the "
            "predictions on these rows."
        )
    if cluster is not None:
        refuse_shuffled(loader, "cluster")
    layer = _find(model, head)
    Z, y, X = _collect(model, layer, loader)
    glm = _family(family, y, layer.out_features)
    _warn_of_training_rows(_means(Z, layer, glm), y)
    problem = _problem(Z, y, X, glm, given, basis, cluster)
    ridge = choose_ridge(problem, orthogonal_on=orthogonal_on, budget=budget).l2 if l2 == "auto" else l2
    asked: dict[str, Any] = {"orthogonal_on": orthogonal_on, "confidence": confidence, "budget": budget}
    solution = solve(problem.with_l2(ridge), **asked)
    if not solution.certificate.is_kept:
        raise NotOrthogonalError(
            f"The head could not be made orthogonal (remaining correlation {solution.certificate.max_correlation:.1e}, "
            f"{solution.status}): remove outliers from the protected columns, or pass a ridge penalty l2."
        )
    keep_promise(solution, max_correlation, automatic=l2 == "auto")
    warn_worse_than_constant(solution.certificate, automatic=l2 == "auto")
    if not solution.certificate.is_optimal:
        warnings.warn(
            f"The head is orthogonal, but its loss may not be the lowest possible: {solution.status} (relative "
            f"gradient {solution.certificate.kkt_residual:.1e}). Pass a ridge penalty l2, or more rows.",
            SolverWarning,
            stacklevel=2,
        )
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(solution.coef))
        layer.bias.copy_(torch.from_numpy(solution.intercept))
    if held_out is not None:
        new_Z, _, new_X = _collect(model, layer, held_out)
        _compare(_means(new_Z, layer, glm), new_X, len(Z))
    return solution


def _problem(
    Z: NDArray[Any], y: NDArray[Any], X: NDArray[Any], glm: Family, given: Any, basis: Any, cluster: Any
) -> Problem:
    """The problem of the head, given controls that are columns of ``X``, and with a basis of the other columns."""
    inside = [] if given is None or isinstance(given, str) else list(given)
    p = X.shape[1] if X.ndim == 2 else 1
    if (
        given is not None
        and given != "outcome"
        and not (inside and all(isinstance(j, int) and -p <= j < p for j in inside))
    ):
        raise InputError(
            f'given must be "outcome" or positions of columns of the protected tensor, which has {p}, not {given!r}.'
        )
    X = X.reshape(len(X), -1).astype(np.float64)
    C, X = X[:, inside], np.delete(X, inside, axis=1)
    if not X.shape[1]:
        raise InputError("All protected columns are given, so none is left to protect: leave one out of given.")
    if basis != "linear":
        X = np.asarray(dense(learn(X, basis=basis).apply(X).values))
    given = given if isinstance(given, str) else C if inside else None
    return Problem(Z, y, X, glm, given=given, cluster=cluster)


def _means(Z: NDArray[Any], layer: nn.Linear, glm: Family) -> NDArray[Any]:
    """Predictions of the head as it is now, (n, k)."""
    weight, bias = (part.detach().cpu().double().numpy() for part in (layer.weight, layer.bias))
    with np.errstate(over="ignore"):
        return np.asarray(glm.activation(np.asarray(Z, dtype=np.float64) @ weight.T + bias))


def _warn_of_training_rows(p: NDArray[Any], y: NDArray[Any]) -> None:
    """Warn if the probabilities of the head fit the classes far better than they themselves expect."""
    if y.ndim > 1 or not np.isin(y, np.arange(max(p.shape[1], 2))).all() or not ((p >= 0.0) & (p <= 1.0)).all():
        return
    sign = too_good("the network", p, y[:, None] == np.arange(max(p.shape[1], 2)))
    if sign:
        warnings.warn(
            f"These look like the rows that the network was trained on: {sign}. Refit the head on rows that it has not "
            "seen: on training rows its inputs depend on the protected columns differently than on new rows.",
            TrainingRowsWarning,
            stacklevel=3,
        )


def _compare(p: NDArray[Any], X: NDArray[Any], n_fitted: int) -> None:
    sums = Sums()
    sums.add(torch.from_numpy(p), torch.from_numpy(np.asarray(X, dtype=np.float64)))
    advice = 'refit the head on rows that the network was not trained on, or with orthogonal_on="new rows".'
    warn_if_left("the output", sums.correlations(), n_fitted, len(p), advice)


def _find(model: nn.Module, name: str) -> nn.Linear:
    linear = {key: module for key, module in model.named_modules() if isinstance(module, nn.Linear)}
    check_layer(name, list(linear), "linear layer")
    layer = linear[name]
    if layer.bias is None:
        raise InputError(f"The layer {name} has no bias, which the exact fit needs: build it with bias=True.")
    own = [parameter for module in model.modules() for parameter in module._parameters.values()]
    for part in ("weight", "bias"):
        if sum(parameter is getattr(layer, part) for parameter in own) != 1:
            raise InputError(
                f"The {part} of layer {name} is shared with another layer or computed from other parameters "
                "(weight_norm, pruning), so it cannot be replaced: give the head its own plain parameter."
            )
    if layer.weight.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"The layer {name} is in {layer.weight.dtype}, whose rounding would undo the fit: call model.float() first."
        )
    return layer


def _collect(
    model: nn.Module, layer: nn.Linear, loader: Iterable[tuple[Any, Tensor, Tensor]]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Collect the inputs of the head (n, q), the outcome (n,) and the protected columns (n, p)."""
    entered: list[Tensor] = []
    parts: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    handle = layer.register_forward_pre_hook(lambda _, arguments: entered.append(arguments[0]))
    try:
        with eval_mode(model), torch.no_grad():
            for batch in loader:
                inputs, outcome, protected = _three(batch)
                if len(outcome) == 0:
                    continue
                entered.clear()
                out = call_model(model, inputs, **{"protected": protected} if takes_protected(model) else {})
                if len(entered) != 1 or entered[0].shape != (len(outcome), layer.in_features):
                    shapes = [tuple(part.shape) for part in entered]
                    raise InputError(
                        f"The head must get one row of {layer.in_features} numbers for each of the {len(outcome)} "
                        f"outcomes, once per batch, but got {shapes}: name the layer that produces the output."
                    )
                if not _makes_output(nn.functional.linear(entered[0], layer.weight, layer.bias), out):
                    raise InputError(
                        "The network transforms the output of the head further: name the last linear layer, which "
                        "may be followed only by a sigmoid, a softmax or an exponential."
                    )
                # autocast gives bfloat16, which numpy does not support
                kept = entered[0] if entered[0].dtype == torch.float64 else entered[0].float()
                for part, value in zip(parts, (kept, outcome, read_protected(protected, kept)), strict=True):
                    part.append(value.detach().cpu())
    finally:
        handle.remove()
    if not parts[0]:
        raise InputError("The loader gave no batch with rows: pass at least one.")
    Z, y, X = (torch.cat(part).numpy() for part in parts)
    return Z, y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y, X


def _makes_output(made: Tensor, out: Any) -> bool:
    """Whether the network returns the output of its head, possibly through a mean function; True if unknown."""
    if isinstance(out, dict):
        out = list(out.values())
    if isinstance(out, tuple | list):
        tensors = [part for part in out if isinstance(part, Tensor)]
        return not tensors or any(_makes_output(made, part) for part in tensors)
    means = (made, made.sigmoid(), made.softmax(-1), made.log_softmax(-1), made.exp())
    return not isinstance(out, Tensor) or any(
        out.numel() == mean.numel() and torch.allclose(out.reshape(mean.shape).to(mean), mean, atol=1e-4)
        for mean in means
    )


def _three(batch: Any) -> tuple[Any, Tensor, Tensor]:
    if not isinstance(batch, tuple | list) or len(batch) != 3:
        raise InputError("Each batch of the loader must be (inputs, outcome, protected).")
    inputs, outcome, protected = batch
    check_same_rows("The outcome of a batch has", len(outcome), "its protected columns have", len(protected))
    return inputs, outcome, protected


def _family(given: str | Family | None, y: NDArray[Any], n_outputs: int) -> Family:
    require_finite("The outcome has", y)
    if given is None:
        # Several outputs mean a softmax. One output is never guessed to be on a log scale: whether numbers are whole is
        # not asked, so counts are gaussian.
        seen = Values(n_levels=2 if np.isin(y, (0, 1)).all() else None)
        given = "multinomial" if n_outputs > 1 else guess_family(seen)[0]
    glm = family(given)
    if glm.is_vector != (n_outputs > 1):
        raise InputError(
            f"The head has {n_outputs} output(s), which does not fit the {glm.name} family: it takes "
            f"{'two or more' if glm.is_vector else 'one'}."
        )
    n_classes = (y.shape[1] if y.ndim == 2 else int(y.max()) + 1) if glm.is_vector else 1
    if n_classes != n_outputs:
        raise InputError(
            f"The head has {n_outputs} outputs but the outcome has {n_classes} classes: pass rows of every class."
        )
    return glm
