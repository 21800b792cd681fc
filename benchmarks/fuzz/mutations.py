"""Ways to damage a file: bytes, lines, JSON values, and what lies at its path."""

from __future__ import annotations

import copy
import json
import os
import random
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOSTILE = (
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "bell\x07",
    "\x9b31m",
    "::error file=x::pwned",
    "x\n::warning::pwned",
    "x\r\n::error::pwned",
    "a\u202egnp.exe",
    "a\u2066b\u2069",
    "zero\u200bwidth\ufeff",
    "line\u2028separator\u2029",
    "next\x85line",
    "null\x00byte",
    "<script>alert(1)</script>]]>",
    "%s%n{variables}{0}",
    "../../../../etc/passwd:1",
    "/dev/zero:1",
    "[bold red]markup[/bold red]",
    "",
    " ",
    "\ud800",
    "é" * 300,
    "n" * 100_000,
    "torch." * 2_000,
)
NUMBERS = (
    "-1",
    "0",
    str(2**63),
    str(2**64),
    str(-(2**70)),
    "1" * 400,
    "1" * 5000,
    "1e308",
    "1e999",
)
_SWAPS: tuple[Any, ...] = (None, True, 0, -1, 2**62, 0.5, "", "text", [], ["a"], {}, {"a": 1}, [[]])
_DEPTHS = (150, 300, 1_200, 5_000)

Mutate = Callable[[bytes, random.Random], bytes]


