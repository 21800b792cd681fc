"""Trees of calls: nested, collapsed, cut to a few lines."""

from __future__ import annotations

from itertools import count

from traincheck.check.context.call_tree import (
    MAX_LINES,
    Node,
    build_tree,
    excerpt,
    truncated,
    visible_excerpt,
    visible_nodes,
)
from traincheck.schema.claims import Excerpt, Line, Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.torch_api import Families

STEP = "torch.optim.adam.Adam.step"


class Calls:
    """Nested calls, recorded when they end."""

    def __init__(self) -> None:
        self.told: list[CallEvent] = []
        self._clock = count()
        self._open: list[int] = []

    def call(self, api: str, *inner: str, **fields: object) -> Calls:
        span, start = next(self._clock), next(self._clock)
        parent = self._open[-1] if self._open else None
        self._open.append(span)
        for name in inner:
            self.call(name)
        self._open.pop()
        stream = str(fields.pop("stream", "p1-t0"))
        self.told.append(
            CallEvent(
                len(self.told), next(self._clock), 0, "train", 0, stream,
                api=api, span=span, parent=parent, start_ns=start, **fields,  # type: ignore[arg-type]
            )
        )  # fmt: skip
        return self


def everything(_: CallEvent) -> bool:
    return True


def shape(nodes: tuple[Node, ...]) -> list[object]:
    return [(n.api, n.count, shape(n.children)) if n.children else (n.api, n.count) for n in nodes]


def test_calls_are_nested_in_order_of_their_beginning() -> None:
    calls = Calls().call("a", "b", "c").call("d")
    assert shape(build_tree(calls.told, everything)) == [("a", 1, [("b", 1), ("c", 1)]), ("d", 1)]
    assert shape(build_tree(reversed(calls.told), everything)) == shape(
        build_tree(calls.told, everything)
    )


def test_equal_calls_in_a_row_are_one_line() -> None:
    assert shape(build_tree(Calls().call("a", "b", "b", "b", "c").told, everything)) == [
        ("a", 1, [("b", 3), ("c", 1)])
    ]


def test_what_comes_again_and_again_is_told_once() -> None:
    calls = Calls()
    for _ in range(4):
        calls.call("forward").call("loss").call("backward")
    assert shape(build_tree(calls.call("step").told, everything)) == [
        ("", 4, [("forward", 1), ("loss", 1), ("backward", 1)]),
        ("step", 1),
    ]


def test_different_calls_are_not_collapsed() -> None:
    found = shape(build_tree(Calls().call("a").call("b").call("a").told, everything))
    assert found == [("a", 1), ("b", 1), ("a", 1)]


def test_what_is_not_wanted_gives_its_place_to_what_it_holds() -> None:
    calls = Calls().call("a", "b")
    assert shape(build_tree(calls.told, lambda call: call.api != "a")) == [("b", 1)]


def test_other_threads_are_left_out() -> None:
    calls = Calls().call("a").call("b").call("c", stream="p1-t1")
    assert shape(build_tree(calls.told, everything)) == [("a", 1), ("b", 1)]


def test_notes_tell_arguments_and_modes() -> None:
    calls = Calls().call("f", args={"p": 0.5, "training": True, "x": None})
    root = {"family": Families.MODULE, "module": "Net", "root": True}
    calls.call("Net.forward", training=False, grad_enabled=False, **root)
    first, second = build_tree(calls.told, everything, ("training", "x"))
    assert first.note == "training=True"
    assert second.note == "in evaluation mode; without grad"


def test_an_excerpt_is_as_deep_as_it_may_be() -> None:
    few = Calls().call("a", *[f"f{i}" for i in range(MAX_LINES - 1)])
    shown = excerpt(build_tree(few.told, everything))
    assert shown is not None
    assert len(shown.lines) == MAX_LINES
    many = Calls().call("a", *[f"f{i}" for i in range(MAX_LINES)])
    shown = excerpt(build_tree(many.told, everything))
    assert shown is not None
    assert (shown.depth, [line.api for line in shown.lines]) == (0, ["a"])


def test_where_even_one_level_is_too_long_landmarks_are_left() -> None:
    calls = Calls()
    for i in range(30):
        calls.call(f"f{i}")
    assert excerpt(build_tree(calls.told, everything)) is None
    calls.call(STEP, family=Families.OPTIMIZER_STEP)
    shown = excerpt(build_tree(calls.told, everything))
    assert shown == Excerpt(
        lines=(Line(depth=0, api=STEP, family=Families.OPTIMIZER_STEP),), depth=-1
    )


def test_trees_are_bounded() -> None:
    calls = Calls()
    for i in range(300):
        calls.call(f"f{i}", "x", "y")
    assert truncated(build_tree(calls.told, everything)) == ()
    calls = Calls().call("a", *[f"f{i}" for i in range(300)])
    assert shape(truncated(build_tree(calls.told, everything))) == [("a", 1)]


def test_a_view_leaves_out_what_it_does_not_hold() -> None:
    calls = Calls().call("a", "b", "c").call(STEP, family=Families.OPTIMIZER_STEP)
    nodes = build_tree(calls.told, everything)
    needs = Needs(calls=frozenset({"b", Families.OPTIMIZER_STEP}))
    assert shape(visible_nodes(nodes, needs)) == [("b", 1), (STEP, 1)]
    shown = excerpt(nodes)
    assert shown is not None
    assert [line.api for line in visible_excerpt(shown, needs).lines] == [STEP]
    assert visible_excerpt(shown, Needs(kinds=frozenset({"call"}))) == shown


def test_of_modules_a_family_means_the_outermost() -> None:
    fields = {"family": Families.MODULE, "module": "Net"}
    calls = Calls().call("Net.forward", root=True, **fields)
    inner = Calls().call("Net.forward", root=False, **fields)
    needs = Needs(calls=frozenset({Families.MODULE}))
    assert shape(visible_nodes(build_tree(calls.told, everything), needs)) == [("Net.forward", 1)]
    assert visible_nodes(build_tree(inner.told, everything), needs) == ()
