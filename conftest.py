"""Leave out the doctests of what is not installed, and instructions that a virtual machine may not have."""

import os
from importlib.util import find_spec

# Some virtual machines announce AMX and do not allow it: torch's own products in bfloat16 end the process there.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

_NEED_TORCH = [
    "src/setsquare/nn/*",
    "studies/paper/colored_mnist*",
    "studies/paper/fig4.py",
    "studies/paper/movies*",
    "studies/paper/published_layers.py",
]
collect_ignore_glob = [] if find_spec("torch") else _NEED_TORCH
