"""Excerpts: the calls of a reference run where claims hold, from its first steps.

`with_excerpts` adds them to invariants.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

from traincheck.check.context.call_tree import (
    CallWindow,
    Node,
    build_tree,
    calls_inside,
    calls_of_step,
    excerpt,
    latest_calls,
    truncated,
    visible_nodes,
    window_of,
)
from traincheck.readings.steps import is_judged
from traincheck.schema.claims import Hypothesis, Invariant, Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.protocols import EventSource

Trees = Mapping[str, Sequence[tuple[Node, ...]]]  # key of a window -> different trees of it

_STEPS = 8  # read to find a typical step
_CALLS = 24  # of one API, read for the calls inside them
_TREES = 4  # different trees kept of a window
_MAX_CALLS = 4096  # kept
_EVENTS = 200_000  # after which reading stops


def trees_of(
    source: EventSource, claims: Iterable[Hypothesis]
) -> dict[str, list[tuple[Node, ...]]]:
    """Trees of the windows that show whether ``claims`` hold, from the beginning of a run."""
    windows = {window.key: window for window in map(window_of, claims) if window is not None}
    watched: dict[tuple[int, str], _ProcessTrees] = {}
    for number, event in enumerate(source.events()):
        if not isinstance(event, (CallEvent, StepEvent)):
            continue
        key = (event.rank, event.stream.partition("-")[0])
        process = watched.get(key)
        if process is None:
            process = watched[key] = _ProcessTrees(windows)
        process.observe(event)
        if number >= _EVENTS or process.is_done:
            break
    found: dict[str, list[tuple[Node, ...]]] = {}
    for _, process in sorted(watched.items()):
        for name, trees in process.trees().items():
            found.setdefault(name, trees)
    return dict(sorted(found.items()))


class _ProcessTrees:
    """One process of the run."""

    def __init__(self, windows: Mapping[str, CallWindow]) -> None:
        self._calls: deque[CallEvent] = deque(maxlen=_MAX_CALLS)
        self._between = {key: window for key, window in windows.items() if window.after}
        self._inside: dict[str, dict[str, CallWindow]] = defaultdict(dict)
        for key, window in windows.items():
            if window.outer:
                self._inside[window.outer][key] = window
        self._wants_steps = any(not w.outer and not w.after for w in windows.values())
        self._steps: list[tuple[Node, ...]] = []
        self._calls_read: Counter[str] = Counter()
        self._found: dict[str, list[tuple[Node, ...]]] = defaultdict(list)

    @property
    def is_done(self) -> bool:
        """Whether all windows have been found."""
        return (
            (not self._wants_steps or len(self._steps) >= _STEPS)
            and all(self._calls_read[api] >= _CALLS for api in self._inside)
            and all(key in self._found for key in self._between)
        )

    def observe(self, event: Event) -> None:
        if isinstance(event, CallEvent):
            self._calls.append(event)
            windows = self._inside.get(event.api)
            is_read = self._calls_read[event.api] >= _CALLS
            if windows is not None and not is_read and event.exception is None:
                self._calls_read[event.api] += 1
                inside = calls_inside(self._calls, event)
                for key, window in windows.items():
                    self._keep(key, truncated(build_tree(inside, _always, window.names)))
            for key, window in self._between.items():
                if key not in self._found:
                    calls = latest_calls(self._calls, window)
                    if calls:
                        self._keep(key, truncated(build_tree(calls, _always)))
        elif (
            self._wants_steps
            and len(self._steps) < _STEPS
            and isinstance(event, StepEvent)
            and event.step
            and is_judged(event)
        ):
            calls = calls_of_step(self._calls, event.step)
            self._steps.append(truncated(build_tree(calls, _always)))

    def _keep(self, key: str, found: tuple[Node, ...]) -> None:
        trees = self._found[key]
        if len(trees) < _TREES and found not in trees:
            trees.append(found)

    def trees(self) -> dict[str, list[tuple[Node, ...]]]:
        """Trees by key of the window. Of steps, the most frequent tree; step 0 is not counted."""
        found = dict(self._found)
        if self._steps:
            usual = max(self._steps, key=self._steps.count)  # the first of those
            found[CallWindow().key] = [usual]
        return found


def _always(_: CallEvent) -> bool:
    return True


def with_excerpts(invariants: Sequence[Invariant], runs: Sequence[Trees]) -> list[Invariant]:
    """Add to each invariant an excerpt of the first of ``runs`` that shows it.

    An excerpt shows only what a recording for all these invariants holds, so that such a recording
    can be compared with it.
    """
    needs = reduce(or_, (invariant.needs for invariant in invariants), Needs())
    return [_with_excerpt(invariant, runs, needs) for invariant in invariants]


def _with_excerpt(invariant: Invariant, runs: Sequence[Trees], needs: Needs) -> Invariant:
    window = window_of(invariant.hypothesis)
    if window is None:
        return invariant
    for trees in runs:
        for nodes in trees.get(window.key, ()):
            if not window.outer or _has_claimed_call(nodes, window):
                return replace(invariant, excerpt=excerpt(visible_nodes(nodes, needs)))
    return invariant


def _has_claimed_call(nodes: Iterable[Node], window: CallWindow) -> bool:
    """Whether the claimed call is among these nodes."""
    return any(
        (node.api == window.inner and node.note.startswith(window.argument_text))
        or _has_claimed_call(node.children, window)
        for node in nodes
    )


def trees_json(trees: Trees) -> dict[str, Any]:
    """Trees as JSON values; each node is a list."""
    return {
        key: [list(map(_node_json, nodes)) for nodes in some] for key, some in sorted(trees.items())
    }


def _node_json(node: Node) -> list[Any]:
    return [node.api, node.family, node.note, node.count, list(map(_node_json, node.children))]


def trees_from_json(value: Mapping[str, Any]) -> dict[str, list[tuple[Node, ...]]]:
    """Decode trees.

    Raises:
        ValueError, TypeError: ``value`` is not their JSON form.
    """
    return {str(key): [tuple(map(_node, nodes)) for nodes in some] for key, some in value.items()}


def _node(value: Sequence[Any]) -> Node:
    api, family, note, count, children = value
    is_text = isinstance(api, str) and isinstance(note, str) and isinstance(family, str | None)
    if not (is_text and type(count) is int and isinstance(children, list)):
        raise ValueError("a call in a tree has another form")
    return Node(
        api=api, family=family, note=note, count=count, children=tuple(map(_node, children))
    )
