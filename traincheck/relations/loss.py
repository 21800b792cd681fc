"""The relation *loss*: losses passed to backward() are mean losses, in any program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from traincheck.readings import recorded
from traincheck.readings.distributed.ranks import RankSteps
from traincheck.readings.losses import LOSSES, OVER_CLASSES, LossScale
from traincheck.readings.recorded import OF_TERMS
from traincheck.readings.steps import is_judged, is_skipped
from traincheck.relations.base import (
    SATISFIED,
    DeciderBase,
    ProposerBase,
    RelationBase,
    asked,
    counterexample,
)
from traincheck.relations.iterations import Examples
from traincheck.schema.claims import Hypothesis, Needs, sampled
from traincheck.schema.events import CallEvent, Event, MarkEvent, StateEvent, StepEvent
from traincheck.schema.findings import Example, Subject, Symptom, Topic
from traincheck.schema.torch_api import DDP_HOOK, DDP_INIT, JOIN, Families

BACKWARDS, RANKS, TOKENS = "backwards", "ranks", "tokens"
KINDS = (BACKWARDS, RANKS, TOKENS)
_SEVERAL = 2
_MOST_WAITING = 256  # steps that one rank may be ahead of another


@dataclass(frozen=True, slots=True)
class LossShare:
    """One number of a step.

    Attributes:
        value: mean losses passed to backward(), for each rank if the kind is RANKS; or positions
            that targets are ahead of tokens.
        parts: the number of backwards, or ranks, that it comes from.
    """

    kind: str
    value: float
    parts: int
    event: StepEvent
    call: CallEvent | None = None


@dataclass(slots=True)
class ProcessLosses:
    """Follows one process."""

    _losses: LossScale = field(default_factory=LossScale)
    _lines: set[str | None] = field(default_factory=set)  # lines that call backward
    _shifts: dict[int, CallEvent] = field(default_factory=dict)

    def observe(self, event: CallEvent | MarkEvent) -> None:
        """A call ended, or there are several ranks."""
        if isinstance(event, MarkEvent):
            self._losses.observe(event)
        elif event.exception is None and event.family != Families.OPTIMIZER_STEP:
            self._losses.observe(event)
            if event.api == Families.BACKWARD:
                self._lines.add(event.where)
            elif event.api in OVER_CLASSES and event.grad_enabled and event.stage == "train":
                # Targets that are not ahead may be of an autoencoder: *bounded* covers them
                ahead = recorded.ahead(event.args.get("target"))
                if ahead:
                    self._shifts.setdefault(int(ahead), event)

    def step(self, event: StepEvent) -> Iterator[LossShare]:
        """A step ended. For ranks, the value is the share of this rank."""
        lines, self._lines = self._lines, set()
        shifts, self._shifts = self._shifts, {}
        for reading in self._losses.observe(event) if not is_skipped(event) else ():
            if reading.under == OF_TERMS:
                continue
            parts = _parts(event) if len(lines) == 1 else 0
            if parts >= _SEVERAL:
                yield LossShare(BACKWARDS, reading.value, parts, event)
            yield LossShare(RANKS, reading.value, 1, event)
        if shifts and is_judged(event):  # heads for later tokens come beside the first
            ahead = min(shifts)
            yield LossShare(TOKENS, ahead, 1, event, shifts[ahead])


def _parts(event: StepEvent) -> int:
    """The number of batches of an update, each with its own forward; else 0."""
    counters = event.counters
    size = counters.get("backward", 0)
    is_sum = counters.get("zero_grad", 0) <= 1 and counters.get("optimizer_step", 0) == 1
    return size if is_sum and size == counters.get("forward", 0) else 0


class LossShares:
    """Follows all processes of a run."""

    def __init__(self) -> None:
        self._steps = RankSteps(counts_all=True)
        self._updates: dict[tuple[int, str], ProcessLosses] = defaultdict(ProcessLosses)
        self._waiting: dict[int | None, dict[int, float]] = {}  # step -> rank -> its share

    def observe(self, event: Event) -> list[LossShare]:
        """The numbers that ``event`` completes."""
        if isinstance(event, StateEvent):
            return []
        updates = self._updates[event.rank, event.stream.partition("-")[0]]
        found: list[LossShare] = []
        if isinstance(event, (CallEvent, MarkEvent)):
            updates.observe(event)
        elif isinstance(event, StepEvent):
            for share in updates.step(event):
                if share.kind == RANKS:
                    self._waiting.setdefault(event.step, {})[event.rank] = share.value
                else:
                    found.append(share)
            if len(self._waiting) > _MOST_WAITING:
                del self._waiting[next(iter(self._waiting))]
        self._steps.observe(event)
        for step in self._steps.ready:
            shares = self._waiting.pop(step.end.step, {})
            ranks = len(step.ranks)
            if step.is_judged and step.wrapped and len(shares) == ranks >= _SEVERAL:
                found.append(LossShare(RANKS, sum(shares.values()) / ranks, ranks, step.end))
        return found


_NEAR = 1e-2  # relative: a smaller difference satisfies the claim
_COMPARED = 8  # tokens that one answer compares, at least
_TEXTS = {
    BACKWARDS: "The losses of several backwards sum to one mean loss before an update",
    RANKS: "The losses of all ranks of DistributedDataParallel sum to one mean loss for each rank",
    TOKENS: "The target of a loss over tokens holds the next token at each position",
}
_CAUSES = {
    BACKWARDS: (
        "The loss may not be divided by the number of micro-batches, so that the gradient is "
        "too large by that factor."
    ),
    RANKS: "The loss may be divided by a count over all ranks, and DistributedDataParallel divides "
    "the gradient by the number of ranks again.",
    TOKENS: "The labels may already be shifted before the model shifts them.",
}
_FIXES = {
    BACKWARDS: "Divide the loss by the number of batches for each optimizer step.",
    RANKS: "Multiply the loss by the number of ranks, or take the mean over each rank's own part.",
    TOKENS: "Give the model its inputs as labels, or leave one of the shifts out.",
}


class Loss(RelationBase):
    """backward() gets one mean loss, of targets that are one token ahead.

    Claims:
        One of three, in any program:
        - The losses of several backwards from one line of code, with a forward each, sum to one
          mean loss before an optimizer steps.
        - The losses of all ranks of DistributedDataParallel sum to one mean loss for each rank.
        - The target of a loss over classes is one position ahead of the tokens of its batch.

    Example:
        ``The losses of several backwards sum to one mean loss before an update.`` It breaks when
        the loss is not divided by the number of micro-batches.

    Evidence:
        One example for each update; for targets eight for each step, as at least eight tokens are
        compared. A sum is read as its mean over valid labels. A counterexample is exactly the
        mistake: as many mean losses as backwards, one among all ranks, tokens two ahead. A loss
        with other weights proves nothing.

    Chance:
        A coin for each example.

    Not claimed:
        - How large a loss is, or which function it is.
        - Updates with several losses for one backward, with backwards from several lines (other
          losses), with zero_grad between them, or scaled for half precision.
        - Ranks that exchange gradients in their own way.
    """

    name = "loss"
    scope = "run"

    def proposer(self) -> LossProposer:
        return LossProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> LossDecider:
        return LossDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        kind = claim.params["of"]
        if kind == TOKENS:
            return Needs(
                calls=OVER_CLASSES | {Families.MODULE},
                kinds=frozenset({"batch", "mark", "step"}),
                stats=sampled(*OVER_CLASSES, "batch"),
            )
        calls = frozenset({*LOSSES, Families.BACKWARD, Families.SCALE})
        calls |= {DDP_INIT, DDP_HOOK, JOIN} if kind == RANKS else set()
        return Needs(calls=calls, kinds=frozenset({"mark", "step"}), stats=sampled(*OVER_CLASSES))

    def text(self, claim: Hypothesis) -> str:
        return _TEXTS[claim.params["of"]]

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """A run that has such losses always proposes the claim."""
        return {"api": f"loss of {claim.params['of']}"}

    def words(self, claim: Hypothesis) -> Mapping[str, str]:
        """A sum over micro-batches may be intended, with a suitable learning rate."""
        kind = claim.params["of"]
        severity = "info" if kind == BACKWARDS else "warning"
        return {"severity": severity, "likely_cause": _CAUSES[kind], "fix": _FIXES[kind]}


class LossProposer(ProposerBase):
    """Proposes the kinds that the run has numbers of."""

    observes = asked("call", "collective", "mark", "optimizer", "step")

    def __init__(self) -> None:
        self._shares = LossShares()
        self._kinds: set[str] = set()

    def observe(self, event: Event) -> None:
        self._kinds.update(share.kind for share in self._shares.observe(event))

    def hypotheses(self) -> Iterator[Hypothesis]:
        for kind in sorted(self._kinds):
            yield Hypothesis(relation="loss", params={"of": kind})


class LossDecider(DeciderBase):
    """Decides when a step ends; for claims about ranks, on all ranks.

    At the end of a run nothing: an update that was not made proves nothing.
    """

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._shares = LossShares()
        self._kinds = [claim.params["of"] for claim in claims]
        unknown = set(self._kinds) - set(KINDS)
        if unknown:
            raise ValueError(f"nothing is known of {sorted(unknown)}")

    def observe(self, event: Event) -> Examples:
        found: list[tuple[int, Example]] = []
        for share in self._shares.observe(event):
            for index, kind in enumerate(self._kinds):
                if kind == share.kind:
                    found += [(index, example) for example in _judged(share)]
        return found


def _judged(share: LossShare) -> list[Example]:
    """The examples of a number; none if it is neither right nor the mistake."""
    if _is_near(share.value, 1.0):
        return [SATISFIED] * (_COMPARED if share.kind == TOKENS else 1)
    if share.kind == TOKENS:
        return [_negative(share)]
    mistake = share.parts if share.kind == BACKWARDS else 1 / share.parts
    return [_negative(share)] if _is_near(share.value, mistake) else []


def _is_near(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= _NEAR * wanted


def _negative(share: LossShare) -> Example:
    event, call = share.event, share.call
    expected, observed = {
        BACKWARDS: (
            f"the losses of {share.parts} backwards sum to one mean loss",
            f"they sum to {share.value:.4g}: the mean loss of each batch is not divided",
        ),
        RANKS: (
            f"the losses of {share.parts} ranks sum to {share.parts} mean losses",
            f"they sum to {share.value * share.parts:.4g}: the gradient is {share.value:.4g} "
            "times that of the mean loss",
        ),
        TOKENS: (
            "labels that are the next tokens",
            f"labels that are {share.value:g} positions ahead of the tokens",
        ),
    }[share.kind]
    return counterexample(
        event,
        Subject(api=Families.BACKWARD if call is None else call.api),
        expected,
        observed,
        Symptom.WRONG_VALUE if call is None else Symptom.LOSS_INPUT,
        evidence=(call or event,),
        stage=event.stage,
    ).replace(topic=Topic.MAGNITUDE if call is None else None)
