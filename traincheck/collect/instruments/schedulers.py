"""Learning-rate schedulers of every class that torch ships."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import lr_scheduler

from traincheck.collect.instruments._wrap import span_wrapper
from traincheck.collect.instruments.base import Instrument
from traincheck.collect.observers.hyperparameters import OverwrittenRateObserver
from traincheck.collect.tensors.reading import own
from traincheck.collect.tensors.summarize import dotted, number, summarize, summarize_named
from traincheck.collect.trace_writer.call_site import where
from traincheck.collect.trace_writer.emitter import Emitter, hidden
from traincheck.collect.tracking.optimizer_groups import owner_of
from traincheck.schema.torch_api import LAST_MILESTONE, SCHEDULE_LENGTHS, TRAINING_STEPS, Families

_PLAIN = frozenset({int, float})


class Schedulers(Instrument):
    """Wraps ``step`` in the class that defines it; the step of a constructor is not the user's."""

    name = "schedulers"

    def install(self) -> None:
        self._stepping: set[int] = set()
        self._rates = OverwrittenRateObserver(self.session)
        if self.wants_call(Families.SCHEDULER_CREATED):
            self.replace(lr_scheduler.LRScheduler, "__init__", self._wrap_init)
        for cls in list(vars(lr_scheduler).values()):
            if (
                isinstance(cls, type)
                and issubclass(cls, lr_scheduler.LRScheduler)
                and "step" in vars(cls)
            ):
                self.replace(cls, "step", self._wrap)

    def _wrap_init(self, original: Callable[..., None]) -> Callable[..., None]:
        """One record for each object: it shows a scheduler that is created and never stepped."""

        def describe(
            em: Emitter, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
        ) -> dict[str, Any]:
            last_epoch = kwargs.get("last_epoch", next(iter(args[2:]), -1))
            return {
                "api": f"{dotted(type(args[0]))}.__init__",
                "family": Families.SCHEDULER_CREATED,
                "owner": self._owner(args[0]),
                "args": {"last_epoch": summarize(last_epoch), **_lengths(own(args[0]))},
                "where": where(),
            }

        return span_wrapper(original, self.session, describe)

    def _owner(self, scheduler: Any) -> str | None:
        return owner_of(self.session.live.live_optimizers(), own(scheduler).get("optimizer"))

    def _wrap(self, original: Callable[..., None]) -> Callable[..., None]:
        rates = self._rates if self._rates.is_wanted else None
        recorded = span_wrapper(
            original,
            self.session,
            self._describe,
            before=None if rates is None else rates.before_step,
            after=None if rates is None else self._after,
        )
        stepping = self._stepping

        def step(scheduler: Any, /, *args: Any, **kwargs: Any) -> None:
            # Composed schedulers step their parts, subclasses their parent: one step of the user
            if stepping or sys._getframe(1).f_code.co_name == "_initial_step":
                original(scheduler, *args, **kwargs)
                return
            key = id(scheduler)
            try:
                stepping.add(key)
                recorded(scheduler, *args, **kwargs)
            finally:
                stepping.discard(key)

        return hidden(step)

    def _after(
        self, em: Emitter, span: int, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        self._rates.after_step(em, args[0])

    def _describe(
        self, em: Emitter, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> dict[str, Any]:
        scheduler = args[0]
        named = {str(i): summarize(value) for i, value in enumerate(args[1:])}
        return {
            "api": f"{dotted(type(scheduler))}.step",
            "family": Families.SCHEDULER_STEP,
            "owner": self._owner(scheduler),
            "args": {
                **named,
                **{k: summarize_named(k, v) for k, v in kwargs.items() if v is not None},
            },
            "where": where(),
        }


def _lengths(own: Mapping[str, Any]) -> dict[str, Any]:
    """The length of a schedule, under the names of its class.

    From its plain attributes only, which a subclass may have set to any value.
    """
    found = {name: number(own[name]) for name in SCHEDULE_LENGTHS if type(own.get(name)) in _PLAIN}
    milestones = own.get("milestones")
    if type(milestones) is Counter and milestones and all(type(m) is int for m in milestones):
        found[LAST_MILESTONE] = number(max(milestones))
    lambdas = own.get("lr_lambdas")
    for function in lambdas if type(lambdas) is list else ():
        if type(function) is functools.partial:  # the form of transformers
            steps = function.keywords.get(TRAINING_STEPS)
            found.update({TRAINING_STEPS: number(steps)} if type(steps) in _PLAIN else {})
    return found
