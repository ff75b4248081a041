"""Leave out the doctests of what is not installed."""

from importlib.util import find_spec

_NEED_TORCH = ["nn/*", "paper/colored_mnist*", "paper/fig4.py", "paper/published_layers.py"]
collect_ignore_glob = [] if find_spec("torch") else [f"src/setsquare/{name}" for name in _NEED_TORCH]
