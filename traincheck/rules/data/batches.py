"""Batches that are folded into one row, or of which only the last is used."""

from __future__ import annotations

from dataclasses import dataclass, field

from traincheck.rules.base.rule import BuiltInRule, EventRule, fresh
from traincheck.rules.shared.loaders import BATCHES, DATA_LOADER, identified
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import TARGETED, Families
from traincheck.schema.values import tensor_summary

_MIN_BATCH = 3


class BatchFoldedIntoOneRow(BuiltInRule, code="TC507"):
    """batch-folded-into-one-row: several samples were drawn, but the batch has one row.

    What it checks:
        If a loader draws several samples for a batch, collation does not put all of them into one
        row. In such a batch, one tensor holds all samples and another only the first.

    Why it matters:
        The model sees one sample instead of many. The others are lost or treated as parts of it.

    Fires on:
        - A batch in which one tensor has shape (1, samples drawn, ...) and another has shape (1,
          other size).

    Stays quiet on:
        - Samples that are packed into one row of tokens.
        - Batches of one or two samples.
        - Any batch with more than one row.

    Fix:
        Let collate_fn return one row per sample: a list of samples, not a list inside a list.

    Source:
        https://github.com/huggingface/transformers/issues/34204
    """

    title = "Collation folds all samples of {variables} into one row"
    likely_cause = (
        "collate_fn of {variables} may nest the samples of a batch one level too deep: {observed}."
    )
    fix = "Let collate_fn return one row per sample for each tensor."
    needs = BATCHES

    def observe(self, event: Event) -> list[Violation]:
        if not isinstance(event, BatchEvent) or event.drawn < _MIN_BATCH:
            return []
        self.triggered += 1
        shapes = {
            path: summary.shape
            for path, leaf in event.leaves.items()
            if (summary := tensor_summary(leaf)) is not None and summary.shape
        }
        folded = [p for p, shape in shapes.items() if shape[:2] == (1, event.drawn)]
        others = [p for p in shapes if p not in folded]
        is_one_row = all(shape[0] == 1 for shape in shapes.values())
        if not (folded and others and is_one_row) or event.loader in self.reported:
            return []
        self.reported.add(event.loader)
        wide = folded[0]
        other = others[0]
        observed = f"{wide} has shape {list(shapes[wide])}, {other} {list(shapes[other])}"
        return self.found(
            event,
            subject=Subject(api=DATA_LOADER, variable=event.loader),
            symptom=Symptom.LOSS_INPUT,
            message=f"{event.loader} draws {event.drawn} samples, but its batch has one row; "
            f"{observed}",
            expected=f"{event.drawn} rows in each tensor",
            observed=observed,
        )


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
    _fetched: dict[str, _Fetched] = fresh(dict)  # by loader
    _given: set[str] = fresh(set)
    _backward: CallEvent | None = None  # its source line is the evidence
    _found: dict[str, list[Violation]] = fresh(dict)

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
