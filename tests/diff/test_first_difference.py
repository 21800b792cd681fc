"""The first difference of two runs: its step, its phase and its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.diff.run_pairs import (
    Choose,
    Compare,
    edited,
    new_value,
    numbered,
    of,
    output,
    state,
    training,
    whole,
    without,
    write,
)
from traincheck.diff.library import diff
from traincheck.errors import UsageError
from traincheck.schema.events import CallEvent, Event, ProbeEvent
from traincheck.schema.torch_api import Families


def test_equal_runs_are_the_same(compare: Compare) -> None:
    found = compare(training(), training())
    assert found.same
    assert found.exit_status == 0
    assert found.steps == 5
    assert all(found.compared[phase] > 0 for phase in found.compared)


def probed(events: list[Event]) -> list[Event]:
    """The events, with the result of an experiment in the middle of a step."""
    middle = next(i for i, event in enumerate(events) if BACKWARD(event))
    header = dict(zip(("seq", "time_ns", "step", "stage", "rank", "stream"), events[middle].header))
    return numbered([*events[:middle], ProbeEvent(**header, name="padding"), *events[middle:]])


def test_events_of_all_kinds_are_read(compare: Compare) -> None:
    found = compare(training(), probed(training()))
    assert found.same
    assert found.steps == 5


def test_lost_lines_are_no_difference(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", training()), write(tmp_path / "b", training())
    (path,) = b.glob("events-*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    lost = next(i for i, line in enumerate(lines) if line.startswith(b'{"k":"call"'))
    path.write_bytes(b"".join(lines[:lost] + lines[lost + 1 :]))
    found = diff(a, b)
    assert found.first is None
    assert found.steps


def test_an_empty_comparison_is_not_the_same(compare: Compare) -> None:
    a = [event for event in training() if event.kind in ("mark", "stage")]
    found = compare(numbered(a), numbered(a))
    assert not found.same
    assert found.exit_status == 4


def call_of(step: int, module: str = "Net.fc2") -> Choose:
    return of("call", step, module=module, family=Families.MODULE)


OTHER_LOSS = {"dtype": "float32", "shape": [], "device": "cpu", "value": 9.0}
MEAN, EXP_AVG = "Net.bn.running_mean", "Net.fc1.weight/exp_avg"
Change = Callable[[list[Event]], list[Event]]
SEED = {"seed": 1, "fingerprint": "xxh3:" + "1" * 32}
BACKWARD = of("call", 3, api=Families.BACKWARD)
BROKEN: dict[str, tuple[str, Change]] = {
    "rng": (
        "torch generator",
        lambda a: edited(
            edited(a, of("rng", 0, change="seed"), **SEED), of("batch", 0), indices=(7, 8, 9)
        ),
    ),
    "batch": ("loader0", lambda a: edited(a, of("batch", 3), indices=(7, 8, 9))),
    "forward": ("Net.fc2", lambda a: edited(a, call_of(3), result=output("other"))),
    "loss": ("loss of backward()", lambda a: edited(a, BACKWARD, args={"tensors": [OTHER_LOSS]})),
    "gradient": ("Net.fc1.weight", lambda a: new_value(a, state("gradient", 3))),
    "optimizer_state": (EXP_AVG, lambda a: new_value(a, state("optimizer_state", 3, EXP_AVG))),
    "parameter": ("Net.fc1.weight", lambda a: new_value(a, state("parameter", 3))),
    "buffer": (MEAN, lambda a: new_value(a, state("buffer", 3, MEAN))),
}


@pytest.mark.parametrize("phase", BROKEN)
def test_each_phase_is_found(compare: Compare, phase: str) -> None:
    name, change = BROKEN[phase]
    found = compare(whole(training()), change(whole(training())))
    assert found.exit_status == 1
    assert found.first is not None
    assert (found.first.phase, found.first.name) == (phase, name)
    assert found.first.step == (0 if phase == "rng" else 3)


def test_the_earliest_phase_of_a_step_comes_first(compare: Compare) -> None:
    b = training()
    for phase in reversed(BROKEN):
        if phase != "rng":
            b = BROKEN[phase][1](b)
    found = compare(training(), b)
    assert found.first is not None
    assert found.first.phase == "batch"
    assert [item.phase for item in found.then][:3] == ["forward", "loss", "gradient"]


def test_the_earliest_step_comes_before_an_earlier_phase(compare: Compare) -> None:
    b = new_value(training(), state("parameter", 2))
    b = edited(b, of("batch", 3), indices=(7, 8, 9))
    found = compare(training(), b)
    assert found.first is not None
    assert (found.first.step, found.first.phase) == (2, "parameter")
    assert (found.after, found.alike_after) == (2, 1)


OTHER_STATE = {"fingerprint": "xxh3:" + "f" * 32}


def test_a_generator_that_nothing_depends_on_is_an_unused_one(compare: Compare) -> None:
    """A state that differs, and from which the program draws, but nothing that is compared."""
    a = whole(training())
    found = compare(a, edited(a, of("rng", 2, moment="step"), **OTHER_STATE))
    assert found.same
    assert not found.notes


def test_a_generator_that_samples_depend_on_is_first(compare: Compare) -> None:
    b = edited(whole(training()), of("rng", 1, moment="step"), **OTHER_STATE)
    b = edited(b, of("batch", 2), indices=(7, 8, 9))
    found = compare(whole(training()), b)
    assert found.first is not None
    assert (found.first.phase, found.first.step) == ("rng", 2)


def test_a_generator_whose_state_is_the_same_again_is_not_first(compare: Compare) -> None:
    b = edited(whole(training()), of("rng", 1, moment="step"), **OTHER_STATE)
    b = edited(b, of("batch", 4), indices=(7, 8, 9))
    found = compare(whole(training()), b)
    assert found.first is not None
    assert (found.first.phase, found.first.step) == ("batch", 4)


def test_a_generator_is_not_first_where_only_a_parameter_differs(compare: Compare) -> None:
    b = edited(training(), of("rng", 1, change="state"), fingerprint="xxh3:" + "f" * 32)
    found = compare(training(), new_value(b, state("parameter", 4)))
    assert found.first is not None
    assert (found.first.phase, found.first.step) == ("parameter", 4)


def inserted(events: list[Event], step: int, api: str = "torch.nn.functional.relu") -> list[Event]:
    """One call more before the loss of a step."""
    made: list[Event] = []
    for event in events:
        if of("call", step, api="torch.nn.functional.cross_entropy")(event):
            assert isinstance(event, CallEvent)
            made.append(event.replace(api=api, span=10_000, args={}, result=output("more")))
        made.append(event)
    return numbered(made)


def test_a_call_more_without_an_effect_is_a_note(compare: Compare) -> None:
    found = compare(training(), inserted(training(), 3))
    assert found.same
    assert any("relu" in note for note in found.notes)


def test_a_call_more_with_an_effect_is_first(compare: Compare) -> None:
    b = edited(inserted(training(), 3), BACKWARD, args={"tensors": [OTHER_LOSS]})
    found = compare(training(), b)
    assert found.first is not None
    assert (found.first.phase, found.first.name) == ("forward", "relu")


def test_a_call_more_does_not_hide_what_follows(compare: Compare) -> None:
    found = compare(training(), new_value(inserted(training(), 3), state("gradient", 3)))
    assert found.first is not None
    assert (found.first.phase, found.first.name) == ("gradient", "Net.fc1.weight")


def test_calls_after_an_inserted_one_are_still_aligned(compare: Compare) -> None:
    b = inserted(training(), 3)
    found = compare(training(), edited(b, call_of(4), result=output("other")))
    assert found.first is not None
    assert (found.first.step, found.first.name) == (4, "Net.fc2")


def test_recomputation_is_not_a_call_more(compare: Compare) -> None:
    a = training()
    backward = next(e for e in a if of("call", 3, api=Families.BACKWARD)(e))
    again = next(e for e in a if call_of(3)(e))
    assert isinstance(backward, CallEvent)
    assert isinstance(again, CallEvent)
    place = a.index(backward)
    inside = again.replace(span=20_000, parent=backward.span, result=output("again"))
    b = numbered([*a[:place], inside, *a[place:]])
    assert not compare(a, b).notes


def test_a_value_that_is_not_recorded_is_counted(compare: Compare) -> None:
    blank = {"dtype": "float32", "shape": [4], "device": "cpu"}
    a = edited(training(), call_of(3), result=blank)
    found = compare(a, a)
    assert found.same
    assert found.unknown["forward"] > compare(training(), training()).unknown["forward"]


def test_a_step_that_was_not_recorded_is_not_compared(compare: Compare) -> None:
    a = edited(training(), of("step", 3), recorded=False)
    found = compare(a, edited(a, of("batch", 3), indices=(7, 8, 9)))
    assert found.same
    assert found.steps == 4


def test_steps_and_names_can_be_chosen(compare: Compare) -> None:
    b = new_value(training(), state("parameter", 3))
    assert compare(training(), b, steps="0:3").same
    assert compare(training(), b, ignore=["*.fc1.weight"]).same
    assert compare(training(), b, until=3).same
    assert not compare(training(), b, steps="3:").same
    assert not compare(training(), b, select=["*.fc1.*"]).same
    assert compare(training(), b, phase=["batch", "loss"]).same


def renamed(events: list[Event], old: str, new: str) -> list[Event]:
    made: list[Event] = []
    for event in events:
        names = {field: getattr(event, field, None) for field in ("name", "module")}
        changes = {k: v.replace(old, new) for k, v in names.items() if isinstance(v, str)}
        made.append(event.replace(**changes))
    return made


def test_a_renamed_module_is_another_without_a_map(compare: Compare) -> None:
    b = renamed(training(), "Net.fc1", "Net.first")
    assert not compare(training(), b).same
    assert compare(training(), b, map=["fc1=first"]).same


def test_a_map_needs_two_names() -> None:
    with pytest.raises(UsageError, match="--map"):
        diff("a", "b", map=["fc1"])


def test_a_longer_run_is_compared_as_far_as_both_go(compare: Compare) -> None:
    found = compare(training(5), training(8))
    assert found.same
    assert any("3 more steps" in note for note in found.notes)


def test_a_removed_event_of_a_variable_is_a_difference(compare: Compare) -> None:
    b = without(training(), state("gradient", 3))
    found = compare(training(), b)
    assert found.first is not None
    assert (found.first.phase, found.first.step) == ("gradient", 3)


def test_all_ranks_are_compared(tmp_path: Path) -> None:
    ranks = [training(rank=rank) for rank in (0, 1)]
    a = write(tmp_path / "a", [event for events in ranks for event in events])
    ranks[1] = new_value(ranks[1], state("parameter", 2))
    b = write(tmp_path / "b", [event for events in ranks for event in events])
    found = diff(a, b)
    assert found.first is not None
    assert (found.first.rank, found.first.step) == (1, 2)
    assert diff(a, b, rank="0").same
