"""Out-of-core tables: files, batches and dask collections.

A :class:`Stream` is opened as :class:`Parts`: tables that can be read any number of times, a few at a time. Every sum
over rows is ``parts.reduce(kernel)``, wherever the parts are stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from setsquare._lazy import names_by_module

if TYPE_CHECKING:
    from setsquare.rows.blocks import Block, mean_weight
    from setsquare.rows.parallel import Sums, single_threaded_blas
    from setsquare.rows.passes import LocalParts, Parts, RowsInParts
    from setsquare.rows.products import weighted_product
    from setsquare.rows.stream import Stream, as_stream, is_dask_array, is_lazy

__all__ = [
    "Block",
    "LocalParts",
    "Parts",
    "RowsInParts",
    "Stream",
    "Sums",
    "as_stream",
    "is_dask_array",
    "is_lazy",
    "mean_weight",
    "single_threaded_blas",
    "weighted_product",
]
__getattr__ = names_by_module(
    __name__,
    {
        "blocks": ("Block", "mean_weight"),
        "parallel": ("Sums", "single_threaded_blas"),
        "passes": ("LocalParts", "Parts", "RowsInParts"),
        "products": ("weighted_product",),
        "stream": ("Stream", "as_stream", "is_dask_array", "is_lazy"),
    },
)
