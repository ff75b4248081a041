"""Images of two groups that differ in a true signal and a confounder: the synthetic study of MetadataNorm.

Lu et al., "Metadata Normalization", CVPR 2021, after Adeli et al., "Representation learning with statistical
independence to mitigate bias", WACV 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from setsquare.errors import InputError
from studies.arrays import Array

#: Bounds of the uniform intensities of the first and second group, for both signal and confounder.
RANGES = np.array([[1.0, 4.0], [3.0, 6.0]])
#: Half the width of a kernel, in standard deviations of its squared profile; standard deviation of the pixel noise.
N_SIGMA, NOISE = 5.0, 0.01


@dataclass(frozen=True, slots=True, eq=False)
class TwoGroups:
    """Images of two groups, with the intensities of signal and confounder.

    Attributes
    ----------
    images : array of shape (n, size, size)
        Kernels with intensity `signal` on the main diagonal, one with intensity `confounder` below it, and noise.
    group : array of shape (n,)
        Group to predict, 0 or 1.
    signal, confounder : array of shape (n,)
    """

    images: Array
    group: Array
    signal: Array
    confounder: Array


def make_two_groups(
    n_per_group: int = 1000,
    random_state: int | np.random.Generator | None = None,
    *,
    size: int = 32,
    confounded: bool = True,
) -> TwoGroups:
    r"""Draw images as in MetadataNorm's synthetic study.

    Each image has four quadrants: on the main diagonal a Gaussian kernel times the signal, below it the same kernel
    times the confounder, above it only noise. Within a group, signal and confounder are independent, each uniform on
    [1, 4] in group 0 and on [3, 6] in group 1.

    Parameters
    ----------
    n_per_group : int, default 1000
        Number of images per group; the study uses 1000.
    random_state : int or numpy.random.Generator, optional
        Seed or generator; by default, a seed from the operating system.
    size : int, default 32
        Pixels per side, an even number. The norm of the kernels, and so the signal-to-noise ratio, is the same for
        every size.
    confounded : bool, default True
        If False, the same confounder values are assigned independently of the group: accuracy on such images shows how
        much a classifier relies on the confounder.

    See Also
    --------
    best_accuracy : Largest accuracy with and without the confounder.

    Examples
    --------
    >>> data = make_two_groups(50, random_state=0)
    >>> data.images.shape, float(data.group.mean())
    ((100, 32, 32), 0.5)
    """
    if not isinstance(n_per_group, int | np.integer) or n_per_group < 1:
        raise InputError(f"n_per_group must be an integer of at least 1, not {n_per_group!r}.")
    if not isinstance(size, int | np.integer) or size < 4 or size % 2:
        raise InputError(f"size must be an even number of at least 4 pixels, not {size!r}.")
    rng = np.random.default_rng(random_state)
    group = np.repeat([0, 1], n_per_group)
    signal, confounder = (rng.uniform(*RANGES[group].T) for _ in range(2))
    if not confounded:
        confounder = rng.permutation(confounder)
    half = size // 2
    images = rng.normal(0.0, NOISE, (len(group), size, size))
    for rows, columns, intensity in ((0, 0, signal), (half, half, signal), (half, 0, confounder)):
        images[:, rows : rows + half, columns : columns + half] += intensity[:, None, None] * _kernel(half)
    return TwoGroups(images, group.astype(np.float64), signal, confounder)


def best_accuracy(*, confounder: bool) -> float:
    """Return the largest accuracy that any classifier can have on confounded images, in the limit of little noise.

    The uniform densities of the groups overlap on a third of each range, and are equal there. Only there a classifier
    must guess: for a third of the images if it uses only the signal, and only where both overlap if it also uses the
    confounder.

    Parameters
    ----------
    confounder : bool
        Whether the classifier may also use the confounder. If not, the accuracy is the same on images that are not
        confounded.

    Examples
    --------
    >>> best_accuracy(confounder=False), best_accuracy(confounder=True)  # 5/6 and 17/18
    (0.8333333333333334, 0.9444444444444444)
    """
    (low, high), (other_low, _) = RANGES
    overlap = (high - other_low) / (high - low)
    return float(1.0 - 0.5 * overlap ** (2 if confounder else 1))


def _kernel(size: int) -> Array:
    """Gaussian kernel (size, size) with the published norm; for 16 pixels it is the published kernel."""
    kernel = _published_kernel(size)
    return kernel * float(np.linalg.norm(_published_kernel(16)) / np.linalg.norm(kernel))


def _published_kernel(size: int) -> Array:
    """Square root of the Gaussian mass in each pixel, normalised to the sum 1."""
    margin = 0.5 * (2.0 * N_SIGMA + 1.0) / size
    edges = np.linspace(-N_SIGMA - margin, N_SIGMA + margin, size + 1)
    root: Array = np.sqrt(np.diff(ndtr(edges)))
    return np.outer(root, root) / float(root.sum()) ** 2
