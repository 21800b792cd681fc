"""The statistics of one run, and how those of several runs are merged.

The statistics of a run depend on that run alone, so runs can be added without reading others.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from traincheck.errors import TraceFormatError
from traincheck.infer.coverage import RunCoverage
from traincheck.infer.examples import ClaimExamples, ExampleCounts, count_examples
from traincheck.infer.excerpts import Trees, trees_of
from traincheck.infer.propose import propose, subject_of
from traincheck.infer.replay_views import Features
from traincheck.readings.programs import alike, file_of
from traincheck.schema.claims import Hypothesis
from traincheck.schema.protocols import EventSource, Relation


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimEvidence:
    """The evidence of one run about one claim.

    Attributes:
        claim: the hypothesis.
        is_proposed: whether the run proposes it; else it is tested only if another run does.
        examples: by context.
        counterexamples: view -> contexts in which it breaks in that view.
        unobservable: why the run cannot decide it; empty if it can.
    """

    claim: Hypothesis
    is_proposed: bool
    examples: ExampleCounts
    counterexamples: Mapping[str, frozenset[Features]]
    unobservable: str = ""

    @property
    def is_unopposed(self) -> bool:
        """Whether the run has no counterexample, whatever the precondition."""
        return not (
            self.examples.negative or any(self.counterexamples.values()) or self.unobservable
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatistics:
    """All that inference keeps of a run.

    Attributes:
        name: as shown to users.
        run_id: identifies it; the same run is counted once.
        events: number of events.
        steps: number of complete steps, of one rank.
        skipped: number of lines that could not be read.
        relations: that were learned.
        coverage: what it could have shown.
        evidence: about each claim that was tested, by key.
        trees: calls around the subjects of claims, see excerpts.py.
    """

    name: str
    run_id: str
    events: int
    steps: int
    skipped: int
    relations: tuple[str, ...]
    coverage: RunCoverage
    evidence: Mapping[str, ClaimEvidence]
    trees: Trees = field(default_factory=dict)


# Raised by inference when an event holds a value of another type.
BAD_VALUE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


def statistics_of(
    source: EventSource, relations: Mapping[str, Relation], name: str
) -> RunStatistics:
    """The statistics of a run, from two passes over it.

    Raises:
        TraceFormatError: the run holds events with values of other types, so that nothing can be
            learned from it.
    """
    try:
        proposed = propose(source, relations)
        decided = count_examples(source, relations, proposed.claims)
        evidence = {}
        for key, claim in sorted(proposed.claims.items()):
            found = decided.get(key, ClaimExamples())
            evidence[key] = ClaimEvidence(
                claim=claim,
                is_proposed=key not in proposed.conditional,
                examples=found.examples,
                counterexamples={
                    view: frozenset(contexts)
                    for view, contexts in sorted(found.counterexamples.items())
                },
                unobservable=found.unobservable,
            )
        run_id = getattr(getattr(source, "manifest", None), "run_id", None)
        if not run_id:  # of a source without a manifest
            examples = [
                (key, sorted(one.examples.counts.items(), key=repr))
                for key, one in evidence.items()
            ]
            run_id = hashlib.sha256(repr((name, examples)).encode()).hexdigest()[:16]
        return RunStatistics(
            name=name,
            run_id=run_id,
            events=proposed.events,
            steps=proposed.steps,
            skipped=proposed.skipped,
            relations=tuple(sorted(relations)),
            coverage=proposed.coverage,
            evidence=evidence,
            trees=trees_of(source, proposed.claims.values()),
        )
    except BAD_VALUE as error:
        raise TraceFormatError(
            f"the run {name} cannot be learned from: an event holds a value of another type "
            f"({type(error).__name__}: {error})",
            fix="leave the run out, or record it again; if nothing damaged it, report this error",
        ) from error


def distinct_runs(runs: Iterable[RunStatistics]) -> list[RunStatistics]:
    """Each run once, the last one given of each, sorted by name and id."""
    by_id = {run.run_id: run for run in runs}
    return sorted(by_id.values(), key=lambda run: (run.name, run.run_id))


@dataclass(slots=True)
class MergedClaim:
    """The evidence of all runs about a claim.

    Attributes:
        key: of the claim.
        claim: the hypothesis.
        examples: of all runs.
        contradicting_runs: program -> names of its runs that could have shown the claim, and did
            not.
        counterexamples: see `ClaimEvidence`.
        unobservable: why a run cannot decide it; empty if all can.
    """

    key: str
    claim: Hypothesis
    examples: ExampleCounts = field(default_factory=ExampleCounts)
    contradicting_runs: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    counterexamples: dict[str, set[Features]] = field(default_factory=lambda: defaultdict(set))
    unobservable: str = ""

    def add(self, evidence: ClaimEvidence) -> None:
        self.examples.add(evidence.examples)
        self.unobservable = self.unobservable or evidence.unobservable
        for view, contexts in evidence.counterexamples.items():
            self.counterexamples[view] |= contexts


def merge_runs(
    runs: Sequence[RunStatistics], relations: Mapping[str, Relation]
) -> Iterator[MergedClaim]:
    """All claims that any run proposes, by key. runs: as `distinct_runs` returns them.

    A run may lack a claim. If the subject of the claim never occurred in it, or the run supports a
    stronger claim, it has no part. Otherwise it counts as a counterexample.
    """
    common = set(relations).intersection(*(run.relations for run in runs))
    claims = {
        key: evidence.claim
        for run in runs
        for key, evidence in run.evidence.items()
        if evidence.is_proposed
        and evidence.claim.relation in common
        and _is_known_form(relations[evidence.claim.relation], evidence.claim)
    }
    indexed = [(run, _Implications(run, relations)) for run in runs]
    # A claim about one program needs only its runs: there may be hundreds of others.
    by_file: dict[str, list[tuple[RunStatistics, _Implications]]] = defaultdict(list)
    for entry in indexed:
        for file in {file_of(name) for name in entry[0].coverage.programs}:
            by_file[file].append(entry)
    for key, claim in sorted(claims.items()):
        one = MergedClaim(key, claim)
        relation = relations[claim.relation]
        program = claim.params.get("program")
        asked = indexed if program is None else by_file.get(file_of(program), ())
        for run, implications in asked:
            evidence = run.evidence.get(key)
            if evidence is not None:
                one.add(evidence)
            elif run.coverage.could_observe(relation, claim) and not implications.covers(claim):
                for name in run.coverage.programs or ("",):
                    one.contradicting_runs[name].append(run.name)
        yield one


class _Implications:
    """The claims of a run that have no counterexample in it."""

    def __init__(self, run: RunStatistics, relations: Mapping[str, Relation]) -> None:
        self._relations = relations
        self._calls = run.coverage.calls
        self._unopposed: dict[tuple[str, ...], list[Hypothesis]] = defaultdict(list)
        for evidence in run.evidence.values():
            relation = relations.get(evidence.claim.relation)
            if (
                evidence.is_unopposed
                and relation is not None
                and _is_known_form(relation, evidence.claim)
            ):
                self._unopposed[subject_of(evidence.claim)].append(evidence.claim)

    def covers(self, claim: Hypothesis) -> bool:
        """Whether one of them implies ``claim``, as far as the run could have shown it."""
        relation = self._relations[claim.relation]
        fine = [_as_of(one, claim) for one in self._unopposed.get(subject_of(claim), ())]
        return any(relation.supports(one, claim, self._calls) for one in fine)


def _as_of(fine: Hypothesis, claim: Hypothesis) -> Hypothesis:
    """``fine``, with the program of ``claim`` if both may be the same program."""
    mine, its = fine.params.get("program"), claim.params.get("program")
    if mine is None or its is None or mine == its or not alike(mine, its):
        return fine
    return replace(fine, params={**fine.params, "program": its})


def _is_known_form(relation: Relation, claim: Hypothesis) -> bool:
    """Whether this version knows the form of a claim, which another version may have written."""
    try:
        return bool(relation.text(claim)) and relation.needs(claim) is not None
    except (KeyError, ValueError, TypeError, AttributeError):
        return False
