"""False alarms of learned invariants on reruns of the same program, through every view.

    python -m benchmarks.reruns [--keep FOLDER] [--only WORD] [--json FILE]

Two programs with other seeds, numbers of steps, batch sizes, learning rates and workers, recorded
in full, selectively (``collect -i``) and every third step (``--every 3``); and each clean pipeline
of the benchmark of silent bugs with other seeds, in full and as these views would show it, some
recorded separately for each view. The exit status is 1 if any of them has a finding: no alarm is
allowed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.cases import CNN, MLP, REFERENCE_SEED, REFERENCE_STEPS, TARGET_STEPS
from benchmarks.harness import Variables
from benchmarks.lab import made_once
from benchmarks.silent_bugs.case import clean_pipelines, launcher_of
from benchmarks.silent_bugs.recordings import Recordings, words_of
from traincheck.check.engine import run_checks
from traincheck.infer.engine import Run, infer
from traincheck.infer.replay_views import in_selective_view, in_step_sample
from traincheck.relations.registry import RELATIONS
from traincheck.schema.claims import Invariant, Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.invariant_file import read_invariants, write_invariants
from traincheck.schema.protocols import EventSource
from traincheck.store.reader import TraceReader

# Of unlike kinds: these are recorded selectively and sampled, and not only shown so.
RECORDED = (
    "accumulation",
    "amp_scaler",
    "finetune_frozen",
    "gan",
    "lightning_digits",
    "lm_tied",
    "resume",
    "trainer_gpt2",
    "two_ranks_ddp",
    "workers_augment",
)
FULL, SELECTIVE, SAMPLED = "full", "selective", "sampled"
VIEWS = (FULL, SELECTIVE, SAMPLED)
EVERY = 3
CHANGES: dict[str, Variables] = {
    "seed": {"UP_SEED": 3},
    "steps": {"UP_STEPS": 90},
    "batch size": {"UP_BS": 24},
    "learning rate": {"UP_LR": 0.003},
    "workers": {"UP_WORKERS": 2},
}
RECORDED_ANEW = "seeds, recorded separately"
GROUPS = {"seeds": "clean pipelines", RECORDED_ANEW: "clean pipelines recorded separately"}
HEADER = ["program", "changed", "view", "invariants", "triggered", "violated", "findings"]


@dataclass(frozen=True, slots=True)
class Seen:
    """A full run as a view would show it."""

    run: Path
    view: str
    needs: Needs

    def events(self) -> Iterator[Event]:
        for event in TraceReader(self.run).events():
            shown: Event | None = event
            if self.view == SELECTIVE:
                shown = in_selective_view(event, self.needs)
            elif self.view == SAMPLED:
                shown = in_step_sample(event, EVERY)
            if shown is not None:
                yield shown


def line(
    name: str, changed: str, view: str, source: EventSource, learned: Sequence[Invariant]
) -> Any:
    """The result of checking a rerun."""
    report = run_checks(source, learned, (), RELATIONS)
    texts = {one.id: one.text for one in learned}
    broken = [i for i, verdict in report.verdicts.items() if verdict is Verdict.VIOLATED]
    return {
        "program": name,
        "changed": changed,
        "view": view,
        "invariants": len(learned),
        "triggered": report.count(Verdict.HELD) + len(broken),
        "violated": len(broken),
        "findings": len(report.findings),
        "broken": [texts[i] for i in broken],
        "said": [f.message for f in report.findings],
    }


def recorded(script: Path, folder: Path) -> Iterator[Any]:
    """A program with changed settings, recorded separately for each view."""
    env: Variables = {"UP_SEED": REFERENCE_SEED, "UP_STEPS": REFERENCE_STEPS}
    reference = _recorded(folder, script, "reference", FULL, env)
    # Named by what it was learned with, so that it is never older than the code.
    with tempfile.TemporaryDirectory() as scratch:
        learned = Path(scratch) / "invariant.json"
        harness.infer([reference], learned)
        invariants = read_invariants(learned)
        for changed, more in CHANGES.items():
            env = {"UP_SEED": REFERENCE_SEED, "UP_STEPS": TARGET_STEPS, **more}
            for view in VIEWS:
                needed = learned if view == SELECTIVE else None
                run = _recorded(folder, script, changed, view, env, needed)
                yield line(script.stem, changed, view, TraceReader(run), invariants)


def _recorded(
    folder: Path,
    script: Path,
    changed: str,
    view: str,
    env: Variables,
    invariants: Path | None = None,
) -> Path:
    """A selective run is recorded each time: its content depends on the invariants."""
    every = EVERY if view == SAMPLED else 1
    name = f"rerun-{script.stem}-{changed.replace(' ', '-')}-{view}"
    if invariants is not None:
        folder = invariants.parent
    return made_once(
        folder / name,
        lambda out: harness.collect(
            script, out, env=env, invariants=invariants, every=every, more=["--quiet"]
        ).expect(),
    )


def reseeded(script: Path, recordings: Recordings) -> Iterator[Any]:
    """A clean pipeline, learned from with other seeds than it is checked with."""
    launcher = launcher_of(script)
    run = recordings.run(script, launcher)
    other = recordings.run(script, launcher, is_reseeded=True)
    learned = infer([Run(name="other", source=TraceReader(other))]).invariants
    needs = reduce(or_, (one.needs for one in learned), Needs())
    for view in VIEWS:
        yield line(script.stem, "seeds", view, Seen(run, view, needs), learned)
    if script.stem in RECORDED:
        yield from anew(script, learned)


def anew(script: Path, learned: Sequence[Invariant]) -> Iterator[Any]:
    """A clean pipeline that is recorded selectively and sampled."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "invariant.json"
        write_invariants(file, learned, {}, ["other"])
        for view in (SELECTIVE, SAMPLED):
            run = Path(scratch) / view
            harness.collect(
                words_of(script, launcher_of(script)),
                run,
                invariants=file if view == SELECTIVE else None,
                every=EVERY if view == SAMPLED else 1,
                more=["--quiet"],
            ).expect()
            yield line(script.stem, RECORDED_ANEW, view, TraceReader(run), learned)


