"""Options of an audit in one record: what :func:`setsquare.audit` was asked, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from setsquare.auditing.evaluations.covariance import KINDS
from setsquare.auditing.evaluations.run import EVALUATIONS, Settings
from setsquare.auditing.groups.audited import GroupRequest
from setsquare.auditing.groups.partitions import MIN_GROUP
from setsquare.auditing.verdict import Limits
from setsquare.errors import InputError
from setsquare.families import Family
from setsquare.tables.validation import check_choice, check_confidence, check_max_rows, refuse_coding

#: Evaluation models of an audit that names none.
DEFAULT = ("glm", "shape")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """Options of an audit, with the names, meanings and defaults of the arguments of :func:`setsquare.audit`."""

    family: str | Family | None = None
    vcov: str = "HC3"
    evaluation: str | Sequence[str] = DEFAULT
    given: Any = None
    cluster: Any = None
    sample_weight: Any = None
    classes: Sequence[Any] | None = None
    basis: Any = "linear"
    reference: Mapping[str, Any] | None = None
    missing: str = "error"
    confidence: float = 0.95
    tolerance: float | Limits = 0.05
    setting: str = "as given"
    n_permutations: int = 499
    max_rows: int | None = None
    random_state: int = 0
    positive: object = None
    threshold: float | None = None
    decisions: Any = None
    outcome: Any = None
    min_group: int = MIN_GROUP
    standard: str | None = None

    @property
    def evaluations(self) -> tuple[str, ...]:
        """Evaluation models by name."""
        return (self.evaluation,) if isinstance(self.evaluation, str) else tuple(self.evaluation)

    @property
    def settings(self) -> Settings:
        """How the tests are done."""
        limits = self.tolerance if isinstance(self.tolerance, Limits) else Limits(self.tolerance)
        return Settings(self.vcov, self.confidence, limits, self.n_permutations, self.max_rows, self.random_state)

    @property
    def about_groups(self) -> GroupRequest:
        """What is asked about groups."""
        return GroupRequest(
            self.threshold,
            self.decisions,
            self.outcome,
            self.positive,
            self.reference,
            self.min_group,
            self.standard,
        )

    @property
    def column_coding(self) -> dict[str, Any]:
        """How the protected columns are coded; see :func:`setsquare.tables.learn`."""
        return {"basis": self.basis, "reference": self.reference, "missing": self.missing, "largest": True}

    def check(self) -> None:
        """Refuse values that no audit can have."""
        settings, names = self.settings, self.evaluations
        check_choice("vcov", settings.vcov, KINDS)
        if settings.vcov == "cluster" and self.cluster is None:
            raise InputError("vcov='cluster' needs the clusters: pass cluster=.")
        check_confidence(settings.confidence)
        if not 0.0 <= settings.limits.correlation < 1.0:
            raise InputError(f"tolerance is a correlation between 0 and 1, not {settings.limits.correlation}.")
        if not 0.0 <= settings.limits.shape < 1.0:
            raise InputError(f"The limit for the shape is a correlation between 0 and 1, not {settings.limits.shape}.")
        if not settings.limits.difference >= 0.0:
            raise InputError(
                f"The limit for differences must be 0 or more standard deviations, not {settings.limits.difference}."
            )
        check_max_rows(settings.max_rows)
        if settings.n_permutations < 19:
            raise InputError(f"A permutation test needs at least 19 permutations, not {settings.n_permutations}.")
        for name in names:
            check_choice("evaluation", name, EVALUATIONS)
        if not names or len(set(names)) < len(names):
            raise InputError("Name at least one evaluation model, and each only once.")


@refuse_coding
def read_options(**given: Any) -> AuditOptions:
    """Options that another function was given for :func:`setsquare.audit`.

    Examples
    --------
    >>> read_options(vcov="HC1").vcov
    'HC1'
    """
    known = {field.name for field in fields(AuditOptions)}
    for name in given:
        if name not in known:
            raise TypeError(f"audit() got an unexpected keyword argument {name!r}")
    return AuditOptions(**given)
