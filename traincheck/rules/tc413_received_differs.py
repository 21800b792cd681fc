"""TC413: a collective does not deliver what it must. Compares fingerprints, call by call."""

from __future__ import annotations

from collections import defaultdict

from traincheck.schema.apis import Marks
from traincheck.schema.claims import Needs
from traincheck.schema.events import CollectiveEvent, Event, MarkEvent, StepEvent
from traincheck.schema.findings import CheckInfo, Subject, Symptom, Violation

_EQUAL = frozenset({"all_reduce", "broadcast", "all_gather_into_tensor"})  # results on all ranks
_MOST_WAITING = 4096

_Key = tuple[object, ...]


class ReceivedDiffers:
    """TC413 received-differs: what arrives on a rank is not what was sent.

    What it checks:
        recv gets what send was given; after all_reduce, broadcast and all_gather_into_tensor all
        ranks hold the same tensor.

    Why it matters:
        Links, drivers and peer-to-peer copies that lose data raise no error. Results become
        nonsense now and then, and replicas drift apart.

    Fires on:
        A tensor that arrives in part, as zeros, or late.

    Stays quiet on:
        Asynchronous calls, whose results are not there yet; send and recv with tags; ranks that
        enter different collectives (TC410, TC411); tensors on a GPU; runs whose steps are sampled.

    Fix:
        Test the links (NCCL_P2P_DISABLE=1 tells whether peer-to-peer copies are at fault), drivers
        and firmware; wait for asynchronous work before its result is used.

    Source:
        https://github.com/baichuan-inc/Baichuan2/issues/86,
        https://github.com/pytorch/pytorch/issues/84803
    """

    info = CheckInfo(
        check_id="TC413",
        kind="rule",
        code="TC413",
        severity="error",
        title="{subject} does not deliver what was sent",
        likely_cause="A link between the devices of two ranks loses data: {observed}.",
        fix="Test the links between devices; with NCCL, try NCCL_P2P_DISABLE=1.",
    )
    needs = Needs(
        states=frozenset({"collective@ranks"}), kinds=frozenset({"collective", "mark", "step"})
    )
    scope = "run"

    def monitor(self) -> Deliveries:
        return Deliveries()


class Deliveries:
    """Pairs calls by their order, until one differs."""

    def __init__(self) -> None:
        self.triggered = 0
        self._is_over = False
        self._turns: dict[int, list[str]] = defaultdict(list)
        self._waiting: dict[_Key, CollectiveEvent] = {}
        self._numbers: dict[_Key, int] = defaultdict(int)

    def observe(self, event: Event) -> list[Violation]:
        if self._is_over:
            return []
        if isinstance(event, CollectiveEvent):
            return self._take(event)
        if isinstance(event, StepEvent):
            self._is_over = not event.recorded  # calls were made that nobody saw
        elif isinstance(event, MarkEvent):
            self._is_over = event.text == Marks.DROPPED
        return []

    def finish(self) -> list[Violation]:
        """Nothing: what did not arrive may have been stopped."""
        return []

    def _take(self, event: CollectiveEvent) -> list[Violation]:
        pid = event.stream.partition("-")[0]
        turns = self._turns[event.rank]
        if pid not in turns:
            turns.append(pid)
        turn = turns.index(pid)
        if event.op in ("send", "recv"):
            if event.peer is None:
                return []
            ends = (event.rank, event.peer) if event.op == "send" else (event.peer, event.rank)
            mine: _Key = (event.op, turn, event.group, *ends)
            number = self._numbers[mine]
            self._numbers[mine] += 1
            key: _Key = ("pair", turn, event.group, *ends, number)
        elif event.op in _EQUAL:
            key = ("all", turn, event.group, event.number)
        else:
            return []
        other = self._waiting.get(key)
        if other is None:
            if len(self._waiting) >= _MOST_WAITING:
                del self._waiting[next(iter(self._waiting))]
            self._waiting[key] = event
            return []
        return self._compare(other, event)

    def _compare(self, first: CollectiveEvent, other: CollectiveEvent) -> list[Violation]:
        if first.op in _EQUAL and first.op != other.op:
            self._is_over = True  # they are out of order: not the link's fault
            return []
        digests = (_digest(first), _digest(other))
        same = (list(first.shape or ()), first.dtype) == (list(other.shape or ()), other.dtype)
        if not same or None in digests:
            return []
        self.triggered += 1
        if digests[0] == digests[1]:
            return []
        self._is_over = True
        receiver = first if first.op == "recv" else other
        return [
            Violation(
                check_id="TC413",
                step=receiver.step,
                rank=receiver.rank,
                stage=receiver.stage,
                subject=Subject(api=f"torch.distributed.{receiver.op}", variable=receiver.variable),
                symptom=Symptom.RANKS_DIFFER,
                message=(
                    f"after {receiver.op}, rank {receiver.rank} does not hold what "
                    f"{_others(receiver)}"
                ),
                expected="the same content on both ends",
                observed=(
                    f"contents rank {first.rank}: {_short(digests[0])}, "
                    f"rank {other.rank}: {_short(digests[1])}"
                ),
                evidence=(first, other),
            )
        ]


def _others(event: CollectiveEvent) -> str:
    return "other ranks hold" if event.peer is None else f"rank {event.peer} sent"


def _digest(event: CollectiveEvent) -> str | None:
    return event.before if event.op == "send" else event.after


def _short(digest: str | None) -> str:
    return str(digest).rpartition(":")[2][:8]
