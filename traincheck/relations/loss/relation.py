"""The relation *loss*: how what backward is given relates to the mean loss, in any program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.facts.losses import OVER_CLASSES
from traincheck.relations.base import ProposerBase, RelationBase
from traincheck.relations.example_cache import Examples
from traincheck.relations.loss.loss_scale import (
    BACKWARDS,
    KINDS,
    RANKS,
    TOKENS,
    Share,
    Shares,
)
from traincheck.relations.readings.table import LOSSES
from traincheck.schema.claims import Context, Hypothesis, Needs, sampled
from traincheck.schema.events import Event
from traincheck.schema.findings import CheckInfo, Example, Subject, Symptom, Topic
from traincheck.schema.torch_api import DDP_HOOK, DDP_INIT, JOIN, Families

_ALWAYS: Context = {}
_HELD = Example(holds=True, context=_ALWAYS)
_NEAR = 1e-2  # relative: within this, a number is what it was said to be
_COMPARED = 8  # tokens that one answer compares, at least
_TEXTS = {
    BACKWARDS: "The losses of several backwards add up to one mean loss before an update",
    RANKS: "The losses of all ranks of DistributedDataParallel add up to a mean loss for each",
    TOKENS: "The target of a loss that is made of tokens holds the next one at each position",
}
_CAUSES = {
    BACKWARDS: "The loss is not divided by the number of micro-batches: the gradient is as many "
    "times too large.",
    RANKS: "The loss is divided by what all ranks have together, and DistributedDataParallel "
    "divides the gradient by the number of ranks once more.",
    TOKENS: "The labels were shifted before, and the model shifts them again.",
}
_FIXES = {
    BACKWARDS: "Divide the loss by the number of batches for each optimizer step.",
    RANKS: "Multiply the loss by the number of ranks, or take the mean over each rank's own part.",
    TOKENS: "Give the model its inputs as labels, or leave one of the shifts out.",
}


class Loss(RelationBase):
    """What backward is given is one mean loss, of targets that are one token ahead.

    What it says:
        One of three, of any program. The losses of several backwards of one line of code, with a
        forward each, add up to one mean loss before an optimizer steps. Those of all ranks of
        DistributedDataParallel add up to one mean loss for each rank. The target of a loss over
        classes that is made of the tokens of its batch is one position ahead of them.

    Example:
        ``The losses of several backwards add up to one mean loss before an update.`` It breaks when
        the loss is not divided by the number of micro-batches.

    Evidence:
        One example for each update; for targets eight for each step, as many tokens are compared at
        least. A sum is taken as its mean over valid labels. A counterexample is the mistake and
        nothing else: as many mean losses as backwards, one among all ranks, tokens two ahead. What
        is weighted in another way says nothing.

    Chance:
        A coin for each example.

    Not said:
        How large a loss is, or what it is of. Anything of updates with several losses for one
        backward, with backwards of several lines (other losses), with zero_grad between them, or
        scaled for half precision; of ranks that exchange gradients in a way of their own.
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
        """A run that has what it speaks of always says so."""
        return {"api": f"loss of {claim.params['of']}"}

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        """A sum over micro-batches may be meant, with a learning rate that suits it."""
        kind = claim.params["of"]
        return CheckInfo(
            check_id=check_id,
            kind="invariant",
            code=self.name,
            severity="info" if kind == BACKWARDS else "warning",
            title=text,
            likely_cause=_CAUSES[kind],
            fix=_FIXES[kind],
        )


class LossProposer(ProposerBase):
    """Proposes what the run can tell of."""

    ignored_kinds = frozenset({"state"})

    def __init__(self) -> None:
        self._shares = Shares()
        self._told: set[str] = set()

    def observe(self, event: Event) -> None:
        self._told.update(share.kind for share in self._shares.observe(event))

    def hypotheses(self) -> Iterator[Hypothesis]:
        for kind in sorted(self._told):
            yield Hypothesis(relation="loss", params={"of": kind})


class LossDecider:
    """Decides when a step ends, on all ranks where it is of ranks."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._shares = Shares()
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

    def finish(self) -> Examples:
        """Nothing: an update that was not made proves nothing."""
        return ()


def _judged(share: Share) -> list[Example]:
    """The examples that a number gives; none where it is neither right nor the mistake."""
    if _is_near(share.value, 1.0):
        return [_HELD] * (_COMPARED if share.kind == TOKENS else 1)
    if share.kind == TOKENS:
        return [_negative(share)]
    mistake = share.parts if share.kind == BACKWARDS else 1 / share.parts
    return [_negative(share)] if _is_near(share.value, mistake) else []


def _is_near(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= _NEAR * wanted


def _negative(share: Share) -> Example:
    event, call = share.event, share.call
    expected, observed = {
        BACKWARDS: (
            f"the losses of {share.parts} backwards add up to one mean loss",
            f"they add up to {share.value:.4g}: the mean loss of each batch is given as it is",
        ),
        RANKS: (
            f"the losses of {share.parts} ranks add up to {share.parts} mean losses",
            f"they add up to {share.value * share.parts:.4g}: the gradient is {share.value:.4g} "
            "times that of the mean loss",
        ),
        TOKENS: (
            "labels that are the next tokens",
            f"labels that are {share.value:g} positions ahead of the tokens",
        ),
    }[share.kind]
    return Example(
        holds=False,
        context=_ALWAYS,
        step=event.step,
        rank=event.rank,
        stage=event.stage,
        subject=Subject(api=Families.BACKWARD if call is None else call.api),
        expected=expected,
        observed=observed,
        evidence=(call or event,),
        symptom=Symptom.WRONG_VALUE if call is None else Symptom.LOSS_INPUT,
        topic=Topic.MAGNITUDE if call is None else None,
    )
