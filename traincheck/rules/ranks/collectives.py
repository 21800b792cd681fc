"""Rules that compare collectives between ranks, call by call."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import ClassVar

from traincheck.readings.distributed.collectives import Collectives, Meeting, Pair
from traincheck.readings.provider import RunState, RunStates
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CollectiveEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation


class Mismatch(Enum):
    """The ways in which two calls that must match can differ; one rule for each member."""

    ORDER = "collective"
    SHAPE = "shape"


class CollectiveRule(BuiltInRule):
    """Judges calls made by several ranks until the first mismatch; later calls are out of step.

    triggered: the number of calls that could be compared between two ranks.
    """

    uses: ClassVar[Sequence[type[RunState]]] = (Collectives,)
    observes: ClassVar[Needs] = Needs(kinds=frozenset({"collective", "mark", "step"}))
    is_over = False

    def bind(self, run_states: RunStates) -> None:
        self._collectives = run_states.of(Collectives)

    def observe(self, event: Event) -> Sequence[Violation]:
        found: list[Violation] = []
        for meeting in self._collectives.met:
            if not self.is_over:
                found += self.judge(meeting)
        return found

    @abstractmethod
    def judge(self, meeting: Meeting) -> Sequence[Violation]:
        """Return the violations of a call, as two ranks made it."""


class EnteredCallRule(CollectiveRule):
    """Compares the calls that ranks enter: their operations and tensors, or their shapes."""

    mismatch: ClassVar[Mismatch]
    needs = Needs(kinds=frozenset({"collective", "mark", "step"}))

    def judge(self, meeting: Meeting) -> Sequence[Violation]:
        if meeting.is_back:
            return ()
        self.triggered += 1
        first, other, _ = meeting.by_rank
        what = _difference(meeting.by_rank)
        self.is_over = what is not None
        return [self._violation(first, other)] if what is self.mismatch else ()

    def _violation(self, first: CollectiveEvent, other: CollectiveEvent) -> Violation:
        observed = f"rank {first.rank}: {_described(first)}; rank {other.rank}: {_described(other)}"
        steps = [step for step in (first.step, other.step) if step is not None]
        return self.violation(
            other,
            step=min(steps, default=None),
            subject=Subject(api=f"torch.distributed.{other.op}", variable=other.variable),
            symptom=Symptom.OUT_OF_STEP,
            message=f"ranks {first.rank} and {other.rank} disagree about the {self.mismatch.value} "
            f"in call {first.number} of group {first.group}: {observed}",
            expected="every rank makes the same collectives in the same order with equal shapes",
            observed=observed,
            evidence=(first, other),
        )


def _difference(pair: Pair) -> Mismatch | None:
    """The difference between two calls that must match; None if they match."""
    first, other, _ = pair
    if first.op != other.op:
        return Mismatch.ORDER
    if first.variable and other.variable and _are_others(first.variable, other.variable):
        return Mismatch.ORDER
    shapes = pair.shapes
    return None if shapes is None or shapes[0] == shapes[1] else Mismatch.SHAPE


def _are_others(name: str, other: str) -> bool:
    """Whether the variables differ; a rank may hold the model of others as a submodule."""
    (root, _, path), (its_root, _, its_path) = name.partition("."), other.partition(".")
    if root == its_root:
        return path != its_path
    return not (f".{path}".endswith(f".{its_path}") or f".{its_path}".endswith(f".{path}"))


def _described(event: CollectiveEvent) -> str:
    about = "" if event.variable is None else f" of {event.variable}"
    shape = "" if event.shape is None else f" {event.dtype}{list(event.shape)}"
    return f"{event.op}{about}{shape}"


class CollectivesOutOfOrder(EnteredCallRule, code="TC410", severity="error"):
    """collectives-out-of-order: ranks enter different collectives.

    What it checks:
        The k-th collective that each rank makes in a process group is the same operation. If its
        tensor is a parameter or a gradient, it is the same parameter.

    Why it matters:
        Collectives are paired by order alone. If the shapes happen to agree, unrelated tensors are
        mixed without a message. If they differ, the job hangs.

    Fires on:
        - A collective that only some ranks reach.
        - All-reduces issued in another order on one rank, e.g. by iterating over a set.

    Stays quiet on:
        - send and recv.
        - Subgroups.
        - A rank that ended earlier.
        - Runs whose steps are sampled.

    Fix:
        Issue collectives unconditionally, in an order that does not depend on the rank.

    Source:
        https://github.com/deepspeedai/DeepSpeed/issues/6714
    """

    title = "Ranks enter different collectives"
    likely_cause = (
        "A condition or order that depends on the rank may determine which collective comes "
        "next: {observed}."
    )
    fix = "Issue the same collectives in the same order on every rank of the group."
    scope = "run"
    mismatch = Mismatch.ORDER


class CollectiveShapesDiffer(EnteredCallRule, code="TC411", severity="error"):
    """collective-shapes-differ: ranks enter a collective with unequal tensors.

    What it checks:
        The k-th collective that each rank makes in a process group has the same shape and dtype on
        all of them.

    Why it matters:
        Backends do not compare sizes. The rank with the smaller tensor may continue with a wrong
        result, or the job hangs without a message.

    Fires on:
        - A capacity or length that each rank computes from its own data and then uses in an
          all_to_all or all_reduce.

    Stays quiet on:
        - all_to_all with split sizes, lists of tensors, and objects, whose sizes may differ.
        - send and recv.
        - Subgroups.
        - Runs whose steps are sampled.

    Fix:
        Agree on the size first: all_reduce it with MAX and pad to it.

    Source:
        https://github.com/deepspeedai/DeepSpeed/issues/6809
    """

    title = "Ranks enter {subject} with different shapes"
    likely_cause = "Each rank may compute the size from its own data: {observed}."
    fix = "Agree on the size first (all_reduce it with MAX) and pad the tensor to it."
    scope = "run"
    mismatch = Mismatch.SHAPE
