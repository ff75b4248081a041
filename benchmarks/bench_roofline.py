"""Roofline: the kernels of a fit and of an erasure against the memory bandwidth and the dgemm rate of this machine.

    python -m benchmarks.bench_roofline             # about 2 minutes

Bandwidth is that of a sum over an array much larger than the caches, read by all cores; the rate is that of a square
matrix product by BLAS on all cores. A kernel reads so many bytes from memory and does so many operations, counted on
paper; the floor of its time is the larger of bytes / bandwidth and operations / rate. Exponential and logarithm count
as 20 operations. Each kernel is timed at several numbers of rows, in turn: the exponent is the slope of log time on log
rows. Last comes a whole fit (2 million rows x 50 features, in a process of its own), against two floors. The first is
that of the symmetric products of its passes, the moments and one per iteration, at the rate of a large matrix product,
and nothing else. The second counts what every pass does, at rates that are measured here as well: reading the features
at the memory bandwidth or, if that takes longer, one exponential and one logarithm per row, the elementwise operations
at the rate of numpy's in the cache, and the products at the rate of a symmetric product of that width. It has the
passes that the certificate takes beyond the fit, except those for new rows. Whether the first limit can be kept at all
is measured as well: each pass of a Newton method reads the features, takes one exponential per row and, with a Hessian,
a symmetric product of that width. If reading is for nothing wherever the arithmetic takes longer, and nothing else is
counted, this is the least that its passes can take, with the products of this BLAS. It is measured several times, each
time with all rates anew and the product in the best of several forms: of blocks of 1024 to 65536 rows, in either memory
order, as a symmetric product and as a general one, on blocks that one core has in its cache.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.frame import Bound, main, plain, steps
from benchmarks.measure import forget_peak, in_child, interleave, peak_mb
from benchmarks.workloads import draw
from setsquare.glm.preparation import prepare
from setsquare.glm.problem import Problem
from setsquare.projection import Eraser, protected_basis
from setsquare.projection.moments import Moments
from setsquare.rows.parallel import n_cores, share_out, single_threaded_blas

QUICK = {"rows": 20_000, "rounds": 2}
#: Operations that an exponential or a logarithm counts as.
TRANSCENDENTAL = 20.0
#: Elementwise operations per row of values, and of derivatives: of a sigmoid, the weights and the sums.
ELEMENTWISE = {"values": 24.0, "gradient": 30.0, "Hessian": 36.0}
#: Rows of a block in the forms of a symmetric product that are tried, and repetitions of the least time of a pass.
BLOCKS, REPETITIONS = (1024, 8192, 65_536), 6
#: Parts of the largest number of rows at which a kernel is timed.
PARTS = (0.25, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes that a kernel reads or writes per row, and its operations per row."""

    bytes: float
    flops: float


def work(kernel: str, q: int, r: int) -> Work:
    """Work per row of float64 features (q), a basis (r), outcome and weight; symmetric products count half.

    >>> work("values", 9, 0)
    Work(bytes=96.0, flops=80.0)
    """
    row = 8.0 * (1 + q + r + 2)  # ones, features, basis, outcome, weight
    values = 2.0 * (1 + q) + 2.0 * r + 2 * TRANSCENDENTAL + 20.0
    gradient = values + 2.0 * (1 + q) * (1 + r)
    return {
        "values": Work(row, values),
        "gradient": Work(row, gradient),
        "Hessian": Work(row, gradient + (1.0 + q) ** 2),
        "moments": Work(8.0 * (q + r), float(q + r) ** 2),
        "erase": Work(16.0 * q, 4.0 * q * r),
    }[kernel]


