"""Sets requires_grad on a module, which has no such switch."""

from __future__ import annotations

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Subject, Symptom, Violation


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

    def __init__(self) -> None:
        super().__init__()
        self._reported: set[str] = set()

    def judge(self, facts: StepFacts) -> list[Violation]:
        off = sorted(self.ledger.off - self._reported)
        if not off:
            return []
        self.triggered += 1
        found = []
        for moment in facts.updates():
            names = self.ledger.names(set(moment.applied))
            for module in off:
                below = [name for name in names if name.startswith(f"{module}.")]
                if below and module not in self._reported:
                    self._reported.add(module)
                    found.append(
                        proof(
                            (self.code, Symptom.UNFROZEN),
                            facts,
                            subject=Subject(module=module, variable=below[0]),
                            message=(
                                f"{module} has requires_grad = False, but its parameters are "
                                "trained"
                            ),
                            expected=f"frozen parameters of {module}",
                            observed=f"the optimizer applies gradients of {len(below)} of them",
                            evidence=(moment.call,),
                        )
                    )
        return found
