"""The loop over the loader is empty, and training comes after it."""

from __future__ import annotations

from dataclasses import dataclass, field

from traincheck.rules.base.rule import EventRule
from traincheck.rules.shared.loaders import DATA_LOADER, identified
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import TARGETED, Families

_CONFIRMED = 3
_CONFIRMED_AT_END = 2
_FEW = 3  # batches of a pass


class OnlyLastBatchUsed(EventRule, code="TC519", severity="error"):
    """only-last-batch-used: only the last batch of each pass over a loader is trained on.

    What it checks:
        If all batches of a loader are fetched in one step, the model or its loss does not receive
        the last one alone.

    Why it matters:
        The model sees a handful of samples of each epoch, while every epoch takes its full time.
        The loss falls because the last batch is a different one each time.

    Fires on:
        - Three scanned steps, or both of a short run, that each fetch a whole pass of three batches
          or more. A model or loss receives only data of the last batch. The usual cause is a loop
          body that was dedented out of the loop.

    Stays quiet on:
        - Batches that are joined, or of which others are used too.
        - Passes that end early.
        - Evaluation.
        - Batches that the program changes before it uses them.

    Fix:
        Indent forward, backward and step so that they are inside the loop over the loader.

    Source:
        https://docs.pytorch.org/tutorials/beginner/basics/optimization_tutorial.html (the loop)
    """

    title = "Only the last batch of each pass over {variables} is trained on"
    likely_cause = (
        "The training code may stand after the loop over {variables}, not inside it: {observed}."
    )
    fix = "Indent forward, backward and step so that they are inside the loop over the loader."
    needs = Needs(
        calls=TARGETED | {Families.MODULE, Families.BACKWARD},
        kinds=frozenset({"batch", "step"}),
        stats=TARGETED | {"batch"},
    )

    def __init__(self) -> None:
        super().__init__()
        self._fetched: dict[str, _Fetched] = {}  # by loader
        self._given: set[str] = set()
        self._backward: CallEvent | None = None  # its source line is the evidence
        self._found: dict[str, list[Violation]] = {}

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, BatchEvent) and event.stage == "train":
            known = self._fetched.get(event.loader)
            if known is None:
                self._fetched[event.loader] = _Fetched(event, event)
            elif known.last.epoch == event.epoch:
                known.add(event)
        elif isinstance(event, CallEvent) and event.grad_enabled and event.stage == "train":
            if event.api in TARGETED:
                self._given |= {key for _, key in identified({"": event.args.get("target")})}
            elif event.family == Families.MODULE and event.root:
                self._given |= {key for _, key in identified(event.args)}
            elif event.api == Families.BACKWARD:
                self._backward = event
        elif isinstance(event, StepEvent):
            return self._step(event)
        return []

    def _step(self, event: StepEvent) -> list[Violation]:
        fetched, self._fetched = self._fetched, {}
        given, self._given = self._given, set()
        if not given:
            return []  # nothing was scanned
        violations: list[Violation] = []
        for loader, batches in fetched.items():
            last = {key for _, key in identified(batches.last.leaves)} - batches.earlier
            is_pass = batches.is_pass and event.recorded
            self.triggered += is_pass
            if not is_pass or given.isdisjoint(last) or not given.isdisjoint(batches.earlier):
                self._found.pop(loader, None)
                continue
            found = self._found.setdefault(loader, [])
            found.append(self._violation(batches, self._backward, event))
            if len(found) == _CONFIRMED:
                violations += found
            elif len(found) > _CONFIRMED:
                violations.append(found.pop())
        return violations

    def finish(self) -> list[Violation]:
        """Report short runs too: two steps may be all there is."""
        few = [found for found in self._found.values() if len(found) < _CONFIRMED]
        return [v for found in few if len(found) >= _CONFIRMED_AT_END for v in found]

    def _violation(self, batches: _Fetched, call: CallEvent | None, event: StepEvent) -> Violation:
        loader, count = batches.last.loader, batches.count
        return self.violation(
            event,
            stage="train",
            subject=Subject(api=DATA_LOADER, variable=loader),
            symptom=Symptom.REPEATED_DATA,
            message=f"{count} batches of {loader} are fetched, but only the last one is used",
            expected="each batch is passed to the model",
            observed=f"one step fetches all {count} batches and uses only the last one",
            evidence=(*([call] if call is not None else []), batches.last),
        )


@dataclass(slots=True)
class _Fetched:
    """Batches of one loader in a step. earlier: tensors of all but the last batch."""

    first: BatchEvent
    last: BatchEvent
    count: int = 1
    earlier: set[str] = field(default_factory=set)

    def add(self, event: BatchEvent) -> None:
        self.earlier |= {key for _, key in identified(self.last.leaves)}
        self.last = event
        self.count += 1

    @property
    def is_pass(self) -> bool:
        """Whether it started with a pass, and continued without a gap."""
        return self.first.index == 0 and self.last.index == self.count - 1 >= _FEW - 1
