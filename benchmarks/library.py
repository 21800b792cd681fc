"""Build the shipped invariants, ``configs/invariants/*.json``, from the clean pipelines.

    python -m benchmarks.library [--keep FOLDER] [--jobs N] [-o FOLDER]

Every pipeline is recorded twice, with other seeds, unless --keep has the recordings. What holds in
all of them, in any program, is learned at once; a preset is what its pipelines showed of that. Each
invariant is then replayed on every recording: one that breaks is an error. The same recordings give
the same bytes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import traincheck
from benchmarks.harness import ROOT
from benchmarks.silent_bugs.case import clean_pipelines, launcher_of
from benchmarks.silent_bugs.recordings import Recordings
from traincheck.infer.engine import Run, infer
from traincheck.infer.replay_views import replay
from traincheck.infer.select import Limits
from traincheck.infer.statistics import RunStatistics
from traincheck.relations.registry import RELATIONS
from traincheck.schema.claims import PROGRAM, Invariant
from traincheck.schema.events import Event, MarkEvent
from traincheck.schema.findings import Verdict
from traincheck.schema.invariant_file import write_invariants
from traincheck.store.reader import TraceReader

OUT = ROOT / "configs" / "invariants"
GENERAL = "pytorch"
# Preset -> the pipelines that use what it is about. All others, and these, make the general one.
PRESETS: Mapping[str, tuple[str, ...]] = {
    "accumulation": ("accelerate_bert", "accumulation", "trainer_gpt2", "two_ranks_ddp"),
    "amp": ("amp_bf16", "amp_scaler"),
    "ddp": ("two_ranks_ddp",),
    "finetuning": ("finetune_frozen", "gradual_unfreeze", "linear_probe", "lora"),
    "fsdp": ("two_ranks_fsdp2",),
    "gan": ("gan", "wgan_clip"),
    "lightning": ("lightning_digits",),
    "transformers": ("accelerate_bert", "trainer_gpt2", "vit_images"),
}
_FRAMEWORKS = ("lightning", "transformers")
# What a library's functions do they do in every program; of other claims two programs must speak.
_OF_LIBRARY = frozenset({"input_output", "order"})
_MIN_PROGRAMS = 2


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recording under the name of its pipeline, whatever it was staged as."""

    reader: TraceReader
    name: str

    @property
    def manifest(self) -> object:
        return self.reader.manifest

    def events(self) -> Iterator[Event]:
        for event in self.reader.events():
            if isinstance(event, MarkEvent) and event.text == "process":
                yield event.replace(data={**event.data, "argv0": f"{self.name}.py"})
            else:
                yield event


def record(folder: Path, jobs: int) -> list[Run]:
    """Both recordings of each clean pipeline."""
    recordings = Recordings(folder)

    def one(script: Path, is_reseeded: bool) -> Run:
        path = recordings.run(script, launcher_of(script), is_reseeded=is_reseeded)
        return Run(name=script.stem, source=Recorded(TraceReader(path), script.stem))

    wanted = [(script, seed) for script in clean_pipelines() for seed in (False, True)]
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda pair: one(*pair), wanted))


def presets_of(
    invariants: Sequence[Invariant], statistics: Sequence[RunStatistics]
) -> dict[str, list[Invariant]]:
    """The invariants of each preset: those that its pipelines showed to hold."""
    shown = {invariant.id: _programs(invariant, statistics) for invariant in invariants}
    kept = [one for one in map(_plain, invariants) if _is_wide(one, shown[one.id])]
    own = {name for framework in _FRAMEWORKS for name in PRESETS[framework]}
    everybody = {run.name for run in statistics} - own
    groups = {**{name: set(members) for name, members in PRESETS.items()}, GENERAL: everybody}
    return {
        name: [one for one in kept if shown[one.id] & members]
        for name, members in sorted(groups.items())
    }


def _plain(invariant: Invariant) -> Invariant:
    """Without the excerpt: it shows a program that the user has never seen."""
    return replace(invariant, excerpt=None)


def _programs(invariant: Invariant, statistics: Sequence[RunStatistics]) -> set[str]:
    """The programs that showed examples."""
    params = dict(invariant.hypothesis.params)
    return {
        run.name
        for run in statistics
        for told in run.evidence.values()
        if told.claim.relation == invariant.hypothesis.relation
        and dict(told.claim.params) == params
        and any(
            positive and invariant.precondition.holds(dict(context))
            for context, (positive, _) in told.examples.counts.items()
        )
    }


def _is_wide(invariant: Invariant, programs: set[str]) -> bool:
    """Whether it applies to programs that it was not learned from, for good reason."""
    is_pinned = "program" in invariant.hypothesis.params or any(
        condition.feature == PROGRAM
        for clause in invariant.precondition.clauses
        for condition in clause
    )
    wanted = 1 if invariant.hypothesis.relation in _OF_LIBRARY else _MIN_PROGRAMS
    return not is_pinned and len(programs) >= wanted


def broken(runs: Sequence[Run], presets: Mapping[str, Sequence[Invariant]]) -> list[str]:
    """The invariants of presets that any run breaks, in any view."""
    everything = list({one.id: one for found in presets.values() for one in found}.values())
    texts = {one.id: one.text for one in everything}
    return [
        f"{run.name}: {texts[id_]} (in {view})"
        for run in runs
        for view, report in replay(run.source, RELATIONS, everything).items()
        for id_, verdict in report.verdicts.items()
        if verdict == Verdict.VIOLATED
    ]


def write(presets: Mapping[str, Sequence[Invariant]], out: Path) -> None:
    """Write a file for each preset, and remove other files."""
    out.mkdir(parents=True, exist_ok=True)
    limits = Limits()
    for name, found in presets.items():
        created_with = {
            "traincheck": traincheck.__version__,
            "confidence": limits.confidence,
            "min_examples": limits.min_examples,
            "preset": name,
        }
        members = PRESETS.get(name, tuple(script.stem for script in clean_pipelines()))
        write_invariants(out / f"{name}.json", found, created_with, sorted(members))
    for path in out.glob("*.json"):
        if path.stem not in presets:
            path.unlink()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", type=Path, help="folder of recordings, used again when there")
    parser.add_argument("--jobs", type=int, default=2, help="programs that run at once")
    parser.add_argument("-o", "--output", type=Path, default=OUT, help="where the files go")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        runs = record(folder, options.jobs)
        result = infer(runs)
        presets = presets_of(result.invariants, result.statistics)
        faults = broken(runs, presets)
    for fault in faults:
        print(f"broken: {fault}", file=sys.stderr)
    if faults:
        return 1
    write(presets, options.output)
    for name, found in presets.items():
        print(f"{name}: {len(found)} invariants")
    return 0


if __name__ == "__main__":
    sys.exit(main())
