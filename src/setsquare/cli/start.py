"""Start of the command line: settings of the process that make imports cheaper, before anything is imported."""

from __future__ import annotations

import gc
import sys
from importlib.util import LazyLoader, find_spec, module_from_spec

#: Parts of numpy that scipy imports by listing all of numpy, but does not use.
UNUSED = ("f2py", "testing", "polynomial", "ctypeslib", "ma", "rec", "char")
#: Allocations between two searches for unused cycles; imports make many objects, and hardly any cycle.
ALLOCATIONS = 100_000


def main() -> None:
    """Run the command line in a process of its own."""
    gc.set_threshold(ALLOCATIONS)
    defer_unused()
    from setsquare.cli import arguments

    arguments.main()


def defer_unused() -> None:
    """Load parts of numpy when they are first used, not when scipy lists them; for before scipy is imported.

    Examples
    --------
    >>> defer_unused()
    >>> import numpy as np
    >>> np.polynomial.Polynomial([1, 2])(3.0)
    np.float64(7.0)
    """
    import numpy

    for name in UNUSED:
        full = f"numpy.{name}"
        spec = None if full in sys.modules else find_spec(full)
        if spec is None or spec.loader is None:
            continue
        spec.loader = LazyLoader(spec.loader)
        module = module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
        setattr(numpy, name, module)
