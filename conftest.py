"""Leave out the doctests of what is not installed."""

from importlib.util import find_spec

_NEED_TORCH = [
    "src/setsquare/nn/*",
    "studies/paper/colored_mnist*",
    "studies/paper/fig4.py",
    "studies/paper/movies*",
    "studies/paper/published_layers.py",
]
collect_ignore_glob = [] if find_spec("torch") else _NEED_TORCH
