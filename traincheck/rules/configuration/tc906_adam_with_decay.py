"""Adam with coupled weight decay."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.rules.base.model_rule import about
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, OptimizerEvent
from traincheck.schema.findings import Violation

_ADAM = "torch.optim.adam.Adam"


class AdamWithDecay(BuiltInRule, code="TC906", severity="info"):
    """adam-with-decay: Adam uses weight decay that is not decoupled.

    What it checks:
        Adam has no weight_decay that it adds to the gradient.

    Why it matters:
        The decay passes through Adam's scaling, so weights with large gradients hardly decay. AdamW
        decays all weights alike.

    Fires on:
        - Adam(parameters, weight_decay=0.01).

    Stays quiet on:
        - AdamW.
        - Adam with decoupled_weight_decay=True.
        - A decay of zero.
        - Other optimizers.

    Fix:
        Use torch.optim.AdamW.

    Source:
        https://arxiv.org/abs/1711.05101
    """

    title = "Adam uses coupled weight decay"
    likely_cause = "The decay may have been written for AdamW or SGD."
    fix = "Use torch.optim.AdamW, and tune the decay again."
    needs = Needs(kinds=frozenset({"optimizer"}))

    def __init__(self) -> None:
        super().__init__()
        self._reported: set[str] = set()

    def observe(self, event: Event) -> Sequence[Violation]:
        if not isinstance(event, OptimizerEvent) or event.cls != _ADAM:
            return ()
        made = event.where or event.id  # one line may create many, e.g. for one model after another
        if made in self._reported:
            return ()
        self.triggered += 1
        coupled = [
            group.hyper["weight_decay"]
            for group in event.groups
            if group.hyper.get("weight_decay") and not group.hyper.get("decoupled_weight_decay")
        ]
        if not coupled:
            return ()
        self._reported |= {made, event.id}
        return [
            about(
                self.info,
                event,
                [event.id],
                expected="decay that is not scaled by Adam",
                observed=f"weight_decay={coupled[0]} is added to the gradient",
            )
        ]
