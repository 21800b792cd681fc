"""Parameters that no gradient reaches."""

from __future__ import annotations

from dataclasses import replace

from traincheck.readings.distributed.rank_steps import UNGRAPHED
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.rule import Streak, extend, fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.rules.shared.gradient_reach import LEAVES, Arrival, cut_off
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_CONFIRMED = 2
_ENOUGH = 20  # updates in which a model is called and gets no gradient at all
_LEFT_OUT = (
    "The output of the model of {variables} may be left out of the loss, or enter it as a plain "
    "number: by .item(), float(), detach() or .data."
)


class GradientCutOff(StepRule, code="TC105"):
    """gradient-cut-off: the first layers of a model are used but never get a gradient.

    What it checks:
        Parameters that are to be trained get a gradient if forward uses them before others that get
        one. To be trained means: they require grad, and the optimizer that steps holds them.

    Why it matters:
        Everything before the cut keeps its initial values. The rest learns on top of random
        features, so the loss falls all the same.

    Fires on:
        - Two steps in a row in which the modules called first in a forward pass have never had a
          gradient, while modules called later get one. Causes are detach(), a no_grad() block,
          .data, or a re-entrant checkpoint none of whose inputs requires grad.
        - A run that ends after twenty or more updates in which a whole model was called and none of
          its parameters ever had a gradient, although the optimizer holds them. Example: loss =
          main + extra.item().

    Stays quiet on:
        - Frozen parameters and parameters that no optimizer holds.
        - Layers that are not used, or used last and left out of the loss (a pooler, an auxiliary
          head).
        - Experts and layers that are skipped occasionally.
        - Parts that another optimizer trains.
        - Layers that run without a graph while the head begins to learn, if the run trains them
          before it ends. A live run reports them after 300 such steps.

    Fix:
        Remove the cut, with use_reentrant=False for checkpoints. Or set requires_grad=False for
        layers that are not to be trained.

    Source:
        https://github.com/huggingface/transformers/issues/26221, https://github.com/pytorch/pytorch/issues/60164
    """

    title = "No gradient reaches {variables}"
    likely_cause = (
        "The graph is cut between the loss and {variables}, e.g. by detach(), a no_grad() "
        "block, .data, or a re-entrant checkpoint whose inputs do not require grad "
        "({observed})."
    )
    fix = (
        "Remove the cut in the graph (for checkpoints: use_reentrant=False), or set "
        "requires_grad=False for parameters that are not to be trained."
    )
    needs = DISCOVERY | GRADIENTS | LEAVES
    _arrival = fresh(Arrival)
    _streak: dict[int, Streak] = fresh(dict)
    # By parameter: after so few steps, its layer may still be trained later
    _held: dict[int, Violation] = fresh(dict)
    _apart: dict[int, tuple[int, Violation]] = fresh(dict)  # of whole models: count, first

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._streak.clear()
            self._held.clear()
            self._apart.clear()
            return []
        if not facts.updates():
            self._arrival.missing(self.ledger, facts)
            return []
        missing = self._arrival.missing(self.ledger, facts)
        self.triggered += 1
        cut = cut_off(self.ledger, facts, missing) if missing else set()
        self._note_apart(missing - cut, facts)
        # Another model is trained now. The counts of a model that is gone cover its whole life.
        found = [v for i, v in self._held.items() if i not in self.ledger.parameters]
        held: dict[int, Violation] = {}
        streaks: dict[int, Streak] = {}
        for identity in sorted(cut, key=self.ledger.name):
            streak = streaks[identity] = extend(self._streak, identity, facts.event.step)
            call = facts.uses.get(self.ledger.name(identity).rpartition(".")[0])
            needed = _CONFIRMED if call is None or call.grad_enabled else UNGRAPHED
            if streak.count >= needed:
                step = streak.at(needed, facts.event.step)
                found.append(self._violation(identity, step, facts))
            elif streak.count >= _CONFIRMED:
                held[identity] = self._held.get(identity) or self._violation(
                    identity, streak.first, facts
                )
        self._streak, self._held = streaks, held
        return found

    def finish(self) -> list[Violation]:
        """Report what is left: the run ended before those layers could be trained."""
        apart = [first for count, first in self._apart.values() if count >= _ENOUGH]
        return [*self._held.values(), *apart]

    def _note_apart(self, missing: set[int], facts: StepFacts) -> None:
        """Count steps of models called in training none of whose parameters ever had a gradient."""
        self._apart = {i: noted for i, noted in self._apart.items() if i in missing}
        books = self.ledger.parameters
        reached = [books[i].name for i in facts.reached & books.keys()] if missing else []
        for forward in facts.forwards if reached else ():
            is_trained = forward.is_training and forward.call.grad_enabled
            if not is_trained or any(map(forward.covers, reached)):
                continue
            below = {
                i
                for i, parameter in books.items()
                if parameter.requires_grad and any(map(forward.covers, parameter.names))
            }
            for identity in sorted(below, key=self.ledger.name) if below <= missing else ():
                count, first = self._apart.get(identity) or (0, None)
                if first is None:
                    first = self._violation(identity, facts.event.step, facts)
                    first = replace(first, likely_cause=_LEFT_OUT)
                self._apart[identity] = count + 1, first

    def _violation(self, identity: int, step: int | None, facts: StepFacts) -> Violation:
        name = self.ledger.name(identity)
        call = facts.uses.get(name.rpartition(".")[0])
        backward = [m.call for m in facts.moments if m.family == Families.BACKWARD]
        evidence: list[Event] = [*backward[-1:], *([call] if call is not None else [])]
        return self.proof(
            facts,
            step=step,
            subject=Subject(variable=name),
            symptom=Symptom.NO_GRADIENT,
            message=f"no gradient reaches {name}, although forward uses it and the optimizer holds "
            "it",
            expected="a gradient, as in other layers",
            observed=(
                "it runs without recording the graph"
                if call is not None and not call.grad_enabled
                else "it runs with grad enabled, but its output is cut off from the loss"
            ),
            evidence=evidence,
        )


