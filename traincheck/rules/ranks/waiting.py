"""Ranks that wait in a collective or a backward pass, and the state of the others.

Derived from calls that were entered and did not return, and from how many each rank entered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from traincheck.readings.distributed.collectives import PAIRWISE, entered
from traincheck.schema.events import CallEvent, CollectiveEvent, Event, MarkEvent, StepEvent
from traincheck.schema.marks import Marks
from traincheck.schema.torch_api import DDP_INIT, Families

# Other marks may be written late, with what was observed in a step that has not ended.
_GOES_ON = frozenset({Marks.COLLECTIVE_ENTERED, Marks.BACKWARD_ENTERED, Marks.BACKWARD_COMPUTED})
_MEMBERS = re.compile(r" of ranks ([\d,]+)\Z")


@dataclass(slots=True)
class Member:
    """The recorded state of the training process of one rank.

    Attributes:
        rank: rank of the process.
        pid: process, as in the name of its streams.
        entered: number of collectives made so far, by group.
        inside: collectives that were entered and did not return, by stream.
        backward: the backward pass that was entered and did not return.
        computes: whether its graph is not computed yet, so that the rank waits for nobody in it.
        raised: the last collective or backward pass, if it raised and no call followed.
        exchanges: whether DistributedDataParallel exchanges gradients in its backward passes.
        last: the last event that has a source line.
        last_ns: time of the last event.
        ended: the mark of its end; None if it was killed or continues.
        silent_s: seconds without a record if it is silent now, else 0.
        is_blind: whether calls were not recorded.
    """

    rank: int
    pid: str
    entered: dict[str, int] = field(default_factory=dict)
    inside: dict[str, CollectiveEvent] = field(default_factory=dict)
    backward: MarkEvent | None = None
    computes: bool = False
    raised: CollectiveEvent | CallEvent | None = None
    exchanges: bool = False
    last: Event | None = None
    last_ns: int = 0
    ended: MarkEvent | None = None
    silent_s: float = 0.0
    is_blind: bool = False

    @property
    def exception(self) -> str:
        """The class of the exception that ended it; empty if none is known."""
        found = self.ended and self.ended.data.get("exception")
        return found if isinstance(found, str) else ""

    @property
    def is_waiting(self) -> bool:
        """Whether it is in a call that did not return, or that raised."""
        return bool(self.inside or self.raised or (self.backward and not self.computes))

    def observe(self, event: Event) -> None:
        """Add one event of this process."""
        self.last_ns, self.silent_s = event.time_ns, 0.0
        if isinstance(event, StepEvent):  # the last one is written when the process ends
            self.is_blind |= not event.recorded
            return
        if not isinstance(event, MarkEvent) or event.text in _GOES_ON:
            self.raised = None
        if isinstance(event, CollectiveEvent):
            self._enter(event)
            self.inside.pop(event.stream, None)
            self.raised = event if event.raised else None
        elif isinstance(event, MarkEvent):
            self._marked(event)
        elif isinstance(event, CallEvent):
            if event.api == DDP_INIT:
                self.exchanges = True
            elif Families.BACKWARD in (event.api, event.family) and not event.open:
                self.backward, self.computes = None, False
                self.raised = event if event.exception and self.exchanges else None
        if getattr(event, "where", None):
            self.last = event

    def _enter(self, event: CollectiveEvent) -> None:
        known = self.entered.get(event.group, 0)
        self.entered[event.group] = max(known, event.number + 1)

    def _marked(self, mark: MarkEvent) -> None:
        if mark.text == Marks.COLLECTIVE_ENTERED:
            event = entered(mark)
            self._enter(event)
            self.inside[mark.stream] = event
        elif mark.text == Marks.BACKWARD_ENTERED:
            self.backward, self.computes = mark, bool(mark.data.get("tells"))
        elif mark.text == Marks.BACKWARD_COMPUTED:
            self.computes = False
        elif mark.text == Marks.ENDED:
            self.ended = mark


@dataclass(frozen=True, slots=True)
class Wait:
    """A call that ranks wait in. number: of the collective in its group; None for a backward."""

    event: Event
    ranks: tuple[int, ...]
    group: str = "world"
    number: int | None = None

    @property
    def what(self) -> str:
        """``all_reduce``, or the backward pass in which gradients are exchanged."""
        if isinstance(self.event, CollectiveEvent):
            return self.event.op
        return "the gradient exchange of DistributedDataParallel (inside backward)"

    @property
    def where(self) -> str:
        """`` (train.py:31)``; empty if unknown."""
        return place_of(self.event)


def place_of(event: Event | None) -> str:
    """The source line of an event, in parentheses after a space; empty if unknown."""
    place = getattr(event, "where", None)
    return f" ({place})" if place else ""


def waits(members: Mapping[int, Member], *, is_over: bool) -> Iterator[Wait]:
    """The calls that ranks wait in, each once, in the order of the ranks.

    is_over: whether to count calls that raised: an unanswered collective finally raises.
    """
    found: dict[tuple[str, int | None, str], tuple[Event, list[int]]] = {}
    for rank, member in sorted(members.items()):
        if member.is_blind:
            continue
        events: list[Event] = list(member.inside.values())
        if is_over and member.raised is not None:
            events.append(member.raised)
        if member.backward is not None and member.exchanges and not member.computes:
            events.append(member.backward)
        for event in events:
            is_collective = isinstance(event, CollectiveEvent)
            group = event.group if is_collective else "world"  # type: ignore[union-attr]
            number = event.number if is_collective else None  # type: ignore[union-attr]
            op = event.op if is_collective else ""  # type: ignore[union-attr]
            found.setdefault((group, number, op), (event, []))[1].append(rank)
    for (group, number, _), (event, ranks) in found.items():
        yield Wait(event, tuple(ranks), group, number)


def missing_in(wait: Wait, members: Mapping[int, Member]) -> Sequence[Member]:
    """The members of its group that did not join a call in which others wait, ordered by rank."""
    others = [m for rank, m in sorted(members.items()) if rank not in wait.ranks]
    event = wait.event
    if not isinstance(event, CollectiveEvent):
        return [m for m in others if (m.backward is None or m.computes) and m.raised is None]
    if event.op in PAIRWISE:
        return [m for m in others if m.rank == event.peer and not m.is_waiting]
    named = _MEMBERS.search(wait.group)
    if named:
        others = [m for m in others if str(m.rank) in named[1].split(",")]
    number = event.number
    return [m for m in others if not m.is_blind and m.entered.get(wait.group, 0) <= number]


def described(member: Member, wait: Wait) -> tuple[str, str, str, str]:
    """The action of a rank in place of the call, a title, the likely cause, and the fix."""
    rank, joins = f"Rank {member.rank}", f"{wait.what}{wait.where}"
    if member.exception:
        state = f"raised {member.exception}{place_of(member.ended)}"
        cause = f"{rank} failed. The other ranks cannot continue without it."
        fix = f"Fix the {member.exception} of rank {member.rank}{place_of(member.ended)}."
        return f"rank {member.rank} {state}", f"{rank} raised, and others wait for it", cause, fix
    last = _last(member)
    if member.ended is not None:
        cause = f"{rank} took a branch without {joins}, or ended its loop earlier."
        fix = f"Let rank {member.rank} enter {joins} too, or no rank."
        return (
            f"rank {member.rank} ended{last}",
            f"{rank} ended, and others wait for it",
            cause,
            fix,
        )
    inside = next(iter(member.inside.values()), None)
    if inside is not None and (inside.group, inside.number) != (wait.group, wait.number):
        state = f"rank {member.rank} waits in {inside.op}{place_of(inside)}"
        cause = f"{rank} skipped {joins}."
        fix = f"Let rank {member.rank} enter {joins} too, or no rank."
        return state, f"{rank} waits in another collective", cause, fix
    if member.silent_s:
        state = f"rank {member.rank} has recorded nothing for {member.silent_s:,.0f} s{last}"
        cause = f"{rank} hangs, is slower than the timeout, or skipped {joins}."
        fix = f"Inspect rank {member.rank}: py-spy dump --pid {member.pid.lstrip('p')}. "
        fix += "Raise --stall-timeout if the rank is only slow."
        return state, f"{rank} is silent, and others wait for it", cause, fix
    state = f"rank {member.rank} stopped without an exception and without a regular end{last}"
    cause = f"{rank} was killed, e.g. for lack of memory, or hung until the job was ended."
    fix = f"Find the reason in the log of the system or of the launcher: rank {member.rank}."
    return state, f"{rank} died or hung, and others wait for it", cause, fix


def _last(member: Member) -> str:
    """The last recorded call of a rank and its line, as the end of a sentence."""
    if member.backward is not None and member.computes:
        return f"; it computes gradients in its backward pass{place_of(member.backward)}"
    event = member.last
    if event is None:
        return ""
    name = event.op if isinstance(event, CollectiveEvent) else getattr(event, "api", "a call")
    short = ".".join(str(name).split(".")[-2:])
    step = "" if event.step is None else f" of step {event.step}"
    return f"; its last recorded call is {short}{place_of(event)}{step}"
