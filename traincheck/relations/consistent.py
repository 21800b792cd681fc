"""The relation *consistent*: equal on all ranks after a step, or equal to the copied model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.readings.distributed.collectives import Collectives, Meeting, Pair
from traincheck.readings.distributed.rank_steps import Content, Key, content
from traincheck.readings.distributed.ranks import RankSteps, RunStep
from traincheck.readings.programs import SEEN, RunProgram
from traincheck.readings.provider import RunStates
from traincheck.readings.variables import Variables
from traincheck.relations.base import (
    SATISFIED,
    DeciderBase,
    ProposerBase,
    RelationBase,
    asked,
    counterexample,
)
from traincheck.relations.phrasing import ROLE_NAMES, SEVERAL_RANKS, in_program
from traincheck.relations.subtrees import fold, matcher
from traincheck.schema.claims import Hypothesis, Needs, sampled
from traincheck.schema.events import Event, OptimizerEvent, StateEvent, StepEvent
from traincheck.schema.findings import Example, Subject, Symptom
from traincheck.schema.torch_api import DDP_HOOK, DDP_INIT, JOIN, Families
from traincheck.schema.words import counted, display_name

MOMENTS = {"parameter": "step", "buffer": "forward", "optimizer_state": "step"}
WRAPPED, CALLS = "wrapped", "calls"
SHAPES, RECEIVED = "shapes", "received"
NORMS = "norms"  # of gradients, when they are clipped
_CLOSE = 1e-4  # relative: norms may be summed in another order
COUNTED = {"backward": Families.BACKWARD, "optimizer_step": Families.OPTIMIZER_STEP}


def are_close(norms: Mapping[int, float]) -> bool:
    """Whether norms differ by rounding only."""
    low, high = min(norms.values()), max(norms.values())
    return high - low <= _CLOSE * abs(high)


def exchanged(met: Meeting) -> dict[str, list[str] | None]:
    """The values that two ranks gave and got in one collective call, by kind of claim."""
    if not met.is_same:
        return {}
    return {SHAPES: met.pair.shapes, RECEIVED: met.pair.contents}


def text_of(params: Mapping[str, Any]) -> str:
    """The claim as a sentence."""
    of = params.get("of")
    if of == SHAPES:
        return "All ranks pass tensors of one shape and dtype to each collective"
    if of == RECEIVED:
        return "Each rank receives what another rank sent, or holds after the same collective"
    if "copy" in params:
        text = f"Whenever {params['copy']} changes, it is a copy of {params['source']}"
    elif of == CALLS:
        call = display_name(COUNTED[params["call"]])
        text = f"All ranks call {call} equally often in every step"
    elif of == NORMS:
        text = "All ranks clip gradients by the same norm"
    else:
        who = "parameter of a model in DistributedDataParallel"
        if of != WRAPPED:
            who = f"{ROLE_NAMES[params['role']]} under {params['under']}"
        text = f"Every {who} is the same on all ranks after every step"
    return in_program(params, text)


def ranks_differ(name: str, others: Sequence[int], step: RunStep) -> Example:
    """A variable differs between ranks."""
    first = min(step.ranks)
    who = ", ".join(map(str, others))
    return counterexample(
        step.end,
        Subject(variable=name),
        f"{name} is the same on all ranks",
        f"the content on rank {who} differs from rank {first}",
        Symptom.RANKS_DIFFER,
    ).replace(rank=others[0])


def norms_differ(norms: Mapping[int, float], step: RunStep) -> Example:
    """Ranks clip by different norms."""
    return counterexample(
        step.end,
        Subject(api=Families.CLIP_NORM),
        "all ranks clip by the same norm",
        ", ".join(f"rank {rank}: {norm:.6g}" for rank, norm in norms.items()),
        Symptom.RANKS_DIFFER,
    ).replace(rank=max(norms))


def exchange_differs(of: str, pair: Pair, values: Sequence[str]) -> Example:
    """Ranks give, or get, different tensors in one collective call."""
    first, other, receiver = pair.first, pair.other, pair.receiver
    steps = [event.step for event in (first, other) if event.step is not None]
    shown = [value.rpartition(":")[2][:8] if of == RECEIVED else value for value in values]
    is_shape = of == SHAPES
    verb, what = ("pass", "shape") if is_shape else ("receive", "content")
    return counterexample(
        receiver,
        Subject(api=f"torch.distributed.{receiver.op}", variable=receiver.variable),
        f"all ranks {verb} the same {what} in call {receiver.number} of {receiver.op}",
        f"rank {first.rank}: {shown[0]}, rank {other.rank}: {shown[1]}",
        Symptom.OUT_OF_STEP if is_shape else Symptom.RANKS_DIFFER,
        evidence=(first, other),
        stage=receiver.stage,
    ).replace(step=min(steps, default=None))


def counts_differ(api: str, counts: Mapping[int, int], step: RunStep) -> Example:
    """Ranks call a landmark unequally often in a step."""
    usual = max(counts.values())
    who = next(rank for rank, count in counts.items() if count < usual)
    return counterexample(
        step.end,
        Subject(api=api),
        f"all ranks call {display_name(api)} equally often",
        ", ".join(f"rank {rank} calls it {counted(n, 'time')}" for rank, n in counts.items()),
        Symptom.OUT_OF_STEP,
    ).replace(rank=who)


def not_copied(name: str, source: str, event: StepEvent) -> Example:
    """A model changes to something that the other does not hold."""
    return counterexample(
        event,
        Subject(variable=name),
        f"{name} is copied from {source}",
        "it changes to something else",
        Symptom.NOT_RESTORED,
    )


_MIN_COPIES = 3  # an average also begins as a copy


class CopyTracker:
    """Follows one process: which models that changed in a step are copies of others.

    A copy may have the content that the other model has at the end of the step or had at its start.
    """

    def __init__(self) -> None:
        self.variables = Variables()
        self._now: dict[str, Content | None] = {}
        self._before: dict[str, Content | None] = {}
        self._changed: dict[str, set[str]] = defaultdict(set)  # model -> names below it

    def observe(self, event: Event) -> None:
        """Enter a change."""
        if isinstance(event, OptimizerEvent):
            self.variables.hold(event)
        elif isinstance(event, StateEvent) and event.role == "parameter":
            self.variables.observe(event)
            if event.change == "flags":
                return
            self._now[event.name] = content(event.summary)
            if event.change in ("content", "unknown"):
                model, _, below = event.name.partition(".")
                self._changed[model].add(below)

    def turn(self, event: StepEvent) -> None:
        """Begin a new step."""
        self._changed.clear()
        if not event.recorded:
            self._now.clear()
        self._before = dict(self._now)

    def changed(self) -> list[str]:
        """Models without an optimizer that changed in this step."""
        held = self.variables.held_models()
        return sorted(model for model in self._changed if model not in held)

    def differing(self, copy: str, of: str) -> list[str] | None:
        """Names below ``copy`` that differ from ``of`` after a change; None if unknown."""
        found = []
        for below in sorted(self._changed[copy]):
            mine = self._now.get(f"{copy}.{below}")
            name = f"{of}.{below}"
            theirs = self._now.get(name), self._before.get(name)
            if mine is None or theirs == (None, None):
                return None
            if mine not in theirs:
                found.append(f"{copy}.{below}")
        return found


class CopyFinder:
    """Finds models that were exact copies whenever they changed."""

    def __init__(self) -> None:
        self._copies = CopyTracker()
        self._times: dict[tuple[str, str], int] = defaultdict(int)
        self._broken: set[tuple[str, str]] = set()

    def observe(self, event: Event) -> None:
        if not isinstance(event, StepEvent):
            self._copies.observe(event)
            return
        for copy in self._copies.changed():
            for of in sorted(self._copies.variables.held_models()):
                if (copy, of) in self._broken:
                    continue
                if self._copies.differing(copy, of) == []:
                    self._times[copy, of] += 1
                else:
                    self._broken.add((copy, of))
        self._copies.turn(event)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Copies and their sources."""
        for pair, times in sorted(self._times.items()):
            if times >= _MIN_COPIES and pair not in self._broken:
                yield pair


