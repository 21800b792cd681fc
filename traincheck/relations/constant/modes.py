"""Training and evaluation modes of modules."""

from __future__ import annotations

from traincheck.facts.steps import is_judged
from traincheck.relations.constant.setting import EVALUATED, MODES, Key, Setting
from traincheck.schema.events import (
    CallEvent,
    StepEvent,
)
from traincheck.schema.findings import Subject
from traincheck.schema.torch_api import Families
from traincheck.schema.values import tensor_summary


class Modes:
    """Whether each module is in training mode while the model around it trains."""

    def __init__(self) -> None:
        self._inside: list[CallEvent] = []  # of a root module that has not ended yet
        self._has_trained = False

    def inner(self, event: CallEvent) -> None:
        """A module was called within another one; it is reported when the root module ends."""
        result = tensor_summary(event.result)
        is_frozen = result is not None and not result.requires_grad  # a frozen module may evaluate
        if event.grad_enabled and event.module is not None and not is_frozen:
            self._inside.append(event)

    def root(self, event: CallEvent) -> Setting | None:
        """The root module ended."""
        inside, self._inside = self._inside, []
        if not event.grad_enabled and event.training is not None:
            if event.training and not self._has_trained:
                return None  # perhaps a test of shapes, not an evaluation
            name = event.module or event.api
            subject = Subject(module=event.module, api=Families.EVAL)
            return Setting(Key(EVALUATED, name), {name: event.training}, event, subject)
        if not event.training or not inside:
            return None
        values = {call.module or "": call.training for call in inside}
        return Setting(Key(MODES), values, event)

    def step(self, event: StepEvent) -> None:
        """No module call reaches over the end of a step."""
        self._inside.clear()
        self._has_trained |= is_judged(event)
