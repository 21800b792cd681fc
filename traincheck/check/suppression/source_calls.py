"""Find the lines of a program that call a function, by its name in the source.

It is used for calls whose source line is not in the trace.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from traincheck.check.suppression.source_files import UNPARSABLE
from traincheck.schema.torch_api import LOSSES


def program_in(command: Iterable[str]) -> str:
    """The script among the words of a command; empty where there is none."""
    return next((word for word in command if word.endswith(".py")), "")


def lines_calling(api: str, source: str | None) -> set[int]:
    """Lines of ``source`` that call an API; none if the source is missing or cannot be parsed."""
    if "." not in api or not source:
        return set()
    name = api.rpartition(".")[2]
    loss = LOSSES.get(name)
    names = {name} if loss is None else {name, loss.module}  # programs use either
    try:
        tree = ast.parse(source)
    except UNPARSABLE:
        return set()
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {
        func.end_lineno or func.lineno
        for func in calls
        if (isinstance(func, ast.Name) and func.id in names)
        or (isinstance(func, ast.Attribute) and func.attr in names)
    }
