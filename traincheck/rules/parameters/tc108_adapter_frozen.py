"""A model has adapters, and all of them are frozen while other parameters are trained."""

from __future__ import annotations

import re

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.schema.findings import Subject, Symptom, Violation

_ADAPTER = re.compile(r"\.(?:lora_(?:embedding_)?[AB]|lora_magnitude_vector|ia3_l)(?:\.|\Z)")
_CONFIRMED = 2


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

    def __init__(self) -> None:
        super().__init__()
        self._streak: dict[str, tuple[int, int | None]] = {}

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
            count, first = self._streak.get(root, (0, facts.event.step))
            self._streak[root] = (count + 1, first)
            if count + 1 == _CONFIRMED:
                names = sorted(p.name for p in adapters)
                found += [self._violation(name, root, first, facts) for name in names]
        return found

    def _violation(self, name: str, root: str, step: int | None, facts: StepFacts) -> Violation:
        return proof(
            (self.code, Symptom.FROZEN),
            facts,
            step=step,
            subject=Subject(variable=name),
            message=f"{root} is trained, but its adapters do not require grad: {name}",
            expected="an adapter that requires grad",
            observed="requires_grad is False for every adapter",
            evidence=[moment.call for moment in facts.updates()[:1]],
        )
