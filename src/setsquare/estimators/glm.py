"""Shared base of the corrected generalised linear models (C^h, Corollary 4)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from setsquare import tables
from setsquare._typing import Array, Table
from setsquare.errors import InputError
from setsquare.estimators.expansion import WIDENED, check_expand, expand_problem, refuse_expansion
from setsquare.estimators.feature_table import validate_features
from setsquare.estimators.missing_protected import check_modelled, model_missing, refuse_stream, state_missing
from setsquare.estimators.promise import check_promise, keep_promise
from setsquare.estimators.relaxed import read_relax, refuse_relaxed_stream
from setsquare.estimators.stream import (
    assign,
    column_values,
    join_roles,
    learn_stream,
    note_columns,
    numbers,
    stream_problem,
)
from setsquare.estimators.stream_outcome import Outcome
from setsquare.estimators.summary import Summarised
from setsquare.estimators.warn import judge, warn_left_out, warn_no_offset, warn_pooled
from setsquare.families import Family
from setsquare.glm.box import solve_box
from setsquare.glm.budget import check_budget
from setsquare.glm.certificate import TRAINING_ROWS
from setsquare.glm.decisions import certify_decisions, check_decisions, solve_decisions
from setsquare.glm.freedom import refuse_levels
from setsquare.glm.given import OUTCOME
from setsquare.glm.missing_protected import Completed
from setsquare.glm.problem import Problem
from setsquare.glm.ridge import Ridge, choose_ridge
from setsquare.glm.solver import Solution, solve
from setsquare.rows import Stream, as_stream, is_dask_array
from setsquare.rows.parallel import single_threaded_blas
from setsquare.rows.products import row_product
from setsquare.tables.arrow import read_unread
from setsquare.tables.outcome import read_outcome
from setsquare.tables.roles import Columns, Reader, learn_reader
from setsquare.tables.smooth import Ball
from setsquare.tables.validation import (
    check_alignment,
    check_same_rows,
    read_offset,
    read_weight,
    refuse_coding,
)


class ReadRows(NamedTuple):
    """Rows of a fit as a problem, how they were read, the number of rows left out, and the classes if there are any.

    ``filled`` says how partly missing protected columns were completed; ``bounded`` are the protected columns of a
    relaxed fit, whose problem has none; ``ridge`` is a penalty with a start, where reading the rows chose them.
    """

    problem: Problem
    reader: Reader
    n_dropped: int
    classes: Any
    filled: Completed | None = None
    bounded: Array | None = None
    ridge: Ridge | None = None


class OrthogonalGLM(Summarised, BaseEstimator, ABC):
    """Base of classifier and regressor: read tables, solve, check the certificate, predict."""

    @refuse_coding
    def __init__(
        self,
        protected: str | int | Sequence[str | int] | None = None,
        solver: str = "auto",
        l2: float | Literal["auto"] = 0.0,
        *,
        orthogonal_on: Literal["training rows", "new rows"] = "training rows",
        max_correlation: float | None = None,
        confidence: float = 0.95,
        budget: float = 0.0,
        threshold: float | None = None,
        expand: Literal["auto"] | None = None,
        given: str | int | Sequence[str | int] | None = None,
        relax: Literal["box"] | Mapping[str, float] | None = None,
        use_protected: bool = False,
        basis: Any = "linear",
        reference: Mapping[str, Any] | None = None,
        missing: str = "error",
        unseen: str = "error",
        max_iter: int | None = None,
        tol: float = 1e-8,
        warm_start: bool = False,
        n_restarts: int = 0,
        random_state: Any = None,
    ) -> None:
        self.protected = protected
        self.solver = solver
        self.l2 = l2
        self.orthogonal_on = orthogonal_on
        self.max_correlation = max_correlation
        self.confidence = confidence
        self.budget = budget
        self.threshold = threshold
        self.expand = expand
        self.given = given
        self.relax = relax
        self.use_protected = use_protected
        self.basis = basis
        self.reference = reference
        self.missing = missing
        self.unseen = unseen
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.n_restarts = n_restarts
        self.random_state = random_state

    def _columns(self) -> Columns:
        return Columns(
            self.protected,
            self.use_protected,
            self.basis,
            self.reference,
            self.missing,
            self.unseen,
            None if self._given_outcome() else self.given,
        )

    def _given_outcome(self) -> bool:
        return isinstance(self.given, str) and self.given == OUTCOME

    @abstractmethod
    def _code_outcome(self, y: Any, weight: Array | None) -> tuple[Family, Array, Any]:
        """Family, outcome as numbers, and the classes if there are any."""

    @abstractmethod
    def _stream_outcome(self) -> Outcome:
        """Reader of the outcome column of a stream."""

    @single_threaded_blas()  # from the start: threads that BLAS has used go on spinning for a while
    def _fit(self, X: Table, y: Any, protected: Table | None, weight: Any, offset: Any, cluster: Any = None) -> Any:
        """Fit, and set attributes only when the certificate holds; returns the classes if there are any."""
        check_promise(self.max_correlation)
        check_expand(self.expand)
        check_modelled(self.missing, self.use_protected, self.orthogonal_on, self.given)
        read_relax(self)
        check_budget(self.budget)
        if not isinstance(y, str):
            X, y, protected = map(read_unread, (X, y, protected))
        stream = None if is_dask_array(X) else as_stream(X)
        if cluster is not None and (is_dask_array(X) or stream is not None):
            raise InputError("cluster= needs the rows in memory, where the rows of a cluster can be put together.")
        if is_dask_array(X):
            classes = self._fit_stream(*join_roles(X, y, protected, weight, offset))
            self.n_features_in_ = X.shape[1]  # without the protected columns beside them
            return classes
        if stream is not None:
            return self._fit_stream(stream, y, protected, weight, offset)
        read = self._read(X, y, protected, weight, offset, cluster)
        if read.bounded is None:
            self._solve(read.problem, read.reader, read.n_dropped, offset is not None, read.filled, read.ridge)
        else:
            names, factor = read.reader.protected.names, read_relax(self) or 1.0
            solution = solve_box(read.problem, read.bounded, names, factor=factor, tol=self.tol)
            self._keep(solution, read.problem, read.reader, read.n_dropped, offset is not None, read.filled)
        return read.classes

    def _read(self, X: Table, y: Any, protected: Table | None, weight: Any, offset: Any, cluster: Any) -> ReadRows:
        """The problem of rows in memory."""
        box = read_relax(self)
        X = validate_features(self, X, reset=True)
        n = tables.n_rows(X)
        named = {"the outcome": y, "sample_weight": weight, "offset": offset, "cluster": cluster}
        for what, values in named.items():
            check_alignment(X, values, what)
        y, weight, offset = read_outcome(y, n), read_weight(weight, n), read_offset(offset, n)
        reader, encoded = learn_reader(
            X,
            protected,
            self._columns(),
            as_stored=True,
            as_codes=True,
            check=partial(refuse_levels, weight) if box is None else None,
            models_missing=True,
            widened=1.0 if self.expand is None else WIDENED,
            weight=weight,
        )
        if cluster is not None:
            check_same_rows("The cluster has", len(cluster := np.asarray(cluster)), "the features have", n)
        if encoded.keep is not None:
            y, weight, offset, cluster = (
                None if values is None else values[encoded.keep] for values in (y, weight, offset, cluster)
            )
        family, outcome, classes = self._code_outcome(y, weight)
        features = encoded.features
        filled = model_missing(encoded.X, reader, features, outcome, family, weight, offset, cluster)
        constrained = encoded.X if filled is None else filled.X
        problem = Problem(
            encoded.Z,
            outcome,
            constrained if box is None else None,
            family,
            weight,
            offset,
            self._own_l2(),
            feature_names=reader.feature_names,
            protected_names=reader.protected.names if box is None else (),
            cluster=cluster,
            given=OUTCOME if self._given_outcome() else encoded.C,
            given_names=() if reader.given is None else reader.given.names,
        )
        ridge = None
        if self.expand is not None:
            plain = self.orthogonal_on == TRAINING_ROWS and self.solver != "mdmm" and not self.budget
            quick = plain and self.given is None and cluster is None and not self._own_l2()
            problem, reader, ridge = expand_problem(problem, reader, features, quick)
        n_dropped = 0 if encoded.keep is None else int(np.count_nonzero(~encoded.keep))
        return ReadRows(problem, reader, n_dropped, classes, filled, None if box is None else constrained, ridge)

    def _fit_stream(self, stream: Stream, y: Any, protected: Any, weight: Any, offset: Any) -> Any:
        """Fit to rows that are read in batches, as often as the solver needs them."""
        if y is None:
            raise InputError("The estimator requires y to be passed: name the column of the stream.")
        if self.expand is not None:
            refuse_expansion("as rows that are read in batches")
        refuse_stream(self.missing)
        refuse_relaxed_stream(self.relax)
        roles = assign(stream, y, protected, weight, offset, self._columns())
        used = stream.select(roles.columns).keep()
        learned = learn_stream(used, roles, self._columns(), self._stream_outcome())
        assert learned.outcome is not None
        family, outcomes, outcome, classes = self._stream_outcome().settle(learned.outcome)
        given = OUTCOME if self._given_outcome() else None
        problem = stream_problem(used, roles, learned, outcome, outcomes, family, self._own_l2(), given)
        self._solve(problem, learned.reader, learned.table.n_rows - learned.table.n_kept, offset is not None)
        note_columns(self, stream, roles)
        return classes

    def _own_l2(self) -> float:
        if isinstance(self.l2, str) and self.l2 != "auto":
            raise InputError(f'l2 must be a number of 0 or more, or "auto", not {self.l2!r}.')
        return 0.0 if isinstance(self.l2, str) else self.l2

    def _penalised(self, problem: Problem, start: Any = None, chosen: Ridge | None = None) -> tuple[Problem, Any, bool]:
        """The problem with a chosen ridge, if it is to be chosen; a start; and whether it was."""
        if chosen is not None:
            return problem.with_l2(chosen.l2), chosen.start, True
        if not (isinstance(self.l2, str) or (self.expand is not None and not self.l2)):
            return problem, start, False
        wide = self.expand is not None
        asked: dict[str, Any] = {"orthogonal_on": self.orthogonal_on, "budget": self.budget}
        found = choose_ridge(problem, self.solver, tol=self.tol, wide=wide, **asked)
        return problem.with_l2(found.l2), found.start if wide else start, True

    def _solve(
        self,
        problem: Problem,
        reader: Reader,
        n_dropped: int,
        has_offset: bool,
        filled: Completed | None = None,
        ridge: Ridge | None = None,
    ) -> None:
        start = self._start(problem) if self.warm_start else None
        problem, start, automatic = self._penalised(problem, start, ridge)
        self._keep(self._settle(problem, start), problem, reader, n_dropped, has_offset, filled, automatic)

    def _settle(self, problem: Problem, start: Any) -> Solution:
        """Solve a problem as the options say."""
        settled = partial(
            solve,
            solver=self.solver,
            max_iter=self.max_iter,
            tol=self.tol,
            n_restarts=self.n_restarts,
            random_state=self.random_state,
            orthogonal_on=self.orthogonal_on,
            confidence=self.confidence,
            budget=self.budget,
        )
        if self.threshold is None:
            return settled(problem, start=start)
        check_decisions(problem, self.threshold, self.orthogonal_on, self.budget, self.max_correlation)
        return certify_decisions(solve_decisions(problem, self.threshold, settled), self.threshold)

    def _keep(
        self,
        solution: Solution,
        problem: Problem,
        reader: Reader,
        n_dropped: int,
        has_offset: bool,
        filled: Completed | None,
        automatic: bool = False,
    ) -> None:
        """Judge a solution, and keep it if its certificate holds."""
        solution = solution if filled is None else state_missing(filled, solution)
        judge(solution, reader.protected.constant, coefficients=self.expand is None, automatic=automatic)
        keep_promise(solution, self.max_correlation, automatic=automatic)
        warn_left_out(solution, problem.feature_names)
        self.reader_, self.solution_, self.family_, self.n_iter_ = reader, solution, problem.family, solution.n_iter
        self.l2_ = problem.l2
        self.has_offset_ = has_offset
        self.has_weight_ = problem.weight is not None
        self.n_dropped_ = n_dropped
        self.protected_names_ = np.asarray(reader.protected.names, dtype=object)
        self.coefficient_names_ = np.asarray(problem.feature_names, dtype=object)

    @property
    def ball_(self) -> Ball | None:
        """With ``basis="kernel"``: what holds for every smooth function of the protected columns on the training rows.

        None without a kernel, and where it does not hold: with ``orthogonal_on="new rows"``, ``given``, ``budget``,
        ``threshold`` or weights.
        """
        check_is_fitted(self, "solution_")
        others = (self.given, self.relax, self.threshold, self.budget or None)
        exact = self.orthogonal_on == TRAINING_ROWS and all(other is None for other in others)
        return self.reader_.protected.ball if exact and not getattr(self, "has_weight_", False) else None

    def _start(self, problem: Problem) -> tuple[Array, Array] | None:
        before: Solution | None = getattr(self, "solution_", None)
        n_outputs = problem.n_predictors + 1 if problem.family.is_vector else 1
        if before is None or before.coef.shape != (n_outputs, len(problem.feature_names)):
            return None
        return before.intercept, before.coef

    def _linear_predictor(self, X: Table, offset: Any) -> Array:
        """Linear predictors (n, k) of new rows."""
        check_is_fitted(self, "solution_")
        if offset is None:
            warn_no_offset(self.has_offset_)
        stream = as_stream(X)
        if stream is None:
            if not self.reader_.lacks_protected(X):
                X = validate_features(self, X, reset=False)
            eta, n_pooled = self._batch_predictor(read_offset(offset, tables.n_rows(X)), X)
        else:
            eta, n_pooled = self._stream_predictor(stream, offset)
        warn_pooled(n_pooled)
        return eta

    def _scored(self, X: Table, *columns: Any) -> list[Any]:
        """Rows, outcome and weights for a score; columns of a stream, which is opened once, are given by name."""
        stream = as_stream(X)
        if stream is None:
            return [X, *columns]
        return [stream, *(column_values(stream, c) if isinstance(c, str) else c for c in columns)]

    def _batch_predictor(self, offset: Any, table: Table) -> tuple[Array, Mapping[str, int]]:
        """Linear predictors (n, k), and pooled rows by column; an offset that is a name is a column of the table."""
        features = self.reader_.feature_table(table)
        Z, n_pooled = self.reader_.stored_matrix(features, learned=False, as_codes=True)
        eta = row_product(Z, self.solution_.coef.T) + self.solution_.intercept
        shift = numbers(table, offset, "offset") if isinstance(offset, str) else offset
        return eta if shift is None else eta + (shift[:, None] if shift.ndim == 1 else shift), n_pooled

    def _stream_predictor(self, stream: Stream, offset: Any) -> tuple[Array, Mapping[str, int]]:
        if offset is not None and not isinstance(offset, str):
            raise InputError("offset must be the name of a column where the rows are a stream.")
        assert self.reader_.features is not None
        columns = (*self.reader_.features.columns, *(() if offset is None else (offset,)))
        parts = (
            stream.select(columns)
            .parts(2 * self.reader_.features.stored_width)
            .map(partial(self._batch_predictor, offset))
        )
        pooled: Counter[str] = Counter()
        pieces = []
        for eta, n_pooled in parts:
            pieces.append(eta)
            pooled.update(n_pooled)
        return np.concatenate(pieces), pooled

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
