"""Run the benchmarks one after the other, each in a process of its own, and write the page of all ratios.

    python -m benchmarks                    # all of them: about 40 minutes on 2 cores
    python -m benchmarks glm linear         # some
    python -m benchmarks --quick            # all in small sizes: about 4 minutes; goes to build/benchmarks
    python -m benchmarks --page             # only docs/benchmarks.md and docs/how_it_scales.md, from what was measured

Each writes benchmarks/results/<name>.json as soon as it is there, so a run that was stopped loses one of them at most.
One that fails is named at the end, and the others go on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.frame import HERE
from benchmarks.page import write_pages

#: Benchmarks in the order of the page, and the minutes that each takes at full size on 2 cores.
CATALOGUE = {
    "glm": 7.0,
    "categories": 2.0,
    "levels": 1.0,
    "linear": 3.0,
    "erasure": 20.0,
    "projection": 2.0,
    "prediction": 0.3,
    "audit": 1.0,
    "audit_csv": 1.5,
    "layer": 1.3,
    "comparators": 1.5,
    "wide": 3.3,
    "out_of_core": 3.0,
    "dask": 4.0,
    "embeddings": 2.5,
    "growth": 9.0,
    "roofline": 1.5,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(CATALOGUE))
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--page", action="store_true", help="write the pages from what there is; run nothing")
    given = parser.parse_args()
    if unknown := set(given.names) - CATALOGUE.keys():
        parser.error(f"there is no benchmark {min(unknown)}: choose from {', '.join(CATALOGUE)}")
    results = HERE.parent / "build" / "benchmarks" if given.quick else HERE / "results"
    docs = results if given.quick else HERE.parent / "docs"
    names = [] if given.page else [name for name in CATALOGUE if not given.names or name in given.names]
    failed = run(names, results, given.quick) if names else []
    if given.page or not given.names:
        for path in write_pages(results, docs, list(CATALOGUE)):
            print(path)
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}.")


def run(names: list[str], output: Path, quick: bool) -> list[str]:
    """Run benchmarks, print what each shows, and return the names of those that failed."""
    failed = []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console()) as progress:
        task = progress.add_task("", total=sum(CATALOGUE[name] for name in names))
        for name in names:
            about = f"{name} (small)" if quick else f"{name} (about {CATALOGUE[name]:g} min)"
            progress.update(task, description=about)
            command = [sys.executable, "-m", f"benchmarks.bench_{name}", "--output", str(output)]
            done = subprocess.run(
                [*command, *(["--quick"] if quick else [])], cwd=HERE.parent, capture_output=True, text=True
            )
            failed += [name] if done.returncode else []
            progress.console.print(f"\n[bold]{name}[/]")
            text = done.stderr if done.returncode else done.stdout
            progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
            progress.advance(task, CATALOGUE[name])
    return failed


if __name__ == "__main__":
    main()
