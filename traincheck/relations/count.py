"""The relation *count*: how often something is called in every training step of a program."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from traincheck.relations._counts import BACKWARD, FRAME, LANDMARKS, Key, Page, Windows
from traincheck.relations._memory import Examples, Joined
from traincheck.relations._names import STEP, ProgramName, in_program, is_library, short
from traincheck.schema.claims import Context, Hypothesis, Needs
from traincheck.schema.events import CallEvent, Event, Families, StepEvent
from traincheck.schema.findings import CheckInfo, Example, Subject, Symptom

_ALWAYS: Context = {}
_HELD = Example(holds=True, context=_ALWAYS)
_FORMS = frozenset({"exactly", "least", "multiple"})
_MIN_STEPS = 2
_MIN_MEAN = 12.0  # of calls that come at random, one step in 160 000 has none
_MIN_DISTINCT = 3  # counts, before what divides them all means anything


class Count:
    """In every training step, B is called so often.

    What it says:
        B is a landmark of the loop (backward, the step of an optimizer or scheduler, zero_grad,
        clipping), a class of modules, or a function that the program itself calls. It is called
        exactly n times, n times for each backward, a multiple of n times, or at least once.

    Example:
        ``In train.py, torch.set_rng_state is called exactly 2 times in every training step.`` It
        breaks when a context is not entered, a layer is left out, an optimizer steps twice.

    Evidence:
        One example for each window from one update to the next, but for the first if calls come
        between updates and forwards. Calls with gradients off, or while a model is evaluated, do
        not count. No example: steps that were not recorded, are unfinished or were skipped by a
        gradient scaler, and optimizers that call a closure. A window with too few backwards (the
        last of an epoch may be short) counts only when another follows it.

    Chance:
        A coin for each example.

    Not said:
        Anything about other programs: loops differ in how much they accumulate and which losses
        they compute. How often is *for each backward* where it can be, so that it holds for any
        number of micro-batches. Functions that only modules of libraries call are theirs.
    """

    name = "count"

    def proposer(self) -> CountProposer:
        return CountProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> CountDecider:
        return CountDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        calls = FRAME | {claim.params["api"]}
        return Needs(calls=calls, kinds=frozenset({"mark", "step"}))

    def text(self, claim: Hypothesis) -> str:
        params = claim.params
        window = "for each backward" if params["per"] == Families.BACKWARD else "every"
        often = f"{_often(params)} {window}".replace("every", "in every training step")
        return in_program(params, f"{_subject(params)} is called {often}")

    def chance(self, claim: Hypothesis, positive: int) -> float:
        return float(0.5**positive)

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """No count says what another one says."""
        return claim == other

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        """Landmarks are errors; another function more or less is a warning."""
        severity = "error" if claim.params["api"] in LANDMARKS else "warning"
        return CheckInfo(
            check_id=check_id, kind="invariant", code=self.name, severity=severity, title=text
        )


def _subject(params: Mapping[str, Any]) -> str:
    owner = params.get("owner")
    return f"{short(params['api'])} of {owner}" if owner else short(params["api"])


def _often(params: Mapping[str, Any]) -> str:
    times = params["times"]
    plural = f"{times} time{'' if times == 1 else 's'}"
    return {
        "exactly": "once" if times == 1 else f"exactly {plural}",
        "least": f"at least {plural}",
        "multiple": f"a multiple of {plural}",
    }[params["form"]]


@dataclass(slots=True)
class _Seen:
    """Counts of one key. first: in the first window. later: count -> windows, the first left out.

    ratios: calls for each backward, where that is a whole number; 0 elsewhere.
    """

    first: int = 0
    later: Counter[int] = field(default_factory=Counter)
    ratios: Counter[int] = field(default_factory=Counter)


class CountProposer:
    """Proposes one count for each key that has one."""

    def __init__(self) -> None:
        self._program = ProgramName()
        self._windows = Windows()
        self._open: dict[int, set[str]] = defaultdict(set)  # parent -> what it calls
        self._own: set[str] = set()  # called by the program itself
        self._seen: dict[Key, _Seen] = defaultdict(_Seen)
        self._later = 0

    def observe(self, event: Event) -> None:
        if isinstance(event, CallEvent):
            inside = self._open.pop(event.span, ())
            if event.family == Families.MODULE and not is_library(event.api):
                self._own.update(inside)
            if event.parent is None:
                self._own.add(event.api)
            else:
                self._open[event.parent].add(event.api)
            self._windows.call(event)
        elif isinstance(event, StepEvent):
            self._open.clear()
            page = self._windows.step(event)
            if page is not None and not page.is_free:
                self._enter(page)
        else:
            self._program.observe(event)

    def _enter(self, page: Page) -> None:
        backwards = page.backwards
        for key, count in page.counts.items():
            seen = self._seen[key]
            ratio, rest = divmod(count, backwards) if backwards else (0, 1)
            seen.ratios[0 if rest else ratio] += 1
            if page.first:
                seen.first = count
            else:
                seen.later[count] += 1
        self._later += not page.first

    def hypotheses(self) -> Iterator[Hypothesis]:
        if self._later < _MIN_STEPS or self._program.name is None:
            return
        for key, seen in sorted(
            self._seen.items(), key=lambda item: (item[0][0], item[0][1] or "")
        ):
            api, owner = key
            if api not in LANDMARKS and api not in self._own:
                continue
            found = self._bound(key, seen)
            if found is not None:
                params = {"api": api, "program": self._program.name, **found}
                if owner is not None:
                    params["owner"] = owner
                yield Hypothesis(relation="count", params=params)

    def _accumulates(self) -> bool:
        """Whether one optimizer applies what several backwards have added up."""
        optimizers = sum(api == Families.OPTIMIZER_STEP for api, _ in self._seen)
        return optimizers == 1 and max(self._seen[BACKWARD].later, default=0) > 1

    def _bound(self, key: Key, seen: _Seen) -> dict[str, Any] | None:
        windows = sum(seen.later.values())
        if windows < self._later:
            return None  # there are steps without any
        mode, often = seen.later.most_common(1)[0]
        if (
            key[0] not in LANDMARKS
            and self._accumulates()
            and len(seen.ratios) == 1
            and min(seen.ratios)
        ):
            return _claim("exactly", min(seen.ratios), Families.BACKWARD, skips_first=False)
        if len(seen.later) == 1 or (
            key == BACKWARD and mode == max(seen.later) and often > windows // 2
        ):
            # In the first window there is nothing to clear yet: its lack does no harm.
            skips_first = seen.first != mode or key[0] == Families.ZERO_GRAD
            return _claim("exactly", mode, STEP, skips_first=skips_first)
        divisor = math.gcd(*seen.later)
        if divisor > 1 and len(seen.later) >= _MIN_DISTINCT:
            return _claim("multiple", divisor, STEP, skips_first=bool(seen.first % divisor))
        mean = sum(count * often for count, often in seen.later.items()) / windows
        if mean >= _MIN_MEAN:
            return _claim("least", 1, STEP, skips_first=not seen.first)
        return None


def _claim(form: str, times: int, per: str, *, skips_first: bool) -> dict[str, Any]:
    return {"form": form, "times": times, "per": per, "skips_first": skips_first}


class CountDecider:
    """Decides all claims when a window is known to be over."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._program = ProgramName()
        self._params = [claim.params for claim in claims]
        self._keys: list[Key] = [(p["api"], p.get("owner")) for p in self._params]
        for params in self._params:
            if params["form"] not in _FORMS or params["times"] < 1:
                raise ValueError(f"nothing is known of {dict(params)}")
        self._windows = Windows(wanted=frozenset(self._keys))
        self._short: dict[
            int, Example
        ] = {}  # windows with too few backwards, perhaps an epoch's last
        self._positives = [((index, _HELD),) for index in range(len(claims))]
        self._last = Joined()

    def observe(self, event: Event) -> Examples:
        if isinstance(event, CallEvent):
            self._windows.call(event)
        elif isinstance(event, StepEvent):
            page = self._windows.step(event)
            if page is None:
                self._short.clear()
            elif not page.is_free:
                return self._last.join([self._judge(i, page) for i in range(len(self._params))])
        else:
            self._program.observe(event)
        return ()

    def finish(self) -> Examples:
        """Nothing: a short window at the end of a run is none the worse."""
        return ()

    def _judge(self, index: int, page: Page) -> Examples:
        params, key = self._params[index], self._keys[index]
        if (page.first and params["skips_first"]) or not self._program.fits(params):
            return ()
        count, times = page.counts[key], params["times"]
        if params["per"] == Families.BACKWARD:
            if not page.backwards:
                return ()
            holds = count == times * page.backwards
        elif params["form"] == "exactly":
            holds = count == times
        else:
            holds = count >= times and (params["form"] == "least" or count % times == 0)
        waiting = self._short.pop(index, None)
        if holds:
            return self._positives[index]
        negative = self._negative(params, page, count)
        if key == BACKWARD and count < times:
            self._short[index] = negative
            return () if waiting is None else ((index, waiting),)
        return ((index, negative),)

    def _negative(self, params: Mapping[str, Any], page: Page, count: int) -> Example:
        per_backward = params["per"] == Families.BACKWARD
        among = f" with {page.backwards} backward calls" if per_backward else ""
        fewer = count < params["times"] * (page.backwards if per_backward else 1)
        return Example(
            holds=False,
            context=_ALWAYS,
            step=page.step,
            rank=page.rank,
            subject=Subject(api=params["api"]),
            expected=f"{_subject(params)} is called {_often(params)}"
            + (" for each backward" if per_backward else " in a step"),
            observed=f"{count} call{'' if count == 1 else 's'} in this step{among}",
            evidence=(page.event,),
            symptom=Symptom.MISSING_CALL if fewer else Symptom.EXTRA_CALL,
        )
