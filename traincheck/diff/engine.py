"""Compare two runs, or the ranks of one, from their first to their last step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from traincheck.diff.choices import Closeness, Exact, Names, Spread
from traincheck.diff.compare import Comparer, StepResult
from traincheck.diff.conclude import Tally, conclude
from traincheck.diff.difference import Difference, EnvironmentEntry, Resume
from traincheck.diff.environment import environment_of, with_marks
from traincheck.diff.evidence import Evidence, Side
from traincheck.diff.items import Item, Phase
from traincheck.diff.messages import A, B
from traincheck.diff.run_facts import Lookup, Programs, RankFacts, Run, find_resume
from traincheck.diff.steps import StepView, Variable
from traincheck.errors import UsageError
from traincheck.schema.torch_api import DDP_INIT

_FOLLOWED = 1000  # steps after the first difference that are still compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The choice of what is compared, and how.

    Attributes:
        closeness: when a difference counts.
        names: how the names of B are those of A.
        ranks: of A and of B; None for all that both have.
        first, last: the steps of A that are compared, last excluded; None for all.
        phases: the phases that are compared.
        finds_resume: whether a run that continues the other is aligned with it.
        until: the step before which the comparison ends, as "20" or "resume+3"; "" for the last.
        is_kept: whether an item must be alike.
    """

    closeness: Closeness = field(default_factory=Exact)
    names: Names = field(default_factory=Names)
    ranks: tuple[int, int] | None = None
    first: int = 0
    last: int | None = None
    phases: frozenset[Phase] = frozenset(Phase)
    finds_resume: bool = True
    until: str = ""
    is_kept: Callable[[Item], bool] = lambda item: True

    def last_step(self, resume: Resume | None) -> int | None:
        """The step of A before which the comparison ends."""
        if not self.until:
            return self.last
        start, _, more = self.until.partition("+")
        if start != "resume":
            return int(self.until)
        return (resume.step if resume else 0) + int(more or 0)


def diff_runs(a: Run, b: Run, options: Options, controls: Sequence[Run] = ()) -> Difference:
    """The first difference of two runs, over all ranks that both have."""
    found: list[tuple[int, Tally]] = []
    resume = None
    environment: tuple[EnvironmentEntry, ...] = ()
    both = [(rank, rank) for rank in a.ranks if rank in b.ranks]
    for pair in both if options.ranks is None else [options.ranks]:
        if options.finds_resume and resume is None:
            resume = find_resume(a, b, pair, options.names)
        seen = environment_of(a, b, pair)
        tally, seen = compare_rank(a, b, pair, options, resume, seen, controls)
        environment = environment or seen
        found.append((pair[0], tally))
    notes = [f"{run.label}: {note}" for run in (a, b) for note in run.reader.notes]
    if a.ranks != b.ranks:
        notes.append(
            f"{a.label} has {len(a.ranks)} ranks, {b.label} has {len(b.ranks)}: "
            "only those of both are compared"
        )
    return conclude(a, b, found, resume, environment, options.closeness.words, notes)


def compare_rank(
    a: Run,
    b: Run,
    ranks: tuple[int, int],
    options: Options,
    resume: Resume | None,
    environment: tuple[EnvironmentEntry, ...],
    controls: Sequence[Run],
) -> tuple[Tally, tuple[EnvironmentEntry, ...]]:
    """Compare one rank of each run."""
    tally = Tally()
    comparer = Comparer(options.names, resumes=resume is not None)
    facts = RankFacts(), RankFacts()
    programs = tally.programs = Programs((a, b), facts)
    offset = resume.step if resume else 0
    spread = _Controls(a, controls, ranks[0], options) if controls else None
    last_step = options.last_step(resume)
    for x, y in _side_by_side(a.views(ranks[0]), b.views(ranks[1]), offset, comparer, facts, tally):
        if spread is not None:
            spread.advance(x)
        for one, view in zip(facts, (x, y), strict=True):
            one.see(view)
        is_in_range = options.first <= x.number and (last_step is None or x.number < last_step)
        if not is_in_range or not (x.is_recorded and y.is_recorded):
            if last_step is not None and x.number >= last_step:
                break
            comparer.skip(x, is_a=True)
            comparer.skip(y, is_a=False)
        else:
            result = _counting(comparer.compare(x, y), options)
            tally.add(result)
            if result.items and tally.first is None:
                sides = _sides((a, b), (x, y), facts, comparer, ranks, programs)
                environment = with_marks(environment, *facts)
                tally.found(
                    result,
                    Evidence(
                        item=result.items[0], items=result.items, a=sides[0], b=sides[1],
                        environment=environment, resume=resume, extra=result.extra,
                        compared=result.compared, unknown=result.unknown,
                        compare_sources=programs.changes,
                    ),
                )  # fmt: skip
            if tally.first is not None:
                tally.note_growth(result)
                if tally.after >= _FOLLOWED:
                    tally.notes.append(
                        f"the {_FOLLOWED:,} steps after the first difference were compared"
                    )
                    break
        for one, view in zip(facts, (x, y), strict=True):
            one.last = view
    tally.end()
    return tally, with_marks(environment, *facts)


def _side_by_side(
    a: Iterator[StepView],
    b: Iterator[StepView],
    offset: int,
    comparer: Comparer,
    facts: tuple[RankFacts, RankFacts],
    tally: Tally,
) -> Iterator[tuple[StepView, StepView]]:
    """The steps of both runs with the same place in training; `offset` is that of B's first."""
    x, y = next(a, None), next(b, None)
    while x is not None and y is not None:
        place = y.number + offset
        if x.number == place and (x.end is None) == (y.end is None):
            yield x, y
            x, y = next(a, None), next(b, None)
        elif x.number < place and x.end is not None:
            comparer.skip(x, is_a=True)
            facts[0].see(x)
            facts[0].last = x
            x = next(a, None)
        elif x.number > place and y.end is not None:
            comparer.skip(y, is_a=False)
            facts[1].see(y)
            y = next(b, None)
        else:
            break
    for label, view, rest in ((A, x, a), (B, y, b)):
        if view is not None and view.end is not None:
            more = 1 + sum(one.end is not None for one in rest)
            tally.notes.append(f"{label} has {more:,} more steps, which have no counterpart")


