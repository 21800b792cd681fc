"""Dropout is active in a module that is in evaluation mode."""

from __future__ import annotations

from traincheck.readings.forwards import Forward
from traincheck.readings.step_facts import DISCOVERY, MODES, StepFacts
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation


class DropoutInEvaluation(StepRule, code="TC303"):
    """dropout-in-evaluation: functional dropout ignores the mode of its module.

    What it checks:
        Dropout functions, and the dropout of scaled_dot_product_attention, drop nothing while the
        calling module is in evaluation mode.

    Why it matters:
        Evaluation and inference are random: two identical calls differ, and metrics are worse than
        the model.

    Fires on:
        - F.dropout(x) without training=self.training, in a module in evaluation mode.
        - Attention in such a module that gets dropout_p in every mode.
        - nn.Dropout(p)(x) in forward() of such a module: a new layer each time, which eval() never
          reaches.

    Stays quiet on:
        - Dropout modules that are put back into training mode (Monte Carlo dropout).
        - A module without parameters that always drops and does nothing else.
        - A probability of zero.

    Fix:
        Pass training=self.training to F.dropout, and dropout_p=self.p if self.training else 0.0 to
        scaled_dot_product_attention. Create nn.Dropout in __init__, as a separate attribute.

    Source:
        https://github.com/pytorch/pytorch/issues/26338, https://github.com/huggingface/transformers/pull/33844
    """

    title = "Dropout is on in evaluation mode in {subject}"
    likely_cause = "The call does not follow the mode of the model: {observed}."
    fix = (
        "Pass training=self.training to F.dropout. Pass dropout_p=p if self.training else 0.0 to "
        "scaled_dot_product_attention. Create nn.Dropout in __init__, not in forward."
    )
    needs = DISCOVERY | MODES

    def __init__(self) -> None:
        super().__init__()
        self._reported: set[str] = set()

    def judge(self, facts: StepFacts) -> list[Violation]:
        found: list[Violation] = []
        for forward in facts.forwards:
            for path, call in forward.dropping.items():
                mode = call.training
                if (
                    mode is None or call.module is None
                ):  # not a part of the model: uses the model's mode
                    mode = forward.is_training
                if mode:
                    continue
                self.triggered += 1
                if path not in self._reported and self._has_parameters(path, forward):
                    self._reported.add(path)
                    found.append(self._violation(path, call, facts))
            self.triggered += bool(forward.idle) and not forward.is_training
        return found

    def _has_parameters(self, path: str, forward: Forward) -> bool:
        below = f"{path}."
        return path == forward.path or any(
            name.startswith(below)
            for parameter in self.ledger.parameters.values()
            for name in parameter.names
        )

    def _violation(self, path: str, call: CallEvent, facts: StepFacts) -> Violation:
        name = call.api.rpartition(".")[2]
        p = call.args.get("dropout_p", call.args.get("p"))
        # A module outside the model: its mode is known, but not its path
        is_unowned = call.module is None and call.training is True
        by = (
            ", in a layer that eval() does not reach because it is not a submodule of the model"
            * is_unowned
        )
        return proof(
            (self.code, Symptom.WRONG_VALUE),
            facts,
            subject=Subject(api=call.api, module=path),
            message=f"{path} is in evaluation mode and calls {name}() that drops with p={p}{by}",
            expected=f"{name}() drops nothing in evaluation mode",
            observed=f"{name}() drops with p={p}{by}",
            evidence=(call,),
        )
