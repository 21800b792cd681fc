"""The relation *order*: after A, B comes before the next C, among the landmarks of a loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from traincheck.readings.provider import RunStates
from traincheck.readings.resumptions import brings_back
from traincheck.readings.step_changes import ADDED
from traincheck.readings.steps import OWNED, key_of, landmark_of
from traincheck.readings.variables import Variable, Variables
from traincheck.relations.awaited_changes import GRADIENTS, ClearedByHand
from traincheck.relations.base import (
    SATISFIED,
    DeciderBase,
    OfProgram,
    ProposerBase,
    RelationBase,
    asked,
    counterexample,
)
from traincheck.relations.landmark_orders import (
    BESIDE,
    HABITS,
    PRIVATE,
    TRIPLES,
    OrderWatch,
    Pending,
    SharedOptimizers,
    triple_of,
)
from traincheck.relations.phrasing import in_program, selector_text
from traincheck.schema.claims import Context, Hypothesis, Needs, sampled
from traincheck.schema.events import (
    CallEvent,
    CheckpointEvent,
    Event,
    OptimizerEvent,
    StateEvent,
    StepEvent,
)
from traincheck.schema.findings import Example, Subject, Symptom, Topic
from traincheck.schema.places import short
from traincheck.schema.torch_api import Families
from traincheck.schema.words import display_name

BUFFER_NEEDS = Needs(
    calls=frozenset({Families.MODULE}),
    states=sampled("buffer@forward"),
    kinds=frozenset({"checkpoint", "mark", "step"}),
)

# Their initial values are defined and change nothing.
_NEUTRAL = ("torch.nn.modules.batchnorm.", "torch.nn.modules.instancenorm.")

Kind = tuple[str, str]  # leaf of the name and class of the module


# Of buffers: a forward is a call of a root module.
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
                self.variables.observe(event)
                if event.change in ("content", "replaced", "unknown"):
                    self._filled.setdefault(event.name, -1 if event.after is None else event.after)
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


class BufferDecider(OfProgram):
    """Decides at the end of each step. claims: indices of those about buffers."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
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


_F = Families


class Order(RelationBase):
    """After A, B comes before the next C.

    Claims:
        - A, B and C are landmarks of a training loop: zero_grad, the forward of the model,
          backward, unscale_, clipping, the steps of optimizer, scaler and scheduler, train and
          eval. A may equal C: then there is a B between two of them.
        - Claims about two calls of optimizers apply to each optimizer separately.
        - A forward in training mode computes the buffers of a kind before another forward uses
          them.

    Example:
        ``After Optimizer.step, zero_grad comes before the next backward.`` It breaks when zero_grad
        is missing, in the step whose backward adds to gradients that were used before.

    Evidence:
        One example for the first C after each A. The first C of a run has no A before it and is no
        example: a loop may clear gradients at its start or at its end. Calls that are still awaited
        when the run ends are not judged. Nothing is known across steps that were not recorded.
        Context: stage. For buffers, one example for each forward of a model that has them; loaded
        buffers need not be computed.

    Chance:
        A coin for each example.

    Not claimed:
        - How often anything is called, or that evaluation, a schedule or accumulation takes place.
        - With several optimizers, that each loss comes from a new forward.
        - Anything of gradients that are cleared before a step applies them.
        - ``train`` after ``eval``, unless the same module was in training mode before. Setting the
          mode in another way counts as ``train``.
        - Anything of other scripts, for clipping and for buffers.
        - Anything of BatchNorm: its initial statistics change nothing.
    """

    name = "order"

    def proposer(self) -> OrderProposer:
        return OrderProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> OrderDecider:
        return OrderDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        if is_of_buffers(claim):
            return BUFFER_NEEDS
        calls = set(triple_of(claim))
        calls.update(also for call, also in BESIDE.items() if call in triple_of(claim))
        states = GRADIENTS.states if claim.params["needs"] == _F.ZERO_GRAD else frozenset()
        kinds = {"step", "mark"} if "program" in claim.params else {"step"}
        if calls & OWNED:
            kinds.add("optimizer")
        return Needs(calls=frozenset(calls), states=states, kinds=frozenset(kinds))

    def text(self, claim: Hypothesis) -> str:
        if is_of_buffers(claim):
            buffer = selector_text(claim.params)
            text = (
                f"Every {buffer} is computed by a forward in training mode before another uses it"
            )
            return in_program(claim.params, text)
        after, needed, before = triple_of(claim)
        a, b, c = map(display_name, (after, needed, before))
        text = f"After {a}, {b} comes before the next {c}"
        if after == before:
            text = f"Between two calls of {a} there is {b}"
        return in_program(claim.params, text)

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """Gradients that are added to nothing, or cleared by hand, need no zero_grad."""
        is_added = claim.params.get("needs") == _F.ZERO_GRAD
        return {**claim.params, "api": ADDED} if is_added else claim.params

    def min_programs(self, claim: Hypothesis) -> int | None:
        """Some programs compute gradients that no optimizer applies."""
        return None if is_of_buffers(claim) or triple_of(claim) in HABITS else 1

    def words(self, claim: Hypothesis) -> Mapping[str, str]:
        """A model may be evaluated before it is trained."""
        return {"severity": "warning"} if is_of_buffers(claim) else {}