class ConsistentProposer(ProposerBase):
    """Compares all variables on all ranks, and models with those that are trained."""

    observes = asked(
        "call",
        "collective",
        "mark",
        "optimizer",
        "step",
        "buffer@*",
        "optimizer_state@*",
        "parameter@*",
    )
    uses = (RunProgram,)

    def __init__(self) -> None:
        self._steps = RankSteps(counts_all=True)
        self._same: dict[Key, bool] = {}
        self._collectives = Collectives()
        self._exchanged: set[str] = set()
        self._wrapped = False
        self._ranks = 1
        self._clips: bool | None = None  # by the same norm
        self._finders: dict[tuple[int, str], CopyFinder] = defaultdict(CopyFinder)

    def bind(self, run_states: RunStates) -> None:
        self._run = run_states.of(RunProgram)

    def observe(self, event: Event) -> None:
        if event.step is not None:
            self._finders[event.rank, event.stream.partition("-")[0]].observe(event)
        self._collectives.observe(event)
        for met in self._collectives.met:
            self._exchanged |= {of for of, values in exchanged(met).items() if values is not None}
        self._steps.observe(event)
        for step in self._steps.ready:
            if step.is_judged:
                self._wrapped |= bool(step.wrapped)
                self._ranks = max(self._ranks, len(step.counters))
                for key in step.changed:
                    if key[0] in MOMENTS and self._same.get(key, True):
                        others = step.compare(key)
                        if others is not None:
                            self._same[key] = not others
                for norms in step.clipped():
                    self._clips = self._clips is not False and are_close(norms)

    def hypotheses(self) -> Iterator[Hypothesis]:
        if self._wrapped:
            yield _claim({"role": "parameter", "of": WRAPPED})
        for of in sorted(self._exchanged):
            yield _claim({"of": of})
        if self._ranks > 1:
            yield _claim({"of": CALLS, "call": "optimizer_step"})
        if self._run.name is None:
            return
        base = {"program": self._run.name}
        if self._ranks > 1:  # ranks of others may accumulate unequally and exchange gradients once
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


