"""The relation *restored*: what is loaded back before training goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from traincheck.relations._names import ProgramName, in_program
from traincheck.schema.claims import Hypothesis, Needs
from traincheck.schema.events import CallEvent, CheckpointEvent, Event, Families
from traincheck.schema.findings import CheckInfo, Example, Subject, Symptom

MODEL, OPTIMIZER, SCHEDULER = "model", "optimizer", "scheduler"
_HOLDS = Example(holds=True, context={})
_MOST_COUNTED = 64  # values of one resumption that count as examples


class Restored:
    """What is loaded back, before training goes on.

    What it says:
        The state that is loaded into a model holds so many values. Whenever the state of a model
        is loaded and training goes on, so is that of an optimizer, or of a learning-rate scheduler.

    Example:
        ``In train.py, whenever Net is loaded and trained on, so is an optimizer.`` It breaks when a
        run is resumed without the state of its optimizer, in the first step after that.

    Evidence:
        One resumption gives as many examples as values were loaded, 64 at most: each of them came
        back. It is decided at the first update that follows; what is loaded for a last evaluation
        says nothing.

    Chance:
        A coin for each value.

    Not said:
        That values are those that were saved. Anything of another program: which of its parts a
        program restores, if it resumes at all, is its own affair.
    """

    name = "restored"

    def proposer(self) -> RestoredProposer:
        return RestoredProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> RestoredDecider:
        return RestoredDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        calls = frozenset({Families.OPTIMIZER_STEP, Families.SCHEDULER_CREATED})
        return Needs(calls=calls, kinds=frozenset({"checkpoint", "mark"}))

    def text(self, claim: Hypothesis) -> str:
        params = claim.params
        target = params["target"]
        if "entries" in params:
            said = f"The state that is loaded into {target} holds {params['entries']} values"
        else:
            what = f"the state of {_with_article(params['also'])}"
            said = f"Whenever {target} is loaded and training goes on, {what} is loaded too"
        return in_program(params, said)

    def chance(self, claim: Hypothesis, positive: int) -> float:
        return float(0.5**positive)

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        return other.relation == self.name and dict(claim.params) == dict(other.params)

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        return CheckInfo(
            check_id=check_id, kind="invariant", code=self.name, severity="error", title=text
        )


class _Loads:
    """What was loaded since training went on last."""

    def __init__(self) -> None:
        self.program = ProgramName()
        self.scheduler = SCHEDULER  # class of the one that was made last
        self._open: list[CheckpointEvent] = []

    def observe(self, event: Event) -> list[CheckpointEvent]:
        """The loads that end with ``event``, the first update after them."""
        if isinstance(event, CheckpointEvent):
            if event.op == "load_state_dict" and event.target:
                self._open.append(event)
        elif isinstance(event, CallEvent):
            if event.family == Families.SCHEDULER_CREATED:
                self.scheduler = event.api.split(".")[-2]
            elif self._open and event.family == Families.OPTIMIZER_STEP:
                loads, self._open = self._open, []
                return loads
        else:
            self.program.observe(event)
        return []


class RestoredProposer:
    """Proposes what one resumption restored; that the others did so too is decided later."""

    def __init__(self) -> None:
        self._loads = _Loads()
        self._claims: set[tuple[str, str, Any]] = set()

    def observe(self, event: Event) -> None:
        loads = self._loads.observe(event)
        kinds = {_kind(load) for load in loads} & {OPTIMIZER, SCHEDULER}
        for load in loads:
            if _kind(load) == MODEL:
                target = _target(load)
                self._claims.add((target, "entries", load.entries or 0))
                self._claims |= {(target, "also", kind) for kind in kinds}

    def hypotheses(self) -> Iterator[Hypothesis]:
        program = self._loads.program.name
        if program is not None:
            for target, key, value in sorted(self._claims, key=repr):
                params = {"program": program, "target": target, key: value}
                yield Hypothesis(relation="restored", params=params)


class RestoredDecider:
    """Decides at the first update that follows what was loaded."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._claims = [claim.params for claim in claims]
        for params in self._claims:
            if "target" not in params or ("entries" in params) == ("also" in params):
                raise ValueError(f"nothing is known of {dict(params)}")
        self._loads = _Loads()

    def observe(self, event: Event) -> Sequence[tuple[int, Example]]:
        loads = self._loads.observe(event)
        return list(self._decide(loads, event)) if loads else ()

    def finish(self) -> Sequence[tuple[int, Example]]:
        """Nothing: no update follows what was loaded last."""
        return ()

    def _decide(self, loads: Sequence[CheckpointEvent], event: Event) -> Iterator[Any]:
        weight = min(_MOST_COUNTED, max(1, sum(load.entries or 0 for load in loads)))
        for index, params in enumerate(self._claims):
            mine = [x for x in loads if _kind(x) == MODEL and _target(x) == params["target"]]
            if not mine or not self._loads.program.fits(params):
                continue
            who = _stepping(event) if params.get("also") == OPTIMIZER else self._loads.scheduler
            broken = _broken(params, mine, loads, who)
            if broken is not None:
                yield index, _negative(params, broken, mine[-1], event)
            else:
                yield from [(index, _HOLDS)] * weight


def _broken(
    params: Mapping[str, Any],
    mine: Iterable[CheckpointEvent],
    loads: Iterable[CheckpointEvent],
    who: str,
) -> str | None:
    """What is wrong with ``who``, as half a sentence; None if nothing is."""
    if "also" in params:
        if any(_kind(load) == params["also"] for load in loads):
            return None
        return f"training goes on, and no state is loaded into {who}"
    found = next((load for load in mine if (load.entries or 0) != params["entries"]), None)
    return None if found is None else f"it holds {found.entries or 0} values"


def _negative(params: Mapping[str, Any], how: str, load: CheckpointEvent, event: Event) -> Example:
    target = params["target"]
    if "also" in params:
        expected = f"the state of {_with_article(params['also'])} is loaded with that of {target}"
    else:
        expected = f"the state loaded into {target} holds {params['entries']} values"
    return Example(
        holds=False,
        context={},
        step=event.step,
        rank=event.rank,
        subject=Subject(module=target),
        expected=expected,
        observed=how,
        evidence=(load, event),
        symptom=Symptom.NOT_RESTORED,
    )


def _kind(load: CheckpointEvent) -> str:
    if "lr_scheduler" in (load.target or ""):
        return SCHEDULER
    if load.owner is not None:
        return OPTIMIZER
    return MODEL if load.matched is not None else "other"


def _stepping(event: Event) -> str:
    """The class of the optimizer that steps."""
    return event.api.split(".")[-2] if isinstance(event, CallEvent) else OPTIMIZER


def _target(load: CheckpointEvent) -> str:
    """The model, whichever of those of its class it is: a resumed one may be the second."""
    return (load.target or "").partition("#")[0]


def _with_article(kind: str) -> str:
    return f"an {kind}" if kind == OPTIMIZER else f"a {kind}"
