"""A parameter is trained, but no optimizer holds it. Compares by identity, never by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traincheck.readings.optimizers import ByHand, Holder
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.readings.training_state import TrainingState
from traincheck.rules.base.rule import Streak, extend, fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.rules.parameters.other_tensors import Misheld
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.places import short
from traincheck.schema.torch_api import INITIALIZERS
from traincheck.schema.words import joined


class Replaced:
    """Compares the parameters of optimizers with those of the same names in a model.

    Args:
        ledger: the present parameters and optimizers.
    """

    def __init__(self, ledger: TrainingState) -> None:
        self._ledger = ledger

    def title(self, orphans: Sequence[int], holders: Sequence[Holder]) -> str:
        """``Net.head was replaced at train.py:9, after the optimizer was built``.

        Empty unless one optimizer holds an old parameter for each name, and others of this model.
        """
        for holder in holders:
            old = {name for i, name in holder.names.items() if i not in self._ledger.parameters}
            is_part = not holder.ids.isdisjoint(self._ledger.parameters)
            if is_part and old.issuperset(map(self._ledger.name, orphans)):
                parts = sorted({self._ledger.name(one).rpartition(".")[0] for one in orphans})
                were = "was" if len(parts) == 1 else "were"
                calls = [self._ledger.born.get(one) for one in orphans]
                lines = {
                    short(one.where) for one in calls if one and one.time_ns > holder.made.time_ns
                }
                at = f" at {lines.pop()}" if len(lines) == 1 and "" not in lines else ""
                return f"{joined(parts)} {were} replaced{at}, after the optimizer was built"
        return ""


_THAWED = 20  # steps with a gradient since a parameter was unfrozen, none by its optimizer


class ParameterNotInOptimizer(StepRule, code="TC101", severity="error"):
    """parameter-not-in-optimizer: a parameter gets gradients but no optimizer holds it.

    What it checks:
        At the end of every step in which an optimizer stepped: some optimizer holds each parameter
        that requires grad and got a nonzero gradient. Parameters are compared by identity, not by
        name.

    Why it matters:
        The parameter never changes. The loss often falls all the same, because the rest of the
        model compensates for it.

    Fires on:
        - An optimizer that was given only a part of the model.
        - A layer, head or whole model that was replaced, re-created or wrapped after the optimizer
          was built.
        - An optimizer that holds only frozen parameters.
        - Optimizers that find no gradient in eight steps in a row while another model gets
          gradients, e.g. the next model is trained with the optimizer of the previous one.
        - A model in training mode that no optimizer holds, if some optimizer finds no gradient in
          eight steps and holds parameters of the same shapes, e.g. those of a copy.
        - A model in training mode that no optimizer holds, if two optimizers hold the same
          parameters and each gets new gradients in eight steps. Example: the generator's optimizer
          was given the discriminator.
        - A parameter that is unfrozen and gets gradients in twenty steps, if the only optimizer
          that holds it belongs to an earlier phase and does not step.

    Stays quiet on:
        - Frozen parameters and parameters without a gradient.
        - A loss network that passes gradients on and is in no optimizer.
        - The two optimizers of a GAN.
        - Two optimizers of one model that alternate, or one that wraps the other.
        - Tied weights.
        - Parameters that move between parameter groups.
        - An optimizer built during the first step.
        - Tensors that are optimized directly.
        - Parameters that the program updates itself, e.g. a Lagrange multiplier. Both of the next
          two steps must show the update, or the last step if only one follows.
        - Training without any optimizer.

    Fix:
        Build the optimizer when the model is final, from all parameters that are to be trained. Use
        add_param_group for parameters that are added later. Set requires_grad=False for parameters
        that are not to be trained.

    Source:
        https://discuss.pytorch.org/t/84911, https://github.com/microsoft/nni/issues/4521,
        https://github.com/pytorch/pytorch/issues/14467
    """

    title = "No optimizer holds {variables}"
    likely_cause = "The optimizer{where} was not built from all parameters that are trained."
    fix = (
        "Build the optimizer when the model is final, from all parameters that are to be "
        "trained. Set requires_grad=False for those that are not."
    )
    needs = DISCOVERY | GRADIENTS | Needs(states=frozenset({"parameter@step"}))
    # Initializations give the line that replaced a layer; the rule works without them.
    observes = StepRule.observes | Needs(calls=INITIALIZERS)
    _misheld = fresh(Misheld)
    _by_hand = fresh(ByHand[int, Violation])
    _thawed: dict[int, Streak] = fresh(dict)  # unfrozen; their optimizer has not stepped yet

    def judge(self, facts: StepFacts) -> list[Violation]:
        ledger = self.ledger
        self._by_hand.note(facts.changed)
        if not facts.is_complete or ledger.has_gap:
            self._misheld.clear()
            self._thawed.clear()
            return []
        for identity in facts.flipped:
            self._thawed.pop(identity, None)
            if self._is_trained(identity):
                self._thawed[identity] = Streak(facts.event.step)
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
        title, found = Replaced(self.ledger).title(orphans, blamed), []
        for identity in sorted(orphans, key=self.ledger.name):
            violation = self._violation(identity, facts, blamed, observed, step)
            if title and not violation.likely_cause:
                violation = replace(
                    violation, title=title, likely_cause="The optimizer{where} holds the old one."
                )
            found.append((identity, violation))
        return found

    def _late(self, stepped: Sequence[Holder], facts: StepFacts) -> list[Violation]:
        """Parameters that were unfrozen although their optimizer no longer steps."""
        found = []
        for identity in sorted(self._thawed):
            if any(identity in holder.names for holder in stepped):
                del self._thawed[identity]
            elif identity in facts.reached:
                streak = extend(self._thawed, identity, facts.event.step)
                if streak.count >= _THAWED:
                    observed = "; ".join(self._describe(holder) for holder in stepped)
                    violation = self._violation(identity, facts, stepped, observed, streak.first)
                    cause = (
                        f"{violation.subject.variable} was unfrozen, but no optimizer that has "
                        f"stepped since then holds it: {{observed}}."
                    )
                    found.append(replace(violation, likely_cause=cause))
        return found

    def _is_trained(self, identity: int) -> bool:
        parameter = self.ledger.parameters.get(identity)
        return parameter is not None and parameter.requires_grad

    def _astray(self, stepped: Sequence[Holder]) -> list[Holder]:
        """Optimizers that do not hold the parameters being trained."""
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
                f"{name} was replaced during training, e.g. by nn.Parameter(...) in forward() or "
                "by a new layer. The optimizer still holds the old one."
            )
            fix = (
                f"Create {name} once, in __init__(), and only use it in forward(). If it is "
                "replaced on purpose, give the new one to the optimizer (add_param_group)."
            )
        return self.violation(
            event,
            step=step,
            stage="train",
            subject=Subject(variable=name),
            symptom=Symptom.NOT_IN_OPTIMIZER,
            message=f"no optimizer holds {name}, although gradients arrive there; {observed}",
            expected="an optimizer holds every parameter that gets a gradient",
            observed=observed,
            evidence=tuple(evidence),
            likely_cause=cause,
            fix=fix,
        )

    def _describe(self, holder: Holder) -> str:
        """The parameters that an optimizer holds instead."""
        parameters = self.ledger.parameters
        alive = sorted(parameters[i].name for i in holder.names if i in parameters)
        lost = sorted(name for i, name in holder.names.items() if i not in parameters)
        parts = []
        if alive:
            parts.append(f"{joined(alive)}{self._frozen(holder, len(alive))}")
        if lost:
            parts.append(f"{joined(lost)} of a model or layer that is not being trained")
        return f"{holder.label} holds {' and '.join(parts)}"

    def _frozen(self, holder: Holder, alive: int) -> str:
        """A suffix that lists the frozen parameters among those that an optimizer holds."""
        known = (self.ledger.parameters.get(i) for i in holder.names)
        frozen = sorted(p.name for p in known if p is not None and not p.requires_grad)
        if len(frozen) == alive > 0:
            return ", which are frozen" if alive > 1 else ", which is frozen"
        return f" (frozen: {joined(frozen)})" if frozen else ""
