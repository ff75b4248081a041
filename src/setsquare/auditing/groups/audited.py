"""Numbers by group of the rows of an audit: decisions and outcomes are read, groups are formed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from setsquare._typing import Array, BoolArray, IntArray, Table
from setsquare.auditing.groups.partitions import MIN_GROUP, partition_rows
from setsquare.auditing.groups.rates import Rows
from setsquare.auditing.groups.read import read_column, read_decisions, read_outcome
from setsquare.auditing.groups.result import GroupNumbers, number_groups
from setsquare.auditing.groups.standards import fill_standard, keep_shares, standard_rows
from setsquare.errors import InputError
from setsquare.tables import filter_rows
from setsquare.tables.column import read
from setsquare.tables.frame import open_table
from setsquare.tables.validation import check_alignment


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """What is asked about groups; see :func:`setsquare.audit`."""

    threshold: float | None = None
    decisions: Any = None
    outcome: Any = None
    positive: object = None
    reference: Mapping[str, Any] | None = None
    min_group: int = MIN_GROUP
    standard: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether only means were asked for."""
        return self.threshold is None and self.decisions is None and self.outcome is None and self.standard is None

    def refuse(self, why: str) -> None:
        """Refuse decisions, outcomes and standards where there are no numbers by group."""
        if not self.is_plain:
            raise InputError(f"threshold, decisions, outcome and standard need {why}.")


def number_audited(
    request: GroupRequest,
    score: Array,
    protected: Table,
    keep: BoolArray,
    weight: Array | None,
    cluster: IntArray | None,
    *,
    missing_group: bool = False,
    confidence: float = 0.95,
    seed: int = 0,
    backend: str = "pandas",
) -> GroupNumbers | None:
    """Numbers by group of the audited rows; None if no protected column has two groups.

    Parameters
    ----------
    request : GroupRequest
        Its decisions and outcome are of all rows.
    score : ndarray of shape (n,)
        Predictions of the rows to keep, and so are `weight` and `cluster`.
    protected : dataframe, series or array
        All rows.
    keep : boolean ndarray
        The rows that are audited.
    missing_group : bool
        Whether missing protected values are a group.
    confidence, seed, backend
        See :class:`GroupNumbers`.
    """
    for values, what in ((request.decisions, "decisions"), (request.outcome, "outcome")):
        check_alignment(protected, values, what)
    given = None if request.decisions is None else read_column(request.decisions, len(keep), "decisions")[keep]
    decision = read_decisions(score, request.threshold, given, request.positive)
    outcome = None
    if request.outcome is not None:
        outcome = read_outcome(read_column(request.outcome, len(keep), "outcome")[keep], request.positive)
    table = protected if keep.all() else filter_rows(protected, keep)
    partitions = partition_rows(
        table,
        reference=request.reference,
        min_group=request.min_group,
        missing_group=missing_group and request.standard is None,  # standards count such rows beside the table
    )
    if not partitions:
        return None
    rows = Rows(score, decision, outcome, weight, cluster)
    options: dict[str, Any] = {"confidence": confidence, "seed": seed, "backend": backend}
    if request.standard is None:
        return number_groups(rows, partitions, min_group=request.min_group, **options)
    rows, rate = standard_rows(rows, request.standard)
    partitions = keep_shares(partitions, request.standard)
    found = number_groups(rows, partitions, min_group=request.min_group, **options)
    frame = open_table(protected)
    unknown = tuple((name, int(np.count_nonzero(read(frame, name).missing))) for name in frame.names)
    return found.filed(fill_standard(found, request.standard, rate, unknown))
