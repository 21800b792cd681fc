"""The sentences of findings live in golden files: rewording a check changes these, not its tests.

A test hands a finding to the fixture `golden`, which compares its texts with the section of the
test in ``golden/<code or module>.txt`` beside the tests. What is data in a sentence, as a number or
the name of a variable, a test asserts by `mentions`. ``--update-golden`` accepts the texts of now.
"""

from __future__ import annotations

import fcntl
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias, TypeVar

from traincheck.schema.claims import Invariant
from traincheck.schema.findings import Example, Finding, Violation

TEXTS = ("title", "text", "message", "expected", "observed", "likely_cause", "fix")
_HEAD = "== "
_FOLDER = re.compile(r"(?<![\w.])/([\w.-]+/)+")  # of this machine
_PLACE = re.compile(r"\btest_\w+\.py(:\d+)?")  # of a test: its lines move
_NUMBER = re.compile(r"(?<![\w.#])-?\d+(\.\d+)?(e[+-]?\d+)?(?![\w.]*\w)")
Told: TypeAlias = Finding | Violation | Example | Invariant
_T = TypeVar("_T", bound=Told)


def text_of(told: Told) -> str:
    """What is said, one text a line, without those that are empty."""
    said = [(name, getattr(told, name, "")) for name in TEXTS]
    return "".join(f"{name + ':':14}{text}\n" for name, text in said if text)


def mentions(told: Told | str, *facts: object) -> bool:
    """Whether the texts contain each fact, not as a part of a word: a number, a name, a place."""
    text = told if isinstance(told, str) else text_of(told)
    return all(_pattern(fact).search(text) is not None for fact in facts)


def _pattern(fact: object) -> re.Pattern[str]:
    if isinstance(fact, (int, float)):
        return re.compile(rf"(?<![\w.]){fact}(?!\w|\.\d)")
    text = str(fact)
    before = r"\b" if text[:1].isalnum() else ""
    after = r"\b" if text[-1:].isalnum() else ""
    return re.compile(before + re.escape(text) + after)


def sections(text: str) -> dict[str, str]:
    """The sections of a golden file: name -> texts."""
    named = [part.partition("\n") for part in f"\n{text}".split(f"\n{_HEAD}")[1:]]
    return {name: texts.strip("\n") + "\n" for name, _, texts in named}


def read(path: Path) -> dict[str, str]:
    """The sections of a file, none if there is none."""
    return sections(path.read_text(encoding="utf-8")) if path.exists() else {}


def write(path: Path, name: str, texts: str) -> None:
    """Put one section into a golden file, whatever other processes put there."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known = sections(file.read())
        file.truncate(0)
        file.write("\n".join(f"{_HEAD}{n}\n{t}" for n, t in sorted({**known, name: texts}.items())))


def path_for(module: Path) -> Path:
    """The golden file of a test module: named after its rule, or after the module."""
    name = module.stem.removeprefix("test_")
    code = re.match(r"tc\d{3}", name)
    folder = module.parent if code is None else module.parent.parent
    return folder / "golden" / f"{code[0].upper() if code else name}.txt"


class Golden:
    """The golden texts of one test."""

    def __init__(self, path: Path, test: str, *, update: bool = False) -> None:
        self._path, self._test, self._update = path, test, update
        self._told: Counter[str] = Counter()

    def __call__(self, told: _T, *, case: str = "", numbers: bool = True) -> _T:
        """Compare the texts of a finding with the golden ones, and give it back.

        case: which of several findings of the test it is, in place of its number. numbers: false
        where they are another time's, as in a real training.
        """
        self._compare(text_of(told), case, numbers=numbers)
        return told

    def each(self, told: Iterable[_T], *, case: str = "", numbers: bool = True) -> list[_T]:
        """Compare the texts of several, in their order, and give them back."""
        found = list(told)
        self._compare("".join(map(text_of, found)), case, numbers=numbers)
        return found

    def _compare(self, texts: str, case: str, *, numbers: bool) -> None:
        texts = _PLACE.sub("test.py", _FOLDER.sub("", texts))
        if not numbers:
            texts = _NUMBER.sub("#", texts)
        self._told[case] += 1
        count = f" {self._told[case]}" if self._told[case] > 1 else ""
        name = " ".join((self._test, *([case] if case else []))) + count
        if self._update and texts:
            write(self._path, name, texts)
        expected = read(self._path).get(name, "")
        assert texts == expected, f"{self._path.name}, {name}: --update-golden accepts it"
