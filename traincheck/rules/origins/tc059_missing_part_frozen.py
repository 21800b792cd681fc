"""A part that a partial load left out is used and frozen: it stays random."""

from __future__ import annotations

from traincheck.rules.base.rule import EventRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.loads import PartNotLoaded
from traincheck.schema.observations.reading import observed
from traincheck.schema.places import short
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined

_MOST_NAMES = 3
_MOST_MODULES = 65_536


class MissingPartFrozen(EventRule, code="TC059"):
    """missing-part-frozen: a part that a checkpoint does not have is used, and stays random.

    What it checks:
        A parameter that load_state_dict(strict=False) left out is loaded from elsewhere or trained,
        if its module is called in training.

    Why it matters:
        A renamed or missing layer keeps its random initial weights. Frozen layers are never
        trained, so its outputs are noise for ever.

    Fires on:
        - A load that set at least half of the parameters of a model and left out others. In two
          updates after it, these are not loaded, do not require grad, are in no optimizer, and
          their module is called.

    Stays quiet on:
        - Parts that are trained, e.g. a new head, or an adapter beside a frozen model.
        - Parts that another load sets, before or after.
        - Parts of models that a library has loaded (from_pretrained).
        - Parts that are never called.
        - Constant parts, e.g. zeros.

    Fix:
        Print the result of load_state_dict(): rename its missing_keys, or train the part.

    Source:
        https://pytorch.org/tutorials/beginner/saving_loading_models.html
    """

    title = "{subject} was left out by a load, is frozen, and stays random"
    likely_cause = (
        "The load brings no values for it, e.g. as its keys have other names and strict=False "
        "hides it (load_state_dict(){where}), and the part is frozen: {observed}."
    )
    fix = (
        "Print load_state_dict(...).missing_keys and rename the keys, or train the part: "
        "requires_grad_(True), and give it to the optimizer."
    )
    needs = needs_of(PartNotLoaded) | Needs(calls=frozenset({Families.MODULE}))
    _called: set[str] = fresh(set)
    _open: list[tuple[Event, PartNotLoaded]] = fresh(list)

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, CallEvent):
            if event.module is not None and len(self._called) < _MOST_MODULES:
                self._called.add(event.module)
            return []
        found = observed(event, PartNotLoaded)
        if found is not None:
            self.triggered += 1
            self._open.append((event, found))
        return []

    def finish(self) -> list[Violation]:
        found = []
        for event, part in self._open:
            names = [name for name in part.names if name.rpartition(".")[0] in self._called]
            if names:
                line = f" at {short(part.where)}" if part.where else ""
                told = joined(names, _MOST_NAMES)
                found += self.found(
                    event,
                    subject=Subject(module=names[0].rpartition(".")[0]),
                    symptom=Symptom.INITIALIZATION,
                    message=f"the load of {part.model}{line} sets {part.loaded} parameters and "
                    f"leaves out {told}, which are frozen with their initial values",
                    expected="parts that are loaded or trained",
                    observed=f"{part.parameters} parameters that no load has set and no optimizer "
                    f"trains ({told})",
                )
        return found
