"""What one run contributes to inference, and how runs are put together. Accepts nothing.

The statistics of a run depend on that run alone, so that runs can be added without reading others.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from traincheck.errors import TraceFormatError
from traincheck.facts.programs import alike, file_of
from traincheck.infer.coverage import Vocabulary
from traincheck.infer.examples import Decided, Rows, collect
from traincheck.infer.excerpts import Trees, trees_of
from traincheck.infer.propose import propose, subject_of
from traincheck.infer.replay_views import Features
from traincheck.schema.claims import Hypothesis
from traincheck.schema.protocols import EventSource, Relation


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one run says of one claim. is_proposed: of itself, not only to answer other runs."""

    claim: Hypothesis
    is_proposed: bool
    rows: Rows
    objections: Mapping[str, frozenset[Features]]
    unobservable: str = ""

    @property
    def is_fine(self) -> bool:
        """Whether nothing in the run speaks against the claim, whatever the precondition."""
        return not (self.rows.negative or any(self.objections.values()) or self.unobservable)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatistics:
    """All that inference keeps of a run.

    Attributes:
        name: what people call it.
        run_id: what it is known by; the same run is counted once.
        events: how many there were.
        steps: complete ones, of one rank.
        skipped: lines that could not be read.
        relations: that it was asked about.
        vocabulary: what it could have told.
        told: what it says of the claims that it knows, by key.
        trees: what its calls were where claims hold.
    """

    name: str
    run_id: str
    events: int
    steps: int
    skipped: int
    relations: tuple[str, ...]
    vocabulary: Vocabulary
    told: Mapping[str, Told]
    trees: Trees = field(default_factory=dict)


# What the parts of inference raise where an event holds a value of another type.
BAD_VALUE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


def statistics_of(
    source: EventSource, relations: Mapping[str, Relation], name: str
) -> RunStatistics:
    """What a run contributes, from two passes over it.

    Raises:
        TraceFormatError: the run holds events with values of other types, so that nothing can be
            learned from it.
    """
    try:
        return _statistics_of(source, relations, name)
    except BAD_VALUE as error:
        raise TraceFormatError(
            f"the run {name} cannot be learned from: an event holds a value of another type "
            f"({type(error).__name__}: {error})",
            fix="leave the run out, or record it again; if nothing damaged it, report this error",
        ) from error


def _statistics_of(
    source: EventSource, relations: Mapping[str, Relation], name: str
) -> RunStatistics:
    proposed = propose(source, relations)
    decided = collect(source, relations, proposed.claims)
    told = {}
    for key, claim in sorted(proposed.claims.items()):
        found = decided.get(key, Decided())
        told[key] = Told(
            claim=claim,
            is_proposed=key not in proposed.echoed,
            rows=found.rows,
            objections={
                view: frozenset(contexts) for view, contexts in sorted(found.objections.items())
            },
            unobservable=found.unobservable,
        )
    run_id = getattr(getattr(source, "manifest", None), "run_id", None)
    return RunStatistics(
        name=name,
        run_id=run_id or _content_id(name, told),
        events=proposed.events,
        steps=proposed.steps,
        skipped=proposed.skipped,
        relations=tuple(sorted(relations)),
        vocabulary=proposed.vocabulary,
        told=told,
        trees=trees_of(source, proposed.claims.values()),
    )


def _content_id(name: str, told: Mapping[str, Told]) -> str:
    """For a run without a manifest."""
    content = repr(
        (name, [(key, sorted(one.rows.counts.items(), key=repr)) for key, one in told.items()])
    )
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def distinct(runs: Iterable[RunStatistics]) -> list[RunStatistics]:
    """Each run once, the last one given of each, in an order of its own."""
    by_id = {run.run_id: run for run in runs}
    return sorted(by_id.values(), key=lambda run: (run.name, run.run_id))


@dataclass(slots=True)
class Merged:
    """What all runs say of a claim.

    silent: names of the runs that could have told it and do not, by program. objections: see
    `Told`.
    unobservable: why a run cannot decide it.
    """

    key: str
    claim: Hypothesis
    rows: Rows = field(default_factory=Rows)
    silent: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    objections: dict[str, set[Features]] = field(default_factory=lambda: defaultdict(set))
    unobservable: str = ""

    def add(self, told: Told) -> None:
        self.rows.add(told.rows)
        self.unobservable = self.unobservable or told.unobservable
        for view, contexts in told.objections.items():
            self.objections[view] |= contexts


def merged(runs: Sequence[RunStatistics], relations: Mapping[str, Relation]) -> Iterator[Merged]:
    """All claims that any run proposes, by key. runs: as `distinct` gives them.

    A run that does not know a claim has no part in it where what the claim speaks of never
    occurred, or where it bears out one that says more. Else the claim does not hold in that run.
    """
    common = set(relations).intersection(*(run.relations for run in runs))
    claims = {
        key: told.claim
        for run in runs
        for key, told in run.told.items()
        if told.is_proposed
        and told.claim.relation in common
        and _is_understood(relations[told.claim.relation], told.claim)
    }
    vouchers = [(run, _Vouchers(run, relations)) for run in runs]
    # Of other programs' runs nobody asks what one does: there may be hundreds.
    by_file: dict[str, list[tuple[RunStatistics, _Vouchers]]] = defaultdict(list)
    for entry in vouchers:
        for file in {file_of(name) for name in entry[0].vocabulary.programs}:
            by_file[file].append(entry)
    for key, claim in sorted(claims.items()):
        one = Merged(key, claim)
        relation = relations[claim.relation]
        program = claim.params.get("program")
        asked = vouchers if program is None else by_file.get(file_of(program), ())
        for run, vouching in asked:
            told = run.told.get(key)
            if told is not None:
                one.add(told)
            elif run.vocabulary.could_tell(relation, claim) and not vouching.answer(claim):
                for name in run.vocabulary.programs or ("",):
                    one.silent[name].append(run.name)
        yield one


class _Vouchers:
    """The claims of a run against which nothing speaks in it."""

    def __init__(self, run: RunStatistics, relations: Mapping[str, Relation]) -> None:
        self._relations = relations
        self._words = run.vocabulary.calls
        self._fine: dict[tuple[str, ...], list[Hypothesis]] = defaultdict(list)
        for told in run.told.values():
            relation = relations.get(told.claim.relation)
            if told.is_fine and relation is not None and _is_understood(relation, told.claim):
                self._fine[subject_of(told.claim)].append(told.claim)

    def answer(self, claim: Hypothesis) -> bool:
        """Whether one of them implies ``claim``, or what the run could have told of it."""
        relation = self._relations[claim.relation]
        fine = [_as_of(one, claim) for one in self._fine.get(subject_of(claim), ())]
        bears_out = getattr(relation, "bears_out", None)
        if bears_out is not None:
            return any(bears_out(one, claim, self._words) for one in fine)
        return any(relation.implies(one, claim) for one in fine)


def _as_of(fine: Hypothesis, claim: Hypothesis) -> Hypothesis:
    """``fine``, of the program of ``claim`` if it may be the one it is of."""
    mine, its = fine.params.get("program"), claim.params.get("program")
    if mine is None or its is None or mine == its or not alike(mine, its):
        return fine
    return replace(fine, params={**fine.params, "program": its})


def _is_understood(relation: Relation, claim: Hypothesis) -> bool:
    """Whether this version can say what the claim means: another one may have written it."""
    try:
        return bool(relation.text(claim)) and relation.needs(claim) is not None
    except (KeyError, ValueError, TypeError, AttributeError):
        return False
