"""The relation *count*: how often something is called in every training step of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traincheck.readings.distributed.rank_steps import ROUTED
from traincheck.readings.steps import scheduler_class
from traincheck.relations.base import NO_CONTEXT, SATISFIED, OfProgram, RelationBase
from traincheck.relations.count.proposer import (
    BACKWARD,
    CLEARED,
    COLLECTIVE,
    DETACH,
    ESSENTIAL,
    FRAME,
    LANDMARKS,
    LATER,
    LOOP_DETACH,
    REDUNDANT_ZERO_GRAD,
    CallWindow,
    CallWindows,
    CountProposer,
    Key,
    is_listed,
    word,
)
from traincheck.relations.iterations import ExampleCache, Examples, ShortUpdates
from traincheck.relations.landmark_orders import SharedOptimizers
from traincheck.relations.phrasing import in_program
from traincheck.schema.claims import Hypothesis, Needs, within_modules
from traincheck.schema.events import CallEvent, CollectiveEvent, Event, OptimizerEvent, StepEvent
from traincheck.schema.findings import Example, Subject, Symptom, Topic
from traincheck.schema.places import short
from traincheck.schema.torch_api import COMPILED, Families
from traincheck.schema.words import counted, display_name

_MANY = 64  # optimizers: they are made in the loop
_KEPT = 8  # missing calls of one optimizer that are reported


class OptimizerHandover:
    """Follows which optimizers step, and which of them hold the same parameters."""

    def __init__(self) -> None:
        self._made: dict[str, OptimizerEvent] = {}  # in order
        self._partners = SharedOptimizers()
        self._stepped: set[str] = set()  # since the last window
        self._first: dict[str, int] = {}  # the window in which each stepped
        self._last: dict[str, int] = {}
        self._now = 0

    def hold(self, event: OptimizerEvent) -> None:
        """Enter the parameters of an optimizer."""
        self._made.setdefault(event.id, event)
        self._partners.hold(event)

    def call(self, event: CallEvent) -> None:
        """Enter a step of an optimizer."""
        owner = event.owner
        if event.family == Families.OPTIMIZER_STEP and event.exception is None and owner:
            self._stepped.add(owner)
            self._first.setdefault(owner, self._now)
            self._last[owner] = self._now

    def turn(self) -> None:
        """A window is over."""
        self._stepped.clear()
        self._now += 1

    def has_stepped(self, owner: str) -> bool:
        """Whether it ever has."""
        return owner in self._first

    @property
    def stepping(self) -> frozenset[str]:
        """The optimizers that step in this window."""
        return frozenset(self._stepped)

    def steps_now(self, owner: str) -> bool:
        """Whether it steps in this window."""
        return owner in self._stepped

    def begins(self, owner: str | None) -> bool:
        """Whether this window is the first in which it steps."""
        return owner is not None and self._first.get(owner) == self._now

    def trains_apart(self, owner: str) -> bool:
        """Whether only optimizers step in this window that never stepped beside this one.

        They train before it or, if it never steps again, after it: another model or another fold.
        """
        if not self._stepped or owner in self._stepped or self.of(owner) is not None:
            return False
        last = self._last.get(owner)
        return last is None or all(self._first[other] > last for other in self._stepped)

    def of(self, owner: str | None) -> OptimizerEvent | None:
        """The optimizer that stepped in place of this one: of its class, and created later."""
        made = list(self._made)
        if owner not in self._made:
            return None
        for name in made[made.index(owner) + 1 :]:
            event = self._made[name]
            if name in self._stepped and self._is_like(owner, name):
                return event
        return None

    def stands_for(self, owner: str) -> str | None:
        """The optimizer that ``owner`` replaced before that stepped once; None if there is none.

        A program may create its optimizer again during setup.
        """
        if owner not in self._made or len(self._made) > _MANY:
            return None
        made = list(self._made)
        before = (one for one in made[: made.index(owner)] if one not in self._first)
        return next((one for one in before if self._is_like(one, owner)), None)

    def _is_like(self, one: str, other: str) -> bool:
        same_class = self._made[one].cls == self._made[other].cls
        return same_class and self._partners.share(one, other)


class DeferredMisses:
    """Keeps missing calls of an optimizer while others train, until it is known if they count.

    They do not count before its first step or after its last. All of them count if it never steps.
    """

    def __init__(self, successors: OptimizerHandover) -> None:
        self._handover = successors
        self._kept: dict[int, tuple[str, list[Example]]] = {}

    def keep(self, index: int, owner: str, example: Example) -> None:
        """Enter a missing call of such a window."""
        _, kept = self._kept.setdefault(index, (owner, []))
        if len(kept) < _KEPT:
            kept.append(example)

    def turn(self) -> Examples:
        """End a window. Return missing calls between two steps of their optimizer."""
        found: list[tuple[int, Example]] = []
        for index, (owner, kept) in list(self._kept.items()):
            if self._handover.steps_now(owner):
                del self._kept[index]
                found += () if self._handover.begins(owner) else [(index, one) for one in kept]
        return found

    def finish(self) -> Examples:
        """Missing calls of optimizers that never stepped."""
        return [
            (index, one)
            for index, (owner, kept) in self._kept.items()
            if not self._handover.has_stepped(owner)
            for one in kept
        ]


def label(event: OptimizerEvent) -> str:
    """``opt1 (SGD, made at train.py:40)``."""
    where = f", made at {short(event.where)}" if event.where else ""
    return f"{event.id} ({event.cls.rpartition('.')[2]}{where})"


# How often ``detach`` is called is a habit that says where gradients go.
CUT: Mapping[str, str] = {
    "likely_cause": (
        "A tensor is detached that is not detached in the reference, or the other way round: "
        "gradients take another path{where}."
    ),
    "fix": "Find the detach() call that was added or removed{where}.",
}


def subject_of(params: Mapping[str, Any]) -> str:
    """The counted calls of a claim, in words."""
    name, whose = display_name(params["api"]), params.get("owner") or params.get("module")
    return name if not whose or name == f"{whose}.forward" else f"{name} of {whose}"


def often_of(params: Mapping[str, Any]) -> str:
    """How often, in words."""
    times = params["times"]
    plural = counted(times, "time")
    return {
        "exactly": "once" if times == 1 else f"exactly {plural}",
        "least": f"at least {plural}",
        "multiple": f"a multiple of {plural}",
    }[params["form"]]


_FORMS = frozenset({"exactly", "least", "multiple"})


class CountDecider(OfProgram):
    """Decides all claims when a window is known to be over."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._params = [claim.params for claim in claims]
        self._keys: list[Key] = [(p["api"], p.get("owner")) for p in self._params]
        for params in self._params:
            if params["form"] not in _FORMS or params["times"] < 1:
                raise ValueError(f"nothing is known of {dict(params)}")
        # The one module that a claim names; there may be more of its class by now
        self._named: list[Key] = [(p["api"], p.get("module") or None) for p in self._params]
        self._owners = {owner for _, owner in self._keys if owner is not None}
        self._windows = CallWindows(
            wanted=frozenset({LOOP_DETACH, CLEARED, *self._keys, *self._named})
        )
        # Whether the program was compiled in the reference, and is compiled now
        self._was_compiled = any(api == COMPILED for api, _ in self._keys)
        self._is_compiled = False
        self._unlisted = {api for api, _ in self._keys if api.endswith(".forward")}
        self._schedulers: set[tuple[str | None, str]] = set()
        self._is_several = False
        self._handover = OptimizerHandover()
        self._deferred = DeferredMisses(self._handover)
        self._held: dict[int, int] = {}  # claim -> backwards of the last window that held
        self._short = ShortUpdates()  # windows with too few backwards: perhaps the last of an epoch
        # Windows in a row: experts may be unused, or iterations left before their end
        self._waiting: dict[int, list[Example]] = {}
        # Optimizers that step -> their last window with the fewest forwards to a backward
        self._usual: dict[frozenset[str], CallWindow] = {}
        self._positives = [((index, SATISFIED),) for index in range(len(claims))]
        self._last = ExampleCache()

    def observe(self, event: Event) -> Examples:
        self._short.observe(event)
        if isinstance(event, CallEvent):
            self._windows.call(self._as_known(event))
            self._handover.call(event)
            if event.family in (Families.SCHEDULER_CREATED, Families.SCHEDULER_STEP):
                self._schedulers.add((event.owner, scheduler_class(event)))
            self._is_compiled |= event.api == COMPILED
            if event.api in self._unlisted and is_listed(event.module):
                self._unlisted.discard(event.api)
        elif isinstance(event, CollectiveEvent):
            self._windows.collective(event)
        elif isinstance(event, StepEvent):
            found = self._deferred.turn()
            window = self._windows.step(event)
            if window is None:
                if not event.recorded:
                    self._waiting.clear()
            elif not window.is_free:
                self._is_several = self._holds_several(window)
                judged = [self._judge(i, window) for i in range(len(self._params))]
                found = self._last.join([found, *judged])
            self._handover.turn()
            return found
        elif isinstance(event, OptimizerEvent):
            self._handover.hold(event)
        return ()

    def _as_known(self, event: CallEvent) -> CallEvent:
        """The call, with the optimizer that claims name if it replaced that one."""
        if event.owner is None or event.owner in self._owners or not self._owners:
            return event
        owner = self._handover.stands_for(event.owner)
        return event.replace(owner=owner) if owner in self._owners else event

    def _holds_several(self, window: CallWindow) -> bool:
        """Whether a window has more than one iteration: others were left before backward.

        Such iterations begin like any other. What every window has is no sign of them.
        """
        if not window.backwards:
            return False
        stepping = self._handover.stepping
        usual = self._usual.get(stepping, window)
        if window.forwards * usual.backwards > usual.forwards * window.backwards:
            return window.begins_like(usual)
        if len(self._usual) < _MANY:
            self._usual[stepping] = window
        return False

    def finish(self) -> Examples:
        """Missing calls of optimizers that never stepped.

        A short window at the end of a run is not judged.
        """
        return self._deferred.finish()

    def _judge(self, index: int, window: CallWindow) -> Examples:
        params, key = self._params[index], self._keys[index]
        if not self._program.fits(params) or not self._is_scheduled(params):
            return ()
        if window.first and params.get("late") and window.counts[key]:
            return ((index, self._negative(params, window, window.counts[key])),)
        is_longer = window.backwards > params.get("backwards", window.backwards)
        begins = window.first or self._handover.begins(key[1])
        if is_longer or (begins and params["skips_first"]):
            return ()
        count, times = self._count(index, window), params["times"]
        if window.first and key[0] == Families.ZERO_GRAD and count < times:
            return ()  # there is nothing to clear yet
        if window.first and key[0] not in LANDMARKS and count > window.asked(params):
            return ()  # models are tried out before the loop
        if params["per"] == Families.BACKWARD:
            if not window.backwards:
                return ()
            holds = count == times * window.backwards
        elif params["form"] == "exactly":
            holds = count == times
        else:
            holds = count >= times and (params["form"] == "least" or count % times == 0)
        if not holds:
            return self._lapse(index, window, count)
        self._held[index] = window.backwards
        self._waiting.pop(index, None)
        self._short.clear_short(index)
        return self._positives[index]

    def _count(self, index: int, window: CallWindow) -> int:
        """The number of calls, without extra calls that do no harm."""
        params, key, named = self._params[index], self._keys[index], self._named[index]
        count, asked = window.counts[key], window.asked(params)
        if count <= asked:
            return count
        if named[1] is not None:  # the others are of other modules
            return max(asked, window.counts[named])
        if key[0] == DETACH and params["form"] == "exactly":
            return max(
                asked, count - window.counts[LOOP_DETACH]
            )  # extra detaches in the loop cut no model
        if key[0] == Families.ZERO_GRAD:  # such as one for each optimizer
            return asked + min(count - asked, window.counts[REDUNDANT_ZERO_GRAD])
        return count

    def _lapse(self, index: int, window: CallWindow, count: int) -> Examples:
        """The examples of a window that breaks the claim."""
        params, key = self._params[index], self._keys[index]
        if key == BACKWARD and index not in self._held:
            return ()  # accumulation over another number of batches, from the start
        patience, owner = 1, key[1]
        if count < window.asked(params):
            if owner is not None and self._handover.trains_apart(owner):
                self._deferred.keep(index, owner, self._negative(params, window, count))
                return ()
            if self._is_hidden(key[0]):
                return ()
            if count and key[0].endswith(".forward") and key[0] not in self._unlisted:
                patience = ROUTED
            elif key == BACKWARD or self._is_in_proportion(index, window, count):
                return self._short.add_short(index, self._negative(params, window, count))
        elif self._is_several or self._is_thrown_away(index, window):
            patience = ROUTED
        waiting = self._waiting.setdefault(index, [])
        waiting.append(self._negative(params, window, count))
        if len(waiting) < patience:
            return ()
        if patience == 1:
            return ((index, self._waiting.pop(index)[-1]),)
        return ((index, waiting.pop(0)),)

    def _is_thrown_away(self, index: int, window: CallWindow) -> bool:
        """Whether gradients are cleared after a backward too many: an iteration ended with it."""
        usual = self._held.get(index, window.backwards)
        return self._keys[index] == CLEARED and window.backwards > usual

    def _is_in_proportion(self, index: int, window: CallWindow, count: int) -> bool:
        """Whether there are fewer calls only because there are fewer backwards."""
        api, usual = self._keys[index][0], self._held.get(index, 0)
        is_less = api not in LANDMARKS and window.backwards < usual
        return is_less and count * usual == window.asked(self._params[index]) * window.backwards

    def _is_scheduled(self, params: Mapping[str, Any]) -> bool:
        """Whether the schedulers of the claim exist: they are a setting."""
        owner = params.get("owner")
        return all((owner, name) in self._schedulers for name in params.get("schedulers", ()))

    def _is_hidden(self, api: str) -> bool:
        """Whether calls may be hidden within a model that is compiled now."""
        if api in LANDMARKS or api.startswith(COLLECTIVE):
            return False
        return api == COMPILED or (self._is_compiled and not self._was_compiled)

    def _negative(self, params: Mapping[str, Any], window: CallWindow, count: int) -> Example:
        per_backward = params["per"] == Families.BACKWARD
        among = f" with {window.backwards} backward calls" if per_backward else ""
        is_early = window.first and bool(params.get("late"))
        if is_early:
            among = ", before the first update"
        times = window.asked(params)
        symptom = Symptom.MISSING_CALL if count < times else Symptom.EXTRA_CALL
        observed = f"{counted(count, 'call')} in this step{among}"
        evidence: tuple[Event, ...] = (window.event,)
        other = None if count else self._handover.of(params.get("owner"))
        if other is not None and params["api"] == Families.OPTIMIZER_STEP:
            symptom, evidence = Symptom.MADE_ANEW, (window.event, other)
            observed = f"{label(other)} steps instead"
        return Example(
            holds=False,
            context=NO_CONTEXT,
            step=window.step,
            rank=window.rank,
            subject=Subject(api=params["api"], module=params.get("module")),
            expected=f"{subject_of(params)} is called {often_of(params)}"
            + (" for each backward" if per_backward else " in a step"),
            observed=observed,
            evidence=evidence,
            symptom=Symptom.WRONG_ORDER if is_early else symptom,
            topic=Topic.COUNT,
            measured=count,
        )


