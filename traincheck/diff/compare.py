"""One step of two runs: everything that differs, in causal order."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Literal

import msgspec

from traincheck.diff.batches import compare_batches
from traincheck.diff.calls import (
    FORWARD,
    LOSS,
    call_is_backward,
    compare_calls,
    is_control,
    kept_calls,
    outline,
    phase_of,
)
from traincheck.diff.choices import Names
from traincheck.diff.environment import compare_settings
from traincheck.diff.items import (
    NULL,
    Answer,
    Item,
    Phase,
    compare_json,
    compare_values,
    is_telling,
    numbers_alike,
)
from traincheck.diff.messages import A, B
from traincheck.diff.steps import PHASE_OF, SideState, StepView, Variable
from traincheck.schema.events import CheckpointEvent, RngEvent
from traincheck.schema.torch_api import Families

# Places in the causal order of a step; settings.py and calls.py have those of their items.
_RNG, _OPENING, _BATCH, _RNG_AFTER, _GRADIENT = 0, 1, 4, 5, 8
_EVALUATION, _SAVED = 13, 14
_OF_A_RUN = re.compile(
    r"time|date|elapsed|duration|second|minute|hour|clock|speed|throughput|per_s|memory|pid|port|uuid",
    re.IGNORECASE,
)
_OPENING_ORDER = {"parameter": 0, "optimizer_state": 1, "buffer": 2}
_ORDER = {"optimizer_state": 10, "parameter": 11, "buffer": 12}


@dataclass(slots=True)
class StepResult:
    """The result of the comparison of one step.

    Attributes:
        step: number of the step in A and in B.
        items: what differs, the first cause first.
        compared, unknown: by phase, how many things were compared, and how many could not be.
        level: generators that are in the same state when the step was last seen.
        extra: calls that only one run makes, and no value that follows in the forward pass differs.
        notes: what is different without making a value another one.
        is_tail: whether it is what follows the last step.
    """

    step: tuple[int, int]
    is_tail: bool = False
    items: list[Item] = field(default_factory=list)
    compared: Counter[Phase] = field(default_factory=Counter)
    unknown: Counter[Phase] = field(default_factory=Counter)
    level: set[str] = field(default_factory=set)
    extra: list[Item] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Draws:
    """The generators of one run that are seeded or drawn from.

    Others are in another state in each process, and nothing depends on it.
    """

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._drawn: set[str] = set()

    def drawn(self, view: StepView) -> set[str]:
        """The sources that were used up to the end of a step."""
        for event in (*view.generators, *view.after_batch, *view.closing):
            if event.change == "seed":
                self._drawn.add(event.source)
            elif event.fingerprint is not None:
                first = self._first.setdefault(event.source, event.fingerprint)
                if first != event.fingerprint:
                    self._drawn.add(event.source)
        return self._drawn


class Comparer:
    """Compares two runs step by step, and follows the state of both.

    Args:
        names: how the names of B are those of A.
        resumes: whether B begins with a state that A has later than at its start.
    """

    def __init__(self, names: Names, *, resumes: bool = False) -> None:
        self.names = names
        self.resumes = resumes
        self.a, self.b = SideState(names.of_a), SideState(names.of_b)
        self._a_draws, self._b_draws = Draws(), Draws()
        self._kinds: dict[tuple[str, str | None, str | None], Phase | Literal[False] | None] = {}
        self._has_begun = False

    def compare(self, a: StepView, b: StepView) -> StepResult:
        """Compare a step of A with one of B; both runs are taken to the end of these."""
        result = StepResult((a.number, b.number), a.end is None)
        if self.resumes and not self._has_begun:  # its seeds are of no training yet
            b.generators = [event for event in b.generators if event.change != "seed"]
            b.batches = b.batches[-max(1, len(a.batches)) :]  # it skips those that A has done
        drawn = self._a_draws.drawn(a) | self._b_draws.drawn(b)
        _compare_generators(a.generators, b.generators, _RNG, drawn, result)
        touched = dict.fromkeys([*self.a.begin_step(a), *self.b.begin_step(b)])
        if not self._has_begun:  # a run that resumes begins with all that the other has
            touched.update(dict.fromkeys(v for v in self.a.values if v in self.b.values))
        for number, variable in enumerate(touched):
            if variable[0] in _OPENING_ORDER:
                place = (_OPENING + _OPENING_ORDER[variable[0]], number)
                self._compare_variable(variable, place, result, is_opening=True)
        is_split = _compare_batches(a, b, result)
        _compare_generators(a.after_batch, b.after_batch, _RNG_AFTER, drawn, result)
        if is_split:
            for call in kept_calls(a.calls):
                result.unknown[phase_of(call)] += 1
        else:
            self._compare_calls(a, b, result)
        self._compare_gradients(a, b, result)
        items, count = compare_settings(a, b, (self.a, self.b))
        result.items += items
        result.compared[Phase.SETTINGS] += count
        self._compare_states(a, b, result)
        _compare_saves(a, b, result)
        result.items.sort(key=lambda item: item.position)
        _drop_harmless(result)
        self._has_begun = True
        return result

    def skip(self, view: StepView, *, is_a: bool) -> None:
        """Take one run to the end of a step that is not compared."""
        state = self.a if is_a else self.b
        state.begin_step(view)
        for record in view.states:
            state.put(record)

    def _compare_calls(self, a: StepView, b: StepView, result: StepResult) -> None:
        if self.names.is_plain and outline(a.calls) == outline(b.calls):
            # Count the calls of a step in which all are equal.
            known = self._kinds
            for call in a.calls:
                key = (call.api, call.family, call.owner)
                kind = known.get(key, False)
                if kind is False:
                    kind = known[key] = None if is_control(call) else phase_of(call)
                if kind is not None:
                    told = bytes(call.args) if call.api == Families.BACKWARD else bytes(call.result)
                    counts = result.compared if is_telling(told) else result.unknown
                    counts[kind] += 1
            return
        found = compare_calls(a.calls, b.calls, self.names)
        starts = evaluation_start(a), evaluation_start(b)
        result.items += [_evaluating(item, starts) for item in found.items]
        result.compared += found.compared
        result.unknown += found.unknown

    def _compare_gradients(self, a: StepView, b: StepView, result: StepResult) -> None:
        mine, yours = _gradients(a, self.a), _gradients(b, self.b)
        for number, name in enumerate(dict.fromkeys([*mine, *yours])):
            if not self.names.is_chosen(name):
                continue
            x, y = mine.get(name, [NULL]), yours.get(name, [NULL])
            if len(x) != len(y):  # another number of backward passes: what the optimizer saw
                x, y = x[-1:], y[-1:]
            for index, (one, other) in enumerate(zip(x, y, strict=True)):
                place = (_GRADIENT, index * 100_000 + number)
                if _put(one, other, Phase.GRADIENT, name, place, result, index=index):
                    break

    def _compare_states(self, a: StepView, b: StepView, result: StepResult) -> None:
        touched: dict[Variable, None] = {}
        for state, view in ((self.a, a), (self.b, b)):
            for record in view.states:
                if record.role != "gradient":
                    variable = state.put(record)
                    if variable is not None:
                        touched[variable] = None
        for number, variable in enumerate(touched):
            place = (_ORDER.get(variable[0], _ORDER["buffer"]), number)
            self._compare_variable(variable, place, result)

    def _compare_variable(
        self,
        variable: Variable,
        place: tuple[int, int],
        result: StepResult,
        *,
        is_opening: bool = False,
    ) -> None:
        role, name = variable
        if self.names.is_chosen(name):
            a, b = self.a.values.get(variable, NULL), self.b.values.get(variable, NULL)
            _put(a, b, PHASE_OF.get(role, Phase.BUFFER), name, place, result, is_opening=is_opening)


def _put(
    a: bytes | None,
    b: bytes | None,
    phase: Phase,
    name: str,
    place: tuple[int, int],
    result: StepResult,
    *,
    index: int = 0,
    is_opening: bool = False,
) -> bool:
    """Compare the values of one variable; whether they differ."""
    if a is None or b is None:
        result.unknown[phase] += 1
        return False
    if a == b:
        counts = result.compared if is_telling(a) else result.unknown
        counts[phase] += 1
        return False
    result.compared[phase] += 1
    found = compare_json(a, b)
    if found.answer is not Answer.DIFFERENT:
        if found.answer is Answer.UNKNOWN:
            result.unknown[phase] += 1
            result.compared[phase] -= 1
        return False
    mine, yours = msgspec.json.decode(a), msgspec.json.decode(b)
    result.items.append(
        Item(phase=phase, name=name, what=found.what, a=mine, b=yours, index=index,
             is_opening=is_opening, position=place, gaps=found.gaps,
             is_sized=numbers_alike(mine, yours))
    )  # fmt: skip
    return True


def _gradients(view: StepView, state: SideState) -> dict[str, list[bytes | None]]:
    """The values of each gradient in a step, up to what the optimizer applied."""
    found: dict[str, list[bytes | None]] = {}
    last = _last_update(view)
    for records in (view.opening, view.states):
        for record in records:
            if record.role != "gradient":
                continue
            variable = state.put(record)
            if variable is None or record.seq > last:
                continue
            value = state.values[variable]
            if value != NULL:
                found.setdefault(variable[1], []).append(value)
    return found


_NEVER = 1 << 62


def _last_update(view: StepView) -> int:
    """Number of the last call that updated parameters; later gradients are of the next step."""
    steps = [call.seq for call in view.calls if call.family == Families.OPTIMIZER_STEP]
    return steps[-1] if steps else _NEVER


def _compare_generators(
    a: Sequence[RngEvent],
    b: Sequence[RngEvent],
    place: int,
    drawn: set[str],
    result: StepResult,
) -> None:
    seeded = {event.source for event in (*a, *b) if event.change == "seed"}
    mine, yours = _by_moment(_since_seed(a, seeded)), _by_moment(_since_seed(b, seeded))
    for number, key in enumerate(dict.fromkeys([*mine, *yours])):
        x, y = mine.get(key), yours.get(key)
        if x is None or y is None:
            if (x or y).change == "seed":  # type: ignore[union-attr]
                result.items.append(_generator_item(key, x, y, (place, number)))
            continue
        result.compared[Phase.RNG] += 1
        if x.fingerprint is None or y.fingerprint is None:
            same: bool | None = x.seed == y.seed if x.change == "seed" else None
        else:
            same = x.fingerprint == y.fingerprint
        if same is None:
            result.unknown[Phase.RNG] += 1
        elif same:
            result.level.add(f"{x.source} generator")
        elif x.change == "seed" or x.source in drawn:
            item = _generator_item(key, x, y, (place, number))
            result.level.discard(item.name)
            result.items.append(item)


def _since_seed(events: Sequence[RngEvent], seeded: set[str]) -> list[RngEvent]:
    """Without the states of a generator, from the start of the process, that a seed replaces.

    The state at the start is recorded late, when tensors are first seen.
    """
    begun = {event.source for event in events if event.moment == "start"}
    first: dict[str, int] = {}
    for number, event in enumerate(events):
        if event.change == "seed" and event.source in begun:
            first.setdefault(event.source, number)
    return [
        event
        for number, event in enumerate(events)
        if number >= first.get(event.source, 0)
        and not (event.moment == "start" and event.source in seeded)
    ]


def _by_moment(events: Sequence[RngEvent]) -> dict[tuple[str, str, str, int], RngEvent]:
    """Records of generators by source, kind, moment and number of the same before."""
    seen: Counter[tuple[str, str, str]] = Counter()
    found = {}
    for event in events:
        key = (event.source, event.change, event.moment)
        found[(*key, seen[key])] = event
        seen[key] += 1
    return found


def _generator_item(
    key: tuple[str, str, str, int],
    a: RngEvent | None,
    b: RngEvent | None,
    place: tuple[int, int],
) -> Item:
    source, change, _, index = key
    what = "presence" if a is None or b is None else "seed" if change == "seed" else "state"
    where = (a.where if a else b.where if b else "") or ""
    return Item(
        phase=Phase.RNG, name=f"{source} generator", what=what, a=a, b=b, index=index,
        is_opening=place[0] == _RNG, position=place, where=where,
    )  # fmt: skip


def _compare_batches(a: StepView, b: StepView, result: StepResult) -> bool:
    """Whether the same rows come in another number of micro-batches."""
    is_split = False
    for phase, place in ((Phase.BATCH, _BATCH), (Phase.EVALUATION, _EVALUATION)):
        is_training = phase is Phase.BATCH
        mine, yours = (
            [batch for batch in view.batches if (batch.stage != "eval") is is_training]
            for view in (a, b)
        )
        found = compare_batches(mine, yours)
        result.compared[phase] += found.compared
        result.unknown[phase] += found.unknown
        result.items += [
            replace(item, phase=phase, position=(place, item.position[1])) for item in found.items
        ]
        result.notes += found.notes
        is_split |= is_training and found.is_split
    if is_split:
        result.notes.append(
            f"the rows of step {a.number} come in {len(a.batches)} and {len(b.batches)} batches"
        )
    return is_split


def evaluation_start(view: StepView) -> int:
    """Number of the record after which a forward pass without grad is an evaluation."""
    last = _last_update(view)
    return last if last < _NEVER else (_NEVER if any(map(call_is_backward, view.calls)) else -1)


def _evaluating(item: Item, starts: tuple[int, int]) -> Item:
    """The item; of a forward pass of an evaluation, in this phase."""
    call = item.call
    if call is None or call.grad_enabled or item.phase not in (Phase.FORWARD, Phase.LOSS):
        return item
    start = starts[item.what == "presence" and item.a is None]
    if call.seq <= start:
        return item
    return replace(item, phase=Phase.EVALUATION, position=(_EVALUATION, item.position[1]))


def _compare_saves(a: StepView, b: StepView, result: StepResult) -> None:
    """Compare what is saved, in order; paths and times are left out."""
    mine = [event for event in a.checkpoints if event.op == "save"]
    yours = [event for event in b.checkpoints if event.op == "save"]
    for number, (one, other) in enumerate(itertools.zip_longest(mine, yours)):
        result.compared[Phase.SAVED] += 1
        path = PurePath((one or other).path or "").name or "the checkpoint"
        what, leaf, x, y = _saved_difference(one, other)
        if what:
            result.items.append(
                Item(phase=Phase.SAVED, name=path, what=what, leaf=leaf, a=x, b=y, index=number,
                     position=(_SAVED, number), where=(other or one).where or "")
            )  # fmt: skip


def _saved_difference(
    a: CheckpointEvent | None, b: CheckpointEvent | None
) -> tuple[str, str, object, object]:
    """The kind of the difference, its part, and both values; the kind is "" if there is none."""
    if a is None or b is None:
        return "presence", "", None if a is None else "saved", None if b is None else "saved"
    for mine, yours in ((a.parts, b.parts), (a.numbers, b.numbers), (a.values, b.values)):
        found = compare_values(_told(mine), _told(yours))
        if found.answer is Answer.DIFFERENT:
            return found.what, found.leaf, found.a, found.b
    if a.entries != b.entries:
        return "value", "entries", a.entries, b.entries
    return "", "", None, None


def _told(values: Mapping[str, object]) -> dict[str, object]:
    """Without numbers that differ between any two runs, by their names: times, speeds, ids."""
    return {
        name: value
        for name, value in values.items()
        if not isinstance(value, (int, float)) or not _OF_A_RUN.search(name.rpartition(".")[2])
    }


def _drop_harmless(result: StepResult) -> None:
    """A call that one run has more is a difference only if a later value of the pass differs."""
    values = [
        item.position
        for item in result.items
        if item.position[0] in (FORWARD, LOSS) and not is_extra_call(item)
    ]
    last = max(values, default=(0, 0))
    extra = [item for item in result.items if is_extra_call(item) and item.position > last]
    if not extra:
        return
    result.extra = extra
    result.items = [item for item in result.items if item not in extra]
    for note in (f"only in {A}", f"only in {B}"):
        names = list(dict.fromkeys(item.name for item in extra if item.note == note))
        if names:
            result.notes.append(
                f"calls {note} that change no recorded value of the forward pass: "
                f"{', '.join(names[:3])}"
            )


def is_extra_call(item: Item) -> bool:
    """Whether only one run makes a call."""
    phases = (Phase.FORWARD, Phase.LOSS)
    return item.phase in phases and item.what == "presence" and bool(item.note)
