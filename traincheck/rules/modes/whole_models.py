"""Models that are trained in evaluation mode, or evaluated in training mode."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, MODES, Forward, StepFacts
from traincheck.rules.base.model_rule import MODELS
from traincheck.rules.base.rule import Streak, extend, fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined

_CONFIRMED = 2
_EARLIER = (
    "Evaluation mode was set by a call that is not recorded, such as eval() before the recording "
    "began, and train() is not called before {subject} is trained{where}: {observed}."
)


class TrainedInEvalMode(StepRule, code="TC301", severity="error"):
    """trained-in-eval-mode: forward passes that train a model run in evaluation mode.

    What it checks:
        Forward passes whose gradients an optimizer step applies run in training mode. This is
        checked if the trained part of the model holds dropout, stochastic depth (DropPath) or batch
        normalization.

    Why it matters:
        Dropout is off, and batch normalization uses its running statistics without updating them.
        The loss may even look better than before, while the model overfits.

    Fires on:
        - Two steps in a row trained only in evaluation mode, by a model that was trained in
          training mode before: eval() for validation, without train() after it.
        - Two such steps by a model that was never in training mode and has dropout in its trained
          part, or batch normalization there that never saw a batch.
        - Two steps in evaluation mode on batches of another loader, after which training continues
          as before: an evaluation loop that also updates.

    Stays quiet on:
        - A frozen part in evaluation mode.
        - Evaluation mode for adversarial examples beside a pass in training mode.
        - A model without dropout and batch normalization, on its training data.
        - A pretrained model without dropout whose batch norms have statistics, in evaluation mode
          from the first step on.
        - A discriminator that another optimizer trains.

    Fix:
        Call model.train() after every evaluation, not only at the start of the epoch.

    Source:
        https://github.com/wkentaro/pytorch-fcn/issues/57, https://github.com/huggingface/trl/issues/1066
    """

    title = "{subject} is trained in evaluation mode"
    likely_cause = (
        "eval(){where} was called on {subject}, and train() is not called before training "
        "continues: {observed}."
    )
    fix = "Call train() on {subject} after evaluation, before the next training step."
    needs = DISCOVERY | GRADIENTS | MODES | MODELS | Needs(kinds=frozenset({"batch", "checkpoint"}))
    # By model that was in training mode: the loaders that fed it then
    _was_training: dict[str, set[str]] = fresh(dict)
    _others: dict[str, list[Violation]] = fresh(dict)  # updates on other loaders since then
    _streaks: dict[str, Streak] = fresh(dict)
    _eval: dict[str, CallEvent] = fresh(dict)  # the last eval() by model

    def judge(self, facts: StepFacts) -> list[Violation]:
        for moment in facts.moments:
            if moment.family == Families.EVAL and moment.call.module is not None:
                self._eval[moment.call.module] = moment.call
        if not facts.is_complete:
            self._streaks.clear()
            self._others.clear()
            return []
        applied = facts.applied
        if not applied:
            return []
        names = {
            name
            for identity in applied & self.ledger.parameters.keys()
            for name in self.ledger.parameters[identity].names
        }
        passes: dict[str, list[Forward]] = {}
        for forward in facts.forwards:
            if forward.call.grad_enabled and any(map(forward.covers, names)):
                passes.setdefault(forward.path, []).append(forward)
        violations: list[Violation] = []
        for path, found in passes.items():
            self.triggered += 1
            loaders = set[str]().union(*(forward.loaders for forward in found))
            known = self._was_training.get(path, set())
            if any(forward.is_training for forward in found):
                others = self._others.pop(path, [])
                goes_on = not loaders.isdisjoint(known)
                self._was_training[path] = known | loaders
                self._streaks.pop(path, None)
                violations += others if goes_on and len(others) >= _CONFIRMED else []
                continue
            # Layers that behave differently in evaluation mode although they should not.
            modal = self.ledger.modal.affected(
                path,
                names,
                {p for forward in found for p in forward.idle},
                {p for forward in found for p in forward.norms},
                was_training=path in self._was_training,
                is_loaded=path.partition(".")[0] in self.ledger.loaded,
            )
            affected = sorted(modal)
            if not affected:
                if known and loaders and loaders.isdisjoint(known):
                    violation = self._violation(
                        path, affected, facts.event.step, found[0].call, facts
                    )
                    where = (
                        f"on {joined(sorted(loaders))}, while {joined(sorted(known))} feeds it in "
                        "training mode"
                    )
                    other = replace(
                        violation,
                        observed=f"updates in evaluation mode {where}",
                        likely_cause=f"The evaluation loop{{where}} calls backward() and step(): "
                        f"{where}.",
                        fix="Remove backward() and step() from the evaluation, and run it under "
                        "torch.no_grad().",
                    )
                    self._others.setdefault(path, []).append(other)
                continue
            streak = extend(self._streaks, path, facts.event.step)
            if streak.count < _CONFIRMED:
                continue
            step = streak.at(_CONFIRMED, facts.event.step)
            violations.append(self._violation(path, affected, step, found[0].call, facts))
        return violations

    def _violation(
        self, path: str, affected: list[str], step: int | None, call: CallEvent, facts: StepFacts
    ) -> Violation:
        since = "" if path in self._was_training else "; it was never in training mode"
        last = self._eval.get(path) or self._eval.get(path.partition(".")[0])
        violation = self.proof(
            facts,
            step=step,
            subject=Subject(module=path),
            symptom=Symptom.EVAL_MODE,
            message=f"{path} is in evaluation mode in the forward passes that train it{since}",
            expected=f"{path} in training mode",
            observed=f"trained layers that behave as in evaluation: {joined(affected)}{since}",
            evidence=(*([last] if last is not None else []), call),
        )
        # Without the call of eval(), the line is that of the forward pass.
        return violation if last is not None else replace(violation, likely_cause=_EARLIER)


class EvaluatedInTrainingMode(StepRule, code="TC302"):
    """evaluated-in-training-mode: evaluation runs with dropout and batch statistics on.

    What it checks:
        Forward passes without gradients over the batches of a DataLoader that is never trained on
        run in evaluation mode.

    Why it matters:
        Dropout makes the metric random and worse. Batch normalization makes it depend on the other
        samples in the batch, and learns from the validation data.

    Fires on:
        - A run that passes the batches of such a loader, once each, through a model that it trains,
          in training mode with dropout or batch normalization active. The model is never evaluated
          in evaluation mode. It is reported after the third such round, or when the run ends.

    Stays quiet on:
        - model.eval().
        - Passes without gradients over the training loader (a generator's samples, pseudo labels,
          batch statistics for averaged weights).
        - Several passes of one batch (Monte Carlo dropout).
        - Models without dropout and batch normalization.
        - Batches that come from no DataLoader.

    Fix:
        Call model.eval() before evaluation and model.train() after it.

    Options:
        - batches: number of evaluated batches that prove the fault.
        - rounds: number of evaluations after which it is reported while the run goes on.

    Source:
        https://discuss.pytorch.org/t/model-eval-vs-with-torch-no-grad/19615
    """

    title = "{subject} is evaluated in training mode"
    likely_cause = "eval() is not called on {subject} before evaluation: {observed}."
    fix = "Call eval() on {subject} before evaluation, and train() after it."
    needs = (
        DISCOVERY
        | GRADIENTS
        | MODES
        | Needs(states=frozenset({"parameter@step"}), kinds=frozenset({"batch"}))
    )
    batches: int = 2
    rounds: int = 3
    _trained_on: set[str] = fresh(set)  # loaders trained on
    _evaluated: set[str] = fresh(set)  # models evaluated in evaluation mode
    _suspects: dict[str, _Suspect] = fresh(dict)
    _updated: set[str] = fresh(set)

    def judge(self, facts: StepFacts) -> list[Violation]:
        for forward in facts.forwards:
            if forward.call.grad_enabled:
                if forward.loaders - self._trained_on:
                    # Whether the module has parameters. A transform has none. It may run for the
                    # first sample of a loader while the last batch came from another one.
                    books = self.ledger.parameters.values()
                    if any(forward.covers(name) for parameter in books for name in parameter.names):
                        self._trained_on |= forward.loaders
            elif not forward.is_training:
                self.triggered += 1
                self._evaluated.add(forward.path)
        if not facts.is_complete:
            return []
        for moment in facts.updates():
            for identity in moment.applied & self.ledger.parameters.keys():
                self._updated |= self.ledger.parameters[identity].names
        for forward in facts.forwards:
            if not forward.call.grad_enabled and forward.is_training and forward.loaders:
                self._suspect(forward, facts)
        return self._sure(self.rounds)

    def finish(self) -> list[Violation]:
        """Report after fewer rounds: no evaluation in evaluation mode can follow."""
        return self._sure(1)

    def _sure(self, rounds: int) -> list[Violation]:
        found = []
        for path, suspect in self._suspects.items():
            if (
                not suspect.is_reported
                and path not in self._evaluated
                and suspect.loaders.isdisjoint(self._trained_on)
                and suspect.batches >= self.batches
                and suspect.rounds >= rounds
            ):
                suspect.is_reported = True
                found.append(suspect.first)
        return found

    def _suspect(self, forward: Forward, facts: StepFacts) -> None:
        active = forward.active
        if (
            not active
            or forward.fresh != forward.count
            or not any(map(forward.covers, self._updated))
        ):
            return
        self.triggered += 1
        path = forward.path
        suspect = self._suspects.get(path)
        if suspect is None:
            where = joined(sorted(forward.loaders))
            suspect = self._suspects[path] = _Suspect(
                self.proof(
                    facts,
                    subject=Subject(module=path),
                    symptom=Symptom.TRAINING_MODE,
                    message=f"{path} is evaluated without gradients, but in training mode",
                    expected=f"{path} in evaluation mode over the batches of {where}",
                    observed=f"layers that behave as in training: {joined(active)}",
                    evidence=(forward.call,),
                )
            )
        suspect.loaders |= forward.loaders
        suspect.batches += forward.count
        suspect.rounds += 1


@dataclass(slots=True)
class _Suspect:
    """A model in training mode without gradients.

    Attributes:
        rounds: number of steps that such passes followed.
    """

    first: Violation
    loaders: set[str] = field(default_factory=set)
    batches: int = 0
    rounds: int = 0
    is_reported: bool = False