class UnusedParameter(StepRule, code="TC106", severity="info"):
    """unused-parameter: a parameter is to be trained but takes no part in the loss.

    What it checks:
        When the run ends, every parameter that requires grad and is held by a stepping optimizer
        has had a gradient, if its model was trained.

    Why it matters:
        A layer was defined but not used in forward, or left out of the loss. If this is on purpose,
        it costs memory, and DistributedDataParallel needs find_unused_parameters.

    Fires on:
        - Parameters without a single gradient in a run of several steps.

    Stays quiet on:
        - Frozen parameters.
        - Experts and layers that are used only occasionally.
        - Models that no step has trained.
        - Gradients that are cut off on their way (TC105).
        - Short runs.

    Fix:
        Use the layer in forward and in the loss, remove it, or set requires_grad=False.

    Options:
        - steps: number of updates that is enough for a report at the end of the run.
        - certain: number of updates after which it is reported while the run goes on.

    Source:
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """

    title = "No step brings a gradient to {variables}"
    likely_cause = (
        "The layer may not be used in forward, or its result is detached or not part of the loss."
    )
    fix = "Use the layer, remove it, or set requires_grad=False for its parameters."
    needs = DISCOVERY | GRADIENTS | LEAVES
    steps: int = 3
    certain: int = 200
    _arrival = fresh(Arrival)
    # Updates without a gradient, the first of them
    _seen: dict[int, tuple[int, StepEvent]] = fresh(dict)
    _cut: set[int] = fresh(set)

    def judge(self, facts: StepFacts) -> list[Violation]:
        if facts.is_gap:
            self._seen.clear()  # it may have had a gradient in the gap
            self._arrival.ever |= self.ledger.parameters.keys()
            return []
        missing = self._arrival.missing(self.ledger, facts)
        if not facts.is_complete or not facts.updates():
            return []
        self.triggered += 1
        self._seen = {i: seen for i, seen in self._seen.items() if i in missing}
        if not missing:
            return []
        self._cut |= cut_off(self.ledger, facts, missing)
        books = self.ledger.parameters
        roots = {books[i].root for i in facts.reached & books.keys()}
        for identity in missing:
            if books[identity].root in roots:
                count, first = self._seen.get(identity, (0, facts.event))
                self._seen[identity] = (count + 1, first)
        return self._sure(self.certain)

    def finish(self) -> list[Violation]:
        """Report after fewer updates: no gradient can follow."""
        return self._sure(self.steps)

    def _sure(self, steps: int) -> list[Violation]:
        sure = {
            identity: seen
            for identity, seen in self._seen.items()
            if seen[0] >= steps and identity not in self._cut and identity not in self.reported
        }
        self.reported |= sure.keys()
        found = []
        for identity in sorted(sure, key=self.ledger.name):
            count, event = sure[identity]
            name = self.ledger.name(identity)
            found += self.found(
                event,
                stage="train",
                subject=Subject(variable=name),
                symptom=Symptom.NO_GRADIENT,
                message=f"no gradient ever reaches {name}, although an optimizer holds it",
                expected="a gradient in some step",
                observed=f"none in {count} steps",
            )
        return found
