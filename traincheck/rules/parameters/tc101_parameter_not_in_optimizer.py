"""A parameter is trained but no optimizer holds it. Goes by identity, never by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traincheck.facts.manual_updates import ByHand
from traincheck.facts.optimizers import Holder
from traincheck.facts.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.step_rule import StepRule
from traincheck.rules.base.streak import Streak, extend
from traincheck.rules.parameters.wrong_model_optimizer import Misheld
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.words import joined

_THAWED = 20  # steps with a gradient, since it was unfrozen, of which none is one of its optimizer


class ParameterNotInOptimizer(StepRule, code="TC101", severity="error"):
    """parameter-not-in-optimizer: a parameter gets gradients but no optimizer holds it.

    What it checks:
        At the end of every step in which an optimizer stepped: each parameter that requires grad
        and got a gradient that is not zero is held by some optimizer, by identity and not by name.

    Why it matters:
        The parameter never changes. The loss often falls all the same, because the rest of the
        model makes up for it.

    Fires on:
        An optimizer that was given a part of a model; a layer, head or whole model that was
        replaced, re-created or wrapped after the optimizer was built; an optimizer that holds only
        frozen parameters; eight steps in a row of optimizers that find no gradient, while another
        model gets some: the next one is trained with the optimizer of the last; a model in training
        mode that no optimizer holds, beside one that finds no gradient in eight steps and holds
        parameters of the same shapes, as a copy has, or beside two that hold the same parameters
        and both get gradients of their own in eight steps: a generator whose optimizer was given
        the discriminator; a parameter that is unfrozen and gets gradients in twenty steps, while
        the only optimizer that holds it, that of an earlier phase, does not step.

    Stays quiet on:
        Frozen parameters and those without a gradient; a loss network that passes gradients on and
        is in no optimizer; the two optimizers of a GAN; two optimizers of one model that take turns
        or of which one wraps the other; tied weights; parameters that move between groups; an
        optimizer built during the first step; tensors that are optimized for themselves; parameters
        that the program updates by itself, which both of the next two steps show, or the last, if
        there is one only (a multiplier of Lagrange); training without any optimizer.

    Fix:
        Build the optimizer when the model is final, from all parameters that are to be trained; use
        add_param_group for those that come later; set requires_grad=False for those that are not to
        be trained.

    Source:
        https://discuss.pytorch.org/t/84911, https://github.com/microsoft/nni/issues/4521,
        https://github.com/pytorch/pytorch/issues/14467
    """

    title = "No optimizer holds {variables}"
    likely_cause = (
        "The optimizer{where} was not built from the parameters being trained: {observed}."
    )
    fix = (
        "Build the optimizer when the model is final, from all parameters that are to be "
        "trained (here also {variables}), or set requires_grad=False for them."
    )
    needs = DISCOVERY | GRADIENTS | Needs(states=frozenset({"parameter@step"}))

    def __init__(self) -> None:
        super().__init__()
        self._misheld = Misheld()
        self._by_hand = ByHand[int, Violation]()
        self._thawed: dict[int, Streak] = {}  # unfrozen, and no optimizer has stepped yet

    def judge(self, facts: StepFacts) -> list[Violation]:
        ledger = self.ledger
        self._by_hand.note(facts.changed)
        if not facts.is_complete or ledger.has_gap:
            self._misheld.clear()
            self._thawed.clear()
            return []
        self._note_thawed(facts)
        owners = {moment.call.owner for moment in facts.updates()}
        stepped = [holder for key, holder in ledger.holders.items() if key in owners]
        self._misheld.follow(stepped, facts)
        if not stepped:
            return []
        self.triggered += 1
        held = ledger.held()
        late = self._late(stepped, facts)
        orphans = [i for i in facts.reached - held if self._is_trained(i)]
        roots = {ledger.parameters[i].root for i in held if i in ledger.parameters}
        astray = self._astray(stepped)
        found: list[tuple[int, Violation]] = []
        for root in sorted({ledger.parameters[i].root for i in orphans}):
            blamed = astray
            if not blamed and root in roots:
                blamed = stepped
            elif not blamed:
                blamed = self._misheld.instead_of(root, stepped, facts, ledger)
            if blamed:
                ours = [i for i in orphans if ledger.parameters[i].root == root]
                found += self._all_of(ours, facts, blamed)
        return late + self._by_hand.settle(found)

    def finish(self) -> list[Violation]:
        return self._by_hand.finish()

    def _all_of(
        self, orphans: Sequence[int], facts: StepFacts, blamed: Sequence[Holder]
    ) -> list[tuple[int, Violation]]:
        observed = "; ".join(self._describe(holder) for holder in blamed)
        since = self._misheld.since(blamed)
        step = facts.event.step if since is None else since
        return [
            (identity, self._violation(identity, facts, blamed, observed, step))
            for identity in sorted(orphans, key=self.ledger.name)
        ]

    def _note_thawed(self, facts: StepFacts) -> None:
        for identity in facts.flipped:
            self._thawed.pop(identity, None)
            if self._is_trained(identity):
                self._thawed[identity] = Streak(facts.event.step)

    def _late(self, stepped: Sequence[Holder], facts: StepFacts) -> list[Violation]:
        """What was unfrozen for an optimizer that has had its time."""
        found = []
        for identity in sorted(self._thawed):
            if any(identity in holder.names for holder in stepped):
                del self._thawed[identity]
            elif identity in facts.reached:
                streak = extend(self._thawed, identity, facts.event.step)
                if streak.count >= _THAWED:
                    observed = "; ".join(self._describe(holder) for holder in stepped)
                    told = self._violation(identity, facts, stepped, observed, streak.first)
                    cause = (
                        f"{told.subject.variable} was unfrozen, but no optimizer that steps since "
                        "then holds it: {observed}."
                    )
                    found.append(replace(told, likely_cause=cause))
        return found

    def _is_trained(self, identity: int) -> bool:
        parameter = self.ledger.parameters.get(identity)
        return parameter is not None and parameter.requires_grad

    def _astray(self, stepped: Sequence[Holder]) -> list[Holder]:
        """Optimizers whose parameters are not the ones being trained."""
        ledger = self.ledger
        idle = [
            holder
            for holder in stepped
            if holder.names
            and (ledger.ever_reached.isdisjoint(holder.names) or self._misheld.is_dry(holder))
            and not any(i not in ledger.parameters and holder.is_unowned(i) for i in holder.names)
        ]
        if len(idle) == len(stepped):
            return idle
        return [holder for holder in idle if holder.ids.isdisjoint(ledger.parameters)]

    def _violation(
        self,
        identity: int,
        facts: StepFacts,
        blamed: Sequence[Holder],
        observed: str,
        step: int | None,
    ) -> Violation:
        name = self.ledger.name(identity)
        evidence: list[Event] = [holder.made for holder in blamed]
        if identity in facts.gradients:
            evidence.append(facts.gradients[identity])
        evidence += [moment.call for moment in facts.updates()[:1]]
        event = facts.event
        cause = fix = ""
        if name in self.ledger.replaced:
            cause = (
                f"While training, another object was put under {name}, as by nn.Parameter(...) in "
                "forward() or by a new layer: the optimizer holds the former one."
            )
            fix = (
                f"Make {name} once, in __init__(), and only use it in forward(); give the "
                "optimizer what is replaced on purpose (add_param_group)."
            )
        return Violation(
            check_id=self.code,
            step=step,
            rank=event.rank,
            stage="train",
            subject=Subject(variable=name),
            symptom=Symptom.NOT_IN_OPTIMIZER,
            message=f"no optimizer holds {name}, although a gradient arrives there; {observed}",
            expected="an optimizer holds every parameter that gets a gradient",
            observed=observed,
            evidence=tuple(evidence),
            likely_cause=cause,
            fix=fix,
        )

    def _describe(self, holder: Holder) -> str:
        """What an optimizer holds instead."""
        parameters = self.ledger.parameters
        alive = sorted(parameters[i].name for i in holder.names if i in parameters)
        lost = sorted(name for i, name in holder.names.items() if i not in parameters)
        parts = []
        if alive:
            parts.append(f"{joined(alive)}{self._frozen(holder, len(alive))}")
        if lost:
            parts.append(f"{joined(lost)} of a model or layer that is not the one being trained")
        return f"{holder.label} holds {' and '.join(parts)}"

    def _frozen(self, holder: Holder, alive: int) -> str:
        """Which of the parameters that an optimizer holds are frozen, behind their names."""
        known = (self.ledger.parameters.get(i) for i in holder.names)
        frozen = sorted(p.name for p in known if p is not None and not p.requires_grad)
        if len(frozen) == alive > 0:
            return ", which are frozen" if alive > 1 else ", which is frozen"
        return f" (frozen: {joined(frozen)})" if frozen else ""
