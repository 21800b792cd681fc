"""The k-th collective of a group, as each rank has made it. Shared by the rules that compare them.

Goes by the order of calls alone, not by steps: a run that hangs in a collective ends no step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from traincheck.schema.apis import Marks
from traincheck.schema.events import CollectiveEvent, Event, MarkEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation

ORDER = "TC410"
SHAPE = "TC411"
_PAIRWISE = frozenset({"send", "recv", "isend", "irecv"})  # not all ranks take part
_ANY_SHAPE = frozenset({"barrier", "all_to_all", "all_gather_object", "broadcast_object_list"})
_MOST_WAITING = 4096


class CollectiveLog:
    """Compares ranks call by call, until they differ once: what follows is out of step.

    Args:
        code: of the rule; one compares operations and what they are about, one their shapes.
    """

    def __init__(self, code: str) -> None:
        self.triggered = 0
        self._code = code
        self._is_over = False
        # Calls that were entered and have not come back
        self._inside: set[tuple[int, str, str, int]] = set()
        self._numbers: Counter[tuple[int, str, str]] = Counter()
        self._turns: dict[int, list[str]] = defaultdict(list)
        self._waiting: dict[tuple[int, str, int], dict[int, CollectiveEvent]] = defaultdict(dict)

    def observe(self, event: Event) -> Sequence[Violation]:
        if self._is_over:
            return ()
        if isinstance(event, CollectiveEvent):
            return self._enter(event, is_back=True)
        if isinstance(event, StepEvent):
            self._is_over = not event.recorded  # calls were made that nobody saw
        elif isinstance(event, MarkEvent):
            if event.text == Marks.COLLECTIVE_ENTERED:
                return self._enter(_collective(event), is_back=False)
            self._is_over = event.text == Marks.DROPPED
        return ()

    def finish(self) -> Sequence[Violation]:
        """Nothing: a rank that made fewer calls may just have ended earlier."""
        return ()

    def _enter(self, event: CollectiveEvent, *, is_back: bool) -> Sequence[Violation]:
        """Once a call, whether it was told on entry, when it came back, or both times."""
        key = (event.rank, event.stream, event.group, event.number)
        if is_back and key in self._inside:
            self._inside.discard(key)
            return ()
        if not is_back:
            self._inside.add(key)
        return self._compare(event) if event.op not in _PAIRWISE else ()

    def _compare(self, event: CollectiveEvent) -> Sequence[Violation]:
        pid = event.stream.partition("-")[0]
        turns = self._turns[event.rank]
        if pid not in turns:
            turns.append(pid)
        own = (event.rank, pid, event.group)
        place = (turns.index(pid), event.group, self._numbers[own])
        self._numbers[own] += 1
        others = self._waiting[place]
        others[event.rank] = event
        if len(others) == 1:
            if len(self._waiting) > _MOST_WAITING:
                del self._waiting[next(iter(self._waiting))]
            return ()
        self.triggered += 1
        first = others[min(others)]
        other = event if event is not first else others[max(others)]
        what = _difference(first, other)
        if what is None:
            if len(others) > self._ranks():
                del self._waiting[place]
            return ()
        self._is_over = True
        return [self._violation(first, other, what)] if what == self._code else ()

    def _ranks(self) -> int:
        return len(self._turns) - 1

    def _violation(self, first: CollectiveEvent, other: CollectiveEvent, what: str) -> Violation:
        observed = f"rank {first.rank}: {_told(first)}; rank {other.rank}: {_told(other)}"
        about = "shape" if what == SHAPE else "collective"
        steps = [step for step in (first.step, other.step) if step is not None]
        return Violation(
            check_id=what,
            step=min(steps, default=None),
            rank=other.rank,
            stage=other.stage,
            subject=Subject(api=f"torch.distributed.{other.op}", variable=other.variable),
            symptom=Symptom.OUT_OF_STEP,
            message=(
                f"ranks {first.rank} and {other.rank} meet in call {first.number} of group "
                f"{first.group} with another {about}: {observed}"
            ),
            expected="every rank makes the same collectives in the same order, with equal shapes",
            observed=observed,
            evidence=(first, other),
        )


def _collective(mark: MarkEvent) -> CollectiveEvent:
    return CollectiveEvent(*mark.header, **mark.data)


def _difference(first: CollectiveEvent, other: CollectiveEvent) -> str | None:
    """The rule that tells how two calls differ that should be one."""
    if first.op != other.op:
        return ORDER
    if first.variable and other.variable and _are_others(first.variable, other.variable):
        return ORDER
    if first.uneven or other.uneven or first.op in _ANY_SHAPE:
        return None
    if first.shape is None or other.shape is None:
        return None
    same = list(first.shape) == list(other.shape) and first.dtype == other.dtype
    return None if same else SHAPE


def _are_others(name: str, other: str) -> bool:
    """Whether these are two variables; a rank may hold the model of others as a part of its own."""
    (root, _, path), (its_root, _, its_path) = name.partition("."), other.partition(".")
    if root == its_root:
        return path != its_path
    return not (f".{path}".endswith(f".{its_path}") or f".{its_path}".endswith(f".{path}"))


def _told(event: CollectiveEvent) -> str:
    about = "" if event.variable is None else f" of {event.variable}"
    shape = "" if event.shape is None else f" {event.dtype}{list(event.shape)}"
    return f"{event.op}{about}{shape}"
