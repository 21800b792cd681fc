"""The files of inference: invariants, dropped hypotheses and statistics.

They are written next to each other: ``invariant.json``, and its name with ``.dropped.json`` and
``.stats`` appended. The statistics let runs be added later. They are compressed JSON: equal
statistics are equal bytes. Nothing in them is evaluated.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import orjson

from traincheck.errors import InvariantFormatError, UsageError
from traincheck.infer.coverage import RunCoverage
from traincheck.infer.dropped import dropped_json, dropped_path
from traincheck.infer.engine import InferResult
from traincheck.infer.examples import ExampleCounts
from traincheck.infer.excerpts import trees_from_json, trees_json
from traincheck.infer.replay_views import Features
from traincheck.infer.select import DEFAULT_CONFIDENCE, Limits
from traincheck.infer.statistics import ClaimEvidence, RunStatistics, distinct_runs
from traincheck.schema.claims import Hypothesis, key_of
from traincheck.schema.files import (
    DOCUMENT_BYTES,
    parse_json,
    read_regular,
    write_bytes,
    write_json,
)
from traincheck.schema.invariant_file import read_created_with, write_invariants
from traincheck.version import VERSION

STATISTICS_VERSION = 2
_LEVEL = 6


def statistics_path(invariants: str | Path) -> Path:
    """Path of the statistics of an invariant file."""
    path = Path(invariants)
    return path.with_name(f"{path.name}.stats")


def write_statistics(path: str | Path, runs: Iterable[RunStatistics]) -> None:
    """Write the statistics of runs.

    Raises:
        OutputError: the place is not writable or the disk is full; the message names the path.
    """
    value = {
        "statistics_version": STATISTICS_VERSION,
        "runs": [_run_json(run) for run in distinct_runs(runs)],
    }
    write_bytes(path, zlib.compress(orjson.dumps(value), _LEVEL))


def read_statistics(path: str | Path) -> list[RunStatistics]:
    """Read the statistics of runs.

    Raises:
        InvariantFormatError: the file cannot be read, is damaged, or is of another version.
    """
    fix = "learn again from all runs: traincheck-infer --force -t DIR -t DIR -o invariant.json"
    try:
        packed = read_regular(path)
    except OSError as error:
        raise InvariantFormatError(
            f"{path}: cannot be read: {error.strerror or error}", fix=fix
        ) from error
    try:
        unpacker = zlib.decompressobj()
        value = parse_json(unpacker.decompress(packed, DOCUMENT_BYTES))
        version = msgspec.convert(value, _Version).statistics_version
        runs = (
            [_run(run) for run in msgspec.convert(value["runs"], list[_RunForm])]
            if version == STATISTICS_VERSION
            else []
        )
    except (zlib.error, ValueError, TypeError, IndexError) as error:  # msgspec's are ValueErrors
        raise InvariantFormatError(f"{path}: is damaged or holds no statistics", fix=fix) from error
    if version > STATISTICS_VERSION:
        raise InvariantFormatError(
            f"{path}: was written by statistics version {version}, this is {STATISTICS_VERSION}",
            fix="read it with the version of traincheck that wrote it, or a later one",
        )
    if version < STATISTICS_VERSION:
        raise InvariantFormatError(
            f"{path}: was written by statistics version {version}, which said less", fix=fix
        )
    return distinct_runs(runs)


def _run_json(run: RunStatistics) -> dict[str, Any]:
    coverage = run.coverage
    table = _Contexts(run.evidence.values())
    return {
        "name": run.name,
        "run_id": run.run_id,
        "events": run.events,
        "steps": run.steps,
        "skipped": run.skipped,
        "relations": list(run.relations),
        "vocabulary": {
            "programs": sorted(coverage.programs),
            "calls": sorted(coverage.calls),
            "modules": sorted(coverage.modules),
            "variables": sorted(coverage.variables),
            "packages": sorted(coverage.packages),
            "levels": sorted(coverage.levels),
        },
        "contexts": table.contexts,
        "claims": [table.claim_json(one) for _, one in sorted(run.evidence.items())],
        "trees": trees_json(run.trees),
    }


class _Contexts:
    """The contexts of a run, each written once and referred to by its index."""

    def __init__(self, evidence: Iterable[ClaimEvidence]) -> None:
        found = {
            c
            for one in evidence
            for c in (*one.examples.counts, *chain(*one.counterexamples.values()))
        }
        self.contexts = sorted(found, key=repr)
        self._places = {features: place for place, features in enumerate(self.contexts)}

    def claim_json(self, evidence: ClaimEvidence) -> dict[str, Any]:
        rows = sorted((self._places[c], *counts) for c, counts in evidence.examples.counts.items())
        objections = {
            view: sorted(self._places[c] for c in contexts)
            for view, contexts in sorted(evidence.counterexamples.items())
        }
        return {
            "relation": evidence.claim.relation,
            "params": dict(evidence.claim.params),
            "rows": rows,
            "steps": evidence.examples.steps,
            **({} if evidence.is_proposed else {"echo": True}),
            **({"objections": objections} if objections else {}),
            **({"unobservable": evidence.unobservable} if evidence.unobservable else {}),
        }


_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Scalar: TypeAlias = bool | int | float | str | None


class _Version(msgspec.Struct):
    statistics_version: _Count


class _VocabularyForm(msgspec.Struct):
    programs: list[str]
    calls: list[str]
    modules: list[str]
    variables: list[tuple[str, str, str, str]]
    packages: list[tuple[str, str]] = []
    levels: list[str] = []


class _ClaimForm(msgspec.Struct):
    relation: str
    params: dict[str, Any]
    rows: list[tuple[_Count, _Count, _Count]]
    steps: _Count
    echo: bool = False
    objections: dict[str, list[_Count]] = {}
    unobservable: str = ""


class _RunForm(msgspec.Struct):
    """The types of a run in a file. A file with other types is rejected."""

    name: str
    run_id: str
    events: _Count
    steps: _Count
    skipped: _Count
    relations: list[str]
    vocabulary: _VocabularyForm
    contexts: list[list[tuple[str, _Scalar]]]
    claims: list[_ClaimForm]
    trees: dict[str, list[list[Any]]] = {}


def _run(run: _RunForm) -> RunStatistics:
    words = run.vocabulary
    contexts: list[Features] = [tuple(context) for context in run.contexts]
    evidence = [_evidence(claim, contexts) for claim in run.claims]
    return RunStatistics(
        name=run.name,
        run_id=run.run_id,
        events=run.events,
        steps=run.steps,
        skipped=run.skipped,
        relations=tuple(run.relations),
        coverage=RunCoverage(
            programs=frozenset(words.programs),
            calls=frozenset(words.calls),
            modules=frozenset(words.modules),
            variables=frozenset(words.variables),
            packages=frozenset(words.packages),
            levels=frozenset(words.levels),
        ),
        evidence={key_of(one.claim): one for one in evidence},
        trees=trees_from_json(run.trees),
    )


def _evidence(claim: _ClaimForm, contexts: Sequence[Features]) -> ClaimEvidence:
    counts = {contexts[place]: (good, bad) for place, good, bad in claim.rows}
    return ClaimEvidence(
        claim=Hypothesis(relation=claim.relation, params=claim.params),
        is_proposed=not claim.echo,
        examples=ExampleCounts(counts=counts, steps=claim.steps, runs=1 if counts else 0),
        counterexamples={
            view: frozenset(contexts[place] for place in places)
            for view, places in claim.objections.items()
        },
        unobservable=claim.unobservable,
    )


def save(result: InferResult, output: str | Path, limits: Limits) -> None:
    """Write an invariant file and the two files next to it.

    Raises:
        OutputError: the place is not writable or the disk is full; the message names the path.
    """
    path = Path(output)
    created_with = {
        "traincheck": VERSION,
        "confidence": limits.confidence,
        "min_examples": limits.min_examples,
    }
    write_invariants(path, result.invariants, created_with, result.runs)
    if path.exists() and not path.is_file():
        return  # a pipe or a device has no files next to it
    write_json(dropped_path(path), dropped_json(result.dropped))
    write_statistics(statistics_path(path), result.statistics)


def limits_of(
    paths: Sequence[str | Path], confidence: float | None = None, examples: int | None = None
) -> Limits:
    """Limits as given, or the strictest of the files.

    Raises:
        InvariantFormatError: a file is no invariant file.
    """
    created_with = [read_created_with(path) for path in paths]
    if confidence is None:
        confidence = max(_numbers(created_with, "confidence"), default=DEFAULT_CONFIDENCE)
        examples = examples or int(max(_numbers(created_with, "min_examples"), default=0)) or None
    limits = Limits(confidence=confidence)
    return limits if examples is None else Limits(confidence=confidence, examples=examples)


def _numbers(created_with: Sequence[dict[str, object]], key: str) -> list[float]:
    values = [one.get(key) for one in created_with]
    return [value for value in values if isinstance(value, (int, float)) and value]


def known_runs(path: str | Path) -> list[RunStatistics]:
    """The statistics of an invariant file.

    Raises:
        UsageError: there are none.
        InvariantFormatError: they cannot be used.
    """
    beside = statistics_path(path)
    if not (Path(path).exists() or beside.exists()):
        raise UsageError(
            f"{path} does not exist", fix="without --update, its invariants are learned again"
        )
    if not beside.exists():
        raise UsageError(
            f"{path} has no statistics beside it: {beside} does not exist",
            fix="keep the .stats file with the invariants, or learn again from all runs",
        )
    return read_statistics(beside)
