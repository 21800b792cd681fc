"""Models that are trained and should not be, or are not and should."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import ClassVar

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.rule import Streak, fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.rules.parameters.other_tensors import are_masters
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined

UNHELD: Needs = (
    DISCOVERY
    | GRADIENTS
    | Needs(calls=frozenset({Families.MODULE}), kinds=frozenset({"checkpoint"}))
)

_MASTERS = (
    "{label} holds copies of {root}, e.g. float32 masters, and nothing clears the gradients of "
    "{root} itself: each backward() adds to the previous gradients."
)
_CLEAR = "Call zero_grad() of {root} once in every iteration, before backward()."


class UnoptimizedModelRule(StepRule):
    """Counts the steps in a row in which all parameters of a model get unused gradients.

    Attributes:
        symptom: the symptom of a violation.
        is_loaded: whether the rule covers models whose weights may have been loaded, or the others.
        steps: steps in a row that are required for a violation.
    """

    symptom: ClassVar[Symptom]
    is_loaded: ClassVar[bool]
    steps: ClassVar[int]
    needs = UNHELD
    _streaks: dict[str, Streak] = fresh(dict)

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete or self.ledger.has_gap:
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
                    known = Streak(facts.event.step)  # the first gradients also count as cleared
                known.count += 1
                streaks[root] = known
        self._streaks = streaks
        return [
            self._violation(root, streak, facts)
            for root, streak in streaks.items()
            if streak.count == self.steps
            and (self.ledger.has_read or root in self.ledger.loaded) is self.is_loaded
        ]

    def _violation(self, root: str, streak: Streak, facts: StepFacts) -> Violation:
        calls = [forward.call for forward in facts.forwards if forward.path == root]
        names = [p.name for p in self.ledger.parameters.values() if p.root == root]
        held = ", ".join(holder.label for holder in self.ledger.holders.values())
        found = self.proof(
            facts,
            step=streak.first,
            subject=Subject(module=root),
            symptom=self.symptom,
            message=f"{root} gets gradients ({joined(names)}), but no optimizer holds any of it",
            expected=f"an optimizer holds {root}, or it gets no gradients",
            observed=f"gradients of {joined(names)}; the optimizers are {held}",
            evidence=(calls[0], facts.updates()[0].call),
        )
        # Optimizers that had gradients to apply
        owners = {moment.call.owner for moment in facts.updates() if moment.applied}
        holders = [holder for owner, holder in self.ledger.holders.items() if owner in owners]
        fed = (h.label for h in holders if are_masters(self.ledger, h, root))
        masters = next(fed, None)
        if masters is None:
            return found
        cause, fix = (text.format(root=root, label=masters) for text in (_MASTERS, _CLEAR))
        return replace(found, likely_cause=cause, fix=fix)


class FreezeWithoutEffect(StepRule, code="TC115"):
    """freeze-without-effect: requires_grad = False on a module does not freeze its parameters.

    What it checks:
        If a module has the attribute requires_grad = False, no parameter below it gets a gradient
        that its optimizer applies.

    Why it matters:
        ``model.backbone.requires_grad = False`` only adds an attribute to the module. Its
        parameters are trained as before, and the pretrained weights are lost.

    Fires on:
        - The first step that updates parameters of such a module.

    Stays quiet on:
        - ``requires_grad_(False)``.
        - Modules whose parameters are really frozen, or that no optimizer holds.

    Fix:
        Call model.backbone.requires_grad_(False) before the optimizer is built.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.requires_grad_
    """

    title = "{subject} was meant to be frozen but is trained"
    likely_cause = (
        "requires_grad = False was set on {subject}, which is a module. This freezes nothing."
    )
    fix = (
        "Call {subject}.requires_grad_(False), with the underscore, before the optimizer is built."
    )
    needs = DISCOVERY | GRADIENTS | Needs(kinds=frozenset({"mark"}))

    def judge(self, facts: StepFacts) -> list[Violation]:
        off = sorted(self.ledger.off - self.reported)
        if not off:
            return []
        self.triggered += 1
        found = []
        for moment in facts.updates():
            names = self.ledger.names(set(moment.applied))
            for module in off:
                below = [name for name in names if name.startswith(f"{module}.")]
                if below and module not in self.reported:
                    self.reported.add(module)
                    found += self.proven(
                        facts,
                        subject=Subject(module=module, variable=below[0]),
                        symptom=Symptom.UNFROZEN,
                        message=f"{module} has requires_grad = False, but its parameters are "
                        "trained",
                        expected=f"frozen parameters of {module}",
                        observed=f"the optimizer applies gradients of {len(below)} of them",
                        evidence=(moment.call,),
                    )
        return found


class LoadedModelNotFrozen(
    UnoptimizedModelRule, code="TC116", severity="info", aliases=("model-in-no-optimizer",)
):
    """loaded-model-not-frozen: a model beside the trained one gets unused gradients.

    What it checks:
        A model in training mode gets gradients for all its parameters in each step only if an
        optimizer holds some of them, or if the program clears them.

    Why it matters:
        For a model that is not to be trained, e.g. a feature extractor, gradients waste time and
        memory. A model that is to be fine-tuned learns nothing.

    Fires on:
        - Eight steps in a row in which every parameter of a called outermost module got a gradient,
          no optimizer holds any of them, and none was cleared. The program loads the weights of
          this model, or any file.

    Stays quiet on:
        - Models in evaluation mode.
        - Frozen models.
        - Models whose gradients are cleared, e.g. in a GAN or an attack.
        - A part of a model (TC101).
        - Newly initialized models (TC117).

    Fix:
        Give its parameters to the optimizer, too. Or call requires_grad_(False).

    Source:
        https://kevinmusgrave.github.io/pytorch-metric-learning/losses/#arcfaceloss
    """

    title = "Loaded model {subject} gets gradients, and no optimizer holds any of it"
    likely_cause = "{subject} was loaded and not frozen: {observed}."
    fix = (
        "Call {subject}.requires_grad_(False) if it is not to be trained. Otherwise give its "
        "parameters to the optimizer."
    )
    symptom = Symptom.ADVICE
    is_loaded = True
    steps = 8


class ModelNotInOptimizer(UnoptimizedModelRule, code="TC117", aliases=("left-out-of-optimizers",)):
    """model-not-in-optimizer: a new model gets gradients, and no optimizer holds it.

    What it checks:
        A model in training mode whose weights were not loaded gets gradients for all its parameters
        in each step only if an optimizer holds some of them, or if the program clears them.

    Why it matters:
        A loss with weights (the classes of ArcFace, weights of several tasks, a likelihood) or a
        second critic learns nothing if the optimizer was built only from the parameters of another
        network. It keeps its random weights, and the loss falls.

    Fires on:
        - Sixteen steps in a row in which every parameter of a called outermost module got a
          gradient, no optimizer holds any of them, and none was cleared. The program has loaded
          neither this model nor any file.

    Stays quiet on:
        - Models in evaluation mode.
        - Frozen models.
        - Models whose gradients are cleared, e.g. in a GAN or an attack.
        - A part of a model (TC101).
        - Loaded models (TC116).

    Fix:
        Give its parameters to the optimizer, too. Or call requires_grad_(False).

    Source:
        https://kevinmusgrave.github.io/pytorch-metric-learning/losses/#arcfaceloss
    """

    title = "No optimizer holds any of {subject}, which gets gradients in each step"
    likely_cause = "The optimizer was built without the parameters of {subject}: {observed}."
    fix = (
        "Give the parameters of {subject} to the optimizer as well, or call "
        "{subject}.requires_grad_(False)."
    )
    symptom = Symptom.NOT_IN_OPTIMIZER
    is_loaded = False
    steps = 16
