"""Random problems for the solver, and a brute-force reference that shares no line of code with the library.

A problem is drawn from a seed. The reference has its own log-likelihoods, its own orthonormal coordinates of features
and protected columns, and minimises by scipy's SLSQP from many starts; linear inequalities keep it inside the domain of
a link.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize, nnls

Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Terms = tuple[float, np.ndarray, np.ndarray, np.ndarray]
#: Family, link, parameter; those whose linear predictor must stay below zero come last.
KINDS: tuple[tuple[str, str, float | None], ...] = (
    ("gaussian", "canonical", None),
    ("gaussian", "log", None),
    ("binomial", "canonical", None),
    ("poisson", "canonical", None),
    ("gamma", "log", None),
    ("tweedie", "log", 1.5),
    ("tweedie", "log", 2.5),
    ("negative_binomial", "log", 2.0),
    ("multinomial", "canonical", None),
    ("binomial", "log", None),
    ("gamma", "canonical", None),
    ("tweedie", "canonical", 1.5),
    ("negative_binomial", "canonical", 2.0),
)
EDGES = KINDS[9:]
N_PROBLEMS = 260
#: Distance from the edge of a domain that the reference keeps.
EDGE = 1e-10


@dataclass(frozen=True, slots=True)
class Drawn:
    """One problem, as arrays; ``traits`` say what is special about it."""

    seed: int
    kind: tuple[str, str, float | None]
    traits: tuple[str, ...]
    Z: np.ndarray
    y: np.ndarray
    X: np.ndarray
    weight: np.ndarray | None
    offset: np.ndarray | None
    l2: float

    @property
    def at_edge(self) -> bool:
        """Whether the link has a domain with an edge."""
        return self.kind in EDGES

    @property
    def w(self) -> np.ndarray:
        """Weights that sum to one."""
        return np.full(len(self.y), 1.0 / len(self.y)) if self.weight is None else self.weight / self.weight.sum()


def draw(seed: int) -> Drawn:
    """Draw problem number ``seed``: the family in turn, everything else at random."""
    rng = np.random.default_rng([2024, seed])
    kind = KINDS[seed % len(KINDS)]
    n, p = int(rng.integers(60, 240)), int(rng.integers(1, 4))
    q = p + int(rng.integers(2, 6))
    X = _protected(n, p, rng)
    unit = (X - X.mean(axis=0)) / X.std(axis=0)
    Z = rng.choice([0.3, 0.8]) * unit @ rng.normal(size=(p, q)) + _features(n, q, rng)
    traits = []
    offset = weight = None
    if rng.random() < 0.25 and kind[0] != "multinomial":
        offset = rng.choice([0.2, 0.5]) * rng.normal(size=n)
        traits.append("offset")
    signal = rng.choice([0.4, 1.0]) * (Z @ rng.normal(size=q)) / np.sqrt(q) + 0.3 * unit[:, 0]
    y = _outcome(kind, signal + (0.0 if offset is None else offset), Z, rng)
    if rng.random() < 0.2 and kind[0] in ("binomial", "poisson", "multinomial"):
        level = (rng.random(n) < 0.15).astype(float)  # a level whose outcome is constant
        y = np.where(level == 1.0, 0.0, y)
        Z = np.column_stack([Z, level])
        traits.append("separated")
    if rng.random() < 0.25:
        Z = np.column_stack([Z, Z[:, 0] - 2.0 * Z[:, 1], np.full(n, 3.0)])
        traits.append("collinear")
    if rng.random() < 0.3:
        weight = rng.exponential(size=n)
        weight[rng.random(n) < rng.choice([0.0, 0.1])] = 0.0
        traits.append("weights")
    l2 = float(rng.choice([0.0, 0.0, 0.0, 1e-3, 0.1]))
    if l2:
        traits.append("ridge")
    return Drawn(seed, kind, tuple(traits), Z * 10.0 ** rng.integers(-2, 3, Z.shape[1]), y, X, weight, offset, l2)


def _protected(n: int, p: int, rng: np.random.Generator) -> np.ndarray:
    columns = [
        (rng.random(n) < rng.choice([0.1, 0.3, 0.5])).astype(float),
        rng.normal(40.0, 12.0, n),
        np.exp(rng.normal(size=n)),
    ]
    X = np.column_stack([columns[j] for j in rng.permutation(3)[:p]])
    X[0], X[1] = X[0] + 1.0, X[1] - 1.0  # no column is constant
    return X


def _features(n: int, q: int, rng: np.random.Generator) -> np.ndarray:
    Z = rng.normal(size=(n, q))
    for j in range(q):
        shape = rng.integers(4)
        Z[:, j] = (Z[:, j], Z[:, j] > 0.5, np.exp(0.7 * Z[:, j]), np.round(Z[:, j]))[shape]
    return Z


def _outcome(kind: tuple[str, str, float | None], signal: np.ndarray, Z: np.ndarray, rng: Any) -> np.ndarray:
    name, link, _ = kind
    n = len(signal)
    mu = np.exp(np.clip(0.6 * signal, -3.0, 3.0))
    if name == "gaussian":
        return mu + 0.4 * rng.normal(size=n) if link == "log" else signal + rng.normal(size=n)
    if name == "binomial":
        chance = np.exp(np.minimum(0.4 * signal - 1.0, -0.02)) if link == "log" else 1.0 / (1.0 + np.exp(-2.0 * signal))
        return (rng.random(n) < chance).astype(float)
    if name == "multinomial":
        scores = Z @ rng.normal(size=(Z.shape[1], 3)) + rng.gumbel(size=(n, 3))
        codes = scores.argmax(axis=1).astype(float)
        codes[:3] = 0.0, 1.0, 2.0
        return codes
    if name == "poisson":
        return rng.poisson(mu).astype(float)
    if name == "negative_binomial":
        return rng.poisson(rng.gamma(2.0, mu / 2.0)).astype(float)
    y = rng.gamma(2.0, mu / 2.0) + 1e-3
    return y * (rng.random(n) < 0.8) if (name, kind[2]) == ("tweedie", 1.5) else y


def scalar_rows(kind: tuple[str, str, float | None], y: np.ndarray, eta: np.ndarray) -> Rows:
    """Negative log-likelihood of each row, its slope, the mean, and the mean's slope, in ``eta``."""
    name, link, parameter = kind
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        mu, d_mu = _mean(name, link, parameter, eta)
        if name == "gaussian":
            return (y - mu) ** 2 / 2.0, (mu - y) * d_mu, mu, d_mu
        if name == "binomial" and link == "canonical":
            return np.logaddexp(0.0, eta) - y * eta, mu - y, mu, d_mu
        if name == "binomial":
            rest = -np.expm1(eta)
            return -y * eta - (1.0 - y) * np.log(rest), -y + (1.0 - y) * mu / rest, mu, d_mu
        if name == "poisson":
            return mu - y * eta, mu - y, mu, d_mu
        if name == "gamma":
            return y / mu + np.log(mu), (1.0 / mu - y / mu**2) * d_mu, mu, d_mu
        if name == "tweedie":
            a, b = 1.0 - parameter, 2.0 - parameter
            return mu**b / b - y * mu**a / a, (mu**-parameter) * (mu - y) * d_mu, mu, d_mu
        # negative binomial: (y + t) log(mu + t) - y log mu
        t = parameter
        return (y + t) * np.log(mu + t) - y * np.log(mu), ((y + t) / (mu + t) - y / mu) * d_mu, mu, d_mu


