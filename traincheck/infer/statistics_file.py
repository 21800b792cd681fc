"""Statistics of runs to bytes and back: they lie beside the invariants, to add runs to later.

Compressed JSON; equal statistics are equal bytes. What is read is never evaluated.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from traincheck.errors import InvariantFormatError
from traincheck.infer.examples import Rows
from traincheck.infer.excerpts import trees_from_json, trees_json
from traincheck.infer.statistics import RunStatistics, Told, distinct
from traincheck.infer.view import Features
from traincheck.infer.vocabulary import Vocabulary
from traincheck.schema.claims import Hypothesis, key_of
from traincheck.schema.files import write_bytes

VERSION = 2
_LEVEL = 6
_MOST_BYTES = 1 << 30  # of what is unpacked: a file that says more is no statistics


def statistics_path(invariants: str | Path) -> Path:
    """Where the statistics of an invariant file lie."""
    path = Path(invariants)
    return path.with_name(f"{path.name}.stats")


def write_statistics(path: str | Path, runs: Iterable[RunStatistics]) -> None:
    """Write the statistics of runs.

    Raises:
        OutputError: the place is not writable or the disk is full; the message names the path.
    """
    value = {"statistics_version": VERSION, "runs": [_run_json(run) for run in distinct(runs)]}
    write_bytes(path, zlib.compress(orjson.dumps(value), _LEVEL))


def read_statistics(path: str | Path) -> list[RunStatistics]:
    """Read the statistics of runs.

    Raises:
        InvariantFormatError: the file cannot be read, is damaged, or is of another version.
    """
    fix = "learn again from all runs: traincheck-infer --force -t DIR -t DIR -o invariant.json"
    try:
        packed = Path(path).read_bytes()
    except OSError as error:
        raise InvariantFormatError(
            f"{path}: cannot be read: {error.strerror or error}", fix=fix
        ) from error
    try:
        unpacker = zlib.decompressobj()
        value = orjson.loads(unpacker.decompress(packed, _MOST_BYTES))
        version = value["statistics_version"]
        runs = [_run(entry) for entry in value["runs"]] if version == VERSION else []
    except (zlib.error, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise InvariantFormatError(f"{path}: is damaged or holds no statistics", fix=fix) from error
    if version > VERSION:
        raise InvariantFormatError(
            f"{path}: was written by statistics version {version}, this is {VERSION}",
            fix="pip install -U traincheck",
        )
    if version < VERSION:
        raise InvariantFormatError(
            f"{path}: was written by statistics version {version}, which said less", fix=fix
        )
    return distinct(runs)


def _run_json(run: RunStatistics) -> dict[str, Any]:
    words = run.vocabulary
    table = _Contexts(run.told.values())
    return {
        "name": run.name,
        "run_id": run.run_id,
        "events": run.events,
        "steps": run.steps,
        "skipped": run.skipped,
        "relations": list(run.relations),
        "vocabulary": {
            "programs": sorted(words.programs),
            "calls": sorted(words.calls),
            "modules": sorted(words.modules),
            "variables": sorted(words.variables),
            "packages": sorted(words.packages),
            "levels": sorted(words.levels),
        },
        "contexts": table.contexts,
        "claims": [table.claim_json(told) for _, told in sorted(run.told.items())],
        "trees": trees_json(run.trees),
    }


class _Contexts:
    """The contexts of a run, each written once."""

    def __init__(self, told: Iterable[Told]) -> None:
        found = {c for one in told for c in (*one.rows.counts, *_seen(one.objections))}
        self.contexts = sorted(found, key=repr)
        self._places = {features: place for place, features in enumerate(self.contexts)}

    def claim_json(self, told: Told) -> dict[str, Any]:
        rows = sorted((self._places[c], *counts) for c, counts in told.rows.counts.items())
        objections = {
            view: sorted(self._places[c] for c in contexts)
            for view, contexts in sorted(told.objections.items())
        }
        return {
            "relation": told.claim.relation,
            "params": dict(told.claim.params),
            "rows": rows,
            "steps": told.rows.steps,
            **({} if told.is_proposed else {"echo": True}),
            **({"objections": objections} if objections else {}),
            **({"unobservable": told.unobservable} if told.unobservable else {}),
        }


def _seen(objections: Mapping[str, frozenset[Features]]) -> list[Features]:
    return [context for contexts in objections.values() for context in contexts]


def _run(value: dict[str, Any]) -> RunStatistics:
    words = value["vocabulary"]
    contexts: list[Features] = [tuple((str(f), v) for f, v in c) for c in value["contexts"]]
    told = [_told(entry, contexts) for entry in value["claims"]]
    return RunStatistics(
        name=str(value["name"]),
        run_id=str(value["run_id"]),
        events=int(value["events"]),
        steps=int(value["steps"]),
        skipped=int(value["skipped"]),
        relations=tuple(map(str, value["relations"])),
        vocabulary=Vocabulary(
            programs=frozenset(words["programs"]),
            calls=frozenset(words["calls"]),
            modules=frozenset(words["modules"]),
            variables=frozenset((r, leaf, c, m) for r, leaf, c, m in words["variables"]),
            packages=frozenset((api, name) for api, name in words.get("packages", ())),
            levels=frozenset(map(str, words.get("levels", ()))),
        ),
        told={key_of(one.claim): one for one in told},
        trees=trees_from_json(value.get("trees", {})),
    )


def _told(value: dict[str, Any], contexts: Sequence[Features]) -> Told:
    counts = {contexts[place]: (int(good), int(bad)) for place, good, bad in value["rows"]}
    return Told(
        claim=Hypothesis(relation=value["relation"], params=dict(value["params"])),
        is_proposed=not value.get("echo", False),
        rows=Rows(counts=counts, steps=int(value["steps"]), runs=1 if counts else 0),
        objections={
            str(view): frozenset(contexts[place] for place in places)
            for view, places in value.get("objections", {}).items()
        },
        unobservable=str(value.get("unobservable", "")),
    )
