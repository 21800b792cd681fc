"""Propose and decide *consistent*: between ranks, and between a model and its copy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.facts.collectives import Collectives, Meeting, Pair
from traincheck.facts.programs import RunProgram
from traincheck.facts.rank_steps import Key
from traincheck.facts.ranks import RankSteps, RunStep
from traincheck.relations.base import ProposerBase
from traincheck.relations.consistent.target_networks import Copies, CopyFinder
from traincheck.relations.phrasing import short
from traincheck.relations.subtrees import fold, matcher
from traincheck.schema.claims import Hypothesis
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.findings import Example, Subject, Symptom
from traincheck.schema.torch_api import Families
from traincheck.schema.words import counted

_HOLDS = Example(holds=True, context={})
_MOST_COUNTED = 8  # variables of one step that count as examples
MOMENTS = {"parameter": "step", "buffer": "forward", "optimizer_state": "step"}
WRAPPED, CALLS = "wrapped", "calls"
SHAPES, RECEIVED = "shapes", "received"
NORMS = "norms"  # by which gradients are clipped
_CLOSE = 1e-4  # norms that are summed in another order
COUNTED = {"backward": Families.BACKWARD, "optimizer_step": Families.OPTIMIZER_STEP}


class ConsistentProposer(ProposerBase):
    """Compares all variables on all ranks, and models with those that are trained."""

    def __init__(self) -> None:
        self._program = RunProgram()
        self._steps = RankSteps(counts_all=True)
        self._same: dict[Key, bool] = {}
        self._collectives = Collectives()
        self._exchanged: set[str] = set()
        self._wrapped = False
        self._ranks = 1
        self._clips: bool | None = None  # by one norm
        self._finders: dict[tuple[int, str], CopyFinder] = defaultdict(CopyFinder)

    def observe(self, event: Event) -> None:
        self._program.observe(event)
        if event.step is not None:
            self._finders[event.rank, event.stream.partition("-")[0]].observe(event)
        self._collectives.observe(event)
        for met in self._collectives.met:
            self._exchanged |= {of for of, values in _of_pair(met).items() if values is not None}
        self._steps.observe(event)
        for step in self._steps.ready:
            if step.is_judged:
                self._wrapped |= bool(step.wrapped)
                self._ranks = max(self._ranks, len(step.counters))
                for key in step.changed:
                    self._compare(step, key)
                for norms in step.clipped():
                    self._clips = self._clips is not False and _are_close(norms)

    def _compare(self, step: RunStep, key: Key) -> None:
        if key[0] in MOMENTS and self._same.get(key, True):
            others = step.compare(key)
            if others is not None:
                self._same[key] = not others

    def hypotheses(self) -> Iterator[Hypothesis]:
        if self._wrapped:
            yield _claim({"role": "parameter", "of": WRAPPED})
        for of in sorted(self._exchanged):
            yield _claim({"of": of})
        if self._ranks > 1:
            yield _claim({"of": CALLS, "call": "optimizer_step"})
        if self._program.name is None:
            return
        base = {"program": self._program.name}
        if self._ranks > 1:  # others may accumulate unequally, and exchange gradients once
            yield _claim({**base, "of": CALLS, "call": "backward"})
        if self._clips:
            yield _claim({**base, "of": NORMS})
        yield from (_claim({**base, **place}) for place in self._places())
        pairs = {pair for finder in self._finders.values() for pair in finder.pairs()}
        for copy, source in sorted(pairs):
            yield _claim({**base, "copy": copy, "source": source})

    def _places(self) -> Iterator[dict[str, str]]:
        """Where all variables of a role were the same on all ranks."""
        for role in MOMENTS:
            labels: dict[str, bool] = {}
            for (found, name), same in self._same.items():
                if found == role:
                    variable = name.partition("/")[0]
                    labels[variable] = same and labels.get(variable, True)
            for pattern, is_same in fold(labels):
                if is_same:
                    yield {"role": role, "under": pattern}


class ConsistentDecider:
    """Decides when the last rank has ended a step; of copies, when each process has."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._claims = [claim.params for claim in claims]
        for params in self._claims:
            is_of_ranks = params.get("role") in MOMENTS and ("under" in params or "of" in params)
            is_of_ranks |= params.get("of") == CALLS and params.get("call") in COUNTED
            is_of_ranks |= params.get("of") in (SHAPES, RECEIVED, NORMS)
            if not is_of_ranks and not ("copy" in params and "source" in params):
                raise ValueError(f"nothing is known of {dict(params)}")
        self._program = RunProgram()
        self._steps = RankSteps(counts_all=True)
        self._collectives = Collectives()
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
        self._collectives.observe(event)
        for met in self._collectives.met:
            found += self._of_exchange(met)
        self._steps.observe(event)
        for step in self._steps.ready:
            if step.is_judged:
                found += self._of_ranks(step)
                found += self._of_norms(step)
            if step.is_complete:
                found += self._of_calls(step)
        return found

    def finish(self) -> Sequence[tuple[int, Example]]:
        """Nothing: a step that not all ranks have ended proves nothing."""
        return ()

    def _of_ranks(self, step: RunStep) -> Iterator[tuple[int, Example]]:
        for index, params in enumerate(self._claims):
            if "role" not in params or not self._program.fits(params):
                continue
            same = 0
            for key in _keys(params, step):
                others = step.compare(key)
                if others:
                    yield index, _differs(key[1], others, step)
                same += others == []
            yield from [(index, _HOLDS)] * min(same, _MOST_COUNTED)

    def _of_calls(self, step: RunStep) -> Iterator[tuple[int, Example]]:
        for index, params in enumerate(self._claims):
            if params.get("of") == CALLS and self._program.fits(params):
                counts = {rank: c.get(params["call"], 0) for rank, c in step.counters.items()}
                if len(set(counts.values())) > 1:
                    yield index, _is_out_of_step(COUNTED[params["call"]], counts, step)
                elif any(counts.values()):
                    yield index, _HOLDS

    def _of_norms(self, step: RunStep) -> Iterator[tuple[int, Example]]:
        clipped = step.clipped()
        for index, params in enumerate(self._claims):
            if params.get("of") == NORMS and self._program.fits(params):
                for norms in clipped:
                    yield index, _HOLDS if _are_close(norms) else _clips_apart(norms, step)

    def _of_exchange(self, met: Meeting) -> Iterator[tuple[int, Example]]:
        told = _of_pair(met)
        for index, params in enumerate(self._claims):
            values = told.get(params.get("of", ""))
            if values is not None:
                held = values[0] == values[1]
                yield index, _HOLDS if held else _is_lost(params["of"], met.pair, values)

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
    first = min(step.ranks)
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


