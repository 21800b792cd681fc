"""The events that selective and sampled collection would record, and what deciders say of them.

A full trace is replayed as if it were one of these: for each claim with what it needs and no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from traincheck.check.monitors.router import Router
from traincheck.check.monitors.sampled_view import in_sampled_view
from traincheck.schema.apis import TELLING, Families, Marks
from traincheck.schema.claims import THIN, Context, Hypothesis, Needs, Scalar
from traincheck.schema.events import CallEvent, Event, MarkEvent, StateEvent, StepEvent
from traincheck.schema.findings import Example
from traincheck.schema.invariant_file import needs_json
from traincheck.schema.protocols import Decider, Relation

SELECTIVE, SAMPLED = "the selective view", "the sampled view"
THINNED = "the selective view, in which calls within models and looks are taken in some steps"
EVERY = 3  # of so many steps one is in the sampled view
_ALWAYS = frozenset({"step", "stage", "mark"})
_MOMENTS = {"parameter": "step", "optimizer_state": "step", "buffer": "forward"}
_MOST_KNOWN = 256  # answers remembered

Features = tuple[tuple[str, Scalar], ...]  # a context, sorted by feature


def features_of(context: Context) -> Features:
    """A context as a key."""
    return tuple(sorted(context.items()))


def with_gaps(events: Iterable[Event]) -> Iterator[Event]:
    """Events as a check is told them: where some are missing, absence is no evidence."""
    for event in events:
        yield event
        if isinstance(event, MarkEvent) and event.text in (Marks.DROPPED, Marks.FOLDED):
            yield event.gap


def selective(event: Event, needs: Needs) -> Event | None:
    """``event`` as a trace recorded for ``needs`` would hold it; None when it would not."""
    if event.kind == "call":
        if needs.hears(event.api):
            return event
        # Of all modules only the outermost are recorded for their family.
        is_wanted = event.family in needs.calls and (event.family != Families.MODULE or event.root)
        return event if is_wanted else None
    if event.kind == "state":
        role, change = event.role, event.change
        moment = _MOMENTS.get(role) or ("zero_grad" if change == "cleared" else "backward")
        is_wanted = change in TELLING or any(map(needs.looks, (f"{role}@{moment}", f"{role}@*")))
        return event if is_wanted else None
    if event.kind == "mark" and event.text == Marks.PROCESS:
        if event.data.get("recorded") is not None:
            return event  # it holds only a part itself: no more than that may be missed in it
        data = {**event.data, "recorded": needs_json(needs)}
        return event.replace(data=data)
    return event if event.kind in _ALWAYS or event.kind in needs.kinds else None


def sampled(event: Event, every: int = EVERY) -> Event | None:
    """``event`` as a trace of every n-th step would hold it; None when it would not."""
    if event.step is None or event.step % every == 0 or event.kind == "mark":
        return event
    return event.skipped if isinstance(event, StepEvent) else None


@dataclass(frozen=True, slots=True)
class Group:
    """Some claims of one relation and what they need together."""

    relation: Relation
    keys: Sequence[str]
    claims: Sequence[Hypothesis]
    needs: Needs


@dataclass(frozen=True, slots=True)
class Groups:
    """Claims by relation; and by relation and what they need apart from calls."""

    whole: Sequence[Group]
    narrow: Sequence[Group]

    @classmethod
    def of(cls, relations: Mapping[str, Relation], claims: Mapping[str, Hypothesis]) -> Groups:
        """Groups of the claims of these relations."""
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


def _group(relation: Relation, keys: Sequence[str], claims: Mapping[str, Hypothesis]) -> Group:
    needs = Needs()
    for key in keys:
        needs |= relation.needs(claims[key])
    return Group(relation, keys, [claims[key] for key in keys], needs)


class Views:
    """Runs the deciders of one process on what the selective and the sampled view would show."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self._seats = [
            _Seat(
                _Objections(group),
                _Objections(group),
                _Objections(group) if group.needs.rare or group.needs.rare_looks else None,
                is_seen_thin=bool(group.needs.rare_looks),
            )
            for group in groups
        ]
        self._known: dict[tuple[object, ...], list[_Seat]] = {}
        self._late = [seat for seat, g in zip(self._seats, groups) if _looks_late(g.needs)]
        self._cleared: dict[str, StateEvent] = {}  # gradients, since the last backward

    def observe(self, event: Event) -> None:
        """Give the event to those who would see it."""
        key: tuple[object, ...]
        if event.kind == "state":  # by kind, most frequent first
            key = (event.role, event.change)
        elif event.kind == "call":
            key = (event.api, event.family, event.root)
        else:
            key = (event.kind,)
        seats = self._known.get(key)
        if seats is None:
            seats = self._known[key] = [
                seat for seat, group in zip(self._seats, self._groups) if _sees(group.needs, event)
            ]
        if self._late:
            self._look_late(event)
        if not seats:
            return
        less, thin = sampled(event), in_sampled_view(event, THIN)
        for seat in seats:
            seat.observe(event, less, thin)

    def _look_late(self, event: Event) -> None:
        """Who looks at gradients after a backward only sees there that they were cleared.

        One that is set again by then is not seen to be cleared at all.
        """
        if isinstance(event, StateEvent):
            if event.role == "gradient":
                self._cleared.pop(event.name, None)
                if event.change == "cleared":
                    self._cleared[event.name] = event
        elif self._cleared and isinstance(event, CallEvent) and _is_backward(event):
            for cleared in self._cleared.values():
                seen = cleared.replace(step=event.step, stage=event.stage, after=event.span)
                for seat in self._late:
                    less = seen if sampled(seen) and sampled(cleared) else None
                    seat.observe(seen, less, seen if THIN.takes(cleared.step) else None)
            self._cleared.clear()

    def finish(self) -> None:
        for seat in self._seats:
            for _, objections in seat.views():
                objections.finish()

    def objections(self) -> Iterator[tuple[str, str, Features]]:
        """Key of a claim, the view in which it breaks, and the context."""
        for group, seat in zip(self._groups, self._seats):
            for name, objections in seat.views():
                for index, features in objections.negative:
                    yield group.keys[index], name, features


