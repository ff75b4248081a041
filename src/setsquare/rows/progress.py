"""Progress bar on the error stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def show_progress(what: str, total: int | None, *, on_terminals: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a bar until the end of the block; yields a function that advances it. On request, on terminals only."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    hidden = on_terminals and not console.is_terminal
    with Progress(*columns, transient=True, console=console, disable=hidden) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)
