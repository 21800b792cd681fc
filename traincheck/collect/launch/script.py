"""The script of a run: the commit of its checkout, and a sketch of its text.

Git is not run: a child of a training process may disturb it.
"""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

from traincheck.handlers import give_back
from traincheck.schema.files import read_regular

_DIGITS = frozenset("0123456789abcdef")
_LENGTHS = (40, 64)  # of SHA-1 and SHA-256
_MOST_OUTPUT = 1 << 24  # of the list of packed references


def commit_of(folder: Path) -> str:
    """The commit that is checked out in ``folder`` or above it; empty if there is none.

    Raises:
        OSError: a file of the checkout cannot be read.
    """
    for place in (folder, *folder.parents):
        git = place / ".git"
        if git.is_dir():
            return _head(git)
        if git.is_file():  # of a worktree or a submodule: it names the folder
            named = _text(git).removeprefix("gitdir:").strip()
            return _head(place / named)
    return ""


def _head(git: Path) -> str:
    head = _text(git / "HEAD").strip()
    if not head.startswith("ref:"):
        return _commit(head)
    name = head.removeprefix("ref:").strip()
    common = git / "commondir"
    shared = git / _text(common).strip() if common.is_file() else git
    for folder in (git, shared):
        if (folder / name).is_file():
            return _commit(_text(folder / name).strip())
    packed = shared / "packed-refs"
    if packed.is_file() and packed.stat().st_size <= _MOST_OUTPUT:
        for line in _text(packed).splitlines():
            commit, _, reference = line.partition(" ")
            if reference == name:
                return _commit(commit)
    return ""


def _commit(text: str) -> str:
    return text if len(text) in _LENGTHS and _DIGITS.issuperset(text) else ""


def _text(path: Path) -> str:
    return read_regular(path).decode("utf-8", "replace")


_KEPT = 24  # the smallest hashes, a fair sample of the lines
_MOST_BYTES = 1 << 20
_COMMON = (b"import ", b"from ", b"#")  # beginnings of lines that many scripts share


def script_sketch(path: str) -> str:
    """The sketch of a script, in hex; empty if it cannot be read.

    Order, indentation, comments and imports do not matter.
    """
    if not path:
        return ""
    try:
        text = read_regular(path, _MOST_BYTES)
    except (OSError, ValueError) as error:  # such as `python -c`
        give_back(error)
        return ""
    lines = {line.strip() for line in text.splitlines()}
    telling = [line for line in lines if line and not line.startswith(_COMMON)]
    return "".join(sorted({f"{crc32(line):08x}"[:4] for line in telling})[:_KEPT])