def _are_close(norms: Mapping[int, float]) -> bool:
    low, high = min(norms.values()), max(norms.values())
    return high - low <= _CLOSE * abs(high)


def _clips_apart(norms: Mapping[int, float], step: RunStep) -> Example:
    return Example(
        holds=False,
        context={},
        step=step.end.step,
        rank=max(norms),
        subject=Subject(api=Families.CLIP_NORM),
        expected="all ranks find the same norm",
        observed=", ".join(f"rank {rank}: {norm:.6g}" for rank, norm in norms.items()),
        evidence=(step.end,),
        symptom=Symptom.RANKS_DIFFER,
    )


def _of_pair(met: Meeting) -> dict[str, list[str] | None]:
    if not met.is_same:
        return {}
    return {SHAPES: met.pair.shapes, RECEIVED: met.pair.contents}


def _is_lost(of: str, pair: Pair, values: Sequence[str]) -> Example:
    first, other, receiver = pair.first, pair.other, pair.receiver
    steps = [event.step for event in (first, other) if event.step is not None]
    told = [value.rpartition(":")[2][:8] if of == RECEIVED else value for value in values]
    is_shape = of == SHAPES
    return Example(
        holds=False,
        context={},
        step=min(steps, default=None),
        rank=receiver.rank,
        stage=receiver.stage,
        subject=Subject(api=f"torch.distributed.{receiver.op}", variable=receiver.variable),
        expected=f"all ranks {'give' if is_shape else 'get'} the same "
        f"{'shape' if is_shape else 'content'} in call {receiver.number} of {receiver.op}",
        observed=f"rank {first.rank}: {told[0]}, rank {other.rank}: {told[1]}",
        evidence=(first, other),
        symptom=Symptom.OUT_OF_STEP if is_shape else Symptom.RANKS_DIFFER,
    )


def _is_out_of_step(api: str, counts: Mapping[int, int], step: RunStep) -> Example:
    usual = max(counts.values())
    who = next(rank for rank, count in counts.items() if count < usual)
    return Example(
        holds=False,
        context={},
        step=step.end.step,
        rank=who,
        subject=Subject(api=api),
        expected=f"all ranks call {short(api)} equally often",
        observed=", ".join(
            f"rank {rank} calls it {counted(n, 'time')}" for rank, n in counts.items()
        ),
        evidence=(step.end,),
        symptom=Symptom.OUT_OF_STEP,
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
