"""Buffers that forwards in training mode compute, and forwards that use them before that.

A part of *order*. A forward is a call of a root module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from traincheck.facts.programs import ProgramName
from traincheck.facts.resumptions import brings_back
from traincheck.facts.variables import Variable, Variables
from traincheck.relations.base import SATISFIED, ProposerBase, counterexample
from traincheck.schema.claims import Hypothesis, Needs, sampled
from traincheck.schema.events import CallEvent, CheckpointEvent, Event, StateEvent, StepEvent
from traincheck.schema.findings import Example, Subject, Symptom
from traincheck.schema.torch_api import Families

BUFFER_NEEDS = Needs(
    calls=frozenset({Families.MODULE}),
    states=sampled("buffer@forward"),
    kinds=frozenset({"checkpoint", "mark", "step"}),
)

# Their initial values are defined and change nothing.
_NEUTRAL = ("torch.nn.modules.batchnorm.", "torch.nn.modules.instancenorm.")

Kind = tuple[str, str]  # leaf of the name and class of the module


class BufferUse(NamedTuple):
    """A forward that uses buffers of one kind. early: those that nothing has computed yet."""

    kind: Kind
    call: CallEvent
    early: tuple[Variable, ...]


@dataclass(slots=True)
class BufferFills:
    """Follows one process. Forwards are read when a step ends, as scans may be late."""

    variables: Variables = field(default_factory=Variables)
    _passes: list[CallEvent] = field(default_factory=list)
    _filled: dict[str, int] = field(default_factory=dict)  # name -> the span that computed it
    _loaded: set[str] = field(default_factory=set)  # models
    _kinds: dict[Kind, list[Variable]] = field(default_factory=dict)
    _version: int = -1
    _has_gap: bool = False  # steps were not recorded, in which buffers may have been computed

    def observe(self, event: Event) -> Iterator[BufferUse]:
        """Enter an event; the uses of buffers that it completes."""
        if isinstance(event, StateEvent):
            if event.role == "buffer":
                self._state(event)
        elif isinstance(event, CallEvent):
            if event.root and event.family == Families.MODULE and event.exception is None:
                self._passes.append(event)
        elif isinstance(event, CheckpointEvent):
            if event.op == "load_state_dict" and event.target and brings_back(event):
                self._loaded.add(event.target)
        elif isinstance(event, StepEvent):
            self._has_gap |= not event.recorded
            passes, self._passes = self._passes, []
            if not self._has_gap:
                for call in passes:
                    yield from self._uses(call)

    def _state(self, event: StateEvent) -> None:
        self.variables.observe(event)
        if event.change in ("content", "replaced", "unknown"):
            self._filled.setdefault(event.name, -1 if event.after is None else event.after)

    def _uses(self, call: CallEvent) -> Iterator[BufferUse]:
        model = (call.module or "").partition(".")[0]
        if self._version != self.variables.version:
            self._version = self.variables.version
            self._kinds = _by_kind(self.variables)
        for kind, variables in self._kinds.items():
            mine = [v for v in variables if v.model == model]
            if mine:
                yield BufferUse(kind, call, tuple(v for v in mine if not self._is_filled(v, call)))

    def _is_filled(self, variable: Variable, call: CallEvent) -> bool:
        span = self._filled.get(variable.name)
        if span is None or span > call.span:
            return variable.model in self._loaded
        return span < call.span or call.training is True


def _by_kind(variables: Variables) -> dict[Kind, list[Variable]]:
    found: dict[Kind, list[Variable]] = {}
    for variable in variables.by_role["buffer"].values():
        if not variable.module_class.startswith(_NEUTRAL):
            found.setdefault((variable.leaf, variable.module_class), []).append(variable)
    return dict(sorted(found.items()))


def is_of_buffers(claim: Hypothesis) -> bool:
    """Whether a claim is about buffers."""
    return "leaf" in claim.params


class BufferProposer(ProposerBase):
    """Finds kinds of buffers that no forward used before they were computed."""

    def __init__(self) -> None:
        self._buffers = BufferFills()
        self._in_time: dict[Kind, bool] = {}

    def observe(self, event: Event) -> None:
        for use in self._buffers.observe(event):
            self._in_time[use.kind] = self._in_time.get(use.kind, True) and not use.early

    def params(self) -> Iterator[dict[str, Any]]:
        """Parameters of claims, without the program."""
        for (leaf, module_class), is_in_time in sorted(self._in_time.items()):
            if is_in_time:
                yield {"role": "buffer", "leaf": leaf, "module_class": module_class}


class BufferDecider:
    """Decides at the end of each step. claims: indices of those about buffers."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._program = ProgramName()
        self._buffers = BufferFills()
        self.claims = {i: claim.params for i, claim in enumerate(claims) if is_of_buffers(claim)}
        self._by_kind: dict[Kind, list[int]] = {}
        for index, params in self.claims.items():
            if "module_class" not in params or params.get("role") != "buffer":
                raise ValueError(f"nothing is known of {dict(params)}")
            kind = (params["leaf"], params["module_class"])
            self._by_kind.setdefault(kind, []).append(index)

    def observe(self, event: Event) -> list[tuple[int, Example]]:
        """The examples that ``event`` decides."""
        self._program.observe(event)
        return [
            (index, example)
            for use in self._buffers.observe(event)
            for index in self._by_kind.get(use.kind, ())
            if self._program.fits(self.claims[index])
            for example in ([_early(v, use.call) for v in use.early] or [SATISFIED])
        ]


def _early(buffer: Variable, call: CallEvent) -> Example:
    mode = "training" if call.training else "evaluation"
    return counterexample(
        call,
        Subject(variable=buffer.name, module=buffer.name.rpartition(".")[0]),
        f"a forward in training mode computes {buffer.name} first",
        f"{call.module} is called in {mode} mode, and the buffer has its initial value",
        Symptom.WRONG_ORDER,
        stage=call.stage,
    )
