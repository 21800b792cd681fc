"""The calls of a window as a tree of a few lines, in which repeated calls are shown once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from traincheck.relations.phrasing import format_args
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.excerpts import Excerpt, Line
from traincheck.schema.torch_api import LANDMARKS, Families

MAX_LINES = 12
MAX_DEPTH = 3
_MAX_PERIOD = 8
_MAX_KEPT = 160  # nodes

CallFilter = Callable[[CallEvent], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A call and the calls inside it. Equal calls in a row are one node.

    Attributes:
        api: of the call; empty for a block of nodes that repeats.
        family: only of landmarks and root modules.
        note: on its arguments and mode.
        count: number of equal calls in a row, or of repeats.
        children: the calls inside it.
        where: source line of the first.
    """

    api: str
    family: str | None = None
    note: str = ""
    count: int = 1
    children: tuple[Node, ...] = ()
    where: str | None = field(default=None, compare=False)


def build_tree(
    calls: Iterable[CallEvent], is_shown: CallFilter, args: Collection[str] = ()
) -> tuple[Node, ...]:
    """The calls of a window, nested and in order of their beginning.

    Args:
        calls: in any order. Only those of the busiest thread are taken.
        is_shown: which calls are shown. The calls inside a hidden call take its place.
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
            is_node = is_shown(call)
            deeper = depth + is_node
            children = below(call.span, deeper) if deeper <= MAX_DEPTH else []
            nodes += [_node(call, children, args)] if is_node else children
        return _collapsed(nodes)

    return tuple(below(None, 0))


def _node(call: CallEvent, children: Sequence[Node], args: Collection[str]) -> Node:
    family = call.family or call.api
    is_model = family == Families.MODULE and call.root
    # ``is_causal=True; in evaluation mode; without grad``.
    given = {k: v for k, v in call.args.items() if k in args and isinstance(v, (bool, int, str))}
    parts = [format_args(given)] if given else []
    if is_model and call.training is False:
        parts.append("in evaluation mode")
    if is_model and not call.grad_enabled:
        parts.append("without grad")
    if call.exception is not None:
        parts.append(f"raises {call.exception}")
    return Node(
        api=call.api,
        family=family if is_model or family in LANDMARKS else None,
        note="; ".join(parts),
        children=tuple(children),
        where=call.where,
    )


def _collapsed(nodes: Iterable[Node]) -> list[Node]:
    """Merge equal nodes in a row, and put blocks that repeat below a node with their count."""
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
    """Length and number of the equal blocks that begin here: most nodes first, then shortest."""
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
    """The lines of a tree down to ``depth``, each with its source line."""
    found: list[tuple[Line, str | None]] = []

    def walk(level: Iterable[Node], at: int) -> None:
        for node in level:
            line = Line(
                depth=at, api=node.api, family=node.family, note=node.note, count=node.count
            )
            found.append((line, node.where))
            # The block below a repeat count is shown at any depth.
            if at < depth or not node.api:
                walk(node.children, at + 1)

    walk(landmarks(nodes) if depth < 0 else nodes, 0)
    return found


def landmarks(nodes: Iterable[Node]) -> list[Node]:
    """Only the landmarks and the forwards of root modules."""
    groups = [replace(n, children=tuple(landmarks(n.children))) for n in nodes if not n.api]
    groups.reverse()
    kept = [n if n.api else groups.pop() for n in nodes if n.family is not None or not n.api]
    return _collapsed([n for n in kept if n.api or n.children])


def excerpt(nodes: Sequence[Node]) -> Excerpt | None:
    """A tree down to the depth at which it fits into a few lines; None if it fits at none."""
    for depth in range(MAX_DEPTH, -2, -1):
        found = [line for line, _ in lines(nodes, depth)]
        if len(found) <= MAX_LINES:
            return Excerpt(lines=tuple(found), depth=depth) if found else None
    return None


def is_recorded(api: str, family: str | None, needs: Needs, *, is_root: bool = False) -> bool:
    """Whether a recording for ``needs`` holds such a call. The module family means roots."""
    if needs.delivers(api) or "call" in needs.kinds or "*" in needs.calls:
        return True
    return family in needs.calls and (family != Families.MODULE or is_root)


def visible_nodes(nodes: Iterable[Node], needs: Needs) -> tuple[Node, ...]:
    """The part of a tree that a recording for ``needs`` holds."""

    def left(level: Iterable[Node]) -> list[Node]:
        found: list[Node] = []
        for node in level:
            children = left(node.children)
            # A node has the family of all modules only where it is a root.
            if is_recorded(node.api, node.family, needs, is_root=True) if node.api else children:
                found.append(replace(node, children=tuple(children)))
            elif node.api:
                found += children
        return _collapsed(found)

    return tuple(left(nodes))


def truncated(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """A tree down to the depth at which it has at most `_MAX_KEPT` nodes."""
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


def visible_excerpt(excerpt: Excerpt, needs: Needs) -> Excerpt:
    """The part of an excerpt in a recording for ``needs``. Hidden lines hide their children."""
    found: list[Line] = []
    hidden: int | None = None
    for line in excerpt.lines:
        if hidden is not None and line.depth > hidden:
            continue
        is_shown = not line.api or is_recorded(line.api, line.family, needs, is_root=True)
        hidden = None if is_shown else line.depth
        found += [line] if is_shown else []
    return replace(excerpt, lines=tuple(found))
