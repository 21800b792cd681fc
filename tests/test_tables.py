"""Folders of one thing a file have a table that lists them all: nothing is found by magic."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "traincheck"
TABLES = ("collect/instruments", "relations", "report")


def listed(table: Path) -> set[str]:
    """Modules of its own folder that a table imports or names."""
    tree = ast.parse(table.read_text(encoding="utf-8"))
    imported = {
        node.module.rpartition(".")[2]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
    }
    strings = {
        node.value.rpartition(".")[2].partition(":")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return imported | strings


@pytest.mark.parametrize("folder", TABLES)
def test_every_file_is_in_the_table(folder: str) -> None:
    files = {p.stem for p in (PACKAGE / folder).glob("*.py") if not p.stem.startswith("_")}
    assert files
    assert not files - listed(PACKAGE / folder / "_table.py")
