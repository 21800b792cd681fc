"""The relation *consistent*: equal on all ranks after a step, or equal to what was copied."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.relations._copies import Copies, CopyFinder
from traincheck.relations._names import ROLE_NAMES, ProgramName, in_program
from traincheck.relations._ranks import DDP_HOOK, DDP_INIT, Key, RunStep, RunSteps
from traincheck.relations._subtrees import fold, matcher
from traincheck.schema.claims import Hypothesis, Needs
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.findings import CheckInfo, Example, Subject, Symptom

_HOLDS = Example(holds=True, context={})
_MOST_COUNTED = 8  # variables of one step that count as examples
_MOMENTS = {"parameter": "step", "buffer": "forward", "optimizer_state": "step"}
WRAPPED = "wrapped"


class Consistent:
    """Equal on all ranks after a step, or equal to what was copied.

    What it says:
        After every training step, all parameters (or buffers, or optimizer state) under a place of
        a model have the same content on all ranks. So do, in any program, the parameters that
        DistributedDataParallel keeps. Whenever a model that no optimizer holds changes, it is a
        copy of another.

    Example:
        ``In train.py, every parameter under Net.norm is the same on all ranks after every step.``
        It breaks in the first step in which one rank clips, and the other does not.

    Evidence:
        One example for each step that every rank has ended and each variable that changed in it,
        eight a step at most, by exact fingerprints; a counterexample for each that differs. Shards,
        and variables that one rank does not know, are not compared. A copy may be of what the other
        held when the step began, and counts when it was made three times.

    Chance:
        A coin for each example.

    Not said:
        Which rank is right. Anything of a run of one rank; of ranks that are meant to go apart
        between two averagings, nothing is proposed. How large a rank's part is.
    """

    name = "consistent"
    scope = "run"

    def proposer(self) -> ConsistentProposer:
        return ConsistentProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> ConsistentDecider:
        return ConsistentDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        params = claim.params
        if "copy" in params:
            states = frozenset({"parameter@step"})
            return Needs(states=states, kinds=frozenset({"mark", "optimizer", "step"}), exact=True)
        role = params["role"]
        looks = {f"{role}@{_MOMENTS[role]}"} | ({"parameter@ranks"} & {f"{role}@ranks"})
        calls = frozenset({DDP_INIT, DDP_HOOK} if params.get("of") == WRAPPED else ())
        return Needs(
            states=frozenset(looks),
            calls=calls,
            kinds=frozenset({"mark", "step"}),
            exact=role != "parameter",
        )

    def text(self, claim: Hypothesis) -> str:
        params = claim.params
        if "copy" in params:
            copy = params["copy"]
            said = f"Whenever {copy} changes, it is a copy of {params['source']}"
            return in_program(params, said)
        if params.get("of") == WRAPPED:
            who = "parameter of a model in DistributedDataParallel"
        else:
            who = f"{ROLE_NAMES[params['role']]} under {params['under']}"
        return in_program(params, f"Every {who} is the same on all ranks after every step")

    def chance(self, claim: Hypothesis, positive: int) -> float:
        return float(0.5**positive)

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        return other.relation == self.name and dict(claim.params) == dict(other.params)

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        return CheckInfo(
            check_id=check_id, kind="invariant", code=self.name, severity="error", title=text
        )


class ConsistentProposer:
    """Compares all variables on all ranks, and models with those that are trained."""

    def __init__(self) -> None:
        self._program = ProgramName()
        self._steps = RunSteps()
        self._same: dict[Key, bool] = {}
        self._wrapped = False
        self._finders: dict[tuple[int, str], CopyFinder] = defaultdict(CopyFinder)

    def observe(self, event: Event) -> None:
        self._program.observe(event)
        if event.step is not None:
            self._finders[event.rank, event.stream.partition("-")[0]].observe(event)
        for step in self._steps.observe(event):
            if step.is_judged:
                self._wrapped |= bool(step.wrapped)
                for key in step.changed:
                    self._compare(step, key)

    def _compare(self, step: RunStep, key: Key) -> None:
        if key[0] in _MOMENTS and self._same.get(key, True):
            others = step.compare(key)
            if others is not None:
                self._same[key] = not others

    def hypotheses(self) -> Iterator[Hypothesis]:
        if self._wrapped:
            yield _claim({"role": "parameter", "of": WRAPPED})
        if self._program.name is None:
            return
        base = {"program": self._program.name}
        for role in _MOMENTS:
            labels: dict[str, bool] = {}
            for (found, name), same in self._same.items():
                if found == role:
                    variable = name.partition("/")[0]
                    labels[variable] = same and labels.get(variable, True)
            for pattern, is_same in fold(labels):
                if is_same:
                    yield _claim({**base, "role": role, "under": pattern})
        pairs = {pair for finder in self._finders.values() for pair in finder.pairs()}
        for copy, source in sorted(pairs):
            yield _claim({**base, "copy": copy, "source": source})


class ConsistentDecider:
    """Decides when the last rank has ended a step; of copies, when each process has."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._claims = [claim.params for claim in claims]
        for params in self._claims:
            is_of_ranks = params.get("role") in _MOMENTS and ("under" in params or "of" in params)
            if not is_of_ranks and not ("copy" in params and "source" in params):
                raise ValueError(f"nothing is known of {dict(params)}")
        self._program = ProgramName()
        self._steps = RunSteps()
        self._has_copies = any("copy" in params for params in self._claims)
        self._copies: dict[tuple[int, str], Copies] = defaultdict(Copies)

    def observe(self, event: Event) -> Sequence[tuple[int, Example]]:
        self._program.observe(event)
        found: list[tuple[int, Example]] = []
        if self._has_copies and event.step is not None:
            copies = self._copies[event.rank, event.stream.partition("-")[0]]
            if isinstance(event, StepEvent):
                found += self._of_copies(copies, event)
                copies.turn(event)
            else:
                copies.observe(event)
        for step in self._steps.observe(event):
            if step.is_judged:
                found += self._of_ranks(step)
        return found

    def finish(self) -> Sequence[tuple[int, Example]]:
        """Nothing: a step that not all ranks have ended proves nothing."""
        return ()

    def _of_ranks(self, step: RunStep) -> Iterator[tuple[int, Example]]:
        for index, params in enumerate(self._claims):
            if "copy" in params or not self._program.fits(params):
                continue
            same = 0
            for key in _keys(params, step):
                others = step.compare(key)
                if others:
                    yield index, _differs(key[1], others, step)
                same += others == []
            yield from [(index, _HOLDS)] * min(same, _MOST_COUNTED)

    def _of_copies(self, copies: Copies, event: StepEvent) -> Iterator[tuple[int, Example]]:
        changed = copies.changed() if event.recorded and event.complete else []
        for index, params in enumerate(self._claims):
            if params.get("copy") not in changed or not self._program.fits(params):
                continue
            names = copies.differing(params["copy"], params["source"])
            for name in names or ():
                yield index, _is_no_copy(name, params["source"], event)
            if names == []:
                yield index, _HOLDS