def _claim(params: dict[str, Any]) -> Hypothesis:
    return Hypothesis(relation="consistent", params=params)


_MOST_COUNTED = 8  # variables of one step that count as examples


class ConsistentDecider(DeciderBase):
    """Decides when the last rank has ended a step; for copies, when each process has.

    At the end of a run nothing: a step that some rank has not ended proves nothing.
    """

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._claims = [claim.params for claim in claims]
        for params in self._claims:
            is_of_ranks = params.get("role") in MOMENTS and ("under" in params or "of" in params)
            is_of_ranks |= params.get("of") == CALLS and params.get("call") in COUNTED
            is_of_ranks |= params.get("of") in (SHAPES, RECEIVED, NORMS)
            if not is_of_ranks and not ("copy" in params and "source" in params):
                raise ValueError(f"nothing is known of {dict(params)}")
        self._program = RunProgram(self._claims)
        self._steps = RankSteps(counts_all=True)
        self._collectives = Collectives()
        self._has_copies = any("copy" in params for params in self._claims)
        self._copies: dict[tuple[int, str], CopyTracker] = defaultdict(CopyTracker)

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

    def _of_ranks(self, step: RunStep) -> Iterator[tuple[int, Example]]:
        for index, params in enumerate(self._claims):
            if "role" not in params or not self._program.fits(params):
                continue
            same = 0
            for key in _keys(params, step):
                others = step.compare(key)
                if others:
                    yield index, ranks_differ(key[1], others, step)
                same += others == []
            yield from [(index, SATISFIED)] * min(same, _MOST_COUNTED)

    def _of_calls(self, step: RunStep) -> Iterator[tuple[int, Example]]:
        for index, params in enumerate(self._claims):
            if params.get("of") == CALLS and self._program.fits(params):
                counts = {rank: c.get(params["call"], 0) for rank, c in step.counters.items()}
                if len(set(counts.values())) > 1:
                    yield index, counts_differ(COUNTED[params["call"]], counts, step)
                elif any(counts.values()):
                    yield index, SATISFIED

    def _of_norms(self, step: RunStep) -> Iterator[tuple[int, Example]]:
        clipped = step.clipped()
        for index, params in enumerate(self._claims):
            if params.get("of") == NORMS and self._program.fits(params):
                for norms in clipped:
                    yield index, SATISFIED if are_close(norms) else norms_differ(norms, step)

    def _of_exchange(self, met: Meeting) -> Iterator[tuple[int, Example]]:
        pairs = exchanged(met)
        for index, params in enumerate(self._claims):
            values = pairs.get(params.get("of", ""))
            if values is not None:
                held = values[0] == values[1]
                yield index, SATISFIED if held else exchange_differs(params["of"], met.pair, values)

    def _of_copies(self, copies: CopyTracker, event: StepEvent) -> Iterator[tuple[int, Example]]:
        changed = copies.changed() if event.recorded and event.complete else []
        for index, params in enumerate(self._claims):
            if params.get("copy") not in changed or not self._program.fits(params):
                continue
            names = copies.differing(params["copy"], params["source"])
            for name in names or ():
                yield index, not_copied(name, params["source"], event)
            if names == []:
                yield index, SATISFIED


