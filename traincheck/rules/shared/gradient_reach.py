"""The trained parameters that never had a gradient, and whether the model is cut before them.

Shared by the rules about missing gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from traincheck.readings.step_facts import StepFacts
from traincheck.readings.training_state import TrainingState
from traincheck.schema import torch_api
from traincheck.schema.claims import Needs
from traincheck.schema.torch_api import Families

# For the order in which modules are used.
LEAVES = Needs(calls=frozenset({Families.MODULE}) | torch_api.LEAVES)


@dataclass(slots=True)
class Arrival:
    """Follows gradients over the steps of a run. ever: parameters that had one."""

    ever: set[int] = field(default_factory=set)

    def missing(self, ledger: TrainingState, facts: StepFacts) -> set[int]:
        """Parameters of the optimizers that stepped that need a gradient and never had one."""
        self.ever |= facts.gradients.keys()
        self.ever |= facts.reached
        for owner in _stepped_in_backward(facts):  # gradients cleared there are gone later
            holder = ledger.holders.get(owner or "")
            self.ever |= set() if holder is None else set(holder.ids)
        owners = {moment.call.owner for moment in facts.updates()}
        held = {i for key, h in ledger.holders.items() if key in owners for i in h.ids}
        waiting = {i: ledger.parameters[i] for i in held - self.ever if i in ledger.parameters}
        return {i for i, p in waiting.items() if p.requires_grad and p.shape and not p.is_empty}


def _stepped_in_backward(facts: StepFacts) -> set[str | None]:
    """Optimizers that step in gradient hooks, possibly on an autograd thread."""
    passes = [m.call for m in facts.moments if m.family == Families.BACKWARD]
    return {
        moment.call.owner
        for moment in facts.updates()
        for call in passes
        if call.start_ns < moment.call.start_ns and moment.call.time_ns < call.time_ns
    }


def cut_off(ledger: TrainingState, facts: StepFacts, missing: set[int]) -> set[int]:
    """Of ``missing``, those in modules that are used before every module with a gradient.

    Early modules of a forward pass feed later ones. If only the later part gets gradients, they
    are stopped in between. Modules at the end may simply not be part of the loss.
    """
    order = {
        path: number
        for number, path in enumerate(
            path for path, call in facts.uses.items() if call.stage == "train"
        )
    }
    cut: set[int] = set()
    for forward in facts.forwards:
        if not forward.call.grad_enabled:
            continue
        got, lost = [], {}
        for identity, parameter in ledger.parameters.items():
            for name in parameter.names:
                place = order.get(name.rpartition(".")[0])
                if place is None or not forward.covers(name):
                    continue
                if identity in facts.gradients:
                    got.append(place)
                elif identity in missing:
                    lost[identity] = place
        if got:
            cut |= {identity for identity, place in lost.items() if place < min(got)}
    return cut
