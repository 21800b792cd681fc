"""TC116: a whole model gets gradients that no optimizer uses and nobody clears."""

from __future__ import annotations

from collections import defaultdict

from traincheck.rules._ledger import (
    DISCOVERY,
    GRADIENTS,
    StepFacts,
    StepMonitor,
    proof,
)
from traincheck.rules._streak import Streak
from traincheck.schema.apis import Families
from traincheck.schema.claims import Needs
from traincheck.schema.findings import CheckInfo, Subject, Symptom, Violation
from traincheck.schema.words import joined

_IN_A_ROW = 8


class ModelInNoOptimizer:
    """TC116 model-in-no-optimizer: a model beside the trained one gets gradients for nothing.

    What it checks:
        All of a model in training mode gets gradients in each step only if an optimizer holds some
        of it, or if somebody clears them.

    Why it matters:
        A loss with weights of its own (the classes of ArcFace, weights of several tasks, a
        likelihood) learns nothing when the optimizer was built from the parameters of the network
        alone. Of a model that is not to be trained, gradients cost time and memory.

    Fires on:
        Eight steps in a row in which every parameter of an outermost module that was called got a
        gradient, none is held by any optimizer, and none was cleared.

    Stays quiet on:
        Models in evaluation mode; frozen models; models whose gradients are cleared, as those of a
        GAN or of an attack; a part of a model, which is TC101's.

    Fix:
        Give its parameters to the optimizer, too; or call requires_grad_(False).

    Source:
        https://kevinmusgrave.github.io/pytorch-metric-learning/losses/#arcfaceloss
    """

    info = CheckInfo(
        check_id="TC116",
        kind="rule",
        code="TC116",
        severity="info",
        title="No optimizer holds any of {subject}, which gets gradients in each step",
        likely_cause="The optimizer was built from the parameters of another module alone.",
        fix="Give its parameters to the optimizer, too; or call requires_grad_(False) on it.",
    )
    needs = DISCOVERY | GRADIENTS | Needs(calls=frozenset({Families.MODULE}))

    def monitor(self) -> Unheld:
        return Unheld()


class Unheld(StepMonitor):
    """Counts the steps in a row in which all of a model got gradients for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._streaks: dict[str, Streak] = {}

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_whole or self.ledger.has_gap:
            self._streaks.clear()
            return []
        if not facts.updates():
            return []
        called = {forward.path for forward in facts.forwards if forward.is_training}
        held = self.ledger.held()
        cleared = frozenset[int]().union(*(moment.cleared for moment in facts.moments))
        owned: dict[str, set[int]] = defaultdict(set)
        for identity, parameter in self.ledger.parameters.items():
            owned[parameter.root].add(identity)
        streaks = {}
        for root in sorted(called & owned.keys()):
            self.triggered += 1
            if owned[root] <= facts.reached and owned[root].isdisjoint(held):
                known = self._streaks.get(root)
                if known is None or not owned[root].isdisjoint(cleared):
                    known = Streak(facts.event.step)  # the first gradients count as cleared, too
                known.count += 1
                streaks[root] = known
        self._streaks = streaks
        return [
            self._violation(root, streak, facts)
            for root, streak in streaks.items()
            if streak.count == _IN_A_ROW
        ]

    def _violation(self, root: str, streak: Streak, facts: StepFacts) -> Violation:
        calls = [forward.call for forward in facts.forwards if forward.path == root]
        names = [p.name for p in self.ledger.parameters.values() if p.root == root]
        held = ", ".join(holder.label for holder in self.ledger.holders.values())
        return proof(
            ("TC116", Symptom.ADVICE),
            facts,
            step=streak.first,
            subject=Subject(module=root),
            message=f"{root} gets gradients ({joined(names)}), and no optimizer holds any of it",
            expected=f"an optimizer holds {root}, or it gets no gradients",
            observed=f"gradients of {joined(names)}; the optimizers are {held}",
            evidence=(calls[0], facts.updates()[0].call),
        )
