"""Every clause that catches something in a training process gives back what is the program's."""

from __future__ import annotations

import ast
import functools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.together import together
from traincheck.handlers import give_back, is_of_handler

ROOT = Path(__file__).parents[2] / "traincheck"
# They run in the launcher, whose handlers are ours.
LAUNCHER = frozenset({"launcher.py", "run_manifest.py", "stop_program.py", "signals.py"})
IN_TRAINING = [
    *(p for p in sorted((ROOT / "collect").rglob("*.py")) if p.name not in LAUNCHER),
    ROOT / "integrations" / "watching.py",
    ROOT / "check" / "engine.py",
    ROOT / "store" / "lines.py",
]
GIVES_BACK = frozenset({"give_back", "_give_back", "fault", "count"})
ALLOWED = {
    # The text of a variable that the launcher has set, before any code of the program runs
    ("settings.py", "from_env"),
    # A hook of a fork: Python would print the exception, not raise it
    ("session.py", "_call"),
    # Before anything of ours is imported; behind a clause that has given back
    ("sitecustomize.py", "find_spec"),
    ("sitecustomize.py", "_leave_note"),
    # Parameters of an invariant, read before the watch begins
    ("engine.py", "_prepare"),
}


def clauses(tree: ast.AST) -> Iterator[tuple[str, ast.ExceptHandler]]:
    """All of them, with the innermost function around each."""

    def walk(node: ast.AST, function: str) -> Iterator[tuple[str, ast.ExceptHandler]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ExceptHandler):
                yield function, child
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from walk(child, child.name if is_function else function)

    yield from walk(tree, "")


def gives_back(clause: ast.ExceptHandler) -> bool:
    """Whether one of its statements lets an exception of a handler pass."""
    last = clause.body[-1]
    if isinstance(last, ast.Raise) and last.exc is None:
        return True
    called = [
        node.value.func
        for node in clause.body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ]
    names = {f.id if isinstance(f, ast.Name) else getattr(f, "attr", "") for f in called}
    return bool(names & GIVES_BACK)


def swallowing(path: Path, source: str) -> list[str]:
    return [
        f"{path.name}:{clause.lineno} in {function}"
        for function, clause in clauses(ast.parse(source))
        if not gives_back(clause) and (path.name, function) not in ALLOWED
    ]


@together("path", IN_TRAINING, ids=lambda path: path.name)
def test_every_clause_gives_back_what_a_handler_raised(path):
    source = path.read_text(encoding="utf-8")
    assert not swallowing(path, source)
    assert "suppress(" not in source, "which asks nobody"


@pytest.mark.parametrize("statement", ["pass", "log(error)", "if a:\n  give_up(error)"])
def test_a_clause_that_swallows_is_seen(statement):
    source = f"def f():\n try:\n  g()\n except OSError as error:\n  {statement}\n"
    assert swallowing(Path("emitter.py"), source.replace("\n  give_up", "\n   give_up"))


class Deadline:
    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise TimeoutError("mine")

    def method(self, number: int, frame: FrameType | None) -> None:
        raise TimeoutError("mine")


def plain(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("mine")


def without_arguments(*given: Any) -> None:
    del given
    raise TimeoutError("mine")


def with_more(more: int, number: int, frame: FrameType | None) -> None:
    raise TimeoutError("mine")


def once(number: int, frame: FrameType | None) -> None:
    """As deadlines are set for one block: the handler that was there before is put back."""
    signal.signal(number, signal.SIG_DFL)
    raise TimeoutError("mine")


def interrupted() -> None:
    signal.raise_signal(signal.SIGUSR1)


@pytest.mark.parametrize(
    "handler",
    [
        plain,
        without_arguments,
        once,
        functools.partial(with_more, 1),
        Deadline(),
        Deadline().method,
    ],
    ids=["plain", "no arguments", "once", "partial", "object", "method"],
)
def test_what_a_handler_raised_is_known(handler):
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        interrupted()
    except TimeoutError as error:
        with pytest.raises(TimeoutError, match="mine"):
            give_back(error)
    else:
        pytest.fail("nothing was raised")
    finally:
        signal.signal(signal.SIGUSR1, before)


def fails(action: Callable[[], Any]) -> BaseException:
    try:
        action()
    except Exception as error:
        return error
    raise AssertionError


def test_failures_of_others_are_no_handlers():
    before = signal.signal(signal.SIGUSR1, plain)
    try:
        assert is_of_handler(fails(lambda: open("/nowhere/at/all"))) is False  # noqa: SIM115
        assert is_of_handler(fails(lambda: {}["a"])) is False
        assert is_of_handler(TimeoutError("never raised")) is False
    finally:
        signal.signal(signal.SIGUSR1, before)