def _mean(name: str, link: str, parameter: float | None, eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if link == "log" or name == "poisson":
        mu = np.exp(eta)
        return mu, mu
    if name == "gaussian":
        return eta, np.ones_like(eta)
    if name == "binomial":
        mu = 1.0 / (1.0 + np.exp(-eta))
        return mu, mu * (1.0 - mu)
    if name == "gamma":
        return -1.0 / eta, 1.0 / eta**2
    if name == "tweedie":
        mu = ((1.0 - parameter) * eta) ** (1.0 / (1.0 - parameter))
        return mu, mu**parameter
    mu = parameter / np.expm1(-eta)
    return mu, mu + mu**2 / parameter


class Reference:
    """A problem in orthonormal coordinates of the reference's own: intercepts first, then features."""

    def __init__(self, problem: Drawn) -> None:
        self.problem, w = problem, problem.w
        counted = w > 0.0
        self.w, self.y = w[counted], problem.y[counted]
        Z, X = problem.Z[counted], problem.X[counted]
        self.offset = np.zeros(len(self.y)) if problem.offset is None else problem.offset[counted]
        self.mean = self.w @ Z
        spread = np.sqrt(self.w @ (Z - self.mean) ** 2)
        spread[spread < 1e-10 * np.abs(self.mean)] = np.inf
        root = np.sqrt(self.w)[:, None]
        _, s, Vt = np.linalg.svd(root * (Z - self.mean) / spread, full_matrices=False)
        kept = s > 1e-8 * s[0]
        self.to_coef = (Vt[kept].T / s[kept]) / spread[:, None]  # (q, m): the shortest coefficients, up to scale
        if problem.l2:  # with a ridge, every direction of the coefficients counts
            self.to_coef = np.diag(1.0 / np.where(np.isfinite(spread), spread, 1.0))
        self.U = np.column_stack([np.ones(len(self.y)), (Z - self.mean) @ self.to_coef])
        self.Q = np.linalg.qr(root * (X - self.w @ X))[0] / root
        self.k = 2 if problem.kind[0] == "multinomial" else 1
        self.m = self.U.shape[1]
        self._seen: tuple[bytes, Any] = b"", None

    def terms(self, theta: np.ndarray) -> Terms:
        """Loss, gradient, constraint and its Jacobian."""
        key = theta.tobytes()
        if key != self._seen[0]:  # scipy asks for each of them by itself
            with np.errstate(all="ignore"):
                self._seen = key, self._terms(theta)
        return self._seen[1]

    def _terms(self, theta: np.ndarray) -> Terms:
        t = theta.reshape(self.k, self.m)
        eta = self.U @ t.T + self.offset[:, None]
        wQ, l2 = self.w[:, None] * self.Q, self.problem.l2
        if self.k == 1:
            loss, slope, mu, d_mu = scalar_rows(self.problem.kind, self.y, eta[:, 0])
            total, g = float(self.w @ loss), self.U.T @ (self.w * slope)
            c, J = wQ.T @ (mu - self.w @ mu), wQ.T @ (d_mu[:, None] * self.U)
        else:
            total, g, c, J = self._classes(eta, wQ)
        if l2:
            coef = t[:, 1:] @ self.to_coef.T  # of contrasts between the classes, which are orthonormal
            total += l2 / 2.0 * float(np.sum(coef**2))
            g = g + np.concatenate([np.r_[0.0, row] for row in l2 * coef @ self.to_coef])
        return total, g, c, J

    def _classes(self, eta: np.ndarray, wQ: np.ndarray) -> Terms:
        scores = eta @ _CONTRASTS.T
        scores = scores - scores.max(axis=1, keepdims=True)
        P = np.exp(scores)
        P /= P.sum(axis=1, keepdims=True)
        code = self.y.astype(int)
        loss = -float(self.w @ np.log(np.maximum(P[np.arange(len(code)), code], 1e-300)))
        slope = (P - np.eye(3)[code]) @ _CONTRASTS
        g = (self.U.T @ (self.w[:, None] * slope)).T.ravel()
        c = (wQ.T @ (P[:, 1:] - self.w @ P[:, 1:])).T.ravel()
        J = np.zeros((2, self.Q.shape[1], 2, self.m))
        for a in range(2):
            for b in range(2):
                d = P[:, a + 1] * (_CONTRASTS[a + 1, b] - P @ _CONTRASTS[:, b])
                J[a, :, b] = wQ.T @ (d[:, None] * self.U)
        return loss, g, c, J.reshape(len(c), -1)

    def theta(self, intercept: np.ndarray, coef: np.ndarray) -> np.ndarray:
        """Coordinates of a model that is given by its intercepts (k,) and coefficients (k, q)."""
        intercept, coef = np.atleast_1d(intercept), np.atleast_2d(coef)
        if self.k > 1:
            intercept, coef = _CONTRASTS.T @ intercept, _CONTRASTS.T @ coef
        if self.problem.l2:  # the coordinates are the coefficients
            inner = coef / np.diag(self.to_coef)
        else:  # orthonormal columns: the coordinates of the linear predictor
            Zc = self.problem.Z[self.problem.w > 0.0] - self.mean
            inner = ((self.w[:, None] * self.U[:, 1:]).T @ (Zc @ coef.T)).T
        return np.column_stack([intercept + coef @ self.mean, inner]).ravel()

    def start(self) -> np.ndarray:
        """The model with nothing but an intercept, inside the domain."""
        theta = np.zeros(self.k * self.m)
        if self.k > 1:
            shares = np.bincount(self.y.astype(int), weights=self.w, minlength=3)
            theta.reshape(self.k, self.m)[:, 0] = _CONTRASTS.T @ np.log(shares)
            return theta
        average = float(self.w @ self.y)
        name, link, parameter = self.problem.kind
        if link == "log" or name == "poisson":
            theta[0] = np.log(average)
        elif name == "binomial":
            theta[0] = np.log(average / (1.0 - average))
        elif name == "gaussian":
            theta[0] = average
        elif name == "negative_binomial":
            theta[0] = -np.log1p(parameter / average)
        else:
            power = 2.0 if name == "gamma" else parameter
            theta[0] = average ** (1.0 - power) / (1.0 - power)
        if self.problem.at_edge:
            theta[0] = min(theta[0], -float(self.offset.max()) - 0.05)
        return theta

    def minimise(self, theta: np.ndarray, *, constrained: bool = True, max_iter: int = 300) -> np.ndarray:
        """A local optimum by SLSQP, on the constraint to ten digits where that can be had."""
        far = 1e10

        def value(t: np.ndarray) -> tuple[float, np.ndarray]:
            loss, g, _, _ = self.terms(t)
            good = np.isfinite(loss) and np.isfinite(g).all()
            return (loss, g) if good else (far, np.zeros_like(t))

        def finite(part: int) -> Callable[[np.ndarray], np.ndarray]:
            return lambda t: np.nan_to_num(self.terms(t)[part], nan=far, posinf=far, neginf=-far)

        constraints: list[dict[str, Any]] = []
        if constrained:
            constraints.append({"type": "eq", "fun": finite(2), "jac": finite(3)})
        if self.problem.at_edge:
            constraints.append(
                {"type": "ineq", "fun": lambda t: -(self.U @ t + self.offset) - EDGE, "jac": lambda t: -self.U}
            )
        options = {"maxiter": max_iter, "ftol": 1e-13}
        with np.errstate(all="ignore"):
            found = minimize(value, theta, jac=True, method="SLSQP", constraints=constraints, options=options)
        return self.restore(found.x) if constrained else np.asarray(found.x)

    def restore(self, theta: np.ndarray) -> np.ndarray:
        """Gauss-Newton steps onto the constraint."""
        for _ in range(30):
            _, _, c, J = self.terms(theta)
            if not np.isfinite(c).all() or np.abs(c).max() < 1e-13:
                break
            step = np.linalg.lstsq(J, -c, rcond=1e-10)[0]
            for halving in range(10):
                trial = theta + 0.5**halving * step
                new = self.terms(trial)
                if np.isfinite(new[0]) and np.abs(new[2]).max() < np.abs(c).max():
                    break
            else:
                break
            theta = trial
        return theta

    def residual(self, theta: np.ndarray) -> float:
        """Largest correlation of the basis with the predictions, relative to their own spread."""
        t = theta.reshape(self.k, self.m)
        eta = self.U @ t.T + self.offset[:, None]
        if self.k == 1:
            mu = scalar_rows(self.problem.kind, self.y, eta[:, 0])[2][:, None]
        else:
            scores = np.exp(eta @ _CONTRASTS.T - (eta @ _CONTRASTS.T).max(axis=1, keepdims=True))
            mu = scores / scores.sum(axis=1, keepdims=True)
        if not np.isfinite(mu).all():
            return np.inf
        centred = mu - self.w @ mu
        spread = np.sqrt(self.w @ centred**2)
        if spread.max() <= 1e-12 * float(np.abs(mu).max()):  # a constant is uncorrelated
            return 0.0
        return float(np.abs(self.Q.T @ (self.w[:, None] * centred)).max() / np.linalg.norm(spread))

    def best(self, n_starts: int) -> float:
        """Lowest loss of a feasible point that SLSQP finds from so many starts."""
        rng = np.random.default_rng([7, self.problem.seed])
        start = self.start()
        free = self.minimise(start, constrained=False)
        lowest = np.inf
        for i in range(n_starts):
            begin = (start, free)[i] if i < 2 else self._random(start, free, rng)
            theta = self.minimise(begin)
            loss = self.terms(theta)[0]
            if np.isfinite(loss) and self.residual(theta) < 1e-9:
                lowest = min(lowest, loss)
        return float(lowest)

    def _random(self, start: np.ndarray, free: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Somewhere around the two other starts, inside the domain."""
        move = rng.random() * (free - start) + rng.choice([0.2, 0.6, 1.5]) * rng.normal(size=len(start))
        for _ in range(60):
            if np.isfinite(self.terms(start + move)[0]):
                break
            move *= 0.6
        return start + move

    def stationarity(self, theta: np.ndarray) -> float:
        """Gradient of the Lagrangian that no multipliers remove; rows at the edge of the domain push back only."""
        _, g, _, J = self.terms(theta)
        A = np.vstack([J, -J])
        if self.problem.at_edge:
            eta = self.U @ theta + self.offset
            close = eta > -1e-3
            A = np.vstack([A, self.w[close, None] * self.U[close]])
        scale = np.linalg.norm(self.terms(self.start())[1]) + np.sqrt(self._slopes())
        if not len(A):
            return float(np.linalg.norm(g) / scale)
        sizes = np.maximum(np.linalg.norm(A, axis=1), 1e-300)
        return float(nnls((A / sizes[:, None]).T, -g, maxiter=100 * A.shape[0])[1] / scale)

    def curvature(self, theta: np.ndarray) -> float:
        """Smallest eigenvalue of the Lagrangian's Hessian, by differences, along the constraint and inside the domain.

        Relative to the largest; infinite where nothing is free to move.
        """
        _, g, _, J = self.terms(theta)
        blocked = J
        if self.problem.at_edge:
            blocked = np.vstack([J, self.U[self.U @ theta + self.offset > -1e-3]])
        lam = np.linalg.lstsq(blocked.T, -g, rcond=None)[0][: len(J)]
        _, s, Vt = np.linalg.svd(blocked)
        null = Vt[int(np.count_nonzero(s > 1e-9 * s[0])) :].T
        if not null.shape[1]:
            return np.inf
        H = np.empty((len(theta), null.shape[1]))
        for j, v in enumerate(null.T):
            ahead, back = (self.terms(theta + sign * 1e-5 * v) for sign in (1.0, -1.0))
            H[:, j] = (ahead[1] + ahead[3].T @ lam - back[1] - back[3].T @ lam) / 2e-5
        if not np.isfinite(H).all():
            return np.inf
        values = np.linalg.eigvalsh(null.T @ H)
        return float(values[0] / max(np.abs(values).max(), 1e-300))

    def _slopes(self) -> float:
        """Mean square of the rows' slopes at the start."""
        if self.k > 1:
            return 1.0
        slope = scalar_rows(self.problem.kind, self.y, self.start()[0] + self.offset)[1]
        return float(self.w @ slope**2)


_CONTRASTS = np.linalg.qr(np.column_stack([np.ones(3), np.eye(3)[:, :2]]))[0][:, 1:]