class OrderProposer(ProposerBase):
    """Proposes every triple whose A, B and C all occur, and buffers that were never used early."""

    observes = asked("call", "checkpoint", "step", "buffer@*")

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._buffers = BufferProposer()

    def observe(self, event: Event) -> None:
        self._buffers.observe(event)
        if isinstance(event, CallEvent):
            landmark = landmark_of(event)
            if landmark is not None:
                self._seen.add(landmark)

    def hypotheses(self) -> Iterator[Hypothesis]:
        for after, needed, before in TRIPLES:
            if {after, needed, before} <= self._seen:
                params = {"after": after, "before": before, "needs": needed}
                if needed in PRIVATE and self._program.name is not None:
                    params["program"] = self._program.name
                yield Hypothesis(relation="order", params=params)
        if self._program.name is not None:
            for found in self._buffers.params():
                params = {**found, "program": self._program.name}
                yield Hypothesis(relation="order", params=params)


class OrderDecider(OfProgram, DeciderBase):
    """Decides all triples, each event once for each.

    At the end of a run nothing: calls that are still awaited belong to an unfinished step.
    """

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._params = [claim.params for claim in claims]
        self._buffers = BufferDecider(claims)
        self._orders = {
            index: OrderWatch(*triple_of(claim))
            for index, claim in enumerate(claims)
            if index not in self._buffers.claims
        }
        self._contexts: dict[str, Context] = {}
        self._held: dict[str, Example] = {}
        self._shared = SharedOptimizers()
        self._partners = self._shared.of
        self._has_gap = False  # steps were not recorded, in which optimizers may have come
        self._open: list[tuple[int, Pending, CallEvent]] = []  # perhaps inside an optimizer step
        # Gradients that no step applies, as of a saliency map, may be added to anything
        self._unapplied: list[tuple[int, Pending, CallEvent]] = []
        self._by_hand = ClearedByHand([i for i, w in self._orders.items() if w.is_of_zero])

    def bind(self, run_states: RunStates) -> None:
        super().bind(run_states)
        self._buffers.bind(run_states)

    def observe(self, event: Event) -> Sequence[tuple[int, Example]]:
        early = self._buffers.observe(event) if self._buffers.claims else ()
        found = self._by_hand.observe(event, self._loop(event))
        return [*found, *early] if early else found

    def _loop(self, event: Event) -> Sequence[tuple[int, Example]]:
        if isinstance(event, CallEvent):
            landmark = landmark_of(event)
            return () if landmark is None else self._call(event, landmark)
        if isinstance(event, OptimizerEvent):
            self._shared.hold(event)
        if isinstance(event, StepEvent):
            self._has_gap |= event.is_gap
            if not event.recorded:
                for watch in self._orders.values():
                    watch.forget()
                self._open.clear()
                self._unapplied.clear()
            return self._flush(self._open)
        return ()

    def _flush(self, kept: list[tuple[int, Pending, CallEvent]]) -> list[tuple[int, Example]]:
        lacking = [(index, self._example(index, pending, end)) for index, pending, end in kept]
        kept.clear()
        return lacking

    def _call(self, event: CallEvent, landmark: str) -> list[tuple[int, Example]]:
        examples: list[tuple[int, Example]] = []
        self._shared.call(event, landmark)
        if landmark in (_F.ZERO_GRAD, _F.OPTIMIZER_STEP):
            share = self._shared.share
            mine = [h for h in self._unapplied if share(h[1].event.owner, event.owner)]
            self._unapplied = [held for held in self._unapplied if held not in mine]
            examples = self._flush(mine) if landmark == _F.OPTIMIZER_STEP else []
        for index, watch in self._orders.items():
            for pending, end in watch.observe(event, landmark, self._partners):
                if not self._program.fits(self._params[index]) or self._is_unknown(pending):
                    continue
                if watch.is_of_one_loss and len(set(self._partners.values())) > 1:
                    continue
                if pending.is_satisfied or not (watch.is_step_due or watch.is_of_gradients):
                    examples.append((index, self._example(index, pending, end)))
                else:
                    kept = self._open if watch.is_step_due else self._unapplied
                    kept.append((index, pending, end))
        if landmark == _F.OPTIMIZER_STEP and self._open:
            # A closure may compute gradients many times in one step, recorded when it ends.
            self._open = [h for h in self._open if h[1].event.start_ns < event.start_ns]
            self._shared.lose(self._open, event)
            examples += self._flush(self._open)
        return examples

    def _is_unknown(self, pending: Pending) -> bool:
        """Whether the parameters of the owner of a call are not known."""
        owner = pending.event.owner
        return self._has_gap and owner is not None and owner not in self._partners

    def _example(self, index: int, pending: Pending, before: CallEvent) -> Example:
        watch = self._orders[index]
        stage = before.stage
        context = self._contexts.setdefault(stage, {"stage": stage})
        if pending.is_satisfied:
            return self._held.setdefault(stage, Example(holds=True, context=context))
        # A missing optimizer step is missing in the step whose gradients it should have applied.
        where = f" ({short(before.where)})" if before.where else ""
        a, b, c = map(display_name, (watch.after, watch.needed, watch.before))
        return Example(
            holds=False,
            context=context,
            step=pending.event.step if watch.is_step_due else before.step,
            rank=before.rank,
            stage=stage,
            subject=Subject(
                api=watch.needed,
                module=key_of(pending.event, _F.EVAL) if watch.after == _F.EVAL else None,
            ),
            expected=f"{b} between {a} and the next {c}",
            observed=f"{c}{where} came without it",
            evidence=(pending.event, before),
            symptom=pending.symptom or watch.symptom,
            topic=Topic.ORDER,
        )
