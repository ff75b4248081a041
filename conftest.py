"""Leave out the doctests of what is not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["src/setsquare/nn/*", "src/setsquare/paper/colored_mnist*"]
