"""Training is bit-identical with and without recording: weights, random states, stdout, status.

What is recorded is also checked here: rules have nothing to say about these programs.
"""

import functools
import json
import sys
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.harness import PROGRAMS
from benchmarks.lab import alarms, brief, checked

CASES = {
    "mlp_dropout": {},
    "cnn_bf16": {},
    "gpt_tiny": {},
    "gan": {},
    "lbfgs": {},
    "finetune_digits": {},
    "copied": {},
    "compiled": {},
    "loader_workers-fork": {"UP_CONTEXT": "fork"},
    # Each worker loads torch; that they are started again in each epoch is tried with fork.
    "loader_workers-spawn": {"UP_CONTEXT": "spawn", "UP_EPOCHS": "1"},
}
SEED = {"UP_SEED": 5}


@functools.cache
def plain(script, **env):
    """A run without recording; several tests compare with the same."""
    return harness.plain(script, env=env)


def assert_recorded(trace, processes=1):
    """Nothing was switched off: a run that recorded nothing would be identical too."""
    first, events, disabled = [], 0, []
    for record in harness.records(trace):
        events += 1
        if record["k"] == "mark" and record.get("text") == "process":
            first.append(record["data"])
        if record["k"] == "mark" and record.get("text") in ("instrument disabled", "dropped"):
            disabled.append(record)
    assert not disabled
    assert len({data["pid"] for data in first}) >= processes
    for data in first:
        assert set(data["instruments"].values()) == {"on"}, data["instruments"]
    assert events > 100


def assert_same(bare, traced):
    assert traced.returncode == bare.returncode == 0, traced.stderr
    assert "DIGEST weights" in bare.stdout
    assert traced.stdout == bare.stdout


@pytest.mark.parametrize("case", CASES)
def test_same_with_and_without_recording(tmp_path, case):
    script = PROGRAMS / f"{case.split('-')[0]}.py"
    env = {**SEED, **CASES[case]}
    traced = harness.collect(script, tmp_path / "run", env=env)
    assert_same(plain(script, **env), traced)
    workers = 2 if case.startswith("loader_workers") else 0
    assert_recorded(tmp_path / "run", processes=1 + workers)
    report = checked(tmp_path / "run")
    assert not alarms(report), brief(alarms(report))
    assert report["summary"]["steps"] > 0
    assert report["summary"]["held"] > 0


@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("mlp_dropout", ("--rules",)),
        ("gan", ("--every", "3")),
        ("mlp_dropout", ("--level", "deep")),
        ("compiled", ("--rules", "--every", "2")),
        ("mlp_dropout", ("--view", "diff", "--outputs", "all", "--sketch")),
        ("loader_workers", ("--view", "diff", "--every", "2")),
        ("gan", ("--view", "diff")),
        *((case.split("-")[0], ("--probe",)) for case in CASES if case != "loader_workers-spawn"),
    ],
)
@pytest.mark.slow
def test_same_in_other_views(tmp_path, case, options):
    script = PROGRAMS / f"{case}.py"
    traced = harness.collect(script, tmp_path / "run", env=SEED, more=options)
    assert_same(plain(script, **SEED), traced)


def test_two_ranks_are_the_same(tmp_path):
    torchrun = [harness.command("torchrun"), "--standalone", "--nproc-per-node", "2"]
    launch = [*torchrun, PROGRAMS / "ddp_two.py"]
    collect = [harness.command("traincheck-collect"), "-o", tmp_path / "run", "--"]
    outputs = {}
    for name, argv in (("bare", launch), ("traced", [*collect, *launch])):
        (tmp_path / name).mkdir()
        env = {**SEED, "UP_OUT": str(tmp_path / name)}
        done = harness.run(argv, env=env, out=tmp_path / "run")
        assert done.returncode == 0, done.stderr
        outputs[name] = [(tmp_path / name / f"rank{rank}.txt").read_text() for rank in (0, 1)]
    assert "DIGEST weights" in outputs["bare"][0]
    assert outputs["traced"] == outputs["bare"]
    ranks = {path.name.split("-")[1] for path in harness.event_files(tmp_path / "run")}
    assert ranks >= {"r0", "r1"}


def test_digest_sees_another_seed():
    """The twin of the tests above: what they compare does change when training does."""
    script = PROGRAMS / "mlp_dropout.py"
    one, other = (plain(script, UP_SEED=seed).stdout for seed in (5, 6))
    digests = [
        {line.split()[1]: line.split()[2] for line in text.splitlines() if "DIGEST" in line}
        for text in (one, other)
    ]
    assert set(digests[0]) == {"weights", "losses", "python", "numpy", "torch"}
    assert all(digests[0][name] != digests[1][name] for name in digests[0])


def test_environment_of_the_program_is_what_it_was(tmp_path):
    script = tmp_path / "show.py"
    script.write_text(
        "import json, os, sys\n"
        "keep = {k: v for k, v in os.environ.items() if not k.startswith('TRAINCHECK')}\n"
        "print(json.dumps([sys.argv, os.getcwd(), sys.path, sys.flags.optimize, keep]))\n"
    )
    env = {"PYTHONPATH": str(tmp_path / "mine"), "UP_SOMETHING": "kept"}
    bare = harness.run([sys.executable, script, "a", "b c"], env=env)
    collect = [harness.command("traincheck-collect"), "-p", script, "-o", tmp_path / "run"]
    traced = harness.run([*collect, "--", "a", "b c"], env=env)
    assert traced.returncode == bare.returncode == 0, traced.stderr
    (argv, cwd, path, flags, environ), (argv2, cwd2, path2, flags2, environ2) = (
        json.loads(done.stdout) for done in (bare, traced)
    )
    assert (argv2, cwd2, flags2) == (argv, cwd, flags)
    assert [p for p in path2 if Path(p).name != "bootstrap"] == path
    assert environ2["UP_SOMETHING"] == "kept"
    assert set(environ2) == set(environ)
