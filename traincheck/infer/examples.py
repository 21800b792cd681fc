"""Second pass: count the examples of each hypothesis by context. Keeps counts, not examples.

Equal examples are one row, so that memory does not grow with the length of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from traincheck.check.routing import Router
from traincheck.infer.propose import by_scope
from traincheck.schema.claims import Context, Hypothesis, Needs, Scalar
from traincheck.schema.events import Event
from traincheck.schema.findings import Example
from traincheck.schema.protocols import Decider, EventSource, Relation

Features = tuple[tuple[str, Scalar], ...]  # a context, sorted by feature


@dataclass(slots=True)
class Rows:
    """The examples of one hypothesis. counts: context -> positive and negative ones.

    steps: in which there was a positive one. runs: that had any example.
    """

    counts: dict[Features, tuple[int, int]] = field(default_factory=dict)
    steps: int = 0
    runs: int = 0

    @property
    def positive(self) -> int:
        return sum(positive for positive, _ in self.counts.values())

    @property
    def negative(self) -> int:
        return sum(negative for _, negative in self.counts.values())

    def add(self, other: Rows) -> None:
        """Take in the rows of another run."""
        for features, (positive, negative) in other.counts.items():
            mine = self.counts.get(features, (0, 0))
            self.counts[features] = (mine[0] + positive, mine[1] + negative)
        self.steps += other.steps
        self.runs += other.runs


class _Tally:
    """Counts what one decider says. A context is looked into once for each object."""

    def __init__(self, decider: Decider, size: int) -> None:
        self.decider = decider
        self.steps = [0] * size
        self._last: list[int | None] = [-1] * size
        self._counts: dict[tuple[int, int], list[int]] = {}
        self._contexts: dict[int, Context] = {}  # kept alive, so that no id is used twice

    def count(self, examples: Iterable[tuple[int, Example]], step: int | None) -> None:
        counts, last = self._counts, self._last
        for index, example in examples:
            context = example.context
            cell = counts.get((index, id(context)))
            if cell is None:
                self._contexts[id(context)] = context
                cell = counts[index, id(context)] = [0, 0]
            if example.holds:
                cell[0] += 1
                if last[index] != step:
                    last[index] = step
                    self.steps[index] += 1
            else:
                cell[1] += 1

    def rows(self) -> Iterable[tuple[int, Features, int, int]]:
        features = {key: tuple(sorted(c.items())) for key, c in self._contexts.items()}
        for (index, context), (positive, negative) in self._counts.items():
            yield index, features[context], positive, negative


def collect(
    source: EventSource, relations: Mapping[str, Relation], claims: Mapping[str, Hypothesis]
) -> dict[str, Rows]:
    """Rows by key of the claim, from one pass over a run."""
    own, shared = by_scope(relations)
    groups = _groups(own, claims)
    everywhere = _Process(_groups(shared, claims))
    processes: dict[tuple[int, str], _Process] = {}
    last: tuple[int, str] | None = None
    process: _Process | None = None
    for event in source.events():
        at = (event.rank, event.stream)
        if process is None or at != last:
            last = at
            key = (event.rank, event.stream.partition("-")[0])
            process = processes.get(key)
            if process is None:
                process = processes[key] = _Process(groups)
        process.observe(event)
        everywhere.observe(event)
    found: dict[str, Rows] = {}
    for process in (*(process for _, process in sorted(processes.items())), everywhere):
        process.finish()
        process.into(found)
    for rows in found.values():
        rows.runs = 1
    return found


@dataclass(frozen=True, slots=True)
class _Group:
    """The claims of one relation and what they need together."""

    relation: Relation
    keys: Sequence[str]
    claims: Sequence[Hypothesis]
    needs: Needs


def _groups(relations: Mapping[str, Relation], claims: Mapping[str, Hypothesis]) -> list[_Group]:
    groups = []
    for name in sorted(relations):
        keys = sorted(key for key, claim in claims.items() if claim.relation == name)
        needs = Needs()
        for key in keys:
            needs |= relations[name].needs(claims[key])
        if keys:
            groups.append(_Group(relations[name], keys, [claims[key] for key in keys], needs))
    return groups


class _Process:
    """The deciders of one process, or of all, each given the events that a check would give it."""

    def __init__(self, groups: Sequence[_Group]) -> None:
        self._groups = groups
        self._tallies = [
            _Tally(group.relation.decider(group.claims), len(group.keys)) for group in groups
        ]
        router = Router(list(zip([g.needs for g in groups], self._tallies)))
        self._route = router.route

    def observe(self, event: Event) -> None:
        for tally in self._route(event):
            examples = tally.decider.observe(event)
            if examples:
                tally.count(examples, event.step)

    def finish(self) -> None:
        for tally in self._tallies:
            tally.count(tally.decider.finish(), None)

    def into(self, found: dict[str, Rows]) -> None:
        """Add the counts to those of other processes; ranks see the same steps."""
        for group, tally in zip(self._groups, self._tallies):
            for index, features, positive, negative in tally.rows():
                rows = found.setdefault(group.keys[index], Rows())
                mine = rows.counts.get(features, (0, 0))
                rows.counts[features] = (mine[0] + positive, mine[1] + negative)
                rows.steps = max(rows.steps, tally.steps[index])