def _counting(result: StepResult, options: Options) -> StepResult:
    """The same result with the differences that count."""
    for counts in (result.compared, result.unknown):
        for phase in Phase:
            if phase not in options.phases:
                del counts[phase]
    kept: list[Item] = []
    for item in result.items:
        if item.phase not in options.phases or not options.is_kept(item):
            continue
        does_count = options.closeness.counts(item)
        if does_count:
            kept.append(item)
        elif does_count is None:
            result.unknown[item.phase] += 1
            result.compared[item.phase] -= 1
    result.items = kept
    return result


def _sides(
    runs: tuple[Run, Run],
    views: tuple[StepView, StepView],
    facts: tuple[RankFacts, RankFacts],
    comparer: Comparer,
    ranks: tuple[int, int],
    programs: Programs,
) -> list[Side]:
    values: list[dict[Variable, bytes | None]] = [dict(comparer.a.values), dict(comparer.b.values)]
    return [
        Side(
            label=run.label, view=view, last=fact.last, facts=fact, values=value,
            lookup=Lookup(run.reader, rank), load=load,
        )
        for run, view, fact, value, rank, load in zip(
            runs, views, facts, values, ranks, programs.loaders, strict=True
        )
    ]  # fmt: skip


class _Controls:
    """Compares control runs with A beside the comparison, to learn by how much they differ."""

    def __init__(self, a: Run, controls: Sequence[Run], rank: int, options: Options) -> None:
        assert isinstance(options.closeness, Spread)
        self._spread = options.closeness
        self._pairs = [
            _control_results(a, control, rank, options.names)
            for control in controls
            if rank in control.ranks
        ]
        self._ahead: list[StepResult | None] = [next(pair, None) for pair in self._pairs]

    def advance(self, view: StepView) -> None:
        """Learn all steps up to that of a view."""
        for index, pair in enumerate(self._pairs):
            result = self._ahead[index]
            while result is not None and result.step[0] <= view.number:
                self._spread.learn(result.items)
                result = next(pair, None)
            self._ahead[index] = result


def _control_results(a: Run, control: Run, rank: int, names: Names) -> Iterator[StepResult]:
    comparer = Comparer(names)
    facts = RankFacts(), RankFacts()
    pairs = _side_by_side(a.views(rank), control.views(rank), 0, comparer, facts, Tally())
    for x, y in pairs:
        yield comparer.compare(x, y)


# Ranks draw other samples, so what they compute before gradients are reduced is not the same.
_REPLICATED = frozenset({Phase.GRADIENT, Phase.OPTIMIZER_STATE, Phase.PARAMETER, Phase.BUFFER})
_SHARDING = ("fsdp", "tensor.parallel")
_RUNNING = (".running_mean", ".running_var")


def diff_ranks(run: Run, options: Options) -> Difference:
    """The first difference of a rank from rank 0, in variables that ranks replicate.

    Raises:
        UsageError: the run has one rank.
    """
    ranks = run.ranks
    if len(ranks) < 2:  # noqa: PLR2004
        raise UsageError(
            f"{run.path} has one rank",
            fix="record the run with all its ranks: traincheck-collect -- torchrun ... train.py",
        )
    broadcasts = shards = False
    for view in run.views(ranks[0]):
        for call in view.calls:
            if call.api == DDP_INIT:
                arguments = msgspec.json.decode(call.args)
                broadcasts |= arguments.get("broadcast_buffers") is not False
            shards |= any(word in call.api for word in _SHARDING)
        break  # models are wrapped before the first step ends
    wrapper = _Wrapper(broadcasts=broadcasts, shards=shards)
    chosen = replace(
        options, phases=options.phases & _REPLICATED, finds_resume=False, is_kept=wrapper.is_kept
    )
    found: list[tuple[int, Tally]] = []
    environment: tuple[EnvironmentEntry, ...] = ()
    for rank in ranks[1:]:
        tally, seen = compare_rank(run, run, (ranks[0], rank), chosen, None, (), ())
        if tally.evidence is not None:
            tally.evidence.is_ranks = True
            tally.evidence.a.label, tally.evidence.b.label = f"rank {ranks[0]}", f"rank {rank}"
        found.append((rank, tally))
        environment = environment or seen
    broken = [(tally.first.step[0], rank) for rank, tally in found if tally.first is not None]
    labels = f"rank {ranks[0]}", f"rank {min(broken)[1] if broken else ranks[1]}"
    words = options.closeness.words
    return conclude(run, run, found, None, environment, words, wrapper.notes, labels)


class _Wrapper:
    """How ranks keep their models alike, as the run tells it."""

    def __init__(self, *, broadcasts: bool, shards: bool) -> None:
        self._broadcasts, self._shards = broadcasts, shards
        self.notes: list[str] = []

    def is_kept(self, item: Item) -> bool:
        """Whether an item must be alike on all ranks."""
        if item.phase is Phase.BUFFER and self._broadcasts and item.name.endswith(_RUNNING):
            self._note(
                "running statistics are broadcast before each forward pass (broadcast_buffers), "
                "so they are not compared after it"
            )
            return False
        if self._shards and item.what in ("shape", "presence"):
            self._note("parts of sharded variables differ between ranks and are skipped")
            return False
        return True

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
