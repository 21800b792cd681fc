"""Replay a full trace as selective and sampled collection would have recorded it.

Each claim is decided on the events that it needs, and on no others. `replay` validates the
invariants of a file on a run, by the checking engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from traincheck.check.engine import Engine
from traincheck.check.monitors.invariant_monitor import in_sampled_view
from traincheck.readings.provider import Router, RunStates
from traincheck.schema.claims import SAMPLED_STEPS, Context, Hypothesis, Invariant, Needs, Scalar
from traincheck.schema.events import CallEvent, Event, MarkEvent, StateEvent, StepEvent
from traincheck.schema.findings import Example, Report
from traincheck.schema.invariant_file import needs_json
from traincheck.schema.marks import LIFECYCLE_CHANGES, Marks
from traincheck.schema.protocols import Decider, EventSource, Relation
from traincheck.schema.torch_api import Families

SELECTIVE, SAMPLED = "the selective view", "the sampled view"
CALLS_SAMPLED = "the selective view, in which calls within models and looks are taken in some steps"
EVERY = 3  # the sampled view holds every EVERY-th step
_ALWAYS = frozenset({"step", "stage", "mark"})
_MOMENTS = {"parameter": "step", "optimizer_state": "step", "buffer": "forward"}
_MAX_ANSWERS = 256  # answers remembered

Features = tuple[tuple[str, Scalar], ...]  # a context, sorted by feature


def features_of(context: Context) -> Features:
    """A context as a key for dictionaries."""
    return tuple(sorted(context.items()))


def with_gaps(events: Iterable[Event]) -> Iterator[Event]:
    """Events as checks get them, with a gap after each mark that events are missing."""
    for event in events:
        yield event
        if isinstance(event, MarkEvent) and event.text in (Marks.DROPPED, Marks.FOLDED):
            yield event.gap


def in_selective_view(event: Event, needs: Needs) -> Event | None:
    """``event`` as recorded by selective collection for ``needs``; None if it is not."""
    if event.kind == "call":
        if needs.delivers(event.api):
            return event
        # For the family of modules only root modules are recorded.
        is_wanted = event.family in needs.calls and (event.family != Families.MODULE or event.root)
        return event if is_wanted else None
    if event.kind == "state":
        role, change = event.role, event.change
        moment = _MOMENTS.get(role) or ("zero_grad" if change == "cleared" else "backward")
        is_wanted = change in LIFECYCLE_CHANGES or any(
            map(needs.scans, (f"{role}@{moment}", f"{role}@*"))
        )
        return event if is_wanted else None
    if event.kind == "mark" and event.text == Marks.PROCESS:
        if event.data.get("recorded") is not None:
            return event  # the trace itself is selective
        data = {**event.data, "recorded": needs_json(needs)}
        return event.replace(data=data)
    return event if event.kind in _ALWAYS or event.kind in needs.kinds else None


def in_step_sample(event: Event, every: int = EVERY) -> Event | None:
    """``event`` as recorded when only every n-th step is; None if it is not."""
    if event.step is None or event.step % every == 0 or event.kind == "mark":
        return event
    return event.skipped if isinstance(event, StepEvent) else None


@dataclass(frozen=True, slots=True)
class ClaimGroup:
    """Claims of one relation, and the union of what they need."""

    relation: Relation
    keys: Sequence[str]
    claims: Sequence[Hypothesis]
    needs: Needs


@dataclass(frozen=True, slots=True)
class ClaimGroups:
    """Claims, grouped in two ways.

    Attributes:
        whole: by relation.
        narrow: by relation and by what they need other than calls.
    """

    whole: Sequence[ClaimGroup]
    narrow: Sequence[ClaimGroup]

    @classmethod
    def of(cls, relations: Mapping[str, Relation], claims: Mapping[str, Hypothesis]) -> ClaimGroups:
        """Group the claims of these relations."""
        whole: dict[str, list[str]] = {}
        narrow: dict[tuple[str, str], list[str]] = {}
        for key in sorted(claims):
            name = claims[key].relation
            if name in relations:
                needs = relations[name].needs(claims[key])
                apart = repr([sorted(s) for s in (needs.states, needs.kinds, needs.stats)])
                whole.setdefault(name, []).append(key)
                narrow.setdefault((name, apart), []).append(key)
        return cls(
            [_group(relations[name], keys, claims) for name, keys in sorted(whole.items())],
            [_group(relations[name], keys, claims) for (name, _), keys in sorted(narrow.items())],
        )


def _group(relation: Relation, keys: Sequence[str], claims: Mapping[str, Hypothesis]) -> ClaimGroup:
    needs = Needs()
    for key in keys:
        needs |= relation.needs(claims[key])
    return ClaimGroup(relation, keys, [claims[key] for key in keys], needs)


class ReplayViews:
    """Runs the deciders of one process on the selective and sampled views of its events."""

    def __init__(self, groups: Sequence[ClaimGroup]) -> None:
        self._groups = groups
        # Of each view: it may hide what another one shows
        run_states = RunStates(), RunStates(), RunStates()
        self._view_sets = [_ViewSet.of(group, run_states) for group in groups]
        receivers: list[tuple[Needs, _ViewSet | _StateSet]] = [
            (reads, _StateSet([one.of(kind).observe for one in run_states]))
            for kind, reads in run_states[0].reads().items()
        ]
        receivers += [(group.needs, views) for group, views in zip(groups, self._view_sets)]
        self._router = Router([(needs, (needs, views)) for needs, views in receivers])
        self._by_kind: dict[tuple[object, ...], list[_ViewSet | _StateSet]] = {}
        self._after_backward = [
            views
            for views, g in zip(self._view_sets, groups)
            if g.needs.scans("gradient@backward")
            and not any(map(g.needs.scans, ("gradient@zero_grad", "gradient@*")))
        ]
        self._cleared: dict[str, StateEvent] = {}  # gradients, since the last backward

    def observe(self, event: Event) -> None:
        """Give the event to the views that include it."""
        key: tuple[object, ...]
        if event.kind == "state":  # by kind, most frequent first
            key = (event.role, event.change)
        elif event.kind == "call":
            key = (event.api, event.family, event.root)
        else:
            key = (event.kind,)
        view_sets = self._by_kind.get(key)
        if view_sets is None:
            view_sets = self._by_kind[key] = [
                views
                for needs, views in self._router.route(event)
                if in_selective_view(event, needs) is not None
            ]
        if self._after_backward:
            self._replay_cleared(event)
        if not view_sets:
            return
        in_sample, in_scan_sample = in_step_sample(event), in_sampled_view(event, SAMPLED_STEPS)
        for views in view_sets:
            views.observe(event, in_sample, in_scan_sample)

    def _replay_cleared(self, event: Event) -> None:
        """Replay cleared gradients for claims whose recording scans gradients only after backward.

        There the change is seen at the backward, and only if the gradient is still cleared.
        """
        if isinstance(event, StateEvent):
            if event.role == "gradient":
                self._cleared.pop(event.name, None)
                if event.change == "cleared":
                    self._cleared[event.name] = event
        elif (
            self._cleared
            and isinstance(event, CallEvent)
            and (event.family or event.api) == Families.BACKWARD
        ):
            for cleared in self._cleared.values():
                seen = cleared.replace(step=event.step, stage=event.stage, after=event.span)
                for views in self._after_backward:
                    in_sample = seen if in_step_sample(seen) and in_step_sample(cleared) else None
                    views.observe(
                        seen, in_sample, seen if SAMPLED_STEPS.includes(cleared.step) else None
                    )
            self._cleared.clear()

    def finish(self) -> None:
        for views in self._view_sets:
            for _, counterexamples in views.views():
                counterexamples.finish()

    def counterexamples(self) -> Iterator[tuple[str, str, Features]]:
        """Key of a claim, the view in which it breaks, and the context."""
        for group, views in zip(self._groups, self._view_sets):
            for name, counterexamples in views.views():
                for index, features in counterexamples.negative:
                    yield group.keys[index], name, features


class _Counterexamples:
    """The contexts of negative examples. run_states: those of the view."""

    def __init__(self, group: ClaimGroup, run_states: RunStates) -> None:
        self._decider: Decider = run_states.bind(group.relation.decider(group.claims))
        self.negative: set[tuple[int, Features]] = set()
        # Answers without a negative example
        self._agreeing: dict[int, Iterable[tuple[int, Example]]] = {}

    def observe(self, event: Event) -> None:
        examples = self._decider.observe(event)
        if examples and self._agreeing.get(id(examples)) is not examples:
            self._judge(examples)

    def finish(self) -> None:
        self._judge(self._decider.finish())

    def _judge(self, examples: Iterable[tuple[int, Example]]) -> None:
        found = {(i, features_of(e.context)) for i, e in examples if not e.holds}
        self.negative |= found
        if not found and isinstance(examples, tuple):  # see protocols.Decider
            if len(self._agreeing) >= _MAX_ANSWERS:
                self._agreeing.clear()
            self._agreeing[id(examples)] = examples


@dataclass(frozen=True, slots=True)
class _ViewSet:
    """The deciders of a group, one for each view.

    Attributes:
        selective: the selective view.
        step_sample: the sampled view.
        call_sample: the view in which calls and scans are sampled; None if nothing is.
        scans_are_sampled: whether state scans are sampled in that view, too.
    """

    selective: _Counterexamples
    step_sample: _Counterexamples
    call_sample: _Counterexamples | None
    scans_are_sampled: bool

    @classmethod
    def of(cls, group: ClaimGroup, run_states: Sequence[RunStates]) -> _ViewSet:
        """Deciders for a group of claims, with the run states of each view."""
        needs = group.needs
        is_sampled = bool(needs.sampled_calls or needs.sampled_states)
        return cls(
            _Counterexamples(group, run_states[0]),
            _Counterexamples(group, run_states[1]),
            _Counterexamples(group, run_states[2]) if is_sampled else None,
            scans_are_sampled=bool(needs.sampled_states),
        )

    def observe(self, event: Event, in_sample: Event | None, in_scan_sample: Event | None) -> None:
        """Give each decider the event as its view has it; None if the view does not."""
        self.selective.observe(event)
        if in_sample is not None:
            self.step_sample.observe(in_sample)
        if in_scan_sample is None or self.call_sample is None:
            return
        is_scan = self.scans_are_sampled and _is_scan(in_scan_sample)
        if not is_scan or SAMPLED_STEPS.includes(in_scan_sample.step):
            self.call_sample.observe(in_scan_sample)

    def views(self) -> Iterator[tuple[str, _Counterexamples]]:
        """The name of each view, and its counterexamples."""
        yield SELECTIVE, self.selective
        yield SAMPLED, self.step_sample
        if self.call_sample is not None:
            yield CALLS_SAMPLED, self.call_sample


@dataclass(frozen=True, slots=True)
class _StateSet:
    """One kind of run state, in each view."""

    observers: Sequence[Callable[[Event], None]]

    def observe(self, event: Event, in_sample: Event | None, in_scan_sample: Event | None) -> None:
        """Give the run state of each view the event as the view has it."""
        for observe, seen in zip(self.observers, (event, in_sample, in_scan_sample)):
            if seen is not None:
                observe(seen)


def _is_scan(event: Event) -> bool:
    return isinstance(event, StateEvent) and event.change not in LIFECYCLE_CHANGES


FULL = "the full view"
VIEWS = (FULL, SELECTIVE, SAMPLED)


def replay(
    source: EventSource, relations: Mapping[str, Relation], invariants: Sequence[Invariant]
) -> dict[str, Report]:
    """The reports of a run by view, from one pass over it.

    The selective view is a recording for all of ``invariants``. The sampled view holds every third
    step of that.
    """
    needs = reduce(or_, (invariant.needs for invariant in invariants), Needs())
    engines = {view: Engine(invariants, (), relations) for view in VIEWS}
    for event in source.events():
        engines[FULL].observe(event)
        less = in_selective_view(event, needs)
        if less is not None:
            engines[SELECTIVE].observe(less)
            few = in_step_sample(less)
            if few is not None:
                engines[SAMPLED].observe(few)
    return {view: engine.finish() for view, engine in engines.items()}
