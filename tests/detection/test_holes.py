"""Traces that lost lines: what is absent there proves nothing, and what is there still tells."""

import random
import shutil
from pathlib import Path

import orjson
import pytest

from benchmarks.cases import BUGS, MLP
from benchmarks.harness import PROGRAMS
from benchmarks.lab import FULL, SELECTIVE, alarms, brief, checked

# Each cuts a run in other places.
trials = pytest.mark.parametrize(
    "trials",
    [
        pytest.param(range(2), id="some"),
        pytest.param(range(2, 4), id="more", marks=pytest.mark.nightly),
    ],
)
BAD = b'{"k":"call","n":'


def garble_one(lines, pick):
    lines[pick.randrange(1, len(lines) - 1)] = BAD


def garble_some(lines, pick):
    for index in pick.sample(range(1, len(lines) - 1), 5):
        lines[index] = BAD


def lose_the_beginning(lines, pick):
    del lines[: pick.randrange(1, len(lines) // 2)]


def lose_a_block(lines, pick):
    start = pick.randrange(1, len(lines) - 2)
    del lines[start : pick.randrange(start + 1, len(lines) - 1)]


def lose_the_end(lines, pick):
    """As SIGKILL does."""
    del lines[pick.randrange(1, len(lines)) :]


def lose_of_the_first_step(lines, pick):
    """Steps in which variables and optimizers are recorded."""
    end = next(i for i, line in enumerate(lines) if b'"k":"step"' in line)
    for index in pick.sample(range(1, end), 3):
        lines[index] = BAD


BUGS_TRIED = [b for b in BUGS if b.script == MLP and b.name in {"no_zero_grad", "forum84911"}]
HOLES = (
    garble_one,
    garble_some,
    lose_a_block,
    lose_of_the_first_step,
    lose_the_beginning,
    lose_the_end,
)


def with_hole(run: Path, out: Path, cut, pick) -> Path:
    """A copy of a run, whose largest file is cut."""
    shutil.copytree(run, out)
    file = max(out.glob("events-*.jsonl"), key=lambda path: path.stat().st_size)
    lines = file.read_bytes().splitlines()
    cut(lines, pick)
    file.write_bytes(b"\n".join(lines) + b"\n")
    return out


@trials
@pytest.mark.parametrize("cut", HOLES, ids=lambda cut: cut.__name__)
@pytest.mark.parametrize(
    ("program", "view"),
    [
        pytest.param(MLP, FULL, id="mlp"),
        pytest.param(MLP, SELECTIVE, id="mlp-selective"),
        pytest.param(PROGRAMS / "lbfgs.py", FULL, id="lbfgs", marks=pytest.mark.slow),
    ],
)
def test_a_healthy_run_with_a_hole_is_left_alone(lab, tmp_path, program, cut, view, trials):
    learned = lab.invariants(program)
    run = lab.reference(program)
    if view == SELECTIVE:
        run = lab.trace(program, {"UP_SEED": 7, "UP_STEPS": 30}, view=view, invariants=learned)
    held = 0
    for trial in trials:
        pick = random.Random(f"{cut.__name__} {trial}")
        cut_run = with_hole(run, tmp_path / f"run{trial}", cut, pick)
        report = checked(cut_run, learned)
        assert not alarms(report), (trial, brief(alarms(report)))
        is_told = any("events were lost at step" in note for note in report["notes"])
        assert is_told is (cut is not lose_the_end)
        held += report["summary"]["held"]
    assert held > 0  # silence must not come from having checked nothing


@pytest.mark.parametrize("bug", BUGS_TRIED, ids=lambda bug: bug.id)
def test_a_bug_is_found_beside_a_hole(lab, tmp_path, bug):
    learned = lab.invariants(MLP)
    run = lab.trace(MLP, bug.env, view=FULL)
    whole = checked(run, learned)

    def after_some_steps(lines, pick):
        ends = [i for i, line in enumerate(lines) if orjson.loads(line)["k"] == "step"]
        del lines[ends[9] + 5 : ends[12] + 5]

    report = checked(with_hole(run, tmp_path / "run", after_some_steps, random.Random(0)), learned)
    assert [(f["id"], f["first_step"]) for f in alarms(report)][:1] == [
        (f["id"], f["first_step"]) for f in alarms(whole)
    ][:1]


@pytest.mark.parametrize("trial", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_what_a_hole_hides_is_not_learned(lab, tmp_path, trial):
    """From a run with a hole comes no claim that the whole run breaks."""
    from traincheck.infer.engine import Limits, Run, infer
    from traincheck.infer.replay_views import replay
    from traincheck.relations.registry import RELATIONS
    from traincheck.store.reader import TraceReader

    run = lab.reference(MLP)
    for cut in HOLES:
        out = tmp_path / cut.__name__
        source = TraceReader(with_hole(run, out, cut, random.Random(trial)))
        learned = infer([Run(name="cut", source=source)], limits=Limits()).invariants
        reports = replay(TraceReader(run), RELATIONS, learned)
        found = [f.message for report in reports.values() for f in report.findings]
        assert not found, (cut.__name__, found)
