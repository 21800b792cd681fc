"""The first update after a load takes the loaded weights back. Compares distances of samples."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from traincheck.rules.base.rule import EventRule
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.loads import FollowedValue, LoadFollowed
from traincheck.schema.observations.reading import observed
from traincheck.schema.places import short
from traincheck.schema.words import joined

_NEAR = 0.5  # of the way that the load went: how near to the values before it
_USUAL = 4.0  # by how much the first update must exceed the second one
_SHARE = 0.25  # of the changed parameters
_MOST_NAMES = 3


class LoadUndoneByUpdate(EventRule, code="TC050", severity="error"):
    """load-undone-by-update: the first update after a load restores the values from before it.

    What it checks:
        After load_state_dict(), the first update leaves each parameter nearer to the loaded value
        than to the value before the load.

    Why it matters:
        The program keeps another copy of the weights, made before the load, and writes it over the
        loaded ones. Training starts from random weights, and the checkpoint is lost without a
        message.

    Fires on:
        - float32 master weights that an optimizer copied before model.load_state_dict().
        - An average or a buffer of flat parameters that is copied into the model after each step
          and was made before the load.

    Stays quiet on:
        - Updates that start from the loaded values, whatever the learning rate.
        - Models that are written to again before they are trained, e.g. weights of an average that
          are loaded for evaluation and taken back.
        - Models that are loaded again before the second update, e.g. inner loops of meta-learning.
        - First updates that are no larger than the second one.
        - A load that changes nothing.

    Fix:
        Load the model before the optimizer or average copies its weights, or copy them again after
        the load.

    Source:
        https://github.com/NovaSky-AI/SkyRL/pull/2149, https://github.com/NVIDIA/apex/issues/706
    """

    title = "The first update after a load puts {subject} back to its values before the load"
    likely_cause = (
        "A copy of the weights that was made before load_state_dict(){where}, such as float32 "
        "master weights or an average, is written over the loaded ones: {observed}."
    )
    fix = (
        "Call load_state_dict() before the optimizer (or average) that copies the weights is "
        "created, or refresh its copies after the load: master.data.copy_(parameter)."
    )
    needs = needs_of(LoadFollowed)

    def judge(self, event: Event) -> list[Violation]:
        found = observed(event, LoadFollowed)
        if found is None or not found.values:
            return []
        self.triggered += 1
        undone = {name: value for name, value in found.values.items() if _is_undone(value)}
        if not undone or len(undone) < _SHARE * min(found.parameters, len(found.values)):
            return []
        names = joined(sorted(undone), _MOST_NAMES)
        jump = _total(value.jump for value in undone.values())
        back = _total(value.back for value in undone.values())
        moved = _total(value.moved for value in undone.values())
        later = _total(value.later for value in undone.values())
        line = f" at {short(found.where)}" if found.where else ""
        violation = self.violation(
            event,
            subject=Subject(module=found.model),
            symptom=Symptom.NOT_RESTORED,
            message=f"the first update after the load of {found.model}{line} moves {names} to the "
            "values from before the load",
            expected=f"weights near the loaded ones (the second update moves them by {later:.3g})",
            observed=f"the load moved {len(undone)} of {found.parameters} parameters by "
            f"{jump:.3g}; the first update moved them by {moved:.3g}, to a distance of {back:.3g} "
            "from their values before the load",
        )
        return [replace(violation, step=found.step)]


def _is_undone(value: FollowedValue) -> bool:
    """Whether an update that is larger than the next one leads back."""
    numbers = (value.jump, value.moved, value.back, value.later)
    if not all(map(math.isfinite, numbers)):
        return False
    return value.back < _NEAR * value.jump < value.moved and value.moved > _USUAL * value.later


def _total(norms: Iterable[float]) -> float:
    return math.sqrt(sum(norm * norm for norm in norms))
