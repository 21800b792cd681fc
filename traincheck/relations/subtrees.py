"""Patterns for the variables of a model that have one label, from their dotted names.

A pattern is a path below which every variable is meant: ``Net.blocks.*.norm``, ``Net.stages.[0-1]``
(these of several numbers) or ``Net.**.bias`` (this leaf anywhere).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

MOST_PATTERNS = 24  # people do not read longer lists
ANY_NUMBER = "*"
ANYWHERE = "**"


@dataclass(slots=True)
class _Node:
    """A place in the tree of names. label: of the variable with this very name."""

    children: dict[str, _Node] = field(default_factory=dict)
    label: Hashable = None
    labels: set[Hashable] = field(default_factory=set)


def fold(labels: Mapping[str, Hashable]) -> list[tuple[str, Hashable]]:
    """Patterns that give the label of each name; none if there would be too many."""
    found = list(_leaves(_tree(labels).children))
    by_leaf = _by_leaf(labels)
    if by_leaf is not None and len(by_leaf) < len(found):
        found = by_leaf
    return sorted(found, key=repr) if len(found) <= MOST_PATTERNS else []


def names_folded(names: Iterable[str]) -> list[str]:
    """Patterns of complete names, not of names below: ``["fc.[0-3].bias", "head.weight"]``."""
    labels = {name: name.rpartition(".")[2] for name in names}
    return sorted(pattern for pattern, _ in _whole(_tree(labels).children))


def expand(pattern: str) -> list[str]:
    """The names that a pattern of `names_folded` stands for."""
    names = [""]
    for part in _split(pattern):
        parts = [str(n) for n in _numbers(part)] if part.startswith("[") else [part]
        names = [f"{name}.{part}" if name else part for name in names for part in parts]
    return names


@lru_cache(maxsize=1024)
def matcher(pattern: str) -> re.Pattern[str]:
    """Matches a name that is the pattern's or lies below it."""
    parts = []
    for part in _split(pattern):
        if part == ANYWHERE:
            parts.append(r".+")
        elif part == ANY_NUMBER:
            parts.append(r"\d+")
        elif part.startswith("["):
            parts.append(f"(?:{'|'.join(map(str, _numbers(part)))})")
        else:
            parts.append(re.escape(part))
    return re.compile(r"\.".join(parts) + r"(?:\.|/|$)")


def _tree(labels: Mapping[str, Hashable]) -> _Node:
    root = _Node()
    for name, label in labels.items():
        node = root
        for part in name.split("."):
            node = node.children.setdefault(part, _Node())
            node.labels.add(label)
        node.label = label
    return root


def _leaves(children: Mapping[str, _Node], prefix: str = "") -> Iterator[tuple[str, Hashable]]:
    """The widest places whose variables all have one label."""
    for part, node in _grouped(children, _signature):
        path = f"{prefix}{part}"
        if len(node.labels) == 1:
            yield path, next(iter(node.labels))
        else:
            if node.label is not None:  # a variable that has the name of a module
                yield path, node.label
            yield from _leaves(node.children, f"{path}.")


def _whole(children: Mapping[str, _Node], prefix: str = "") -> Iterator[tuple[str, Hashable]]:
    for part, node in _grouped(children, _shape, always_numbers=True):
        path = f"{prefix}{part}"
        if node.label is not None:
            yield path, node.label
        yield from _whole(node.children, f"{path}.")


def _grouped(
    children: Mapping[str, _Node], key: Callable[[_Node], Hashable], *, always_numbers: bool = False
) -> Iterator[tuple[str, _Node]]:
    """Children, those with numbers for names joined where they are alike."""
    numbered: dict[Hashable, list[int]] = defaultdict(list)
    for part, node in sorted(children.items()):
        if part.isdecimal() and str(int(part)) == part:
            numbered[key(node)].append(int(part))
        else:
            yield part, node
    for numbers in sorted(map(sorted, numbered.values())):
        first = children[str(numbers[0])]
        if len(numbers) == 1 and (always_numbers or len(numbered) > 1):
            yield str(numbers[0]), first
        elif len(numbered) == 1 and not always_numbers:
            yield ANY_NUMBER, first
        else:
            yield f"[{_ranges(numbers)}]", first


def _signature(node: _Node) -> Hashable:
    if len(node.labels) == 1:
        return next(iter(node.labels))
    inner = sorted(((part, _signature(n)) for part, n in node.children.items()), key=repr)
    return (node.label, tuple(inner))


def _shape(node: _Node) -> Hashable:
    return (node.label, tuple(sorted(((p, _shape(n)) for p, n in node.children.items()), key=repr)))


def _by_leaf(labels: Mapping[str, Hashable]) -> list[tuple[str, Hashable]] | None:
    """One pattern for each leaf of each model, when it decides the label."""
    found: dict[tuple[str, str], set[Hashable]] = defaultdict(set)
    for name, label in labels.items():
        found[name.partition(".")[0], name.rpartition(".")[2]].add(label)
    if any(len(some) > 1 for some in found.values()):
        return None
    return [
        (f"{model}.{ANYWHERE}.{leaf}", next(iter(some))) for (model, leaf), some in found.items()
    ]


def _split(pattern: str) -> list[str]:
    return re.findall(r"\[[\d,-]+\]|[^.]+", pattern)


def _ranges(numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts)


def _numbers(part: str) -> Iterator[int]:
    for piece in part.strip("[]").split(","):
        first, _, last = piece.partition("-")
        yield from range(int(first), int(last or first) + 1)
