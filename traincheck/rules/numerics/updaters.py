"""The owners of updates in a step: optimizers, or the program itself."""

from __future__ import annotations

from collections import defaultdict

from traincheck.readings.optimizers import Holder
from traincheck.readings.step_facts import StepFacts
from traincheck.readings.training_state import TrainingState
from traincheck.schema.events import OptimizerEvent


def updaters(ledger: TrainingState, facts: StepFacts) -> list[Holder]:
    """The optimizers that stepped, and a holder for each model that the program updates itself."""
    owners = dict.fromkeys(str(moment.call.owner) for moment in facts.updates())
    found = [ledger.holders[owner] for owner in owners if owner in ledger.holders]
    models: dict[str, dict[int, str]] = defaultdict(dict)
    for identity in sorted(facts.by_hand & ledger.parameters.keys()):
        parameter = ledger.parameters[identity]
        models[parameter.root][identity] = parameter.name
    return found + [_program(model, names, facts) for model, names in sorted(models.items())]


def _program(model: str, names: dict[int, str], facts: StepFacts) -> Holder:
    made = OptimizerEvent(*facts.event.header, id="the program", cls=model)
    return Holder(
        event=made, made=made, ids=frozenset(names), names=names, groups=dict.fromkeys(names, 0)
    )
