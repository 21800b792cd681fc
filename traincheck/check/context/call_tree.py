"""The calls that show whether a claim holds, as a tree of a few lines.

A window is a step, the inside of a call, or what is between two calls. Repeated calls are shown
once.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from traincheck.readings.steps import landmark_of
from traincheck.relations.phrasing import STEP, format_args
from traincheck.schema.claims import Excerpt, Hypothesis, Line, Needs
from traincheck.schema.events import CallEvent
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


# These may be many steps apart, so a single step does not show their order.
_SELDOM = frozenset(
    {Families.TRAIN, Families.EVAL, Families.SCHEDULER_STEP, Families.SCALER_UPDATE}
)
_MODES = frozenset({Families.TRAIN, Families.EVAL})
_STEP_COUNTS = frozenset({"count"})  # relations that claim how often something is called


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWindow:
    """Which calls to show. At most one of ``outer`` and ``after`` is given; neither means a step.

    Attributes:
        outer: API of the call whose inner calls are shown.
        after: landmark at which the window begins.
        needed: landmark that it must contain.
        before: landmark at which it ends.
        inner: API that must be called inside ``outer``.
        args: with these arguments.
    """

    outer: str = ""
    after: str = ""
    needed: str = ""
    before: str = ""
    inner: str = ""
    args: tuple[tuple[str, bool | int | str], ...] = ()

    @property
    def key(self) -> str:
        """Equal for windows that show the same calls with the same arguments."""
        if self.outer:
            return " ".join(("inside", self.outer, *(name for name, _ in self.args)))
        if self.after:
            return f"between {self.after} {self.needed} {self.before}"
        return STEP

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arguments to show."""
        return tuple(name for name, _ in self.args)

    @property
    def argument_text(self) -> str:
        """The arguments, as the note of a line begins."""
        return format_args(dict(self.args)) if self.args else ""


def window_of(claim: Hypothesis) -> CallWindow | None:
    """The window that shows whether a claim holds; None where calls do not show it."""
    params = claim.params
    outer = params.get("outer")
    if "role" in params:
        return None
    if {"after", "needs", "before"} <= params.keys():
        triple = (params["after"], params["needs"], params["before"])
        if _SELDOM.isdisjoint(triple):
            return CallWindow()
        return CallWindow(after=triple[0], needed=triple[1], before=triple[2])
    if outer == STEP or claim.relation in _STEP_COUNTS:
        return CallWindow()
    if isinstance(outer, str) and "inner" in params:
        args = params.get("args") or {}
        plain = {k: v for k, v in args.items() if isinstance(v, (bool, int, str))}
        return CallWindow(outer=outer, inner=params["inner"], args=tuple(sorted(plain.items())))
    return None


def calls_of_step(calls: Iterable[CallEvent], step: int) -> list[CallEvent]:
    """The calls of a step, without evaluation after it and initialization before the first."""
    return [
        call
        for call in calls
        if call.step == step
        and call.stage != "eval"
        and call.api not in _MODES
        and not (call.stage == "init" and call.api.startswith("torch.nn.init."))
    ]


def calls_inside(calls: deque[CallEvent], outer: CallEvent) -> list[CallEvent]:
    """A call and the calls inside it. ``calls`` are in order of their ends, inner ones first."""
    start, stream = outer.start_ns, outer.stream
    found = []
    for call in reversed(calls):
        if call.stream == stream and start <= call.start_ns and call.time_ns <= outer.time_ns:
            found.append(call)
        elif call.time_ns < start:
            break
    return found


def calls_between(calls: deque[CallEvent], first: CallEvent, last: CallEvent) -> list[CallEvent]:
    """The calls from one to another, both included."""
    return [c for c in calls if c.start_ns >= first.start_ns and c.time_ns <= last.time_ns]


def latest_calls(calls: deque[CallEvent], window: CallWindow) -> list[CallEvent]:
    """The calls of a window that ends with the last of ``calls``; none if it is not complete."""
    last = calls[-1]
    if landmark_of(last) != window.before:
        return []
    is_met = False
    backwards = reversed(calls)
    next(backwards)
    for call in backwards:
        landmark = landmark_of(call)
        is_met |= landmark == window.needed
        if landmark == window.after:
            return calls_between(calls, call, last) if is_met else []
        if landmark == window.before:
            return []
    return []