class _Objections:
    """The contexts of negative examples."""

    def __init__(self, group: Group) -> None:
        self._decider: Decider = group.relation.decider(group.claims)
        self.negative: set[tuple[int, Features]] = set()
        self._fine: dict[int, Iterable[tuple[int, Example]]] = {}  # answers without objection

    def observe(self, event: Event) -> None:
        examples = self._decider.observe(event)
        if examples and self._fine.get(id(examples)) is not examples:
            self._judge(examples)

    def finish(self) -> None:
        self._judge(self._decider.finish())

    def _judge(self, examples: Iterable[tuple[int, Example]]) -> None:
        found = {(i, features_of(e.context)) for i, e in examples if not e.holds}
        self.negative |= found
        if not found and isinstance(examples, tuple):  # a decider gives equal answers as one object
            if len(self._fine) >= _MOST_KNOWN:
                self._fine.clear()
            self._fine[id(examples)] = examples


@dataclass(frozen=True, slots=True)
class _Seat:
    """The deciders of a group in the views.

    thinned: None where that is the selective view. is_seen_thin: looks are thinned there, too.
    """

    selective: _Objections
    sampled: _Objections
    thinned: _Objections | None
    is_seen_thin: bool

    def observe(self, event: Event, less: Event | None, thin: Event | None) -> None:
        """Give them an event; the others are what of it is in the sampled and thinned views."""
        self.selective.observe(event)
        if less is not None:
            self.sampled.observe(less)
        if thin is None or self.thinned is None:
            return
        if not (self.is_seen_thin and _is_look(thin)) or THIN.takes(thin.step):
            self.thinned.observe(thin)

    def views(self) -> Iterator[tuple[str, _Objections]]:
        """The name of each view, and what is objected there."""
        yield SELECTIVE, self.selective
        yield SAMPLED, self.sampled
        if self.thinned is not None:
            yield THINNED, self.thinned


def _is_backward(event: CallEvent) -> bool:
    return (event.family or event.api) == Families.BACKWARD


def _is_look(event: Event) -> bool:
    return isinstance(event, StateEvent) and event.change not in TELLING


def _looks_late(needs: Needs) -> bool:
    if not needs.looks("gradient@backward"):
        return False
    return not any(map(needs.looks, ("gradient@zero_grad", "gradient@*")))


def _sees(needs: Needs, event: Event) -> bool:
    return selective(event, needs) is not None and bool(Router([(needs, True)]).route(event))
