"""A layer that removes the effect of the protected columns from what passes through it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from setsquare.errors import InputError, NotFiniteWarning
from setsquare.nn.functional import check_activation, check_n_protected, flatten, read_protected
from setsquare.nn.generalized_moments import WorkingMoments
from setsquare.nn.moments import Momentum, RunningMoments
from setsquare.tables.validation import check_choice

Where: TypeAlias = Literal["post", "pre", "generalized"]
Inference: TypeAlias = Literal["protected", "marginal", "off"]


class Orthogonalize(nn.Module):
    """Layer ``forward(y, protected)`` whose output has no linear effect of the protected columns, unit by unit.

    It subtracts ``a + (x - mean)'b`` from each unit, with an ``a`` and a ``b`` of its own. In training these are
    estimated from the batch and, the smaller that is, from running moments of the batches before; so a batch may have
    fewer rows than columns, or miss a level. In ``eval`` the same rule uses the running moments alone. Means are kept
    both times, so activations do not shift between the two. The layer has no parameters.

    ===============  =========================  ==================================================================
    ``where``        ``y`` is                   guaranteed
    ===============  =========================  ==================================================================
    "post"           the activation's output    no linear effect on it; it may leave its range (below 0 after ReLU)
    "pre"            the pre-activation         no linear effect on the pre-activation; *none* for the activation
    "generalized"    the pre-activation         no linear effect on ``activation(output)``, which keeps its range
    ===============  =========================  ==================================================================

    The guarantee is exact for the rows that the moments come from: for the batch if that is large (see the notes for
    "generalized"), and after :func:`~setsquare.nn.fit_layer` for all rows of its loader. On new rows it holds up to
    sampling error.

    Parameters
    ----------
    n_protected : int, optional
        Number of protected columns; by default that of the first batch.
    where : {"post", "pre", "generalized"}, optional
        "generalized" by default where an activation is named, else "post".
    activation : {"identity", "relu", "sigmoid", "tanh", "exp"}, optional
        What the network applies next; for "generalized".
    momentum : float, "auto" or None
        Share of a batch in the running moments; None for the exact moments of all rows seen. "auto" remembers 10
        batches and 200 rows for each coefficient at least.
    inference : {"protected", "marginal", "off"}
        In ``eval``: "protected" corrects each row by its own protected columns. "marginal" needs none: it subtracts the
        correction averaged over the population, which is nothing in the linear modes (means are kept) and the shift
        ``a`` in the generalised one, so that pre-activations have the mean that they had in training; *nothing is
        guaranteed* then. "off" passes everything through, as the published layer does.

    Attributes
    ----------
    moments : RunningMoments
        ``moments.rows`` remembered; ``moments.skipped`` counts batches with values that were not finite;
        ``moments.unsolved`` (generalised) units of the last batch that were not solved in the steps allowed.
    frozen : bool
        Whether training uses and leaves the moments as ``eval`` does; set by :func:`~setsquare.nn.fit_layer`.

    Notes
    -----
    A batch with ten rows or more for each coefficient (p + 1 of them) is corrected by itself alone. With less, the past
    fills it up, and lags behind weights that move: train slowly, and end with :func:`~setsquare.nn.fit_layer`.

    The generalised mode solves its first batch exactly, and then takes at most two Newton steps a training batch from
    the running solution, until 98 % of the units have a correlation of 0.01 at most. So in training it holds up to a
    remainder, below what chance makes in a batch of 128, and largest in units that few rows activate;
    ``moments.unsolved`` counts them. :func:`~setsquare.nn.fit_layer` leaves no such remainder.

    In a distributed run the sums are taken over all processes, so each must pass the same number of batches. The number
    of units is that of the first batch: for ``DataParallel``, pass one before replicating.

    Examples
    --------
    >>> import torch
    >>> layer = Orthogonalize(1)
    >>> sex = torch.tensor([[0.0], [0.0], [1.0], [1.0]])
    >>> layer(torch.tensor([[1.0], [2.0], [5.0], [6.0]]), sex).ravel()
    tensor([3., 4., 3., 4.])
    >>> layer.eval()(torch.tensor([[6.0]]), torch.tensor([[1.0]]))
    tensor([[4.]])
    """

    def __init__(
        self,
        n_protected: int | None = None,
        where: Where | None = None,
        activation: str | None = None,
        momentum: Momentum = "auto",
        inference: Inference = "protected",
    ) -> None:
        super().__init__()
        where = ("post" if activation is None else "generalized") if where is None else where
        check_choice("where", where, get_args(Where))
        check_choice("inference", inference, get_args(Inference))
        if n_protected is not None:
            check_n_protected(n_protected)
        if (
            momentum is not None
            and momentum != "auto"
            and not (isinstance(momentum, float | int) and 0 < momentum <= 1)
        ):
            raise InputError(f'momentum must be above 0 and at most 1, "auto" or None, not {momentum!r}.')
        self.n_protected, self.where, self.activation, self.inference = n_protected, where, activation, inference
        self.moments: RunningMoments
        if where == "generalized":
            check_activation(activation)
            assert activation is not None
            self.moments = WorkingMoments(momentum, activation)
        else:
            self.moments = RunningMoments(momentum)
        self.frozen, self._told = False, 0
        #: Called instead of the layer's own rule, by what fits it.
        self.probe: Callable[[Tensor, Tensor | None], Tensor] | None = None

    def forward(self, y: Tensor, protected: Tensor | None = None) -> Tensor:
        """Correct a batch.

        Parameters
        ----------
        y : Tensor of shape (n, ...)
        protected : Tensor of shape (n, p) or (n,)
            Not needed in ``eval`` with ``inference`` "marginal" or "off".
        """
        if self.probe is not None:
            return self.probe(y, protected)
        learning = self.training and not self.frozen
        if len(y) == 0 or (self.inference == "off" and not learning):
            return y
        if not learning and self.moments.is_empty:
            raise InputError("The layer has not seen a batch: train the network, or call setsquare.nn.fit_layer first.")
        units = flatten(y)
        with torch.autocast(y.device.type, enabled=False):
            if learning or self.inference == "protected":
                X = read_protected(protected, y, self.n_protected)
                corrected = self.moments.learn(units, X) if learning else self.moments.correct(units, X)
            else:
                corrected = units - self.moments.average().to(units.dtype)
        if learning:
            self._tell_of_skipped()
        return corrected.to(y.dtype).reshape(y.shape)

    def _tell_of_skipped(self) -> None:
        if torch.compiler.is_compiling():
            return
        skipped = int(self.moments.skipped)
        if skipped > self._told:
            warnings.warn(
                "A batch with missing or infinite values passed an Orthogonalize layer: it is not corrected, and "
                "nothing was learned from it. Look at the inputs, or lower the learning rate.",
                NotFiniteWarning,
                stacklevel=3,
            )
        self._told = skipped

    def get_extra_state(self) -> Tensor:
        """What ``state_dict`` holds besides the moments: whether they are frozen."""
        return torch.tensor(self.frozen)

    def set_extra_state(self, state: Tensor) -> None:
        """Take it from a ``state_dict``."""
        self.frozen = bool(state)

    def extra_repr(self) -> str:
        """Show the settings."""
        named = "" if self.activation is None else f", activation={self.activation!r}"
        return f"{self.n_protected}, where={self.where!r}{named}, inference={self.inference!r}"