def flip(data: bytes, rng: random.Random) -> bytes:
    """Other bits in a few bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 3, 20))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def truncate(data: bytes, rng: random.Random) -> bytes:
    """The beginning only, maybe none of it."""
    return data[: rng.randrange(len(data) + 1)]


def repeat(data: bytes, rng: random.Random) -> bytes:
    """A piece twice."""
    begin = rng.randrange(len(data) + 1)
    end = min(len(data), begin + rng.choice((1, 50, 5_000)))
    return data[:end] + data[begin:]


def zeros(data: bytes, rng: random.Random) -> bytes:
    """Null bytes inside."""
    place = rng.randrange(len(data) + 1)
    return data[:place] + b"\0" * rng.choice((1, 100, 70_000)) + data[place:]


def encoding(data: bytes, rng: random.Random) -> bytes:
    """Another encoding than UTF-8."""
    text = data.decode("utf-8", "replace")
    name = rng.choice(("utf-16", "utf-32", "utf-8-sig", "latin-1", "utf-7"))
    return text.encode(name, "replace") if name != "latin-1" else b"\xe9\xff" + data


def shuffle(data: bytes, rng: random.Random) -> bytes:
    """Lines in another order."""
    lines = data.splitlines(keepends=True)
    first = rng.randrange(len(lines) + 1)
    some = lines[first : first + rng.choice((2, 10, 10_000))]
    rng.shuffle(some)
    return b"".join([*lines[:first], *some, *lines[first + len(some) :]])


def drop(data: bytes, rng: random.Random) -> bytes:
    """Some lines less."""
    lines = data.splitlines(keepends=True)
    share = rng.choice((0.02, 0.3))
    return b"".join(line for line in lines if rng.random() > share)


def join(data: bytes, rng: random.Random) -> bytes:
    """Line feeds less, or carriage returns in their place."""
    return data.replace(b"\n", rng.choice((b"", b"\r", b"\r\n", b"\n\n")))


def long_line(data: bytes, rng: random.Random) -> bytes:
    """A line of many bytes."""
    lines = data.splitlines(keepends=True) or [b"\n"]
    place = rng.randrange(len(lines))
    size = rng.choice((100_000, 2_000_000, 20_000_000))
    lines[place] = lines[place].rstrip() + rng.choice((b" ", b"x", b"[],", b'"')) * size + b"\n"
    return b"".join(lines)


def value(data: bytes, rng: random.Random) -> bytes:
    """Another value somewhere in the JSON: of another type, huge, hostile, missing or one more."""
    return _in_json(data, rng, _change)


def nesting(data: bytes, rng: random.Random) -> bytes:
    """A value nested deeply somewhere in the JSON."""
    depth, (begin, end) = rng.choice(_DEPTHS), rng.choice((("[", "]"), ('{"a":', "}")))
    return _in_json(
        data, rng, lambda node, key, _: _put(node, key, begin * depth + "1" + end * depth)
    )


def version(data: bytes, rng: random.Random) -> bytes:
    """Another schema version."""
    found = rng.choice((b"0", b"2", b"99", b"-1", b'"1"', b"1.0", b"null", b"[]"))
    return re.sub(rb'("(?:schema|statistics)_version":\s*)\d+', rb"\g<1>" + found, data)


def word(data: bytes, rng: random.Random) -> bytes:
    """Another word in a text file, such as TOML."""
    words = list(re.finditer(rb'"[^"\n]*"|\d+|\w+|[\[\]=]', data))
    if not words:
        return data
    chosen = rng.choice(words)
    depth = rng.choice(_DEPTHS)
    new = rng.choice(
        (
            *(number.encode() for number in NUMBERS),
            *(json.dumps(text).encode() for text in HOSTILE),
            b"",
            b"[" * depth + b"]" * depth,
            b"{a=" * depth + b"1" + b"}" * depth,
            b"a." * depth + b"a",
            b"true",
            b"1979-05-27",
        )
    )
    return data[: chosen.start()] + new + data[chosen.end() :]


def packed(mutate: Mutate) -> Mutate:
    """The same, of what is compressed."""

    def change(data: bytes, rng: random.Random) -> bytes:
        return zlib.compress(mutate(zlib.decompress(data), rng))

    return change


def bomb(data: bytes, rng: random.Random) -> bytes:
    """A small file that unpacks to much."""
    packer = zlib.compressobj(9)
    unit = rng.choice((b" ", b"[],", b"\0")) * (1 << 20)
    return b"".join(packer.compress(unit) for _ in range(600)) + packer.flush()


BYTES: tuple[Mutate, ...] = (flip, truncate, repeat, zeros, encoding)
LINES: tuple[Mutate, ...] = (shuffle, drop, join, long_line)
JSON: tuple[Mutate, ...] = (value, value, value, value, value, value, nesting, version)


def _in_json(
    data: bytes, rng: random.Random, change: Callable[[Any, Any, random.Random], None]
) -> bytes:
    """Change one node of a document, or of one of the lines."""
    try:
        return _changed(data, rng, change)
    except ValueError:
        pass
    lines = data.splitlines()
    for _ in range(rng.choice((1, 1, 5))):
        place = rng.randrange(len(lines)) if lines else 0
        try:
            lines[place] = _changed(lines[place], rng, change)
        except (ValueError, IndexError):
            continue
    return b"\n".join(lines) + b"\n"


def _changed(
    data: bytes, rng: random.Random, change: Callable[[Any, Any, random.Random], None]
) -> bytes:
    document = [json.loads(data)]
    node, key = rng.choice(_nodes(document))
    change(node, key, rng)
    text = json.dumps(document, ensure_ascii=rng.random() < 0.5)[1:-1]
    text = re.sub(r'"\\u0001raw:(.*?)\\u0001"', lambda found: json.loads(f'"{found[1]}"'), text)
    return text.encode("utf-8", "surrogatepass")


def _nodes(value: Any) -> list[tuple[Any, Any]]:
    """Each container with each of its keys or places."""
    found: list[tuple[Any, Any]] = []
    left = [value]
    while left:
        node = left.pop()
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, child in items:
            found.append((node, key))
            if isinstance(child, (dict, list)):
                left.append(child)
    return found


def _put(node: Any, key: Any, raw: str) -> None:
    node[key] = f"\x01raw:{raw}\x01"  # written as it is, which json.dumps would not


def _change(node: Any, key: Any, rng: random.Random) -> None:
    kind = rng.randrange(8)
    if kind <= 2:
        node[key] = copy.deepcopy(rng.choice(_SWAPS))
    elif kind == 3:
        _put(node, key, rng.choice(NUMBERS))
    elif kind == 4:
        node[key] = rng.choice(HOSTILE)
    elif kind == 5:
        del node[key]
    elif kind == 6 and isinstance(node, dict):
        node[rng.choice(HOSTILE)] = node[key]
    else:
        node[key] = [node[key]] * rng.choice((0, 2, 1_000))


Place = Callable[[Path], None]


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path)


def directory(path: Path) -> None:
    path.mkdir()


def unreadable(path: Path) -> None:
    path.write_bytes(b"{}")
    path.chmod(0)


def oversized(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 33)


def dangling(path: Path) -> None:
    path.symlink_to(path.parent / "gone")


PLACES: tuple[Place, ...] = (fifo, device, loop, directory, unreadable, oversized, dangling)
