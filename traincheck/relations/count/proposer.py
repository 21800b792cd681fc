"""Propose how often each call happens in every window of a program."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from traincheck.facts.landmarks import scheduler_class
from traincheck.facts.programs import ProgramName
from traincheck.relations.base import ProposerBase
from traincheck.relations.count.bounds import CallCounts, bound
from traincheck.relations.count.keys import (
    BACKWARD,
    COLLECTIVE,
    LANDMARKS,
    MARKERS,
    Key,
    takes_part,
)
from traincheck.relations.count.windows import CallWindow, CallWindows
from traincheck.relations.phrasing import STEP, is_library
from traincheck.schema.claims import Hypothesis
from traincheck.schema.events import CallEvent, CollectiveEvent, Event, StepEvent
from traincheck.schema.torch_api import LOSS_MODULES, Families

_MIN_STEPS = 2
# A module that is called so often for each backward is called in a loop. Its length may be that of
# the longest sample of a batch, so an exact number needs more windows.
_LOOP = 4
_LOOP_STEPS = 300
LATER = "updates after the first"


def word(api: str, owner: str) -> str:
    """The term for a call of an optimizer or scheduler."""
    return f"count {api} {owner}"


class CountProposer(ProposerBase):
    """Proposes one count for each key that has one."""

    ignored_kinds = frozenset({"state"})

    def __init__(self) -> None:
        self._program = ProgramName()
        self._windows = CallWindows()
        self._open: dict[int, set[str]] = defaultdict(set)  # parent -> what it calls
        self._own: set[str] = set()  # called by the program itself
        self._modules: dict[str, set[str]] = defaultdict(set)  # whose forward an API was
        self._seen: dict[Key, CallCounts] = defaultdict(CallCounts)
        # Classes of outermost modules: those that a gradient flows through, and others, which may
        # run for each sample of a batch
        self._models: set[str] = set()
        self._transforms: set[str] = set()
        self._later = 0
        self._calls: Counter[str] = Counter()  # of each module, since the last window
        self._schedulers: dict[str | None, set[str]] = defaultdict(set)  # optimizer -> classes
        self._loop = 0  # how often, for each backward, one was called at the most

    def observe(self, event: Event) -> None:
        if isinstance(event, CallEvent):
            inside = self._open.pop(event.span, ())
            is_loss = event.api.startswith(LOSS_MODULES)
            if event.family == Families.MODULE and (is_loss or not is_library(event.api)):
                self._own.update(inside)
            if event.parent is None:
                self._own.add(event.api)
            else:
                self._open[event.parent].add(event.api)
            if event.family == Families.SCHEDULER_STEP:
                self._schedulers[event.owner].add(scheduler_class(event))
            key = self._windows.call(event)
            if key is not None and event.family == Families.MODULE:
                if event.parent is None:
                    (self._models if takes_part(event) else self._transforms).add(key[0])
                self._modules[key[0]].add(event.module or "")
                self._calls[event.module or ""] += 1
        elif isinstance(event, CollectiveEvent):
            self._windows.collective(event)
        elif isinstance(event, StepEvent):
            self._open.clear()
            window = self._windows.step(event)
            if window is not None and not window.is_free:
                self._enter(window)
            self._calls.clear()
        else:
            self._program.observe(event)

    def _enter(self, window: CallWindow) -> None:
        for key, count in window.counts.items():
            self._seen[key].enter(count, window)
        self._later += not window.first
        most = max(self._calls.values(), default=0)
        self._loop = max(self._loop, most // max(window.backwards, 1))

    def hypotheses(self) -> Iterator[Hypothesis]:
        return self._claims(is_echo=False) if self._later >= _MIN_STEPS else iter(())

    def conditional_hypotheses(self) -> Iterator[Hypothesis]:
        """Claims that few updates support, and all claims without a limit to the backwards."""
        for claim in self._claims(is_echo=True):
            yield claim
            if "backwards" in claim.params:
                params = {key: v for key, v in claim.params.items() if key != "backwards"}
                yield Hypothesis(relation="count", params=params)

    def observed_terms(self) -> Iterator[str]:
        """Terms for the owners of calls, and for more than one update."""
        owned = self._seen.keys() - MARKERS
        yield from (word(api, owner) for api, owner in owned if owner is not None)
        if self._later:
            yield LATER

    def _claims(self, *, is_echo: bool) -> Iterator[Hypothesis]:
        if self._program.name is None:
            return
        for key, seen in sorted(
            self._seen.items(), key=lambda item: (item[0][0], item[0][1] or "")
        ):
            api, owner = key
            is_called = api in LANDMARKS or api in self._own or api.startswith(COLLECTIVE)
            # A loss is the same as a module and as a function: the function is counted.
            if key in MARKERS or not is_called or api.startswith(LOSS_MODULES):
                continue
            if api in self._transforms - self._models:
                continue
            found = bound(key, seen, self._backwards(), is_echo=is_echo)
            if found is not None and self._is_of_loop(key, found):
                found = {**found, "per": STEP, "form": "least", "times": 1}
            # There must be no step without any.
            if found is not None and sum(seen.later.values()) == self._later:
                params = {"api": api, "program": self._program.name, **found}
                if self._backwards() == 1 and api not in LANDMARKS:
                    params["backwards"] = 1  # what comes with each further one is not known
                if owner is not None:
                    params["owner"] = owner
                if api == Families.SCHEDULER_STEP:
                    params["schedulers"] = sorted(self._schedulers[owner])
                if len(self._modules.get(api, ())) == 1:
                    (params["module"],) = self._modules[api]
                yield Hypothesis(relation="count", params=params)

    def _is_of_loop(self, key: Key, found: Mapping[str, Any]) -> bool:
        is_inner = key[0] not in LANDMARKS and not key[0].startswith(COLLECTIVE)
        is_loop = self._loop >= _LOOP and self._later < _LOOP_STEPS
        return is_inner and is_loop and found["times"] >= self._loop

    def _backwards(self) -> int:
        """How many, at most, one optimizer applies; 0 where there are several optimizers."""
        optimizers = sum(api == Families.OPTIMIZER_STEP for api, _ in self._seen)
        return max(self._seen[BACKWARD].later, default=0) if optimizers == 1 else 0
