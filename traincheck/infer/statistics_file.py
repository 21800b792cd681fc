"""The statistics file beside an invariant file, which lets runs be added later.

It is compressed JSON. Equal statistics are equal bytes. Nothing in it is evaluated.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import orjson

from traincheck.errors import InvariantFormatError
from traincheck.infer.coverage import RunCoverage
from traincheck.infer.examples import ExampleCounts
from traincheck.infer.excerpts import trees_from_json, trees_json
from traincheck.infer.replay_views import Features
from traincheck.infer.statistics import ClaimEvidence, RunStatistics, distinct_runs
from traincheck.schema.claims import Hypothesis, key_of
from traincheck.schema.files import write_bytes
from traincheck.schema.json_text import parse_json
from traincheck.schema.reading import DOCUMENT_BYTES, read_regular

VERSION = 2
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
    value = {"statistics_version": VERSION, "runs": [_run_json(run) for run in distinct_runs(runs)]}
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
            if version == VERSION
            else []
        )
    except (zlib.error, ValueError, TypeError, IndexError) as error:  # msgspec's are ValueErrors
        raise InvariantFormatError(f"{path}: is damaged or holds no statistics", fix=fix) from error
    if version > VERSION:
        raise InvariantFormatError(
            f"{path}: was written by statistics version {version}, this is {VERSION}",
            fix="read it with the version of traincheck that wrote it, or a later one",
        )
    if version < VERSION:
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
