"""What is private in Dagster is taken in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import dagster_glidemq
from dagster_glidemq import private


def test_only_one_module_imports_from_the_private_parts_of_dagster() -> None:
    folder = Path(dagster_glidemq.__file__).parent
    found = {
        path.name
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom | ast.Import)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
        )
        if name.startswith("dagster._")
    }
    assert found == {"private.py"}


def test_all_its_names_are_there() -> None:
    assert [name for name in private.__all__ if not hasattr(private, name)] == []
