"""A hyper-parameter is written to a place that the optimizer does not read."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.rules.base.rule import BuiltInRule
from traincheck.rules.ledger.in_force_rule import line
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, OptimizerEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.loads import (
    ATTRIBUTE,
    DEFAULTS,
    OTHER_KEY,
    STATE_DICT,
    IneffectiveWrite,
)
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import Families

_PLACES = {
    STATE_DICT: "a copy of its groups that state_dict() returned",
    DEFAULTS: "optimizer.defaults, which only new groups read",
    ATTRIBUTE: "an attribute that it does not read",
    OTHER_KEY: "a key of its groups that it does not read",
}

# Names of hyper-parameters under which the program writes them
_NAMES = {
    "learning_rate": "lr", "lrate": "lr", "LR": "lr", "decay": "weight_decay",
    "weight_decay_rate": "weight_decay",
}  # fmt: skip


class SettingWrittenElsewhere(BuiltInRule, code="TC066"):
    """setting-written-elsewhere: a learning rate is set where the optimizer does not read it.

    What it checks:
        Hyper-parameters that the program writes reach the groups that the optimizer uses.

    Why it matters:
        The optimizer trains with the first rate to the end. The schedule has no effect, and a rate
        that is printed from the same place looks right.

    Fires on:
        - optimizer.state_dict()["param_groups"][0]["lr"] = lr, without a load.
        - optimizer.defaults["lr"] = lr.
        - optimizer.lr = lr.
        - group["learning_rate"] = lr.

    Stays quiet on:
        - State dicts that are changed to be loaded or saved.
        - Values that the groups have, too.
        - Attributes of optimizers that the program defines.

    Fix:
        Write to the groups in use: for group in optimizer.param_groups: group["lr"] = lr.

    Source:
        https://github.com/pytorch/examples/issues/64
    """

    title = "A hyper-parameter is set where the optimizer does not read it"
    likely_cause = (
        "The program writes to a copy of the groups, or to a place from which groups are only made."
    )
    fix = "Write to the groups in use: for group in optimizer.param_groups: {expected}."
    needs = Needs(
        calls=frozenset({Families.OPTIMIZER_STEP}), kinds=frozenset({"optimizer", "step"})
    ) | needs_of(IneffectiveWrite)

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[str, OptimizerEvent] = {}
        self._found: dict[tuple[str, str], Violation] = {}

    def observe(self, event: Event) -> Sequence[Violation]:
        if isinstance(event, OptimizerEvent):
            self._made.setdefault(event.id, event)
        elif isinstance(event, CallEvent):
            self.triggered += (event.family or event.api) == Families.OPTIMIZER_STEP
        found = observed(event, IneffectiveWrite)
        if found is None or found.place not in _PLACES:
            return ()
        key = found.owner, found.name
        if key in self._found:
            return ()
        made = self._made.get(found.owner)
        label = found.owner if made is None else f"{found.owner} ({made.cls.rpartition('.')[2]})"
        self._found[key] = violation = self._violation(event, found, label, made)
        return [violation]

    def _violation(
        self, event: Event, found: IneffectiveWrite, label: str, made: OptimizerEvent | None
    ) -> Violation:
        observed_text = (
            f"{found.name} of {label} is set to {found.written} in {_PLACES[found.place]}"
            f"{line(found.where)}, and stays {found.in_force}"
        )
        return self.violation(
            event,
            subject=Subject(api=Families.OPTIMIZER_STEP, variable=found.owner),
            symptom=Symptom.SCHEDULE,
            message=f"{found.name} of {label} is written where the optimizer does not read it",
            expected=f'group["{_NAMES.get(found.name, found.name)}"] = value',
            observed=observed_text,
            evidence=(event,) if made is None else (made, event),
        )
