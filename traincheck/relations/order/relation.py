"""The relation *order*: after A, B comes before the next C, among the landmarks of a loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from traincheck.facts.landmarks import OWNED, key_of, landmark_of
from traincheck.facts.programs import ProgramName
from traincheck.facts.step_changes import ADDED
from traincheck.relations.awaited_changes import GRADIENTS, ClearedByHand
from traincheck.relations.base import ProposerBase, RelationBase
from traincheck.relations.loop import (
    BESIDE,
    HABITS,
    PRIVATE,
    TRIPLES,
    Partners,
    Wait,
    Watch,
    triple_of,
)
from traincheck.relations.order.buffer_order import FILLS, FillDecider, FillProposer, is_of_fills
from traincheck.relations.phrasing import in_program, selector_text, short
from traincheck.schema.claims import Context, Hypothesis, Needs
from traincheck.schema.events import CallEvent, Event, OptimizerEvent, StepEvent
from traincheck.schema.findings import CheckInfo, Example, Subject, Topic
from traincheck.schema.torch_api import Families

_F = Families


class Order(RelationBase):
    """After A, B comes before the next C.

    What it says:
        A, B and C are landmarks of a training loop: zero_grad, the forward of the model, backward,
        unscale_, clipping, the steps of optimizer, scaler and scheduler, train and eval. A may
        equal C: between two of them there is a B. Claims about two calls of optimizers are kept
        for each optimizer by itself. Or: what buffers hold is computed by a pass in training mode
        before another pass uses it.

    Example:
        ``After Optimizer.step, zero_grad comes before the next backward.`` It breaks when zero_grad
        is missing, in the step whose backward adds to gradients that were used before.

    Evidence:
        One example for the first C after each A. The first C of a run has no A before it and is
        no example, so that it does not matter whether a loop clears gradients at its head or its
        end. What is still awaited when the run ends is not judged. Nothing is known across steps
        that were not recorded. Context: stage. Of buffers, one example for each pass of a model
        that has them; what is loaded need not be computed.

    Chance:
        A coin for each example.

    Not said:
        How often anything is called. That evaluation, a schedule, or accumulation takes place.
        With several optimizers, that each loss is of a new forward. Anything of gradients that are
        cleared before a step applies them.
        ``train`` after ``eval`` is asked for only where the same module was in training mode
        before, and is given when its mode was set in another way. That a program clips gradients,
        and what it says of buffers, is kept to scripts of the same name. Nothing of BatchNorm: its
        statistics begin where they change nothing.
    """

    name = "order"

    def proposer(self) -> OrderProposer:
        return OrderProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> OrderDecider:
        return OrderDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        if is_of_fills(claim):
            return FILLS
        calls = set(triple_of(claim))
        calls.update(also for call, also in BESIDE.items() if call in triple_of(claim))
        states = GRADIENTS.states if claim.params["needs"] == _F.ZERO_GRAD else frozenset()
        kinds = {"step", "mark"} if "program" in claim.params else {"step"}
        if calls & OWNED:
            kinds.add("optimizer")
        return Needs(calls=frozenset(calls), states=states, kinds=frozenset(kinds))

    def text(self, claim: Hypothesis) -> str:
        if is_of_fills(claim):
            said = f"Every {selector_text(claim.params)} is computed by a pass in training mode"
            return in_program(claim.params, f"{said} before another pass uses it")
        after, needed, before = triple_of(claim)
        text = f"After {short(after)}, {short(needed)} comes before the next {short(before)}"
        if after == before:
            text = f"Between two calls of {short(after)} there is {short(needed)}"
        return in_program(claim.params, text)

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """Gradients that are added to nothing, or cleared by hand, need no zero_grad."""
        is_added = claim.params.get("needs") == _F.ZERO_GRAD
        return {**claim.params, "api": ADDED} if is_added else claim.params

    def min_programs(self, claim: Hypothesis) -> int | None:
        """Some programs compute gradients that no optimizer is to apply."""
        return None if is_of_fills(claim) or triple_of(claim) in HABITS else 1

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        """A model may be evaluated early to see what it does untrained."""
        found = super().info(claim, check_id, text)
        return replace(found, severity="warning") if is_of_fills(claim) else found


class OrderProposer(ProposerBase):
    """Proposes every triple whose A, B and C all occur, and buffers that never were used early."""

    def __init__(self) -> None:
        self._program = ProgramName()
        self._seen: set[str] = set()
        self._fills = FillProposer()

    def observe(self, event: Event) -> None:
        self._fills.observe(event)
        if isinstance(event, CallEvent):
            landmark = landmark_of(event)
            if landmark is not None:
                self._seen.add(landmark)
        else:
            self._program.observe(event)

    def hypotheses(self) -> Iterator[Hypothesis]:
        for after, needed, before in TRIPLES:
            if {after, needed, before} <= self._seen:
                params = {"after": after, "before": before, "needs": needed}
                if needed in PRIVATE and self._program.name is not None:
                    params["program"] = self._program.name
                yield Hypothesis(relation="order", params=params)
        if self._program.name is not None:
            for found in self._fills.params():
                params = {**found, "program": self._program.name}
                yield Hypothesis(relation="order", params=params)


class OrderDecider:
    """Decides all triples, each event once for each."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._program = ProgramName()
        self._params = [claim.params for claim in claims]
        self._fills = FillDecider(claims)
        self._watches = {
            index: Watch(*triple_of(claim))
            for index, claim in enumerate(claims)
            if index not in self._fills.claims
        }
        self._contexts: dict[str, Context] = {}
        self._held: dict[str, Example] = {}
        self._holding = Partners()
        self._partners = self._holding.of
        self._is_blind = False  # optimizers may have come that nobody saw
        self._open: list[tuple[int, Wait, CallEvent]] = []  # perhaps inside an optimizer step
        # Gradients that no step applies, of a saliency map say, may be added to anything
        self._unapplied: list[tuple[int, Wait, CallEvent]] = []
        self._by_hand = ClearedByHand([i for i, w in self._watches.items() if w.is_of_zero])

    def observe(self, event: Event) -> Sequence[tuple[int, Example]]:
        told = self._fills.observe(event) if self._fills.claims else ()
        found = self._by_hand.observe(event, self._loop(event))
        return [*found, *told] if told else found

    def _loop(self, event: Event) -> Sequence[tuple[int, Example]]:
        if isinstance(event, CallEvent):
            landmark = landmark_of(event)
            return () if landmark is None else self._call(event, landmark)
        if isinstance(event, OptimizerEvent):
            self._holding.hold(event)
        if isinstance(event, StepEvent):
            self._is_blind |= event.is_gap
            if not event.recorded:
                for watch in self._watches.values():
                    watch.forget()
                self._open.clear()
                self._unapplied.clear()
            return self._lacking(self._open)
        self._program.observe(event)
        return ()

    def finish(self) -> Sequence[tuple[int, Example]]:
        """Nothing: what is still awaited belongs to an unfinished step."""
        return ()

    def _lacking(self, kept: list[tuple[int, Wait, CallEvent]]) -> list[tuple[int, Example]]:
        lacking = [(index, self._example(index, wait, end)) for index, wait, end in kept]
        kept.clear()
        return lacking

    def _call(self, event: CallEvent, landmark: str) -> list[tuple[int, Example]]:
        examples: list[tuple[int, Example]] = []
        self._holding.call(event, landmark)
        if landmark in (_F.ZERO_GRAD, _F.OPTIMIZER_STEP):
            share = self._holding.share
            mine = [h for h in self._unapplied if share(h[1].event.owner, event.owner)]
            self._unapplied = [held for held in self._unapplied if held not in mine]
            examples = self._lacking(mine) if landmark == _F.OPTIMIZER_STEP else []
        for index, watch in self._watches.items():
            for wait, end in watch.observe(event, landmark, self._partners):
                if not self._program.fits(self._params[index]) or self._is_unknown(wait):
                    continue
                if watch.is_of_one_loss and len(set(self._partners.values())) > 1:
                    continue
                if wait.is_met or not (watch.is_step_due or watch.is_of_gradients):
                    examples.append((index, self._example(index, wait, end)))
                else:
                    kept = self._open if watch.is_step_due else self._unapplied
                    kept.append((index, wait, end))
        if landmark == _F.OPTIMIZER_STEP and self._open:
            # A closure may compute gradients many times in one step, which is told of when it ends.
            self._open = [h for h in self._open if h[1].event.start_ns < event.start_ns]
            self._holding.lose(self._open, event)
            examples += self._lacking(self._open)
        return examples

    def _is_unknown(self, wait: Wait) -> bool:
        """Whether it is not known with whom the owner of a call shares parameters."""
        owner = wait.event.owner
        return self._is_blind and owner is not None and owner not in self._partners

    def _example(self, index: int, wait: Wait, before: CallEvent) -> Example:
        watch = self._watches[index]
        stage = before.stage
        context = self._contexts.setdefault(stage, {"stage": stage})
        if wait.is_met:
            return self._held.setdefault(stage, Example(holds=True, context=context))
        # A missing optimizer step is missing in the step whose gradients it should have applied.
        where = f" ({before.where.rpartition('/')[2]})" if before.where else ""
        return Example(
            holds=False,
            context=context,
            step=wait.event.step if watch.is_step_due else before.step,
            rank=before.rank,
            stage=stage,
            subject=Subject(
                api=watch.needed,
                module=key_of(wait.event, _F.EVAL) if watch.after == _F.EVAL else None,
            ),
            expected=f"{short(watch.needed)} between {short(watch.after)} and the next "
            f"{short(watch.before)}",
            observed=f"{short(watch.before)}{where} came without it",
            evidence=(wait.event, before),
            symptom=wait.symptom or watch.symptom,
            topic=Topic.ORDER,
        )
