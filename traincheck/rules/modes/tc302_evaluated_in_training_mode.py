"""A model is evaluated in training mode and never in evaluation mode."""

from __future__ import annotations

from dataclasses import dataclass, field

from traincheck.readings.forwards import Forward
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, MODES, StepFacts
from traincheck.rules.base.rule import fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.words import joined


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