def bandwidth(megabytes: int, rounds: int) -> float:
    """Bytes per second that all cores together read."""
    data = np.ones((64, megabytes * 2**20 // 512))
    timed = interleave({"sum": lambda: share_out(lambda rows: (sum(row.sum() for row in rows),), list(data))}, rounds)
    return float(data.nbytes / min(timed["sum"].seconds))


def rate(size: int, rounds: int) -> float:
    """Operations per second of a product of square matrices."""
    A = np.random.default_rng(0).normal(size=(size, size))
    timed = interleave({"dgemm": lambda: A @ A.T.copy()}, rounds)
    return 2.0 * size**3 / min(timed["dgemm"].seconds)


def speeds(q: int, r: int, rounds: int) -> dict[str, float]:
    """Per second, on all cores: exponentials, elementwise operations, and operations of a symmetric product."""
    b, width = 4096, -(-(2 + q + r) // 4) * 4
    memory = [(np.linspace(-3.0, 3.0, b), np.empty(b), np.ones((b, width))) for _ in range(n_cores())]
    repeats = 200

    def on_all(work: Callable[[Any, Any, Any], Any]) -> Callable[[], Any]:
        def each(share: Any) -> tuple[float]:
            for x, out, A in share:
                for _ in range(repeats):
                    work(x, out, A)
            return (0.0,)

        return lambda: share_out(each, memory)

    timed = interleave(
        {
            "exponentials": on_all(lambda x, out, A: np.exp(x, out=out)),
            "elementwise": on_all(lambda x, out, A: np.multiply(x, x, out=out)),
            "symmetric": on_all(lambda x, out, A: np.dot(A.T, A)),
        },
        rounds,
    )
    done = {"exponentials": 1.0 * b, "elementwise": 1.0 * b, "symmetric": 1.0 * b * width**2}
    return {name: n_cores() * repeats * done[name] / min(timed[name].seconds) for name in done}


def best_symmetric(q: int, r: int, rounds: int) -> float:
    """Operations per second, on all cores, of the fastest form of a symmetric product; half of them are counted."""
    width, total = 2 + q + r, 2**17
    calls = {}
    for b, order, padded in itertools.product(BLOCKS, "CF", (width, -(-width // 8) * 8)):
        parts = [(np.ones((b, padded), order=order), np.ones((b, padded), order=order)) for _ in range(n_cores())]

        def product(share: Any, b: int = b, general: bool = False) -> tuple[float]:
            for A, B in share:
                for _ in range(total // b):
                    np.dot(A.T, B if general else A)
            return (0.0,)

        calls[f"symmetric {b} {order} {padded}"] = partial(share_out, product, parts)
        calls[f"general {b} {order} {padded}"] = partial(share_out, partial(product, general=True), parts)
    timed = interleave(calls, rounds)
    seconds = min(min(one.seconds) for one in timed.values())
    return n_cores() * total * float(width) ** 2 / seconds


def repeat_least(q: int, r: int, megabytes: int, rounds: int) -> list[dict[str, float]]:
    """The least time of a Hessian pass over its product at the dgemm rate, each time with all rates measured anew."""
    found = []
    for _ in steps(range(REPETITIONS), "least time of a pass"):
        machine = {"bandwidth": bandwidth(megabytes, rounds), "rate": rate(1500, rounds)}
        with single_threaded_blas():
            machine |= speeds(q, r, rounds) | {"symmetric": best_symmetric(q, r, 2)}
        ratio = least("Hessian", q, r, machine)["whole"] * machine["rate"] / (2.0 + q + r) ** 2
        found.append(machine | {"ratio": ratio})
    return found


def measured_floor(kernel: str, q: int, r: int, machine: dict[str, float]) -> float:
    """Seconds per row of a pass, by the rates of this machine."""
    width = -(-(2 + q + r) // 4) * 4
    scaled = {"values": 0.0, "gradient": 1.0 + r, "Hessian": float(width)}[kernel]
    product = {"values": 2.0 * (1 + q), "gradient": 2.0 * (1 + q) * (2 + r), "Hessian": 2.0 * (1 + q) + width**2}[
        kernel
    ]
    arithmetic = 2.0 / machine["exponentials"] + (ELEMENTWISE[kernel] + scaled) / machine["elementwise"]
    return max(work(kernel, q, r).bytes / machine["bandwidth"], arithmetic + product / machine["symmetric"])


def least(kernel: str, q: int, r: int, machine: dict[str, float]) -> dict[str, float]:
    """Seconds per row that a pass takes at least: for reading, for exponentials, and for products."""
    product = {"values": 2.0 * (1 + q), "gradient": 2.0 * (1 + q) * (2 + r), "Hessian": (2.0 + q + r) ** 2}[kernel]
    found = {"read": 8.0 * q / machine["bandwidth"], "exponentials": 1.0 / machine["exponentials"]}
    found["products"] = product / machine["symmetric"]
    return found | {"whole": max(found["read"], found["exponentials"] + found["products"])}


def kernels(n: int, q: int, p: int) -> dict[str, Callable[[], Any]]:
    """Kernels on generated data, ready to be called."""
    Z, eta, X = draw(n, q, p)
    y = (np.random.default_rng(1).logistic(size=n) < eta).astype(float)
    objective = prepare(Problem(Z, y, X, family="binomial")).objective
    theta, lam = objective.start.theta + 0.01, np.zeros(objective.n_constraints)
    basis = protected_basis(X)
    eraser, out = Eraser.fit(Z, basis, X), np.empty_like(Z)

    def quiet(call: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with single_threaded_blas():
                return call()

        return run

    return {
        "values": quiet(lambda: objective.values(theta)),
        "gradient": quiet(lambda: objective.model(theta, None)),
        "Hessian": quiet(lambda: objective.model(theta, lam)),
        "moments": lambda: Moments.of([X, Z]),
        "erase": lambda: eraser.apply(Z, out),
    }


def whole_fit(n: int, q: int, p: int) -> dict[str, Any]:
    """Time, processor time, iterations, passes and memory of a fit in this process."""
    from setsquare.glm.objective import Objective
    from setsquare.glm.solver import solve

    done = {"values": 0, "gradient": 0, "Hessian": 0}
    model, values = Objective.model, Objective.values

    def counted_model(self: Any, theta: Any, lam: Any) -> Any:
        done["gradient" if lam is None else "Hessian"] += 1
        return model(self, theta, lam)

    def counted_values(self: Any, theta: Any) -> Any:
        done["values"] += 1
        return values(self, theta)

    Objective.model, Objective.values = counted_model, counted_values  # type: ignore[method-assign]

    def problem(n: int) -> Problem:
        Z, y, X = np.empty((n, q)), np.empty(n), np.empty((n, p))
        for start in range(0, n, 100_000):
            rows = slice(start, min(start + 100_000, n))
            Z[rows], eta, X[rows] = draw(rows.stop - start, q, p)
            y[rows] = np.random.default_rng(start).logistic(size=len(eta)) < eta
        return Problem(Z, y, X, family="binomial")

    solve(problem(2000))  # what is imported on the way is no part of the work
    data = problem(n)
    done.update(dict.fromkeys(done, 0))
    forget_peak()
    before, start, busy = peak_mb(), time.perf_counter(), time.process_time()
    solution = solve(data)
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    return {
        "n": n,
        "seconds": seconds,
        "cores": busy / seconds,
        "passes": 1 + solution.n_iter,
        "done": done,
        "memory": 1.0 + (peak_mb() - before) / (data.features.nbytes / 1e6),
        "correlation": solution.certificate.max_correlation,
    }


def run(rows: int = 400_000, features: int = 50, protected: int = 4, rounds: int = 7) -> dict[str, Any]:
    machine = {"bandwidth": bandwidth(64 if rows < 100_000 else 512, rounds), "rate": rate(1500, rounds)}
    with single_threaded_blas():
        machine |= speeds(features, protected, rounds)
    sizes = [int(part * rows) for part in PARTS]
    calls = {f"{name} {n}": call for n in sizes for name, call in kernels(n, features, protected).items()}
    timed = interleave(calls, rounds)
    lines = []
    for name in steps(kernels(1000, features, protected), "kernels"):
        each = work(name, features, protected)
        seconds = [float(np.median(timed[f"{name} {n}"].seconds)) for n in sizes]
        memory, arithmetic = rows * each.bytes / machine["bandwidth"], rows * each.flops / machine["rate"]
        lines.append(
            {
                "kernel": name,
                "bytes": each.bytes,
                "flops": each.flops,
                "intensity": each.flops / each.bytes,
                "seconds": seconds[-1],
                "floor": max(memory, arithmetic),
                "bound": "memory" if memory > arithmetic else "arithmetic",
                "share": max(memory, arithmetic) / seconds[-1],
                "exponent": float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0]),
            }
        )
    shape = {"rows": rows, "features": features, "protected": protected}
    fit = in_child(whole_fit, 5 * rows, features, protected)
    fit["floor"] = fit["passes"] * fit["n"] * (2.0 + features + protected) ** 2 / machine["rate"]
    # Beside the passes of the loop: means, moments (about a Hessian) and the correlations of the certificate.
    counts = {"values": 2, "gradient": 0, "Hessian": 1}
    fit["measured_floor"] = fit["n"] * sum(
        (count + fit["done"][name]) * measured_floor(name, features, protected, machine)
        for name, count in counts.items()
    )
    fit["least"] = {name: least(name, features, protected, machine) for name in counts}
    fit["repeated"] = repeat_least(features, protected, 64 if rows < 100_000 else 512, min(rounds, 3))
    # The same passes that the first floor counts: the moments and one per iteration.
    fit["least_ratio"] = fit["passes"] * fit["n"] * fit["least"]["Hessian"]["whole"] / fit["floor"]
    what = f"fit of {fit['n']} rows x {features} features"
    bounds = [
        Bound(f"{what}: time / symmetric products of its passes at the dgemm rate", fit["seconds"] / fit["floor"], 1.6),
        Bound(f"{what}: time / its passes at the rates measured here", fit["seconds"] / fit["measured_floor"], 2.0),
        Bound(f"{what}: cores in use", fit["cores"], n_cores() + 0.1, least=1.7),
        Bound(f"{what}: memory / features", fit["memory"], 1.3),
    ]
    return plain({"bounds": bounds, "machine": machine, "lines": lines, "fit": fit, "sizes": sizes, **shape})


HEADS = (
    "kernel",
    "bytes per row",
    "operations per row",
    "limited by",
    "time, ms",
    "floor, ms",
    "floor / time",
    "exponent",
)


def cells(line: dict[str, Any]) -> list[str]:
    """One line of the table."""
    times = [f"{1e3 * line['seconds']:.1f}", f"{1e3 * line['floor']:.1f}", f"{line['share']:.0%}"]
    return [
        line["kernel"],
        f"{line['bytes']:.0f}",
        f"{line['flops']:.0f}",
        line["bound"],
        *times,
        f"{line['exponent']:.2f}",
    ]


def about(result: dict[str, Any]) -> str:
    """Sentence on sizes and machine."""
    machine = result["machine"]
    return (
        f"{result['rows']} rows, {result['features']} features, {result['protected']} protected columns, float64; "
        f"bandwidth {machine['bandwidth'] / 1e9:.1f} GB/s, dgemm {machine['rate'] / 1e9:.0f} GFlop/s, symmetric "
        f"product of this width {machine['symmetric'] / 1e9:.0f} GFlop/s, {machine['exponentials'] / 1e9:.2f} billion "
        f"exponentials and {machine['elementwise'] / 1e9:.1f} billion multiplications per second; "
        f"exponent over {result['sizes'][0]} to {result['sizes'][-1]} rows"
    )


def about_fit(result: dict[str, Any]) -> str:
    """Sentences on what the passes of the whole fit take at least."""
    fit = result["fit"]
    if "least" not in fit:
        return ""
    one = {name: 1e3 * fit["n"] * seconds for name, seconds in fit["least"]["Hessian"].items()}
    return (
        f"A pass with a Hessian over {fit['n']} rows takes at least {one['read']:.0f} ms for reading the features, "
        f"{one['exponentials']:.0f} ms for exponentials and {one['products']:.0f} ms for the symmetric product, which "
        f"at the rate of a large matrix product would take {1e3 * fit['floor'] / fit['passes']:.0f} ms. So the "
        f"{fit['passes']} passes (moments, and one per iteration) take at least {fit['least_ratio']:.1f} times their "
        "symmetric products at that rate, as long as the products are those of this BLAS."
        + _about_repeated(fit.get("repeated", []))
    )


def _about_repeated(repeated: list[dict[str, float]]) -> str:
    """Sentence on the least time of a pass in each repetition."""
    if not repeated:
        return ""
    ratios, rates = sorted(one["ratio"] for one in repeated), [one["symmetric"] / 1e9 for one in repeated]
    dgemm = [one["rate"] / 1e9 for one in repeated]
    return (
        f" Measured {len(repeated)} times anew, with the fastest of {8 * len(BLOCKS)} forms of the symmetric product "
        f"({min(rates):.0f} to {max(rates):.0f} GFlop/s; dgemm {min(dgemm):.0f} to {max(dgemm):.0f}), the least is "
        f"{', '.join(f'{ratio:.2f}' for ratio in ratios)} times."
    )


def show(result: dict[str, Any]) -> None:
    print(f"{about(result)}\n\n| {' | '.join(HEADS)} |\n{'|---' * len(HEADS)}|")
    for line in result["lines"]:
        print(f"| {' | '.join(cells(line))} |")
    print()
    for bound in result["bounds"]:
        asked = f"at most {bound['limit']:g}" if bound["least"] is None else f"at least {bound['least']:g}"
        print(f"{bound['what']}: {bound['value']:.3g} ({asked})")
    print(f"\n{about_fit(result)}")


if __name__ == "__main__":
    main(run, show, QUICK)
