"""Frozen parameters and statistics that change, and adapters that are frozen."""

from __future__ import annotations

import re

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, MODES, StepFacts
from traincheck.rules.base.rule import Streak, extend, fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Subject, Symptom, Violation

_CONFIRMED = 2


class FrozenParameterUpdated(StepRule, code="TC107", severity="error"):
    """frozen-parameter-updated: a frozen parameter changes at every optimizer step.

    What it checks:
        After its requires_grad is switched off, a parameter no longer changes in the steps of the
        optimizer that holds it.

    Why it matters:
        The optimizer does not check requires_grad. As long as the parameter has a gradient, even
        one of zeros, momentum and weight decay keep moving it.

    Fires on:
        - Two steps in a row that change a parameter which was frozen during the run, is still held
          by the optimizer and still has a gradient.

    Stays quiet on:
        - Parameters whose gradient is None.
        - Parameters that were frozen from the start and are written by other code (momentum
          encoders, averaged weights).
        - Weights clipped or normalized by hand.
        - Parameters that no stepping optimizer holds.
        - Parameters that are frozen only during the step of another optimizer, e.g. a discriminator
          while the generator learns.

    Fix:
        Set the gradient of the frozen parameters to None (zero_grad(set_to_none=True)), or rebuild
        the optimizer from the parameters that are still trained.

    Source:
        https://discuss.pytorch.org/t/parameters-with-requires-grad-false-are-updated-during-training/90096
    """

    title = "The optimizer still updates frozen parameters: {variables}"
    likely_cause = (
        "requires_grad was set to False, but {variables} still {has a gradient|have gradients} "
        "and the optimizer{where} still holds {it|them}: {observed}."
    )
    fix = (
        "Call zero_grad(set_to_none=True) after freezing, or rebuild the optimizer from the "
        "parameters that are to be trained."
    )
    needs = DISCOVERY | GRADIENTS | Needs(states=frozenset({"parameter@step"}))
    _trained: set[int] = fresh(set)
    _streak: dict[int, Streak] = fresh(dict)

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._streak.clear()
            return []
        books = self.ledger.parameters
        streaks: dict[int, Streak] = {}
        found: list[Violation] = []
        for moment in facts.updates():
            present = moment.present & books.keys()
            self._trained |= {i for i in present if books[i].requires_grad}
            frozen = {i for i in present & self._trained if not books[i].requires_grad}
            self.triggered += bool(frozen)
            # A parameter frozen only for another optimizer's update is not frozen at its own
            moved = (frozen & facts.changed) - facts.flipped
            for identity in sorted(moved, key=self.ledger.name):
                # Once in a step, however many optimizers update it
                streak = streaks.get(identity) or extend(self._streak, identity, facts.event.step)
                streaks[identity] = streak
                if streak.count >= _CONFIRMED:
                    step = streak.at(_CONFIRMED, facts.event.step)
                    name = self.ledger.name(identity)
                    label = self.ledger.holders[str(moment.call.owner)].label
                    found += self.proven(
                        facts,
                        step=step,
                        subject=Subject(variable=name),
                        symptom=Symptom.SILENT_WRITE,
                        message=f"the step of {label} changes {name}, frozen earlier "
                        "(requires_grad=False)",
                        expected="a frozen parameter stays unchanged",
                        observed=f"{label} moves it by momentum, weight decay or an old gradient",
                        evidence=(moment.call,),
                    )
        if facts.updates():
            self._streak = streaks
        return found


_ADAPTER = re.compile(r"\.(?:lora_(?:embedding_)?[AB]|lora_magnitude_vector|ia3_l)(?:\.|\Z)")


