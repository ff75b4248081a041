"""The study stands beside the product: it uses public names of the package only."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[2] / "studies"
FILES = sorted(STUDIES.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(STUDIES)) for path in FILES])
def test_the_study_imports_public_names_only(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "setsquare":
            home = import_module(node.module)
            public = getattr(home, "__all__", [name for name in vars(home) if name[:1].isupper()])
            assert node.module.count(".") <= 1 or node.module == "setsquare.nn.functional", node.module
            assert {alias.name for alias in node.names} <= {*public, "project_out"}, (node.module, public)