def lines(folder: Path, only: str) -> Iterator[Any]:
    """Every line of the table."""
    for script in (MLP, CNN):
        if only in script.stem:
            yield from recorded(script, folder)
    recordings = Recordings(folder)
    for script in clean_pipelines():
        if only in script.stem:
            yield from reseeded(script, recordings)


def show(found: Sequence[Any]) -> None:
    """Print a line for each program and change with its findings, then the findings."""
    print(harness.table(HEADER, ([one[key] for key in HEADER] for one in _summed(found))))
    for one in found:
        for text in one["broken"]:
            print(f"{one['program']} ({one['changed']}, {one['view']}): {text}")


def _summed(found: Iterable[Any]) -> Iterator[Any]:
    """Programs of one kind in one line, if they have no findings."""
    quiet: dict[tuple[str, str], list[Any]] = {}
    for one in found:
        if one["violated"]:
            yield one
        else:
            group = GROUPS.get(one["changed"], "workloads")
            quiet.setdefault((group, one["view"]), []).append(one)
    for (group, view), members in quiet.items():
        sums = {key: sum(one[key] for one in members) for key in HEADER[3:]}
        yield {"program": f"{len(members)} {group}", "changed": "quiet", "view": view, **sums}


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns 1 if there is any finding."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reruns",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", help="only programs whose name holds this")
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--keep", type=Path, help="keep recordings here, and use those that are")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        found = list(lines(folder, options.only))
    show(found)
    harness.write_json(options.json, {"machine": harness.describe_machine(), "lines": found})
    return int(any(one["violated"] for one in found))


if __name__ == "__main__":
    sys.exit(main())
