"""The language of pages, docstrings, comments and messages: no banned word, no endless sentence."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.banned_words import BANNED_WORD
from tests.together import together

ROOT = Path(__file__).parents[1]
MOST_WORDS = 40
PACKAGES = ("benchmarks", "cli", "docs", "examples", "tests", "traincheck")
SELF = ("banned_words.py", "test_prose.py")  # these name the words
NO_SUBJECTS = ("What ", "Who ", "Whoever ", "Whose ", "Those ", "As ")
_BETWEEN = re.compile(r"[\s#]+")  # words of a comment that goes on in the next line
_FENCE = re.compile(r"^ *```.*?^ *```$|^    .*?$", re.MULTILINE | re.DOTALL)
_MADE = re.compile(r"<!-- begin generated.*?end generated: \w+ -->", re.DOTALL)
_CODE = re.compile(r"(`+).+?\1")
_LINK = re.compile(r"\]\([^)]*\)")
_BLOCK = re.compile(r"\n\s*\n|^\s*(?:[-*|#>]+|\d+\.)\s+|\||·", re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[.?!:])[\"*)]*\s+(?=\W*[A-Z0-9_])")


def pages() -> list[Path]:
    """The pages of the repository, generated ones included."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("tests/*.md")]
    return sorted([*found, *ROOT.glob("examples/*.md")])


def modules() -> list[Path]:
    """The Python files that the test reads."""
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def prose(page: str) -> str:
    """A page without code and without its generated sections."""
    return _LINK.sub("]", _CODE.sub("_code", _FENCE.sub("", _MADE.sub("", page))))


def sentences(text: str) -> Iterator[str]:
    """The sentences, list items, cells and headings of a text."""
    for block in _BLOCK.split(text):
        yield from (" ".join(part.split()) for part in _SENTENCE.split(block))


def spoken(source: str) -> Iterator[str]:
    """The docstrings, string constants with a space, and comments that are to be read."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield " ".join(node.value.split())
    if not BANNED_WORD.search(_BETWEEN.sub(" ", source)):
        return  # nor has a comment one, and tokens take as long as the tree
    comment: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comment.append(token.string.lstrip("# "))
        elif token.type != tokenize.NL:
            yield " ".join(comment)
            comment = []


def summaries(source: str) -> Iterator[str]:
    """The first lines of the docstrings of a module, where one may lack its subject."""
    if not any(word in source for word in NO_SUBJECTS):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield (ast.get_docstring(node) or "").partition("\n")[0]


def banned(texts: Iterator[str]) -> list[str]:
    return [text for text in texts if BANNED_WORD.search(text)]


@together("page", [path.relative_to(ROOT).as_posix() for path in pages()])
def test_a_page_has_no_banned_word(page: str) -> None:
    assert not banned(sentences(prose((ROOT / page).read_text(encoding="utf-8"))))


@together("page", [path.relative_to(ROOT).as_posix() for path in pages()])
def test_a_page_has_no_endless_sentence(page: str) -> None:
    text = prose((ROOT / page).read_text(encoding="utf-8"))
    assert not [one for one in sentences(text) if len(one.split()) > MOST_WORDS]


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_comments_and_messages_have_no_banned_word(package: str) -> None:
    found = {
        path.relative_to(ROOT).as_posix(): banned(spoken(path.read_text(encoding="utf-8")))
        for path in modules()
        if path.is_relative_to(ROOT / package) and path.name not in SELF
    }
    assert not {path: texts for path, texts in found.items() if texts}


@pytest.mark.parametrize("package", ["benchmarks", "docs", "examples", "traincheck"])
def test_a_docstring_begins_with_its_subject(package: str) -> None:
    """With "The text of a finding", not with "What a finding says"."""
    found = {
        f"{path.relative_to(ROOT).as_posix()}: {summary}"
        for path in modules()
        if path.is_relative_to(ROOT / package)
        for summary in summaries(path.read_text(encoding="utf-8"))
        if summary.startswith(NO_SUBJECTS)
    }
    assert not found


def test_a_banned_word_and_an_endless_sentence_are_found() -> None:
    source = (
        '"""Speaks of\nsteps."""\n\nx = 1  # two words\n# it is made\n# anew\ny = f"{x} by turns"\n'
    )
    assert banned(spoken(source)) == ["Speaks of steps.", "by turns", "it is made anew"]
    assert not banned(iter(["optimizer-made-anew", "tc223_made_anew"]))
    text = prose("One `two three` four. Five\nsix.\n\n```sh\nlong\n```\n- seven; eight\n")
    assert list(filter(None, sentences(text))) == ["One _code four.", "Five six.", "seven; eight"]
