"""Protected columns within classes, for layers and constraints given the class."""

from __future__ import annotations

import torch
from torch import Tensor

from setsquare.errors import InputError


def within_classes(protected: Tensor, classes: Tensor, n_classes: int) -> Tensor:
    """Protected columns of each class side by side, and indicators of the classes: what holds within every class.

    Pass the result as the protected columns of an :class:`~setsquare.nn.OrthogonalityConstraint` with
    ``n_protected = p * n_classes`` and ``n_given = n_classes - 1``: predictions are then uncorrelated with the
    protected columns within each class, the score version of equalised odds if the classes are the outcome.

    Parameters
    ----------
    protected : Tensor of shape (n, p) or (n,)
    classes : Tensor of shape (n,)
        Numbers 0, 1, ... of the classes.
    n_classes : int

    Returns
    -------
    Tensor of shape (n, p * n_classes + n_classes - 1)

    Examples
    --------
    >>> import torch
    >>> within_classes(torch.tensor([1.0, 2.0]), torch.tensor([0, 1]), 2)
    tensor([[1., 0., 0.],
            [0., 2., 1.]])
    """
    X = protected[:, None] if protected.ndim == 1 else protected
    labels = classes.reshape(-1).long()
    if len(labels) != len(X):
        raise InputError(f"There are {len(labels)} classes for {len(X)} rows: pass one class per row.")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < n_classes:
        raise InputError(f"Classes must be numbers from 0 to {n_classes - 1}.")
    member = torch.nn.functional.one_hot(labels, n_classes).to(X.dtype)
    inner = (X[:, :, None] * member[:, None, :]).reshape(len(X), -1)
    return torch.cat([inner, member[:, 1:]], dim=1)
