"""Certificate of a fit: what holds on the training rows, as measured, with the limits that it is judged by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from setsquare.document import table
from setsquare.document.formats import number
from setsquare.document.text import grid
from setsquare.glm.deferred import Deferred
from setsquare.glm.new_rows_bound import NewRows

#: Limits for a valid certificate: remaining correlation, relative gradient of the Lagrangian, curvature.
MAX_CORRELATION, MAX_KKT, MIN_CURVATURE = 1e-8, 1e-6, -1e-8

#: Share of the covariance above a budget that is rounding error.
MAX_SHARE = 1e-6

#: Rows on which predictions can be orthogonal.
TRAINING_ROWS, NEW_ROWS = "training rows", "new rows"

#: Limit on the correlation that appears when a few rows are left out: FEW_CORRELATION or FEW_ROWS / n, whichever is
#: larger. Of 2064 ordinary fits (six families, 40 to 5000 rows), 2 exceeded it.
FEW_CORRELATION, FEW_ROWS = 0.1, 20.0
#: Largest acceptable distance of a prediction from the mean, relative to that of the farthest outcome.
FAR = 5.0


def rests_on_few(correlation_without: float | None, n_rows: int) -> bool:
    """Whether the constraint depends on the few rows without which this correlation appears."""
    return correlation_without is not None and correlation_without > max(FEW_CORRELATION, FEW_ROWS / max(n_rows, 1))


@dataclass(frozen=True, slots=True)
class Certificate:
    """Properties of a solution, measured on the training rows after the fit.

    Attributes
    ----------
    constraint_residual : float
        Largest covariance between the predictions and the orthonormal basis of the protected columns.
    max_correlation : float
        Largest ``|corr|`` between a protected column (including dropped ones) and the predictions.
    kkt_residual : float
        Gradient of the Lagrangian relative to the slopes of the intercept-only model.
    min_curvature : float
        Smallest eigenvalue of the Lagrangian's Hessian on the tangent space of the constraint, relative to the mean
        curvature of the intercept-only model: above -1e-8 no direction decreases the loss to second order. The Hessian
        can be that of a point a few thousandths of a standard deviation of the linear predictor before the solution.
        With ``large`` it is the smallest value found by a few Lanczos steps, for standardised features: an upper bound.
    loss, loss_null : float
        Mean loss of this model, and of the intercept-only model.
    unconstrained : Deferred
        Mean loss of the model without the constraint; read it as ``loss_unconstrained``.
    rank_protected : int
    rank_features : int or None
        None if not computed (``large``).
    min_curvature_low, rank_features_low : float and int, or None
        With ``large``: lower bounds on both. That on the curvature holds with a probability of 99 % over the random
        start of the Lanczos steps; the rank is at most the number of features that are not constant.
    n_protected, n_features : int
    constant_protected, collinear_protected, aliased_features : tuple of str
        Redundant columns; the predictions are orthogonal to the dropped protected columns as well.
    flat_features : tuple of str
        Features whose coefficient the data do not determine (quasi-separation).
    label_share : float
        Share of the outcome's variance that the protected columns explain, and that the correction removes.
    correlation_without : float or None
        Largest ``|corr|`` that appears when the rows with the most extreme predictions are left out (up to ten, and up
        to 1 % of the rows). None if not measured: models saved by an earlier version.
    n_left_out : int
        Number of rows left out.
    reach : float
        Largest distance of a prediction from the mean of the intercept-only model, divided by that of an outcome.
    n_rows : int
        Rows of positive weight.
    orthogonal_on : str
        "training rows": the correlation is zero on the training rows; "new rows": the leave-one-out correlation is
        zero.
    left_out : Deferred
        Leave-one-out correlation; read it as ``new_rows``.
    given : tuple of str
        Controls: correlations are those with the residuals of the protected columns on them.
    determined_protected : tuple of str
        Protected columns that the controls determine; given them, nothing of these is left.
    budget : float
        Share of the covariance with the protected columns that may stay on the training rows; 0: orthogonal.
    covariance_share : float or None
        With a budget: share of the covariance of the fit without the constraint that is left. Covariances are lengths
        over an orthonormal basis of the protected columns.
    correlation : float or None
        With a budget: multiple correlation of the predictions with all protected columns that is left.
    threshold : float or None
        Where the decisions at a threshold are orthogonal, and not the probabilities: that threshold. Correlations and
        residuals are then those of the smoothed decisions.
    decision_correlation, selection_rate : float or None
        With a threshold: multiple correlation of the decisions themselves with all protected columns, and the share
        that is selected.
    missing_protected : tuple of str
        Protected columns that are partly missing (``missing="model"``). Correlations on training rows are then those
        with the doubly robust values in their place, those on new rows with the columns themselves.
    missing_shares : tuple of float
        Shares of the rows in which they are missing.
    missing_given : tuple of str
        What is known about every row: the values are assumed to be missing at random given this.
    box : float or None
        Largest correlation allowed with each protected column, where the constraint was relaxed (``relax="box"``).
    n_at_limit : int
        Number of protected columns whose correlation is at that limit.
    """

    constraint_residual: float
    max_correlation: float
    kkt_residual: float
    min_curvature: float
    loss: float
    unconstrained: Deferred[float]
    loss_null: float
    rank_protected: int
    rank_features: int | None
    n_protected: int
    n_features: int
    constant_protected: tuple[str, ...] = ()
    collinear_protected: tuple[str, ...] = ()
    aliased_features: tuple[str, ...] = ()
    flat_features: tuple[str, ...] = ()
    label_share: float = 0.0
    correlation_without: float | None = None
    n_left_out: int = 0
    reach: float = 0.0
    n_rows: int = 0
    orthogonal_on: str = TRAINING_ROWS
    left_out: Deferred[NewRows | None] = field(default_factory=lambda: Deferred[NewRows | None](None))
    given: tuple[str, ...] = ()
    determined_protected: tuple[str, ...] = ()
    budget: float = 0.0
    covariance_share: float | None = None
    correlation: float | None = None
    threshold: float | None = None
    decision_correlation: float | None = None
    selection_rate: float | None = None
    missing_protected: tuple[str, ...] = ()
    missing_shares: tuple[float, ...] = ()
    missing_given: tuple[str, ...] = ()
    box: float | None = None
    n_at_limit: int = 0
    min_curvature_low: float | None = None
    rank_features_low: int | None = None

    @property
    def new_rows(self) -> NewRows | None:
        """Leave-one-out correlation, with an upper bound for new rows; None if not measured.

        Computed when it is first read, as :attr:`loss_unconstrained` is, unless the fit needs it.
        """
        return self.left_out.value

    @property
    def is_orthogonal(self) -> bool:
        """Whether the predictions are orthogonal on the rows that were asked for.

        On training rows, no correlation with a protected column. On new rows, a leave-one-out correlation of zero in
        the directions of the protected columns that the features can predict (``new_rows.n_steered``), and within its
        sampling error in the others. False with a threshold: there the decisions are, not the probabilities.
        """
        return self.threshold is None and self._is_zero

    @property
    def _is_zero(self) -> bool:
        """Whether what is constrained, predictions or smoothed decisions, has no correlation."""
        if self.orthogonal_on == TRAINING_ROWS or not self.n_protected:
            return self.max_correlation <= MAX_CORRELATION
        return self.new_rows is not None and self.new_rows.is_zero

    @property
    def is_kept(self) -> bool:
        """Whether the guarantee that was asked for holds: orthogonal, decisions orthogonal, within budget or box."""
        if self.box is not None:
            return self.max_correlation <= self.box * (1.0 + 1e-9)
        if not self.budget:
            return self._is_zero
        return self.covariance_share is not None and self.covariance_share <= self.budget + MAX_SHARE

    @property
    def is_optimal(self) -> bool:
        """Whether the solution is a local optimum to second order; this requires that the constraint is met."""
        return self.is_kept and self.kkt_residual <= MAX_KKT and self.min_curvature >= MIN_CURVATURE

    @property
    def rests_on_few_rows(self) -> bool:
        """Whether the zero correlation depends on a few rows, or a prediction is extreme.

        Without those rows the correlation exceeds 0.1 (20 / n if n is small), or a prediction is more than five times
        as far from the mean as any outcome.
        """
        return rests_on_few(self.correlation_without, self.n_rows) or self.reach > FAR

    @property
    def is_worse_than_constant(self) -> bool:
        """Whether the leave-one-out loss exceeds that of the intercept-only model by more than its standard error."""
        return self.new_rows is not None and self.new_rows.is_worse_than_constant

    @property
    def loss_unconstrained(self) -> float:
        """Mean loss of the model without the constraint, computed when it is first read.

        The solution holds the rows in memory until then; for more than 128 MB of them, until the next fit to as many at
        the latest, which computes it first. For streamed rows it is computed during the fit. Reading it, or saving,
        pickling or copying the model, releases the rows. NaN if the arrays of the training data were overwritten in
        between.
        """
        return self.unconstrained.value

    @property
    def cost(self) -> float:
        """Share of the attainable reduction of the loss that the constraint costs; see :attr:`loss_unconstrained`."""
        attainable = self.loss_null - self.loss_unconstrained
        return (self.loss - self.loss_unconstrained) / attainable if not attainable <= 0.0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return all values, including derived ones, as plain types."""
        derived = {
            key: getattr(self, key)
            for key in (
                "is_orthogonal",
                "is_kept",
                "is_optimal",
                "rests_on_few_rows",
                "is_worse_than_constant",
                "cost",
            )
        }
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in self.state().items()
        } | derived

    def state(self) -> dict[str, Any]:
        """Return the measured values by name, as :meth:`of_state` takes them."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["loss_unconstrained"] = values.pop("unconstrained").value
        found = values.pop("left_out").value
        return values | {"new_rows": None if found is None else asdict(found)}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Certificate:
        """Undo :meth:`state`."""
        values = dict(state)
        found, loss = values.pop("new_rows", None), values.pop("loss_unconstrained")
        left_out = Deferred(None if found is None else NewRows(**found))
        return cls(unconstrained=Deferred(loss), left_out=left_out, **values)

    def table(self) -> dict[str, Any]:
        """Measured values and their required limits, as a document table."""
        if self.box is not None:
            return table("Certificate", [("text", "measured", "value", "required")], self._box_rows(self.box))
        limit = max(FEW_CORRELATION, FEW_ROWS / max(self.n_rows, 1))
        asked = {TRAINING_ROWS: "" if self.budget else f"at most {MAX_CORRELATION:g}", NEW_ROWS: ""}
        if self.orthogonal_on == NEW_ROWS and self.new_rows is not None:
            asked = {
                TRAINING_ROWS: "",
                NEW_ROWS: f"at most {self.new_rows.limit:.1e}",
            }
        where = "" if self.orthogonal_on == TRAINING_ROWS else f" on {self.orthogonal_on}"
        where += ", missing values modelled" if self.missing_protected else ""
        without = "not measured" if self.correlation_without is None else f"{self.correlation_without:.3f}"
        rows = [
            *(
                self._spent()
                or self._decided()
                or [[f"Orthogonal to the protected columns{where}", _YES[self.is_orthogonal], ""]]
            ),
            *self._missing_rows(),
            *([["Given", ", ".join(self.given), ""]] if self.given else []),
            ["Largest |corr| on training rows", f"{self.max_correlation:.1e}", asked[TRAINING_ROWS]],
            *self._new_rows(asked[NEW_ROWS]),
            *(
                [[f"Largest |corr| without {self.n_left_out} extreme row(s)", without, f"at most {limit:g}"]]
                if not self.budget and self.threshold is None
                else []
            ),
            ["Constraint residual", f"{self.constraint_residual:.1e}", ""],
            ["Local optimum", _YES[self.is_optimal], ""],
            ["KKT residual", f"{self.kkt_residual:.1e}", f"at most {MAX_KKT:g}"],
            ["Smallest curvature", self._curvature_text(), f"at least {MIN_CURVATURE:g}"],
            ["Loss", f"{self.loss:.6g}", ""],
            ["Loss without the constraint", _known(self.loss_unconstrained, ".6g"), ""],
            ["Loss with an intercept only", f"{self.loss_null:.6g}", ""],
            ["Cost: share of the attainable reduction", _known(self.cost, ".1%"), ""],
            ["Outcome explained by the protected columns", f"{self.label_share:.1%}", ""],
            ["Rank of the protected columns", f"{self.rank_protected} of {self.n_protected}", ""],
            ["Rank of the features", self._rank_text(), ""],
        ]
        if self.rests_on_few_rows:
            rows.insert(1, ["Orthogonality rests on few rows", "YES", ""])
            rows.insert(4, ["Farthest prediction / farthest outcome", number(self.reach), f"at most {FAR:g}"])
        if self.is_worse_than_constant:
            rows.insert(1, ["Worse than a constant on new rows", "YES", ""])
        for label, names in (
            ("Constant protected columns", self.constant_protected),
            ("Collinear protected columns", self.collinear_protected),
            ("Protected columns that the given ones determine", self.determined_protected),
            ("Aliased features", self.aliased_features),
            ("Undetermined coefficients", self.flat_features),
        ):
            rows += [[label, ", ".join(names), ""]] if names else []
        return table("Certificate", [("text", "measured", "value", "required")], rows)

    def _box_rows(self, box: float) -> list[list[str]]:
        """Rows of the table of a relaxed fit."""
        return [
            ["Orthogonal to the protected columns", _YES[self.is_orthogonal], ""],
            ["Each |corr| within chance on training rows", _YES[self.is_kept], ""],
            *self._missing_rows(),
            ["Largest |corr| on training rows", f"{self.max_correlation:.3f}", f"at most {box:.3f}"],
            ["Protected columns at this limit", f"{self.n_at_limit} of {self.n_protected}", ""],
            ["Correlation on new rows", "not measured", ""],
            ["Local optimum", _YES[self.is_optimal], ""],
            ["KKT residual", f"{self.kkt_residual:.1e}", f"at most {MAX_KKT:g}"],
            ["Smallest curvature", self._curvature_text(), f"at least {MIN_CURVATURE:g}"],
            ["Loss", f"{self.loss:.6g}", ""],
            ["Loss without the constraint", f"{self.loss_unconstrained:.6g}", ""],
            ["Loss with an intercept only", f"{self.loss_null:.6g}", ""],
            ["Cost: share of the attainable reduction", f"{self.cost:.1%}", ""],
            ["Rank of the features", self._rank_text(), ""],
        ]

    def _curvature_text(self) -> str:
        """Smallest curvature, or the two bounds on it."""
        low = self.min_curvature_low
        if low is None or low == self.min_curvature:
            return f"{self.min_curvature:.1e}"
        return f"{self.min_curvature:.1e} at most, {low:.1e} at least (99 %)"

    def _rank_text(self) -> str:
        """Rank of the features, or the two bounds on it."""
        if self.rank_features is not None or not self.rank_features_low:  # none with a ridge, which has full rank
            return f"{self.rank_features or 'not known'} of {self.n_features}"
        most = min(self.n_features - len(self.aliased_features), self.n_rows - 1)
        return f"not known of {self.n_features}: {min(self.rank_features_low, most)} at least, {most} at most"

    def _missing_rows(self) -> list[list[str]]:
        if not self.missing_protected:
            return []
        parts = zip(self.missing_protected, self.missing_shares, strict=True)
        return [
            ["Missing values", ", ".join(f"{name} ({share:.0%})" for name, share in parts), ""],
            ["Assumed: missing at random given", ", ".join(self.missing_given), ""],
        ]

    def _spent(self) -> list[list[str]]:
        """What is promised with a budget."""
        if not self.budget or self.covariance_share is None or self.correlation is None:
            return []
        return [
            ["Within the budget", _YES[self.is_kept], ""],
            ["Share of the covariance left", f"{self.covariance_share:.4g}", f"at most {self.budget:g}"],
            ["Correlation with all protected columns on training rows", f"{self.correlation:.3g}", ""],
        ]

    def _decided(self) -> list[list[str]]:
        """What is promised about decisions."""
        if self.threshold is None:
            return []
        return [
            [f"Smoothed decisions at {self.threshold:g} orthogonal to the protected columns", _YES[self.is_kept], ""],
            ["Correlation of the decisions with all protected columns", f"{self.decision_correlation:.1e}", ""],
            ["Share selected", f"{self.selection_rate:.3f}", ""],
        ]

    def _new_rows(self, asked: str) -> list[list[str]]:
        found = self.new_rows
        if found is None:
            return [["Correlation on new rows", "not measured", ""]] if self.n_protected else []
        left = "cluster" if found.by_cluster else "one"
        largest = max((abs(value) for value in found.correlations.values()), default=0.0)
        return [
            [f"Largest |corr| on new rows, leave-{left}-out", f"{largest:.1e}", ""],
            ["Correlation with all columns on new rows", f"{found.correlation:.1e}", asked],
            [f"Upper bound on new rows, {found.confidence:.0%} confidence", f"{found.upper:.3f}", ""],
            [f"Leave-{left}-out loss", f"{found.loss:.6g}", ""],
            *(
                [["Directions steered", f"{found.n_steered} of {found.n_directions}", ""]]
                if found.steered is not None
                else []
            ),
        ]

    def __str__(self) -> str:
        return grid([["measured", "value", "required"], *self.table()["rows"]])


_YES = {True: "yes", False: "NO"}


def _known(value: float, form: str) -> str:
    return "not known: the training arrays were overwritten after the fit" if math.isnan(value) else f"{value:{form}}"
