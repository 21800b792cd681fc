"""Calls of a window as a tree of a few lines, with what repeats told once. Judges nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from traincheck.relations.phrasing import shown
from traincheck.schema.apis import Families
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.excerpts import Excerpt, Line

MAX_LINES = 12
MAX_DEPTH = 3
_MAX_PERIOD = 8
_MAX_KEPT = 160  # nodes

LANDMARKS = frozenset(
    value for name, value in vars(Families).items() if name.isupper() and value != Families.MODULE
)

Wanted = Callable[[CallEvent], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A call and what it holds; equal ones in a row are one. where: of the first of them."""

    api: str
    family: str | None = None
    note: str = ""
    count: int = 1
    children: tuple[Node, ...] = ()
    where: str | None = field(default=None, compare=False)


def tree(
    calls: Iterable[CallEvent], wanted: Wanted, args: Collection[str] = ()
) -> tuple[Node, ...]:
    """The calls of a window, nested and in order of their beginning.

    Args:
        calls: in any order; of several threads, those of the busiest are taken.
        wanted: which calls are shown; what one holds that is not shown takes its place.
        args: names of the arguments that are shown with their values.
    """
    calls = list(calls)
    streams = Counter(call.stream for call in calls)
    main = min(streams, key=lambda name: (-streams[name], name), default="")
    spans = {call.span: call for call in calls if call.stream == main}
    inside: dict[int | None, list[CallEvent]] = defaultdict(list)
    for call in sorted(spans.values(), key=lambda call: (call.start_ns, call.span)):
        inside[call.parent if call.parent in spans else None].append(call)

    def below(parent: int | None, depth: int) -> list[Node]:
        nodes: list[Node] = []
        for call in inside.get(parent, ()):
            is_wanted = wanted(call)
            deeper = depth + is_wanted
            children = below(call.span, deeper) if deeper <= MAX_DEPTH else []
            nodes += [_node(call, children, args)] if is_wanted else children
        return _collapsed(nodes)

    return tuple(below(None, 0))


def _node(call: CallEvent, children: Sequence[Node], args: Collection[str]) -> Node:
    family = call.family or call.api
    is_model = family == Families.MODULE and call.root
    return Node(
        api=call.api,
        family=family if is_model or family in LANDMARKS else None,
        note=_note(call, args, is_model=is_model),
        children=tuple(children),
        where=call.where,
    )


def _note(call: CallEvent, args: Collection[str], *, is_model: bool) -> str:
    """``is_causal=True; in evaluation mode; without grad``."""
    given = {k: v for k, v in call.args.items() if k in args and isinstance(v, (bool, int, str))}
    parts = [shown(given)] if given else []
    if is_model and call.training is False:
        parts.append("in evaluation mode")
    if is_model and not call.grad_enabled:
        parts.append("without grad")
    if call.exception is not None:
        parts.append(f"raises {call.exception}")
    return "; ".join(parts)


def _collapsed(nodes: Iterable[Node]) -> list[Node]:
    """With equal ones in a row as one, and rows that come again and again below their number."""
    single: list[Node] = []
    for node in nodes:
        if single and replace(node, count=single[-1].count) == single[-1]:
            single[-1] = replace(single[-1], count=single[-1].count + node.count)
        else:
            single.append(node)
    found: list[Node] = []
    at = 0
    while at < len(single):
        period, times = _repeats(single, at)
        block = single[at : at + period]
        found += block if times == 1 else [Node(api="", count=times, children=tuple(block))]
        at += period * times
    return found


def _repeats(nodes: Sequence[Node], at: int) -> tuple[int, int]:
    """Length and number of the equal blocks that begin here; of the most nodes, the shortest."""
    best = (1, 1)
    for period in range(2, min(_MAX_PERIOD, (len(nodes) - at) // 2) + 1):
        block = nodes[at : at + period]
        times = 1
        while nodes[at + times * period : at + (times + 1) * period] == block:
            times += 1
        if times > 1 and period * times > best[0] * best[1]:
            best = (period, times)
    return best


def lines(nodes: Sequence[Node], depth: int) -> list[tuple[Line, str | None]]:
    """The tree down to ``depth``, each line with its place in the source."""
    found: list[tuple[Line, str | None]] = []

    def walk(level: Iterable[Node], at: int) -> None:
        for node in level:
            line = Line(
                depth=at, api=node.api, family=node.family, note=node.note, count=node.count
            )
            found.append((line, node.where))
            # Below a number of times is what comes so often, whatever the depth.
            if at < depth or not node.api:
                walk(node.children, at + 1)

    walk(landmarks(nodes) if depth < 0 else nodes, 0)
    return found


def landmarks(nodes: Iterable[Node]) -> list[Node]:
    """Without what is neither a landmark nor a forward of a whole model."""
    groups = [replace(n, children=tuple(landmarks(n.children))) for n in nodes if not n.api]
    groups.reverse()
    kept = [n if n.api else groups.pop() for n in nodes if n.family is not None or not n.api]
    return _collapsed([n for n in kept if n.api or n.children])


def excerpt(nodes: Sequence[Node]) -> Excerpt | None:
    """As much of a tree as fits into a few lines: all of it down to some depth, or no excerpt."""
    for depth in range(MAX_DEPTH, -2, -1):
        found = [line for line, _ in lines(nodes, depth)]
        if len(found) <= MAX_LINES:
            return Excerpt(lines=tuple(found), depth=depth) if found else None
    return None


def is_in_view(api: str, family: str | None, needs: Needs, *, is_root: bool = False) -> bool:
    """Whether a recording for ``needs`` holds such a call. Of modules, a family means the roots."""
    if needs.hears(api) or "call" in needs.kinds or "*" in needs.calls:
        return True
    return family in needs.calls and (family != Families.MODULE or is_root)


def seen_by(nodes: Iterable[Node], needs: Needs) -> tuple[Node, ...]:
    """What is left of a tree where only ``needs`` are served."""

    def left(level: Iterable[Node]) -> list[Node]:
        found: list[Node] = []
        for node in level:
            children = left(node.children)
            # A node has the family of all modules only where it is a root.
            if is_in_view(node.api, node.family, needs, is_root=True) if node.api else children:
                found.append(replace(node, children=tuple(children)))
            elif node.api:
                found += children
        return _collapsed(found)

    return tuple(left(nodes))


def bounded(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """As much of a tree as is worth keeping: down to the depth at which it is not too large."""
    for depth in range(MAX_DEPTH, -1, -1):
        found = _cut(nodes, depth)
        if _size(found) <= _MAX_KEPT:
            return found
    return tuple(landmarks(nodes))[:_MAX_KEPT]


def _cut(nodes: Iterable[Node], depth: int) -> tuple[Node, ...]:
    found = []
    for node in nodes:
        deeper = depth if not node.api else depth - 1
        children = _cut(node.children, deeper) if deeper >= 0 else ()
        found.append(replace(node, children=children, where=None))
    return tuple(_collapsed(found))


def _size(nodes: Iterable[Node]) -> int:
    return sum(1 + _size(node.children) for node in nodes)


def in_view(excerpt: Excerpt, needs: Needs) -> Excerpt:
    """What is left of an excerpt where only ``needs`` are served: lines below one go with it."""
    found: list[Line] = []
    hidden: int | None = None
    for line in excerpt.lines:
        if hidden is not None and line.depth > hidden:
            continue
        is_shown = not line.api or is_in_view(line.api, line.family, needs, is_root=True)
        hidden = None if is_shown else line.depth
        found += [line] if is_shown else []
    return replace(excerpt, lines=tuple(found))
