"""TC906: Adam whose weight decay is not decoupled."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.rules.base.model_rule import about
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, OptimizerEvent
from traincheck.schema.findings import CheckInfo, Violation

_ADAM = "torch.optim.adam.Adam"


class AdamWithDecay:
    """TC906 adam-with-decay: Adam whose weight decay is not decoupled.

    What it checks:
        Adam is not given a weight_decay that it adds to the gradient.

    Why it matters:
        The decay goes through Adam's scaling: weights with large gradients hardly decay. AdamW
        decays all alike.

    Fires on:
        Adam(parameters, weight_decay=0.01).

    Stays quiet on:
        AdamW; Adam with decoupled_weight_decay=True; a decay of zero; other optimizers.

    Fix:
        torch.optim.AdamW.

    Source:
        https://arxiv.org/abs/1711.05101
    """

    info = CheckInfo(
        check_id="TC906",
        kind="rule",
        code="TC906",
        severity="info",
        title="Adam is given weight decay",
        likely_cause="The decay was written for AdamW or SGD.",
        fix="Use torch.optim.AdamW, and tune the decay again.",
    )
    needs = Needs(kinds=frozenset({"optimizer"}))

    def monitor(self) -> CoupledDecay:
        return CoupledDecay(self.info)


class CoupledDecay:
    """Looks at the settings of each Adam."""

    def __init__(self, info: CheckInfo) -> None:
        self.triggered = 0
        self._info = info
        self._told: set[str] = set()

    def observe(self, event: Event) -> Sequence[Violation]:
        if not isinstance(event, OptimizerEvent) or event.cls != _ADAM:
            return ()
        made = event.where or event.id  # one line may make many: models that are trained in turn
        if made in self._told:
            return ()
        self.triggered += 1
        coupled = [
            group.hyper["weight_decay"]
            for group in event.groups
            if group.hyper.get("weight_decay") and not group.hyper.get("decoupled_weight_decay")
        ]
        if not coupled:
            return ()
        self._told |= {made, event.id}
        return [
            about(
                self._info,
                event,
                [event.id],
                expected="decay that is not scaled by Adam",
                observed=f"weight_decay={coupled[0]} is added to the gradient",
            )
        ]

    def finish(self) -> Sequence[Violation]:
        return ()
