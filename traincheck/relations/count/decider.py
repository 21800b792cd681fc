"""Decide how often each call happens in every window of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traincheck.facts.awaited import ROUTED
from traincheck.facts.programs import ProgramName
from traincheck.relations.count.optimizer_handover import Apart, Successors, label
from traincheck.relations.count.windows import (
    BACKWARD,
    CLEARED,
    COLLECTIVE,
    DETACH,
    IN_VAIN,
    LANDMARKS,
    LOOSE,
    Key,
    Page,
    Windows,
    is_listed,
    often_of,
    scheduler_of,
    subject_of,
)
from traincheck.relations.example_cache import Examples, Joined
from traincheck.relations.iterations import ShortUpdates
from traincheck.schema.claims import Context, Hypothesis
from traincheck.schema.events import (
    CallEvent,
    CollectiveEvent,
    Event,
    OptimizerEvent,
    StepEvent,
)
from traincheck.schema.findings import Example, Subject, Symptom, Topic
from traincheck.schema.torch_api import COMPILED, Families
from traincheck.schema.words import counted

_ALWAYS: Context = {}
_HELD = Example(holds=True, context=_ALWAYS)
_MANY = 64  # optimizers that are made in the loop
_FORMS = frozenset({"exactly", "least", "multiple"})


class CountDecider:
    """Decides all claims when a window is known to be over."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._program = ProgramName()
        self._params = [claim.params for claim in claims]
        self._keys: list[Key] = [(p["api"], p.get("owner")) for p in self._params]
        for params in self._params:
            if params["form"] not in _FORMS or params["times"] < 1:
                raise ValueError(f"nothing is known of {dict(params)}")
        # The one module that a claim names, of perhaps several of its class by now
        self._named: list[Key] = [(p["api"], p.get("module") or None) for p in self._params]
        self._owners = {owner for _, owner in self._keys if owner is not None}
        self._windows = Windows(wanted=frozenset({LOOSE, CLEARED, *self._keys, *self._named}))
        # Whether the program was compiled when it was learned from, and is so now
        self._was_compiled = any(api == COMPILED for api, _ in self._keys)
        self._is_compiled = False
        self._unlisted = {api for api, _ in self._keys if api.endswith(".forward")}
        self._schedulers: set[tuple[str | None, str]] = set()
        self._is_several = False
        self._successors = Successors()
        self._apart = Apart(self._successors)
        self._held: dict[int, int] = {}  # and with how many backwards the last time
        self._short = ShortUpdates()  # with too few backwards: perhaps an epoch's last
        # In a row: perhaps experts were not asked, or iterations were left before their end
        self._waiting: dict[int, list[Example]] = {}
        # Which optimizers step -> the last window of theirs with the fewest forwards to a backward
        self._usual: dict[frozenset[str], Page] = {}
        self._positives = [((index, _HELD),) for index in range(len(claims))]
        self._last = Joined()

    def observe(self, event: Event) -> Examples:
        self._short.observe(event)
        if isinstance(event, CallEvent):
            self._windows.call(self._as_known(event))
            self._successors.call(event)
            if event.family in (Families.SCHEDULER_CREATED, Families.SCHEDULER_STEP):
                self._schedulers.add((event.owner, scheduler_of(event)))
            self._is_compiled |= event.api == COMPILED
            if event.api in self._unlisted and is_listed(event.module):
                self._unlisted.discard(event.api)
        elif isinstance(event, CollectiveEvent):
            self._windows.collective(event)
        elif isinstance(event, StepEvent):
            return self._step(event)
        elif isinstance(event, OptimizerEvent):
            self._successors.hold(event)
        else:
            self._program.observe(event)
        return ()

    def _as_known(self, event: CallEvent) -> CallEvent:
        """The call, under the name of the optimizer that claims speak of, if it stands for it."""
        if event.owner is None or event.owner in self._owners or not self._owners:
            return event
        owner = self._successors.stands_for(event.owner)
        return event.replace(owner=owner) if owner in self._owners else event

    def _step(self, event: StepEvent) -> Examples:
        found = self._apart.turn()
        page = self._windows.step(event)
        if page is None:
            if not event.recorded:
                self._waiting.clear()
        elif not page.is_free:
            self._is_several = self._holds_several(page)
            judged = [self._judge(i, page) for i in range(len(self._params))]
            found = self._last.join([found, *judged])
        self._successors.turn()
        return found

    def _holds_several(self, page: Page) -> bool:
        """Whether a window has more than one iteration: others were left before backward.

        They begin as any other. What every window has is no such sign.
        """
        if not page.backwards:
            return False
        stepping = self._successors.stepping
        usual = self._usual.get(stepping, page)
        if page.forwards * usual.backwards > usual.forwards * page.backwards:
            return page.begins_like(usual)
        if len(self._usual) < _MANY:
            self._usual[stepping] = page
        return False

    def finish(self) -> Examples:
        """What was missed of optimizers that never stepped.

        A short window at the end of a run is none the worse.
        """
        return self._apart.finish()

    def _judge(self, index: int, page: Page) -> Examples:
        params, key = self._params[index], self._keys[index]
        if not self._program.fits(params) or not self._is_scheduled(params):
            return ()
        if page.first and params.get("late") and page.counts[key]:
            return ((index, self._negative(params, page, page.counts[key])),)
        is_longer = page.backwards > params.get("backwards", page.backwards)
        begins = page.first or self._successors.begins(key[1])
        if is_longer or (begins and params["skips_first"]):
            return ()
        count, times = self._count(index, page), params["times"]
        if page.first and key[0] == Families.ZERO_GRAD and count < times:
            return ()  # there is nothing to clear yet
        if page.first and key[0] not in LANDMARKS and count > page.asked(params):
            return ()  # models are tried out before the loop
        if params["per"] == Families.BACKWARD:
            if not page.backwards:
                return ()
            holds = count == times * page.backwards
        elif params["form"] == "exactly":
            holds = count == times
        else:
            holds = count >= times and (params["form"] == "least" or count % times == 0)
        if not holds:
            return self._lapse(index, page, count)
        self._held[index] = page.backwards
        self._waiting.pop(index, None)
        self._short.full(index)
        return self._positives[index]

    def _count(self, index: int, page: Page) -> int:
        """How many calls there are, but for those too many that do no harm."""
        params, key, named = self._params[index], self._keys[index], self._named[index]
        count, asked = page.counts[key], page.asked(params)
        if count <= asked:
            return count
        if named[1] is not None:  # the others are of other modules
            return max(asked, page.counts[named])
        if key[0] == DETACH and params["form"] == "exactly":
            return max(asked, count - page.counts[LOOSE])  # more of them in the loop cut no model
        if key[0] == Families.ZERO_GRAD:  # as often as there are optimizers, say
            return asked + min(count - asked, page.counts[IN_VAIN])
        return count

    def _lapse(self, index: int, page: Page, count: int) -> Examples:
        """What to make of a window that does not hold."""
        params, key = self._params[index], self._keys[index]
        if key == BACKWARD and index not in self._held:
            return ()  # accumulation over another number of batches, from the start
        patience, owner = 1, key[1]
        if count < page.asked(params):
            if owner is not None and self._successors.is_apart(owner):
                self._apart.keep(index, owner, self._negative(params, page, count))
                return ()
            if self._is_hidden(key[0]):
                return ()
            if count and key[0].endswith(".forward") and key[0] not in self._unlisted:
                patience = ROUTED
            elif key == BACKWARD or self._is_in_proportion(index, page, count):
                return self._short.short(index, self._negative(params, page, count))
        elif self._is_several or self._is_thrown_away(index, page):
            patience = ROUTED
        waiting = self._waiting.setdefault(index, [])
        waiting.append(self._negative(params, page, count))
        if len(waiting) < patience:
            return ()
        if patience == 1:
            return ((index, self._waiting.pop(index)[-1]),)
        return ((index, waiting.pop(0)),)

    def _is_thrown_away(self, index: int, page: Page) -> bool:
        """Whether gradients are cleared after a backward too many: an iteration ended with it."""
        usual = self._held.get(index, page.backwards)
        return self._keys[index] == CLEARED and page.backwards > usual

    def _is_in_proportion(self, index: int, page: Page, count: int) -> bool:
        """Whether there is less of it only as there are fewer backwards."""
        api, usual = self._keys[index][0], self._held.get(index, 0)
        is_less = api not in LANDMARKS and page.backwards < usual
        return is_less and count * usual == page.asked(self._params[index]) * page.backwards

    def _is_scheduled(self, params: Mapping[str, Any]) -> bool:
        """Whether the schedulers are there that a claim speaks of: which ones is a setting."""
        owner = params.get("owner")
        return all((owner, name) in self._schedulers for name in params.get("schedulers", ()))

    def _is_hidden(self, api: str) -> bool:
        """Whether it may be called where it is not seen: within a model that is compiled now."""
        if api in LANDMARKS or api.startswith(COLLECTIVE):
            return False
        return api == COMPILED or (self._is_compiled and not self._was_compiled)

    def _negative(self, params: Mapping[str, Any], page: Page, count: int) -> Example:
        per_backward = params["per"] == Families.BACKWARD
        among = f" with {page.backwards} backward calls" if per_backward else ""
        is_early = page.first and bool(params.get("late"))
        if is_early:
            among = ", before the first update"
        times = page.asked(params)
        symptom = Symptom.MISSING_CALL if count < times else Symptom.EXTRA_CALL
        observed = f"{counted(count, 'call')} in this step{among}"
        evidence: tuple[Event, ...] = (page.event,)
        other = None if count else self._successors.of(params.get("owner"))
        if other is not None and params["api"] == Families.OPTIMIZER_STEP:
            symptom, evidence = Symptom.MADE_ANEW, (page.event, other)
            observed = f"{label(other)} steps in its place"
        return Example(
            holds=False,
            context=_ALWAYS,
            step=page.step,
            rank=page.rank,
            subject=Subject(api=params["api"], module=params.get("module")),
            expected=f"{subject_of(params)} is called {often_of(params)}"
            + (" for each backward" if per_backward else " in a step"),
            observed=observed,
            evidence=evidence,
            symptom=Symptom.WRONG_ORDER if is_early else symptom,
            topic=Topic.COUNT,
            measured=count,
        )
