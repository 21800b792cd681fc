"""The tests can fail, and keep to what they may know: of the builder, and of sentences."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.golden import TEXTS
from tests.together import together

TESTS = Path(__file__).parent
Function = ast.FunctionDef | ast.AsyncFunctionDef
# What fails if nothing is raised or warned of.
_EXPECT = ("raises", "warns", "deprecated_call", "fail")
# Modules about the sentences themselves, or about messages of errors.
_ABOUT_TEXTS = ("test_texts.py", "test_every_rule.py", "test_contract.py", "test_options.py")


@cache
def trees() -> dict[Path, ast.Module]:
    """Every module of the tests."""
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(TESTS.rglob("*.py"))}


def functions(tree: ast.AST) -> Iterator[Function]:
    """All functions and methods, nested ones too."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def called(function: ast.AST) -> set[str]:
    """Names of what a function calls, without what they are attributes of."""
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {str(getattr(f, "id", None) or getattr(f, "attr", None)) for f in calls}


def asserts_itself(function: ast.AST) -> bool:
    """Whether a function asserts something itself, not only in what it calls."""
    names = called(function)
    return any(isinstance(node, ast.Assert) for node in ast.walk(function)) or any(
        name in _EXPECT or name.startswith("assert_") for name in names
    )


def helpers_that_assert() -> set[str]:
    """Functions with an assertion, also in what they call."""
    known = [function for tree in trees().values() for function in functions(tree)]
    found = {function.name for function in known if asserts_itself(function)}
    others = [(f.name, called(f)) for f in known if f.name not in found]
    while more := {name for name, calls in others if name not in found and calls & found}:
        found |= more
    return found


def without_an_assertion(tree: ast.AST, helpers: set[str]) -> list[str]:
    """The tests of a module that nothing can make fail but an exception."""
    return [
        function.name
        for function in functions(tree)
        if function.name.startswith("test_")
        and not asserts_itself(function)
        and not called(function) & helpers
    ]


def test_every_test_asserts() -> None:
    # Of other packages, and raises where a document does not fit.
    helpers = helpers_that_assert() | {"validate"}
    tests = {path: tree for path, tree in trees().items() if path.name.startswith("test_")}
    found = {path.name: without_an_assertion(tree, helpers) for path, tree in tests.items()}
    assert {name: functions for name, functions in found.items() if functions} == {}


def test_a_test_without_an_assertion_is_found() -> None:
    source = "def test_a():\n    run()\ndef test_b():\n    fires(run())\n"
    assert without_an_assertion(ast.parse(source), {"fires"}) == ["test_a"]


def test_the_verdict_of_a_quiet_run_is_not_dropped() -> None:
    dropped = [
        f"{path.name}:{node.lineno}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "id", "") == "quiet"
    ]
    assert dropped == []


def private_names() -> set[str]:
    """What the trace builder keeps to itself."""
    tree = trees()[TESTS / "builders.py"]
    (builder,) = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "TraceBuilder"
    ]
    attributes = {
        node.attr
        for node in ast.walk(builder)
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self"
    }
    return {name for name in attributes if name.startswith("_")}


def test_only_the_builder_knows_how_it_works() -> None:
    private = private_names()
    assert private
    reached = [
        f"{path.name}:{node.lineno} {node.attr}"
        for path, tree in trees().items()
        if path.name != "builders.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in private
    ]
    assert reached == []


def compared_texts(tree: ast.AST) -> list[int]:
    """Lines of assertions about a text of a finding, other than by `golden` and `mentions`."""
    lines = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assert):
            continue
        allowed = {
            id(part)
            for call in ast.walk(node)
            if isinstance(call, ast.Call) and called(call) & {"golden", "mentions"}
            for part in ast.walk(call)
        }
        lines += [
            part.lineno
            for part in ast.walk(node)
            if isinstance(part, ast.Attribute)
            and part.attr in set(TEXTS) - {"text"}  # of claims, and of marks
            and id(part) not in allowed
            and getattr(part.value, "attr", "") != "value"  # of an exception that was raised
        ]
    return lines


@pytest.mark.parametrize("folder", ["rules", "relations"])
def test_sentences_are_golden_texts(folder: str) -> None:
    found = [
        f"{path.name}:{line}"
        for path, tree in trees().items()
        if path.is_relative_to(TESTS / folder) and path.name not in _ABOUT_TEXTS
        for line in compared_texts(tree)
    ]
    assert found == []


def test_a_sentence_that_is_compared_is_found() -> None:
    tree = ast.parse('assert "a" in found.fix\nassert mentions(found.fix, 1)\n')
    assert compared_texts(tree) == [1]


HELPERS = [path for path in sorted(TESTS.rglob("*.py")) if not path.name.startswith("test_")]


@together("path", HELPERS, ids=lambda path: path.relative_to(TESTS).as_posix())
def test_helpers_are_typed(path: Path) -> None:
    untyped = [
        function.name
        for function in functions(trees()[path])
        if function.returns is None
        or any(
            argument.annotation is None and argument.arg not in ("self", "cls")
            for argument in (
                *function.args.posonlyargs,
                *function.args.args,
                *function.args.kwonlyargs,
            )
        )
    ]
    assert untyped == []
