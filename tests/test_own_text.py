"""Own text is written, never read: no module looks for words in a sentence of ours."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
READERS = {
    "count", "endswith", "find", "findall", "fullmatch", "index", "match", "partition",
    "removeprefix", "removesuffix", "rfind", "rpartition", "rsplit", "search", "split",
    "startswith",
}  # fmt: skip
# Words with a blank beside them, blanks alone, and the letter of a plural.
PROSE = re.compile(r".*(?:[A-Za-z][:,;]? | [A-Za-z]).*| +|[,;:] |s\Z", re.DOTALL)
# Fields and variables that hold a sentence for people.
SENTENCES = {
    "conclusion", "expected", "fix", "headline", "likely_cause", "message", "observed", "title",
}  # fmt: skip
# What is read there is text of others, or a key whose parts are separated by a blank.
OF_OTHERS = {
    ("traincheck/collect/launch/script.py", " "): "packed-refs of git",
    ("cli/cmd_rules.py", " "): "the docstring of a rule, whose headings are not indented",
    ("traincheck/diff/environment.py", " class"): "the name of a setting",
    ("traincheck/infer/propose.py", " "): "the key of a claim: its relation and its parameters",
    ("traincheck/relations/constant/proposer.py", " "): "the key of a setting: name and class",
    ("traincheck/relations/distinct.py", " "): "the key of a draw: loader and what it returns",
    ("traincheck/relations/loss_terms.py", " "): "the key of a term: its function and its number",
    ("traincheck/relations/restored/relation.py", " "): "the key of a state: target and kind",
    ("traincheck/report/run_summary.py", " "): "a long text is cut between words",
    ("traincheck/schema/record.py", " - at `$"): "a message of msgspec",
    ("traincheck/store/columnar.py", " | None"): "an annotation of Python",
    ("traincheck/store/columnar.py", "s"): "the name of a table",
}
# Left: a claim with a program begins with a word of ours in lower case.
LEFT = {
    ("traincheck/infer/preconditions.py", ", "): "the same",
    ("traincheck/infer/preconditions.py", "In "): "the program may stand before the claim already",
    ("traincheck/relations/phrasing.py", " "): "the first word of a claim",
}


def literals(node: ast.expr) -> Iterator[str]:
    """The texts of an argument: itself, those of a tuple, the fixed parts of an f-string."""
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


def is_sentence(node: ast.expr) -> bool:
    """Whether an expression is a field that holds a sentence, or an entry of that name."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return node.slice.value in SENTENCES
    name = getattr(node, "attr", None) or getattr(node, "id", None)
    return name in SENTENCES


def read(source: str) -> Iterator[str]:
    """The texts that a module looks for in sentences."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            of_sentence = any(map(is_sentence, (node.func.value, *node.args)))
            for text in literals(node.args[0]) if node.func.attr in READERS else ():
                if PROSE.fullmatch(text) or of_sentence:
                    yield text
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            left, right = node.left, node.comparators[0]
            text = left.value if isinstance(left, ast.Constant) else None
            is_text = isinstance(text, str) and not isinstance(right, ast.Tuple)
            if is_text and (is_sentence(right) or " " in text):
                yield text


def found() -> set[tuple[str, str]]:
    paths = [*(ROOT / "traincheck").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]
    return {
        (path.relative_to(ROOT).as_posix(), text)
        for path in paths
        for text in read(path.read_text(encoding="utf-8"))
    }


def test_own_text_is_not_read() -> None:
    assert found() - {*OF_OTHERS, *LEFT} == set()


def test_the_exceptions_are_needed() -> None:
    assert {*OF_OTHERS, *LEFT} - found() == set()


@pytest.mark.parametrize(
    "source",
    [
        'name.endswith("s")',
        'message["conclusion"].removeprefix("traincheck: ")',
        'name.removesuffix(" generator")',
        'tally_text(tally).split(", ")',
        'item.name.startswith("loss of backward")',
        'text.startswith(f"In {name}, ")',
        '"not finite" in text',
        '"nan" in finding.observed',
        're.search("loss", finding.title)',
        'error.message.startswith("x")',
    ],
)
def test_reading_is_seen(source: str) -> None:
    assert list(read(source))


@pytest.mark.parametrize(
    "source", ['name.endswith(".forward")', 'path.split(",")', '"." in name', "a.split()"]
)
def test_names_may_be_read(source: str) -> None:
    assert not list(read(source))
