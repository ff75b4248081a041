"""Result of an audit."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from setsquare._typing import Table
from setsquare.auditing.certificate import Certificate
from setsquare.auditing.documents.assemble import assemble
from setsquare.auditing.evaluations.records import EFFECT_COLUMNS, Evaluation, Member, benjamini_hochberg, holm
from setsquare.auditing.evaluations.tensor import EffectMap
from setsquare.auditing.groups.result import GroupNumbers
from setsquare.auditing.verdict import DEFAULT_LIMITS, Limits, Verdict
from setsquare.document import Document, Documented
from setsquare.errors import InputError
from setsquare.families import Family
from setsquare.notes import Note, describe
from setsquare.tables.frame import to_frame


@dataclass(frozen=True, slots=True)
class AuditResult(Documented):
    """Result of an audit: the verdict, and the evidence for it.

    Attributes
    ----------
    verdict : Verdict
        "leak", "trace", "no leak found" or "inconclusive: n too small"; a string.
    reason : str
        Reason for the verdict, in plain words.
    evaluations : tuple of Evaluation
        The evaluation models, in the order requested.
    certificate : Certificate
        Upper confidence bounds on the remaining dependence.
    setting : str
        Origin of the predictions: "as given", "in-sample" or "held out (5 folds)".
    glm : Family
        Family of the predictions.
    n, n_protected : int
        Rows that were audited, and protected columns.
    confidence : float
        Confidence level; the tests control the probability of any false alarm at 1 - confidence.
    statistics : str
        Tests and bounds that the verdict rests on.
    found : tuple of str
        Kinds of dependence that were found: "effects", "curvature", "combinations", "spread", or another model's name.
    limits : Limits
        Limits up to which a dependence is a trace.
    members : tuple of Member
        The tests that decide, with p-values adjusted for all of them.
    notes : tuple of Note
        Notes for the reader: sentences with a code, fields and a severity.
    effect_map : EffectMap or None
        Effects on each unit of a tensor.
    backend : str
        Dataframe library of the tables.
    positive : str
        The class, of two, whose probability was audited; empty if it has no name.
    is_clustered, is_weighted : bool
        Whether the rows had clusters, and weights.
    references : tuple of (str, str)
        Categorical protected columns, each with its reference group.
    numbers : GroupNumbers or None
        Numbers by group; see :meth:`groups`. None for streams, several classes and tensors.
    family : str
        Name of the family of the predictions.
    p_adjusted : float
        Smallest p-value of the tests that decide, adjusted for all of them.
    all_notes : tuple of Note
        Notes of this audit and of its evaluation models, and warnings about numbers by group, each once.

    Examples
    --------
    >>> import numpy as np
    >>> import setsquare as sq
    >>> rng = np.random.default_rng(0)
    >>> sex = rng.integers(2, size=2000)
    >>> probability = 1 / (1 + np.exp(-rng.normal(size=2000) - 0.5 * sex))
    >>> result = sq.audit(probability, sex)
    >>> print(result.verdict)
    leak
    >>> result.table().round(2)[["term", "estimate", "std_error"]]
      term  estimate  std_error
    0   x0      0.44       0.04
    """

    verdict: Verdict
    reason: str
    evaluations: tuple[Evaluation, ...]
    certificate: Certificate
    setting: str
    glm: Family
    n: int
    n_protected: int
    confidence: float
    statistics: str = ""
    found: tuple[str, ...] = ()
    limits: Limits = DEFAULT_LIMITS
    members: tuple[Member, ...] = field(default=(), repr=False)
    notes: tuple[Note, ...] = ()
    effect_map: EffectMap | None = field(default=None, repr=False)
    backend: str = "pandas"
    positive: str = ""
    is_clustered: bool = False
    is_weighted: bool = False
    references: tuple[tuple[str, str], ...] = ()
    numbers: GroupNumbers | None = field(default=None, repr=False, compare=False)
    family: str = field(init=False, compare=False)
    p_adjusted: float = field(init=False, compare=False)
    all_notes: tuple[Note, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        grouped = () if self.numbers is None else (note for note in self.numbers.notes if note.severity == "warning")
        notes = dict.fromkeys([*self.notes, *(note for e in self.evaluations for note in e.notes), *grouped])
        smallest = min((member.adjusted for member in self.members), default=float("nan"))
        for name, value in (("family", str(self.glm)), ("p_adjusted", smallest), ("all_notes", tuple(notes))):
            object.__setattr__(self, name, value)

    @property
    def p_value(self) -> float:
        """Joint p-value of the first evaluation model, for the hypothesis of no effect."""
        return self.evaluations[0].joint.p_value if self.evaluations else float("nan")

    @property
    def is_leak(self) -> bool:
        """Whether a leak was found."""
        return self.verdict is Verdict.LEAK

    def evaluation(self, name: str | None = None) -> Evaluation:
        """One of the evaluation models, by name; the first by default."""
        for evaluation in self.evaluations:
            if name in (None, evaluation.name):
                return evaluation
        have = ", ".join(e.name for e in self.evaluations) or "none (the predictions are constant)"
        raise InputError(f"This audit has no evaluation model {name!r}: it has {have}.")

    def table(self, evaluation: str | None = None, *, adjusted: bool = False) -> Table:
        """Effects of the protected columns, in the dataframe library of the input.

        Parameters
        ----------
        evaluation : str, optional
            Name of the evaluation model; the first by default.
        adjusted : bool
            Add p-values adjusted by Holm and by Benjamini and Hochberg.
        """
        effects = self.evaluation(evaluation).effects if self.evaluations or evaluation else ()
        columns: dict[str, Any] = {name: [getattr(e, name) for e in effects] for name in EFFECT_COLUMNS}
        if adjusted:
            columns["p_holm"] = holm(columns["p_value"]).tolist()
            columns["p_bh"] = benjamini_hochberg(columns["p_value"]).tolist()
        return to_frame(columns, self.backend)

    def groups(self) -> Table:
        """Numbers of each group, in the dataframe library of the input.

        One row per level of a protected column, band of a numeric one, and cell of all categorical columns, with the
        columns ``source``, ``group``, ``n``, ``mean`` (prediction), ``difference`` and ``ratio`` (to the reference
        group); with decisions ``selection_rate``, ``selection_difference``, ``impact_ratio`` (to the reference group)
        and ``impact_ratio_highest`` (to the highest rate of the column); with outcomes ``auc``, ``outcome`` (its mean)
        and ``calibration`` (mean outcome minus mean prediction); with both ``tpr``, ``fpr``, ``ppv``, ``npv`` and
        ``accuracy``. Each has an interval, ``..._low`` to ``..._high``, that holds for all groups at once. Numbers of
        small groups, and undefined ones, are NaN; notes say why.

        Examples
        --------
        >>> import numpy as np
        >>> import setsquare as sq
        >>> rng = np.random.default_rng(0)
        >>> sex = rng.choice(["female", "male"], 2000, p=[0.4, 0.6])
        >>> score = rng.beta(2, 2, 2000) * np.where(sex == "female", 0.8, 1.0)
        >>> sq.audit(score, sex, threshold=0.5).groups()[["group", "n", "selection_rate", "impact_ratio"]].round(2)
            group     n  selection_rate  impact_ratio
        0  female   815            0.33          0.64
        1    male  1185            0.51          1.00
        """
        return self._numbers.table()

    def group_summary(self) -> Table:
        """Summary numbers of each protected column as a dataframe, with intervals.

        ``mean_difference``; with decisions ``demographic_parity_difference`` and ``demographic_parity_ratio``; with
        outcomes too ``equalized_odds_difference``, each as fairlearn defines it.
        """
        return self._numbers.summary()

    @property
    def _numbers(self) -> GroupNumbers:
        if self.numbers is None:
            raise InputError(
                "This audit has no numbers by group: pass one prediction per row, in memory, and a protected column "
                "with two groups or more."
            )
        return self.numbers

    def tests(self) -> Table:
        """Tests of all evaluation models as a dataframe; `p_adjusted` is that of the tests that decide together."""
        adjusted = {(m.evaluation.name, m.test.name): m.adjusted for m in self.members}
        rows: list[tuple[Any, ...]] = []
        for evaluation in self.evaluations:
            for test in evaluation.tests:
                p = adjusted.get((evaluation.name, test.name), float("nan"))
                rows.append((evaluation.name, test.name, test.statistic, test.df, test.p_value, p, test.method))
        names = ("evaluation", "test", "statistic", "df", "p_value", "p_adjusted", "method")
        return to_frame({name: [row[j] for row in rows] for j, name in enumerate(names)}, self.backend)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; NaN and infinities stay floats."""
        return {
            "verdict": str(self.verdict),
            "reason": self.reason,
            "statistics": self.statistics,
            "setting": self.setting,
            "family": self.family,
            "positive": self.positive or None,
            "n": self.n,
            "n_protected": self.n_protected,
            "confidence": self.confidence,
            "found": list(self.found),
            "limits": asdict(self.limits),
            "tests": [
                {
                    "evaluation": member.evaluation.name,
                    "test": member.test.name,
                    "p_value": member.test.p_value,
                    "p_adjusted": member.adjusted,
                }
                for member in self.members
            ],
            "notes": list(map(describe, self.notes)),
            "evaluations": [evaluation.to_dict() for evaluation in self.evaluations],
            "certificate": self.certificate.to_dict(),
            "groups": None if self.numbers is None else self.numbers.to_dict(),
        }

    def document(self) -> Document:
        """Verdict, effects, tests, bounds and notes, for every renderer; see :func:`setsquare.report.build`."""
        return assemble({"": self})