def _keys(params: Mapping[str, Any], step: RunStep) -> list[Key]:
    role = params["role"]
    if params.get("of") == WRAPPED:
        wrapped = step.wrapped
        return sorted(key for key in step.changed if key[0] == role and key[1] in wrapped)
    matches = matcher(params["under"]).match
    return sorted(key for key in step.changed if key[0] == role and matches(key[1]))


def _differs(name: str, others: Sequence[int], step: RunStep) -> Example:
    first = min(step.by_rank)
    who = ", ".join(map(str, others))
    return Example(
        holds=False,
        context={},
        step=step.end.step,
        rank=others[0],
        subject=Subject(variable=name),
        expected=f"{name} is the same on all ranks",
        observed=f"rank {who} holds another content than rank {first}",
        evidence=(step.end,),
        symptom=Symptom.RANKS_DIFFER,
    )


def _is_no_copy(name: str, source: str, event: StepEvent) -> Example:
    return Example(
        holds=False,
        context={},
        step=event.step,
        rank=event.rank,
        subject=Subject(variable=name),
        expected=f"{name} is copied from {source}",
        observed="it changes to something else",
        evidence=(event,),
        symptom=Symptom.NOT_RESTORED,
    )


def _claim(params: dict[str, Any]) -> Hypothesis:
    return Hypothesis(relation="consistent", params=params)