class Count(RelationBase):
    """In every training step, B is called n times.

    Claims:
        - B is a landmark of the loop (backward, the step of an optimizer or scheduler, zero_grad,
          clipping), a class of modules, a function that the program itself calls, or a collective
          operation.
        - It is called exactly n times, n times for each backward, a multiple of n times, or at
          least n times.
        - A scheduler is not stepped before the first update.

    Example:
        ``In train.py, torch.set_rng_state is called exactly 2 times in every training step.`` It
        breaks when a context is not entered, a layer is left out, or an optimizer steps twice.

    Evidence:
        One example for each window from one update to the next. Special cases:
        - The first window does not count if calls come between updates and forwards, or if it has
          more calls than the loop: models may be tried out before the loop.
        - Calls with gradients off, or while a model is evaluated, do not count.
        - Steps that were not recorded, are unfinished or were skipped by a gradient scaler give no
          example. Neither do optimizers that call a closure several times.
        - A window with too few backwards may be the last of an epoch. It counts only when a window
          of another iteration follows it. The same holds for calls that are fewer in proportion.
        - If a claim names the one module of its class, calls of modules that were added since are
          not too many. Neither is a zero_grad that clears no gradients: another optimizer may add
          one.
        - While others step that never stepped beside it, an optimizer may train another model.
          Calls that are missing then count only between two of its steps, or if it never steps.
        - A window with more forwards than others may hold an iteration that was left before its
          end. Its extra calls count from eight such windows in a row. So does a zero_grad after an
          extra backward.

    Chance:
        A coin for each example.

    Not claimed:
        - Anything about other programs: loops differ in accumulation and losses.
        - Counts in windows with more backwards than were seen, unless they are *for each backward*.
        - Functions that only modules of libraries call.
    """

    name = "count"

    def proposer(self) -> CountProposer:
        return CountProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> CountDecider:
        return CountDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        api = claim.params["api"]
        is_call = not api.startswith(COLLECTIVE)
        is_schedule = api == Families.SCHEDULER_STEP
        frame = FRAME | ({Families.SCHEDULER_CREATED} if is_schedule else set())
        kinds = {"mark", "step"} | (set() if is_call else {"collective"})
        if "owner" in claim.params:
            kinds.add("optimizer")  # to see which one replaces another
        kinds |= {"batch"} if api == Families.BACKWARD else set()
        return Needs(
            calls=frame | within_modules(COMPILED, *[api] * is_call), kinds=frozenset(kinds)
        )

    def text(self, claim: Hypothesis) -> str:
        params = claim.params
        window = "for each backward" if params["per"] == Families.BACKWARD else "every"
        often = f"{often_of(params)} {window}".replace("every", "in every training step")
        late = ", after the update" if params.get("late") else ""
        return in_program(params, f"{subject_of(params)} is called {often}{late}")

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """An exact number implies its divisors and what is less; a multiple implies its divisors.

        A claim for any number of backwards implies a claim for few.
        """
        mine: dict[str, Any]
        its: dict[str, Any]
        mine, its = dict(claim.params), dict(other.params)
        forms = mine.pop("form"), its.pop("form")
        times, theirs = mine.pop("times"), its.pop("times")
        few = its.pop("backwards", None)
        is_wider = mine.pop("backwards", few) == few
        for params in (mine, its):
            params.pop("module", None)  # it only names the module, where there is one
        if claim.relation != other.relation or mine != its or not is_wider:
            return False
        if forms[1] == "least":
            return bool(times >= theirs)
        if forms[1] == "multiple":
            return forms[0] != "least" and bool(times % theirs == 0)
        return forms[0] == "exactly" and bool(times == theirs)

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """Runs with only one update, or without the optimizer, prove nothing."""
        params = claim.params
        whose = {"api": word(params["api"], params["owner"])} if "owner" in params else {}
        return {"program": params["program"], **whose, "outer": LATER}

    def words(self, claim: Hypothesis) -> Mapping[str, str]:
        """A missing update is an error. Clipping, schedules and functions may change on purpose."""
        api = claim.params["api"]
        severity = "error" if api in ESSENTIAL else "warning"
        return {"severity": severity, **(CUT if api == DETACH else {})}