def _keys(params: Mapping[str, Any], step: RunStep) -> list[Key]:
    role = params["role"]
    if params.get("of") == WRAPPED:
        wrapped = step.wrapped
        return sorted(key for key in step.changed if key[0] == role and key[1] in wrapped)
    matches = matcher(params["under"]).match
    return sorted(key for key in step.changed if key[0] == role and matches(key[1]))


class Consistent(RelationBase):
    """Equal on all ranks after a step, or equal to the copied model.

    Claims:
        - After every training step, all parameters (or buffers, or optimizer state) under a place
          of a model have the same content on all ranks.
        - In any program, the parameters of a model in DistributedDataParallel do so.
        - In any program, all ranks step optimizers equally often in every step, pass tensors of one
          shape to collectives, and receive the tensors that were sent.
        - All ranks run backward equally often, and clip gradients by the same norm.
        - Whenever a model that no optimizer holds changes, it is a copy of another model.

    Example:
        ``In train.py, every parameter under Net.norm is the same on all ranks after every step.``
        It breaks in the first step in which one rank clips, and the other does not.

    Evidence:
        One example for each step that every rank has ended and each variable that changed in it (at
        most eight a step), by exact fingerprints, and one counterexample for each variable that
        differs. Shards, and variables that a rank does not know, are not compared. A copy may hold
        the content that the other model had when the step began. A model is a copy if it was copied
        three times.

    Chance:
        A coin for each example.

    Not claimed:
        - Which rank is right.
        - Anything of a run with one rank.
        - Anything of ranks that are meant to diverge between two averagings.
        - How large a rank's part is.
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
            states = sampled("parameter@step")
            return Needs(states=states, kinds=frozenset({"mark", "optimizer", "step"}), exact=True)
        if params.get("of") == CALLS:
            return Needs(kinds=frozenset({"mark", "step"}))
        if params.get("of") == NORMS:
            calls = frozenset({Families.CLIP_NORM})
            return Needs(calls=calls, states=SEEN, kinds=frozenset({"mark", "step"}))
        if params.get("of") in (SHAPES, RECEIVED):
            states = frozenset({"collective@ranks"} if params["of"] == RECEIVED else ())
            return Needs(states=states, kinds=frozenset({"collective", "mark", "step"}))
        role = params["role"]
        looks = (
            sampled(f"{role}@{MOMENTS[role]}") | SEEN | ({"parameter@ranks"} & {f"{role}@ranks"})
        )
        calls = frozenset({DDP_INIT, DDP_HOOK, JOIN} if params.get("of") == WRAPPED else ())
        return Needs(
            states=frozenset(looks),
            calls=calls,
            kinds=frozenset({"mark", "step"}),
            exact=role != "parameter",
        )

    def text(self, claim: Hypothesis) -> str:
        return text_of(claim.params)

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """The conditions of the claim: several ranks, or a wrapped model."""
        of = claim.params.get("of")
        if of is None:
            return claim.params
        if of == NORMS:
            return {"api": SEVERAL_RANKS, "after": Families.CLIP_NORM, **claim.params}
        program = {"program": claim.params["program"]} if "program" in claim.params else {}
        return {"api": DDP_INIT if of == WRAPPED else SEVERAL_RANKS, **program}
