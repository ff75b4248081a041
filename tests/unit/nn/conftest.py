"""One thread a worker, since several run at a time; where torch is absent, every file here is skipped."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("torch") is not None:
    import torch

    torch.set_num_threads(1)
else:

    class Skipped(pytest.Module):
        def collect(self) -> list[pytest.Item]:
            pytest.skip("torch is not installed", allow_module_level=True)

    def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
        parent.config.option.doctest_ignore_import_errors = True
        return Skipped.from_parent(parent, path=module_path)
