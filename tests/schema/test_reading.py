"""Opening files: regular ones only, of a limited size, without waiting; and nobody opens others."""

from __future__ import annotations

import ast
import os
import re
import socket
from pathlib import Path

import pytest

from traincheck.schema.files import MOST_DEPTH, is_deep, open_regular, parse_json, read_regular

ROOT = Path(__file__).parents[2]
# Who may open a file for reading by itself, and why.
ALLOWED = {
    "traincheck/schema/files.py": "the one place, and an opener of files that are written",
    "traincheck/collect/trace_writer/event_file.py": "maps the file that it writes",
    "traincheck/collect/launch/bootstrap/sitecustomize.py": "the same; it stands alone",
}
READERS = {"read_text", "read_bytes", "ParquetFile", "read_table", "getline", "getlines"}
MODULES = {"linecache", "tokenize", "fileinput", "mmap"}


def place(kind: str, folder: Path) -> Path:
    """Something at a path that is not a file to read."""
    path = folder / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "large":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(os.path.relpath(path))
    return path


REASONS = {
    "pipe": "it is a pipe",
    "device": "it is a device",
    "directory": "it is a directory",
    "socket": "it is a socket",
    "large": "it is larger than 67,108,864 bytes",
    "loop": "Too many levels of symbolic links",
    "missing": "No such file",
}


@pytest.mark.parametrize("kind", REASONS)
def test_what_is_no_regular_file_is_refused_with_the_reason(kind: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=REASONS[kind]):
        read_regular(place(kind, tmp_path))


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_what_is_no_name_of_a_file_is_refused(name: str) -> None:
    with pytest.raises(OSError, match="not a file name"):
        read_regular(name)


def test_a_regular_file_and_a_link_to_it_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert read_regular(tmp_path / "a", 7) == read_regular(str(tmp_path / "link")) == b"content"
    with open_regular(tmp_path / "a", buffering=0) as file:
        assert file.read(3) == b"con"
    with pytest.raises(OSError, match="larger than 6 bytes"):
        read_regular(tmp_path / "a", 6)


def test_a_file_without_a_size_is_read_up_to_the_limit() -> None:
    assert len(read_regular("/proc/self/status")) > 10
    with pytest.raises(OSError, match="larger than 10 bytes"):
        read_regular("/proc/self/status", 10)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[" * (MOST_DEPTH + 1) + b"]" * (MOST_DEPTH + 1), "levels deep"),
        (b'{"a":[' * 60 + b"1" + b"]}" * 60, "levels deep"),
        (b"[" * 5_000 + b"]" * 5_000, "depth limit"),
        (b"[" + b"[]," * 2_000_001 + b"1]", "more than 2,000,000 values"),
        (b"{", "end of data"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_json_that_could_not_be_handled_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_json(content)


def test_usual_json_is_read_whatever_brackets_its_text_holds() -> None:
    many = b'{"a": "[[[[\\"{", "b": [' + b"[1], " * 300 + b"2]}"
    assert parse_json(many)["a"] == '[[[["{'
    assert not is_deep(b"[" * MOST_DEPTH + b"]" * MOST_DEPTH)


def reading(source: str) -> list[int]:
    """Lines on which a module opens a file for reading."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {a.name for a in node.names} | {getattr(node, "module", None)}
            found += [node.lineno] if names & (MODULES - {"tokenize"}) else []
        if not isinstance(node, ast.Call):
            continue
        func = node.func
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        text = ast.unparse(node)
        if name in READERS or text.startswith("tokenize.open("):
            found += [] if re.match(r"(pq|parquet)\.ParquetFile\(file\)", text) else [node.lineno]
        elif name == "open" and not _writes(node, text):
            found.append(node.lineno)
    return found


def _writes(node: ast.Call, text: str) -> bool:
    if text.startswith("os.open("):
        return "O_WRONLY" in text
    texts = [a.value for a in [*node.args, *(k.value for k in node.keywords if k.arg == "mode")]
             if isinstance(a, ast.Constant) and isinstance(a.value, str)]  # fmt: skip
    return any(set(one) <= set("wxab+t") and set(one) & set("wxa") for one in texts)


def test_nobody_else_opens_a_file_for_reading() -> None:
    found = {}
    for path in sorted([*(ROOT / "traincheck").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]):
        name = path.relative_to(ROOT).as_posix()
        lines = reading(path.read_text(encoding="utf-8"))
        if lines and name not in ALLOWED:
            found[name] = lines
    assert not found, "use traincheck.schema.files"


@pytest.mark.parametrize(
    "source",
    [
        "open(path)",
        "open(path, 'rb')",
        "path.open()",
        "path.read_text()",
        "Path(p).read_bytes()",
        "os.open(path, os.O_RDONLY)",
        "tokenize.open(path)",
        "import linecache",
        "parquet.ParquetFile(path)",
    ],
)
def test_opening_for_reading_is_seen(source: str) -> None:
    assert reading(source)


@pytest.mark.parametrize("source", ["open(path, 'w')", "path.open('ab')", "path.open(mode='x')"])
def test_opening_for_writing_is_not_meant(source: str) -> None:
    assert not reading(source)
