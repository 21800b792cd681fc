"""The calls of a step in two runs: aligned, and their results compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import msgspec

from traincheck.diff.choices import Names
from traincheck.diff.items import (
    Answer,
    Item,
    Phase,
    compare_json,
    compare_values,
    is_telling,
    numbers_alike,
)
from traincheck.diff.messages import A, B
from traincheck.diff.steps import CallRecord
from traincheck.schema.torch_api import FUNCTIONAL, LOSS_MODULES, Families, losses

_LOSSES = losses()
_MOST_ALIGNED = 4000  # calls of a step; more are matched by name and number alone
_CONTROL = (
    "torch.optim.",
    "torch.amp.",
    "torch.nn.utils.clip",
    "torch.distributed",
    "torch.nn.Module.",
)
_SCALER = "torch.cuda.amp."
FORWARD, LOSS = 6, 7  # places in the causal order of a step


class Key(NamedTuple):
    """The API and the module by which a call is aligned."""

    api: str
    module: str | None


class Aligned(NamedTuple):
    """A call of each run; None where one run has no such call."""

    a: CallRecord | None
    b: CallRecord | None


def kept_calls(calls: Sequence[CallRecord]) -> list[CallRecord]:
    """The calls that compute something: no control calls, no recomputation in a backward."""
    # Calls inside a backward pass recompute a forward, or go back in it.
    outer = {call.span for call in calls if call_is_backward(call)}
    inside: set[int] = set()
    for call in reversed(calls) if outer else ():  # parents end after their children
        if call.parent in outer or call.parent in inside:
            inside.add(call.span)
    return [call for call in calls if not is_control(call) and call.span not in inside]


def is_control(call: CallRecord) -> bool:
    """Whether it is of an optimizer, a scheduler, a scaler and the like."""
    if call.api.startswith((*_CONTROL, _SCALER)):
        return True
    family = call.family or ""
    return call.owner is not None or (family.startswith(_CONTROL) and family != Families.MODULE)


def outline(calls: Sequence[CallRecord]) -> list[tuple[object, ...]]:
    """The contents of calls. Steps with equal outlines have equal calls."""
    return [
        (c.api, c.module, c.training, c.autocast, c.grad_enabled, c.result, c.args) for c in calls
    ]


def align(a: Sequence[CallRecord], b: Sequence[CallRecord], names: Names) -> Iterator[Aligned]:
    """Pairs of calls in order; inserted and removed calls stand alone."""
    keys_a = [Key(call.api, call.module) for call in a]
    keys_b = [Key(c.api, None if c.module is None else names.of_b(c.module)) for c in b]
    if keys_a == keys_b:
        yield from map(Aligned, a, b)
        return
    if max(len(a), len(b)) > _MOST_ALIGNED:
        yield from _by_number(a, b, keys_a, keys_b)
        return
    for tag, a0, a1, b0, b1 in SequenceMatcher(None, keys_a, keys_b, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from map(Aligned, a[a0:a1], b[b0:b1])
        else:
            yield from (Aligned(call, None) for call in a[a0:a1])
            yield from (Aligned(None, call) for call in b[b0:b1])


def _by_number(
    a: Sequence[CallRecord], b: Sequence[CallRecord], keys_a: list[Key], keys_b: list[Key]
) -> Iterator[Aligned]:
    seen: Counter[Key] = Counter()
    known = {}
    for key, call in zip(keys_b, b, strict=True):
        known[key, seen[key]] = call
        seen[key] += 1
    seen.clear()
    for key, call in zip(keys_a, a, strict=True):
        yield Aligned(call, known.pop((key, seen[key]), None))
        seen[key] += 1
    yield from (Aligned(None, call) for call in known.values())


class CallItems(NamedTuple):
    """Differences of the calls of a step, and how many were compared and could not be."""

    items: list[Item]
    compared: Counter[Phase]
    unknown: Counter[Phase]


def compare_calls(a: Sequence[CallRecord], b: Sequence[CallRecord], names: Names) -> CallItems:
    """Compare the calls of a step, the earliest difference first."""
    found = CallItems([], Counter(), Counter())
    kept_a, kept_b = kept_calls(a), kept_calls(b)
    owners: dict[int, str | None] = {call.span: call.module for call in kept_a if call.module}
    seen: Counter[str] = Counter()
    for number, pair in enumerate(align(kept_a, kept_b, names)):
        call = pair.a or pair.b
        assert call is not None
        name = _name(call, owners)
        if not names.is_chosen(name):
            continue
        phase = phase_of(call)
        place = (LOSS if phase is Phase.LOSS else FORWARD, number)
        _compare_pair(pair, name, phase, place, seen[name], found)
        seen[name] += 1
    return found


def phase_of(call: CallRecord) -> Phase:
    """Whether a call belongs to the loss or to the forward pass."""
    api = call.api
    if api in _LOSSES or api.startswith(LOSS_MODULES) or api == Families.BACKWARD:
        return Phase.LOSS
    return Phase.FORWARD


def _compare_pair(
    pair: Aligned,
    name: str,
    phase: Phase,
    place: tuple[int, int],
    index: int,
    found: CallItems,
) -> None:
    a, b = pair
    if a is None or b is None:
        found.items.append(
            Item(phase=phase, name=name, what="presence", a=a and a.api, b=b and b.api,
                 note=f"only in {B}" if a is None else f"only in {A}", index=index, position=place,
                 where=(a or b).where or "",  # type: ignore[union-attr]
                 call=a or b)
        )  # fmt: skip
        return
    where = a.where or ""
    if a.training != b.training and a.training is not None and b.training is not None:
        found.items.append(
            Item(phase=phase, name=name, what="mode", a="train" if a.training else "eval",
                 b="train" if b.training else "eval", index=index, position=place, where=where,
                 call=a)
        )  # fmt: skip
        found.compared[phase] += 1
        return
    pieces = [("", bytes(a.result), bytes(b.result))]
    if a.root or phase is Phase.LOSS:
        pieces.insert(0, ("input", bytes(a.args), bytes(b.args)))
    for piece, x, y in pieces:
        result = compare_json(x, y)
        if result.answer is not Answer.DIFFERENT:
            is_known = result.answer is Answer.SAME and is_telling(x)
            if bool(piece) is call_is_backward(a):  # a backward is known by what it is given
                (found.compared if is_known else found.unknown)[phase] += 1
            continue
        mine, yours, leaf = result.a, result.b, result.leaf
        if piece:
            leaf = ""
            mine, yours, note = _argument(msgspec.json.decode(x), msgspec.json.decode(y))
            if call_is_backward(a):
                note = ""
            elif phase is Phase.LOSS and note in ("input", "0"):
                continue  # the output of the model, which the forward pass has compared
            note = f"input {note}" if note.isdigit() else note
        else:
            note = ""
        found.compared[phase] += 1
        start = -1 if piece and a.root else place[1]
        found.items.append(
            Item(phase=phase, name=f"{name} ({note})" if note else name, what=result.what,
                 leaf=leaf,
                 a=mine, b=yours, index=index, position=(place[0], start), gaps=result.gaps,
                 is_sized=numbers_alike(mine, yours), argument=note, where=where,
                 call=a)
        )  # fmt: skip
        return


def call_is_backward(call: CallRecord) -> bool:
    """Whether it is `Tensor.backward` or `torch.autograd.backward`."""
    return call.api == Families.BACKWARD


def _argument(a: dict[str, object], b: dict[str, object]) -> tuple[object, object, str]:
    """The first argument that differs, by name."""
    for name, value in a.items():
        if compare_values(value, b.get(name)).answer is Answer.DIFFERENT:
            return value, b.get(name), name
    extra = next((name for name in b if name not in a), "")
    return None, b.get(extra), extra


def _name(call: CallRecord, owners: dict[int, str | None]) -> str:
    """How a person finds a call: the module it belongs to, and the function."""
    if call.family == Families.MODULE and call.module:
        return call.module
    short = call.api.removeprefix(FUNCTIONAL).removeprefix("torch.")
    if call.api == Families.BACKWARD:
        return "loss of backward()"
    owner = call.module or owners.get(call.parent or -1)
    return f"{owner}: {short}" if owner else short
