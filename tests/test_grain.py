"""Docstrings of classes name attributes that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENTRY = re.compile(r"(\w+(?:, \w+)*):")


def documented(docstring: str) -> Iterator[str]:
    """The names in the section ``Attributes:``; a line may begin with several."""
    lines = iter(docstring.splitlines())
    if not any(line.strip() == "Attributes:" for line in lines):
        return
    for line in lines:
        if not line.startswith(" " * 4) or not line.strip():
            return
        found = ENTRY.match(line[4:])
        if found:
            yield from found[1].split(", ")


def held(node: ast.ClassDef) -> set[str]:
    """What a class assigns in its body, or its methods to ``self``, and its methods."""
    names = {
        one.target.id if isinstance(one, ast.AnnAssign) else one.id
        for statement in node.body
        for one in ast.walk(statement)
        if (isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name))
        or (isinstance(statement, ast.Assign) and isinstance(one, ast.Name))
    }
    names |= {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
    return names | {
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute)
        and isinstance(one.ctx, ast.Store)
        and isinstance(one.value, ast.Name)
        and one.value.id == "self"
    }


def lacking(sources: dict[str, str]) -> dict[str, list[str]]:
    """Of each class of these modules, the documented attributes that neither it nor a base has.

    Several classes may have the name of a base: it is any of them.
    """
    classes = [
        (path, node)
        for path, source in sources.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
    ]
    named: dict[str, list[ast.ClassDef]] = {}
    for _, node in classes:
        named.setdefault(node.name, []).append(node)

    def known(node: ast.ClassDef) -> set[str]:
        names = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
        bases = [one for name in names for one in named.get(name, ()) if one is not node]
        return held(node).union(*map(known, bases))

    found = {}
    for path, node in classes:
        names = set(documented(ast.get_docstring(node) or ""))
        if names and (missing := sorted(names - known(node))):
            found[f"{path}:{node.name}"] = missing
    return found


def test_documented_attributes_exist() -> None:
    paths = sorted([*(ROOT / "traincheck").rglob("*.py"), *(ROOT / "cli").rglob("*.py")])
    assert not lacking({path.relative_to(ROOT).as_posix(): path.read_text() for path in paths})


def test_a_missing_attribute_is_seen() -> None:
    source = '''
class Base:
    y: int

class Made(Base):
    """Something.

    Attributes:
        x, y: are there.
        z: it is
            a property. w: is no entry.
        lost: is not.
    """

    def __init__(self):
        self.x = 1

    @property
    def z(self):
        return 2
'''
    assert lacking({"made.py": source}) == {"made.py:Made": ["lost"]}
