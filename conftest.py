"""Leave out the doctests of what is not installed."""

from importlib.util import find_spec

_NEED_TORCH = [
    "src/setsquare/nn/*",
    *(f"studies/paper/{name}" for name in ("colored_mnist*", "fig4.py", "published_layers.py")),
]
collect_ignore_glob = [] if find_spec("torch") else _NEED_TORCH