class AdapterFrozen(StepRule, code="TC108"):
    """adapter-frozen: adapters were loaded for inference and are not trained.

    What it checks:
        If a model with adapters (LoRA, IA3) is trained, at least one adapter requires grad.

    Why it matters:
        Only the head learns, or only parameters that were left unfrozen by accident. The loss falls
        a little, and the saved adapter is the one that was loaded.

    Fires on:
        - Two steps in a row that train a model with adapter parameters (recognized by name), all of
          which have requires_grad=False.

    Stays quiet on:
        - A model with a frozen adapter beside a trained one.
        - Models without adapters.
        - Runs that do not train the model with the adapters.

    Fix:
        Load the adapter with is_trainable=True, or set requires_grad=True for its parameters.

    Source:
        https://github.com/huggingface/peft/issues/282, https://github.com/huggingface/peft/issues/1410
    """

    title = "All adapters are frozen while the model is trained"
    likely_cause = (
        "The adapter may have been loaded for inference: {variables} do not require grad."
    )
    fix = "Load the adapter with is_trainable=True, or set requires_grad=True for its parameters."
    needs = DISCOVERY | GRADIENTS
    _streak: dict[str, Streak] = fresh(dict)

    def judge(self, facts: StepFacts) -> list[Violation]:
        applied = frozenset[int]().union(*(moment.applied for moment in facts.updates()))
        if not facts.is_complete or not applied:
            return []
        books = self.ledger.parameters
        roots = {books[i].root for i in applied & books.keys()}
        found: list[Violation] = []
        for root in sorted(roots):
            adapters = [p for p in books.values() if p.root == root and _ADAPTER.search(p.name)]
            self.triggered += bool(adapters)
            if not adapters or any(p.requires_grad for p in adapters):
                self._streak.pop(root, None)
                continue
            streak = extend(self._streak, root, facts.event.step)
            if streak.count == _CONFIRMED:
                found += [
                    self.proof(
                        facts,
                        step=streak.first,
                        subject=Subject(variable=name),
                        symptom=Symptom.FROZEN,
                        message=f"{root} is trained, but its adapters do not require grad: {name}",
                        expected="an adapter that requires grad",
                        observed="requires_grad is False for every adapter",
                        evidence=[moment.call for moment in facts.updates()[:1]],
                    )
                    for name in sorted(p.name for p in adapters)
                ]
        return found


_SOON = 16  # a parameter counts as trained for this many steps after an update


class FrozenNormStatistics(StepRule, code="TC109", severity="info"):
    """frozen-norm-statistics: a frozen batch normalization is in training mode.

    What it checks:
        Batch normalization whose weight is frozen runs in evaluation mode in training passes.

    Why it matters:
        requires_grad=False does not freeze running statistics. The frozen features drift with the
        batches, and evaluation differs from training. Often this does no harm, so it is only
        advice.

    Fires on:
        - Two training steps in a row with batch normalization in training mode whose weight does
          not require grad.

    Stays quiet on:
        - Frozen batch normalization in evaluation mode.
        - Trained batch normalization, also while the other network of a GAN is trained.
        - Averages of the trained weights that are written by hand, e.g. the momentum encoder of
          MoCo or the target network of BYOL.
        - Normalization without weights.

    Fix:
        Call eval() on the frozen part after model.train().

    Source:
        https://discuss.pytorch.org/t/freeze-batchnorm-layer-lead-to-nan/8385
    """

    title = "Frozen batch normalization keeps updating its statistics"
    likely_cause = "{observed}: requires_grad=False does not freeze running statistics."
    fix = "Call eval() on the frozen part after every model.train()."
    needs = DISCOVERY | GRADIENTS | MODES | Needs(states=frozenset({"parameter@step"}))
    _streak: dict[str, Streak] = fresh(dict)
    _moved: dict[int, int] = fresh(dict)  # parameter -> step
    _steps = 0

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete or not facts.updates():
            return []
        self._steps += 1
        applied = (moment.applied for moment in facts.updates())
        self._moved.update(dict.fromkeys(facts.changed.union(*applied), self._steps))
        frozen = {
            name
            for identity, parameter in self.ledger.parameters.items()
            if not parameter.requires_grad
            and self._steps - self._moved.get(identity, -_SOON) >= _SOON
            for name in parameter.names
        }
        found: list[Violation] = []
        streaks: dict[str, Streak] = {}
        for forward in facts.forwards:
            if not forward.call.grad_enabled:
                continue
            for path, call in forward.norms.items():
                self.triggered += 1
                if f"{path}.weight" not in frozen or call.args.get("training") is not True:
                    continue
                streak = streaks.get(path) or extend(self._streak, path, facts.event.step)
                streaks[path] = streak
                if streak.count == _CONFIRMED:
                    buffer = f"{path}.running_mean"
                    found += self.proven(
                        facts,
                        step=streak.first,
                        subject=Subject(variable=buffer, module=path),
                        symptom=Symptom.SILENT_WRITE,
                        message=f"the weight of {path} is frozen, but its statistics change: "
                        f"{buffer}",
                        expected="frozen batch normalization in evaluation mode",
                        observed="batch normalization with a frozen weight is in training mode",
                        evidence=(call,),
                    )
        self._streak = streaks
        return found
