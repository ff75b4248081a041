"""Layers that others have published, for comparison: written anew from their descriptions and code."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MetadataNorm(nn.Module):
    """The layer of Lu et al. (CVPR 2021): remove what the metadata explain *beyond the label*, batch by batch.

    With ``D = [label, metadata, 1]`` of all N training rows and ``D_b`` of the m rows of a batch,

        B = N/m (D'D)^-1 D_b' y_b,        output = y_b - [metadata, 1] B[1:]

    so the label's part stays, and the means are removed. ``(D'D)^-1`` is computed once; in ``eval`` a running average
    of ``B`` takes the place of the batch's own, and no label is needed. A batch smaller than N has another ``D_b'D_b``
    than ``(m/N) D'D``, so ``B`` has an error of the order ``|y| / sqrt(m)``, also for units that the metadata explain
    perfectly.

    Parameters
    ----------
    metadata : Tensor of shape (N, p)
    label : Tensor of shape (N,)
        Both of all training rows.
    momentum : float
        Share of a batch in the running ``B``, which starts at zero.

    Examples
    --------
    >>> import torch
    >>> metadata, label = torch.tensor([[1.0], [2.0], [3.0], [5.0]]), torch.tensor([0.0, 0.0, 1.0, 1.0])
    >>> y = 2.0 * metadata + label[:, None]
    >>> MetadataNorm(metadata, label)(y, metadata, label).ravel().round(decimals=3).abs()
    tensor([0., 0., 1., 1.])
    """

    inverse: Tensor
    running: Tensor

    def __init__(self, metadata: Tensor, label: Tensor, momentum: float = 0.1) -> None:
        super().__init__()
        self.momentum = momentum
        D = torch.cat([label[:, None], _with_constant(metadata)], 1).double()
        self.register_buffer("inverse", torch.linalg.inv(D.T @ D / len(D)).to(metadata.dtype))
        self.register_buffer("running", metadata.new_zeros(metadata.shape[1] + 1, 1))

    def forward(self, y: Tensor, metadata: Tensor, label: Tensor | None = None) -> Tensor:
        """Correct a batch ``y`` (n, ...); its labels (n,) are needed in training only."""
        units, M = y.reshape(len(y), -1), _with_constant(metadata)
        B = self.running
        if self.training and label is not None:
            B = (self.inverse @ (torch.cat([label[:, None], M], 1).T @ units) / len(M))[1:]
            self.running = torch.lerp(self.running.expand_as(B), B.detach(), self.momentum)
        return (units - M @ B).reshape(y.shape)


class BatchProjection(nn.Module):
    """The authors' ``orthog_tf``: residuals of a batch on the constant and the protected columns, by its own QR.

    It is on while training and at prediction, so a prediction depends on the other rows of its batch. Where a column
    is constant in a batch, QR fills its place with some other direction, which is removed, too.

    Examples
    --------
    >>> import torch
    >>> X = torch.tensor([[0.0], [0.0], [1.0], [1.0]])
    >>> BatchProjection()(3.0 * X + torch.tensor([[1.0], [-1.0], [1.0], [-1.0]]), X).ravel().round(decimals=3)
    tensor([ 1., -1.,  1., -1.])
    """

    def forward(self, y: Tensor, protected: Tensor) -> Tensor:
        """Correct a batch ``y`` (n, ...)."""
        Q: Tensor = torch.linalg.qr(_with_constant(protected).flip(1)).Q
        units = y.reshape(len(y), -1)
        corrected: Tensor = (units - Q @ (Q.T @ units)).reshape(y.shape)
        return corrected


def _with_constant(metadata: Tensor) -> Tensor:
    return torch.cat([metadata, torch.ones_like(metadata[:, :1])], 1)
