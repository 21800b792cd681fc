"""Calls in the order in which they begin: ends match, and children are inside their parents."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincheck.perfetto.slices import Edge, Nesting, Slice

Call = tuple[str, int, int, bool]  # name, begin, end, whether it is outermost


def edges(calls: list[Call], most: int = 100) -> list[Edge[str]]:
    nesting = Nesting[str](most)
    found: list[Edge[str]] = []
    for name, begin, end, is_outermost in calls:
        found += nesting.add(Slice(begin, end, name), is_outermost=is_outermost)
    return [*found, *nesting.rest()]


def tree(found: list[Edge[str]]) -> list[tuple[str, int, int, str]]:
    """Name, begin, end and parent of each call, from edges sorted as the viewer sorts them."""
    made, stack = [], list[tuple[str, int]]()
    for edge in sorted(found, key=lambda edge: edge.time_ns):
        if edge.what is not None:
            stack.append((edge.what, edge.time_ns))
            continue
        name, begin = stack.pop()
        made.append((name, begin, edge.time_ns, stack[-1][0] if stack else ""))
    assert not stack
    return sorted(made, key=lambda call: (call[1], -call[2]))


def test_a_parent_comes_before_its_children() -> None:
    calls = [("a", 2, 4, False), ("b", 5, 6, False), ("root", 1, 9, True), ("next", 10, 11, True)]
    assert tree(edges(calls)) == [
        ("root", 1, 9, ""),
        ("a", 2, 4, "root"),
        ("b", 5, 6, "root"),
        ("next", 10, 11, ""),
    ]


def test_equal_times_keep_the_depth() -> None:
    calls = [("leaf", 5, 5, False), ("child", 5, 5, False), ("root", 5, 5, True)]
    assert [edge.what for edge in edges(calls)] == ["root", "child", "leaf", None, None, None]
    assert {parent for *_, parent in tree(edges(calls))} == {"", "root", "child"}


def test_a_child_that_ends_after_its_parent_is_clipped() -> None:
    assert tree(edges([("child", 2, 12, False), ("root", 1, 9, True)])) == [
        ("root", 1, 9, ""),
        ("child", 2, 9, "root"),
    ]


def test_a_call_that_ends_before_it_begins_has_no_duration() -> None:
    assert tree(edges([("broken", 7, 3, True), ("next", 8, 9, True)])) == [
        ("broken", 7, 7, ""),
        ("next", 8, 9, ""),
    ]


def test_calls_that_wait_are_bounded_and_their_late_parent_still_encloses_them() -> None:
    calls = [(f"c{n}", 10 * n, 10 * n + 5, False) for n in range(1, 50)]
    nesting = Nesting[str](8)
    released = 0
    found: list[Edge[str]] = []
    for name, begin, end, is_outermost in [*calls, ("root", 3, 900, True)]:
        if name == "root":
            released = len(found)
        found += nesting.add(Slice(begin, end, name), is_outermost=is_outermost)
    assert released >= 2 * (49 - 8)
    assert {parent for name, *_, parent in tree(found) if name != "root"} == {"root"}


def test_deep_calls_need_no_recursion() -> None:
    depth = 5_000
    calls = [(f"d{n}", n, 2 * depth - n, n == 0) for n in reversed(range(depth))]
    assert len(edges(calls, most=2 * depth)) == 2 * depth


@st.composite
def programs(draw: st.DrawFn) -> list[Call]:
    """Calls of a thread as they end. A parent begins before its children, at the earliest 1 ns."""
    clock = iter(range(1, 10_000))
    made: list[Call] = []

    def call(depth: int) -> Iterator[Call]:
        begin = next(clock)
        for _ in range(draw(st.integers(0, 3)) if depth < 4 else 0):
            yield from call(depth + 1)
        yield (f"n{begin}", begin, next(clock), depth == 0)

    for _ in range(draw(st.integers(1, 3))):
        made += call(0)
    return made


@given(calls=programs(), most=st.integers(1, 30))
def test_the_tree_does_not_depend_on_how_many_may_wait(calls: list[Call], most: int) -> None:
    assert tree(edges(calls, most)) == tree(edges(calls, 10_000))


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.booleans()), max_size=40),
    st.integers(20, 60),
)
def test_any_times_make_a_valid_nesting(calls: list[tuple[int, int, bool]], most: int) -> None:
    named = [(f"n{i}", begin, end, outermost) for i, (begin, end, outermost) in enumerate(calls)]
    found = edges(named, most)
    depth = 0
    for edge in found:
        depth += 1 if edge.what is not None else -1
        assert depth >= 0
    assert depth == 0
    times = [edge.time_ns for edge in found]
    assert times == sorted(times) or len(calls) > most


@pytest.mark.parametrize("most", [4, 1000])
def test_nothing_is_lost(most: int) -> None:
    calls = [(f"n{n}", n, n + 1, False) for n in range(100)]
    assert {edge.what for edge in edges(calls, most)} == {*(f"n{n}" for n in range(100)), None}
