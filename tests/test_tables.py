"""Folders of one thing a file have a table that lists them all: nothing is found by magic."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "traincheck"


def listed(table: Path) -> set[str]:
    """Modules of the same folder that a table imports or names."""
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


def test_every_instrument_is_in_the_registry() -> None:
    folder = PACKAGE / "collect" / "instruments"
    files = {p.stem for p in folder.glob("*.py") if not p.stem.startswith("_")}
    assert files - {"base", "registry"}
    assert not files - {"base", "registry"} - listed(folder / "registry.py")


def test_every_relation_is_in_the_registry() -> None:
    names = {
        dotted(path)
        for path in (PACKAGE / "relations").rglob("*.py")
        if defines(path, "RelationBase") or defines(path, "Learned")
    }
    tree = ast.parse((PACKAGE / "relations" / "registry.py").read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert len(names) > 1
    assert not names - imported - {"traincheck.relations.learned", "traincheck.relations.registry"}


def defines(path: Path, base: str) -> bool:
    """Whether a module defines a class with this base."""
    return any(
        isinstance(node, ast.ClassDef) and base in map(ast.unparse, node.bases)
        for node in ast.parse(path.read_text(encoding="utf-8")).body
    )


def dotted(path: Path) -> str:
    """Name of a module."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
