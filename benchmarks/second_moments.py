"""What probes find of age and race in embeddings after corrections of means, of second moments, and learned encoders.

    python -m benchmarks.second_moments              # faces, then chest X-rays: about 10 minutes on one core
    python -m benchmarks.second_moments --quick      # faces, linear probe and network; nothing is kept
    python -m benchmarks.second_moments --show       # the tables of what was kept

A run that was stopped goes on after the last row that it kept; ``--fresh`` measures everything anew.

Rows are cut in three parts, by patient where there are patients: corrections and encoders are fitted to the first,
probes and the model of the task to the second, and scored on the third. Scores: R² of age, macro AUC of race or sex.
The task is sex for the faces (AUC), effusion for the X-rays. Settings were chosen on the faces; the X-rays, as 64
principal components, were looked at once, afterwards. The encoders (64 units, 20 epochs) are trained on the task with a
penalty, whose weight is the largest of 1, 3 and 10 that costs at most 0.01 of the AUC of the task on the second part:
against a network that predicts the protected columns, by gradient reversal (Ganin et al. 2016), or the Hilbert-Schmidt
independence criterion with Gaussian kernels (Gretton et al. 2005).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import setsquare as sq
from benchmarks import guide_tables
from setsquare.auditing.probes.models import recover
from studies.comparators.leace import Leace
from studies.datasets import load_nih_chest_xrays, load_utkface

RESULTS = Path(__file__).parent / "results" / "second_moments.json"
EPOCHS, WIDTH, BATCH = 20, 64, 512
WEIGHTS = (1.0, 3.0, 10.0)
#: Rows that boosted trees are fitted to.
TREES = 4000


@dataclass(frozen=True, slots=True)
class Data:
    """Features, outcome and protected columns of rows in three parts."""

    Z: np.ndarray
    y: np.ndarray
    protected: Any
    parts: tuple[np.ndarray, np.ndarray, np.ndarray]


def faces() -> Data:
    data = load_utkface("recognition")
    return _cut(data, data.arrays["embedding"].astype(np.float64), np.arange(len(data.y)))


def xrays() -> Data:
    data = load_nih_chest_xrays()
    Z = sq.PrincipalComponents(64).fit_transform(data.arrays["embedding"].astype(np.float64))
    return _cut(data, Z, data.table[data.cluster].to_numpy())


def _cut(data: Any, Z: np.ndarray, unit: np.ndarray) -> Data:
    units, place = np.unique(unit, return_inverse=True)
    third = np.random.default_rng(0).integers(0, 3, len(units))[place]
    return Data(Z, data.y, data.protected_table(), tuple(np.flatnonzero(third == k) for k in range(3)))


Transform = Callable[[np.ndarray], np.ndarray]


def fit(options: dict[str, Any]) -> Callable[[Data], Transform]:
    """Fit a LinearOrthogonalizer to the first part; the result corrects the rows with these positions."""

    def correct(data: Data) -> Transform:
        rows = data.parts[0]
        model = sq.LinearOrthogonalizer(**options).fit(data.Z[rows], data.y[rows], protected=data.protected.iloc[rows])
        if options.get("using") == "features":
            return lambda some: model.transform(data.Z[some])
        return lambda some: model.transform(data.Z[some], protected=data.protected.iloc[some])

    return correct


def leace(data: Data) -> Transform:
    rows = data.parts[0]
    model = Leace().fit(data.Z[rows], protected=data.protected.iloc[rows])
    return lambda some: model.transform(data.Z[some])


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: float) -> Tensor:
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -ctx.weight * gradient, None


def _kernel(A: Tensor) -> Tensor:
    distance = torch.cdist(A, A).square()
    K = torch.exp(-distance / distance.detach().median().clamp_min(1e-6))
    return K - K.mean(0) - K.mean(1, keepdim=True) + K.mean()


def encoder(kind: str, weight: float, data: Data) -> Transform:
    """Train an encoder on the first part."""
    torch.manual_seed(0)
    rows = data.parts[0]
    scale = StandardScaler().fit(data.Z[rows])
    Z = torch.from_numpy(scale.transform(data.Z)).float()
    P = sq.tables.learn(data.protected).apply(data.protected).values
    X = torch.from_numpy(StandardScaler().fit_transform(np.asarray(P, dtype=np.float64))).float()
    y = torch.from_numpy(np.asarray(data.y, dtype=np.float32))
    encode = nn.Sequential(nn.Linear(Z.shape[1], 128), nn.ReLU(), nn.Linear(128, WIDTH))
    head, enemy = nn.Linear(WIDTH, 1), nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, X.shape[1]))
    optimizer = torch.optim.Adam([*encode.parameters(), *head.parameters(), *enemy.parameters()], 1e-3)
    for _ in range(EPOCHS):
        for some in torch.from_numpy(np.random.default_rng(0).permutation(rows)).split(BATCH):
            code = encode(Z[some])
            loss = nn.functional.binary_cross_entropy_with_logits(head(code)[:, 0], y[some])
            if kind == "adversarial":
                loss = loss + (enemy(_Reverse.apply(code, weight)) - X[some]).square().mean()
            else:
                a, b = _kernel(code), _kernel(X[some])
                loss = loss + weight * (a * b).sum() / (a.norm() * b.norm())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        codes = encode(Z).numpy().astype(np.float64)
    return lambda some: codes[some]


def chosen(kind: str) -> Callable[[Data], Transform]:
    """Train an encoder with the largest weight that the task hardly notices on the second part."""

    def train(data: Data) -> Transform:
        best = plain = None
        for weight in (0.0, *WEIGHTS):
            found = encoder(kind, weight, data)
            auc = task(found, data, data.parts[0], data.parts[1])
            plain = auc if plain is None else plain
            if best is None or auc >= plain - 0.01:
                best = found
        assert best is not None
        return best

    return train


def task(transform: Transform, data: Data, train: np.ndarray, test: np.ndarray) -> float:
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    model.fit(_noisy(transform(train)), data.y[train])
    return float(roc_auc_score(data.y[test], model.predict_proba(transform(test))[:, 1]))


def _noisy(A: np.ndarray) -> np.ndarray:
    """Features with noise of a millionth, so that collinear ones do not trouble a model."""
    return A + 1e-6 * A.std() * np.random.default_rng(0).normal(size=A.shape)


#: Name, whether the protected columns are needed for new rows, and the fit.
METHODS: tuple[tuple[str, bool, Callable[[Data], Transform]], ...] = (
    ("none", False, lambda data: lambda some: data.Z[some]),
    ("LEACE", False, leace),
    ("ours, means", True, fit({})),
    ("ours, means, without X", False, fit({"using": "features", "preserve": "outcome"})),
    ("ours, second moments", True, fit({"moments": 2})),
    ("ours, second moments, without X", False, fit({"using": "features", "moments": 2, "preserve": "outcome"})),
    ("adversarial encoder", False, chosen("adversarial")),
    ("HSIC encoder", False, chosen("hsic")),
)


def measure(
    data: Data, kinds: tuple[str, ...], name: str, needs: bool, method: Callable[[Data], Transform]
) -> dict[str, Any]:
    """Row of the table for a method."""
    _, train, test = data.parts
    start = time.process_time()
    transform = method(data)
    row: dict[str, Any] = {"method": name, "needs X": "yes" if needs else "no"}
    row["seconds"] = time.process_time() - start
    A, B = _noisy(transform(train)), transform(test)
    for column in data.protected:
        values = data.protected[column].to_numpy()
        is_number = values.dtype.kind in "iuf" and len(np.unique(values)) > 10
        levels, codes = (np.zeros(0), values.astype(float)) if is_number else np.unique(values, return_inverse=True)
        for kind in kinds:
            some = np.random.default_rng(0).permutation(len(train))[: TREES if kind == "boosting" else None]
            target = codes[train][some].astype(float)
            scores, _ = recover(kind, A[some], target, len(levels), B, 0, some)
            row[f"{column}, {kind}"] = _score(codes[test], scores, len(levels))
    row["task"] = task(transform, data, train, test)
    return row


def _score(truth: np.ndarray, scores: np.ndarray, n_levels: int) -> float:
    if not n_levels:
        return float(r2_score(truth, scores[:, 0]))
    return float(np.mean([roc_auc_score(truth == k, scores[:, k]) for k in range(n_levels)]))


SETS: dict[str, Callable[[], Data]] = {"Faces": faces, "X-rays": xrays}


def guide_lines(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Tables for docs/guide/embeddings.md."""
    lines: list[str] = []
    for title, rows in found.items():
        probes = [key for key in rows[0] if ", " in key]
        columns = list(dict.fromkeys(key.split(", ")[0] for key in probes))
        heads = [f"{name} ({'R²' if name == 'age' else 'AUC'}): linear, network, trees" for name in columns]
        lines += ["", f"*{title}*", "", f"| | needs the columns | {' | '.join(heads)} | task (AUC) | CPU seconds |"]
        lines.append("|---" * (4 + len(columns)) + "|")
        for row in rows:
            cells = [", ".join(f"{row[key]:.2f}" for key in probes if key.startswith(f"{name}, ")) for name in columns]
            shown = [row["method"], row["needs X"], *cells, f"{row['task']:.3f}", f"{row['seconds']:.1f}"]
            lines.append(f"| {' | '.join(shown)} |")
    return [*lines, ""]


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print a table."""
    print(f"\n**{title}**\n\n| " + " | ".join(rows[0]) + " |\n" + "|---" * len(rows[0]) + "|")
    for row in rows:
        cells = [f"{value:.3f}" if isinstance(value, float) else value for value in row.values()]
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("quick", "show", "fresh"):
        parser.add_argument(f"--{name}", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    kinds = ("linear", "mlp") if given.quick else ("linear", "mlp", "boosting")
    afresh = given.quick or given.fresh or not RESULTS.exists()
    found: dict[str, list[dict[str, Any]]] = {} if afresh else json.loads(RESULTS.read_text(encoding="utf-8"))
    for title, load in {} if given.show else dict(list(SETS.items())[: 1 if given.quick else 2]).items():
        rows = found.setdefault(title, [])
        missing = [entry for entry in METHODS if entry[0] not in {row["method"] for row in rows}]
        data = load() if missing else None
        for entry in missing:
            assert data is not None
            rows.append(measure(data, kinds, *entry))
            if not given.quick:
                RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if not given.quick and not given.show:
        guide_tables.write("embeddings.md", "second_moments", guide_lines(found))
    for title, rows in found.items():
        show(title, rows)


if __name__ == "__main__":
    main()
