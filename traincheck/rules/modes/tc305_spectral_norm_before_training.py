"""Spectral normalization is used before its vectors were computed."""

from __future__ import annotations

from traincheck.facts.step_facts import DISCOVERY, GRADIENTS, MODES, StepFacts
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Subject, Symptom, Violation


class SpectralNormBeforeTraining(StepRule, code="TC305"):
    """spectral-norm-before-training: a spectrally normalized layer is evaluated first.

    What it checks:
        Layers built by torch.nn.utils.spectral_norm run in training mode, or get a loaded state,
        before their first pass in evaluation mode.

    Why it matters:
        The vectors of the power iteration are random until a pass in training mode has run. Until
        then the weight is divided by a meaningless number, and outputs are ten times too large.

    Fires on:
        - A model with such a layer whose first forward pass is in evaluation mode.

    Stays quiet on:
        - Training first.
        - A state loaded before.
        - torch.nn.utils.parametrizations.spectral_norm, which does not have this fault.

    Fix:
        Use torch.nn.utils.parametrizations.spectral_norm, or run one pass in training mode first.

    Source:
        https://github.com/pytorch/pytorch/issues/51800
    """

    title = "Spectral normalization is used before its vectors are computed: {variables}"
    likely_cause = "The model is evaluated before its first pass in training mode: {observed}."
    fix = (
        "Use torch.nn.utils.parametrizations.spectral_norm, or run one pass in training mode "
        "before the first evaluation."
    )
    needs = (
        DISCOVERY
        | GRADIENTS
        | MODES
        | Needs(states=frozenset({"buffer@new"}), kinds=frozenset({"checkpoint"}))
    )

    def __init__(self) -> None:
        super().__init__()
        self._trained: set[str] = set()
        self._early: dict[
            str, Violation
        ] = {}  # models evaluated first whose layers are unknown yet

    def judge(self, facts: StepFacts) -> list[Violation]:
        if facts.is_gap:
            self._trained |= {name.partition(".")[0] for name in self.ledger.buffers}
        for forward in facts.forwards:
            root = forward.path.partition(".")[0]
            if forward.is_training:
                self._trained.add(root)
            elif root not in self._trained and root not in self.ledger.loaded:
                self._early.setdefault(
                    root,
                    self.proof(
                        facts,
                        subject=Subject(module=forward.path),
                        symptom=Symptom.WRONG_ORDER,
                        message="",
                        expected="a pass in training mode first",
                        observed=f"the first pass of {forward.path} is in evaluation mode",
                        evidence=(forward.call,),
                    ),
                )
        self.triggered += bool(self._trained)
        return [v for root in sorted(self._early) for v in self._layers(root)]

    def _layers(self, root: str) -> list[Violation]:
        found: list[Violation] = []
        for buffer in sorted(self.ledger.buffers):
            layer, _, kind = buffer.rpartition(".")
            if kind != "weight_u" or not buffer.startswith(f"{root}.") or buffer in self.reported:
                continue
            if not any(f"{layer}.weight_orig" in p.names for p in self.ledger.parameters.values()):
                continue
            self.reported.add(buffer)
            early = self._early[root]
            found.append(
                Violation(
                    check_id=early.check_id,
                    step=early.step,
                    rank=early.rank,
                    stage="eval",
                    subject=Subject(variable=buffer, module=layer),
                    symptom=early.symptom,
                    message=f"{early.observed}, with random values in {buffer}",
                    expected=early.expected,
                    observed=early.observed,
                    evidence=early.evidence,
                )
            )
        return found
