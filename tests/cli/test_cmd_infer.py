"""traincheck-infer: options, exit statuses, what is written and said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.builders import MLP, TraceBuilder, healthy_run
from traincheck.cli import cmd_infer
from traincheck.cli import main as entry
from traincheck.infer.engine import Limits
from traincheck.schema.events import Event
from traincheck.schema.invariant_file import read_invariants
from traincheck.store.manifest import Manifest
from traincheck.store.writer import TraceWriter

Infer = Callable[..., int]


def write(directory: Path, events: Iterable[Event], **facts: object) -> Path:
    with TraceWriter(directory, Manifest(**facts) if facts else None) as writer:
        for event in events:
            writer.emit(event)
    return directory


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write(tmp_path / "runs" / "good", healthy_run(12))


@pytest.fixture
def infer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Infer:
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> int:
        monkeypatch.setattr(sys, "argv", ["traincheck-infer", *map(str, words)])
        return entry.infer_main()

    return run


def test_learns_and_says_what(infer: Infer, good: Path, tmp_path: Path, capsys) -> None:
    assert infer("-t", good) == 0
    out, err = capsys.readouterr()
    assert out == ""
    learned = read_invariants(tmp_path / "invariant.json")
    assert err.startswith(f"{len(learned)} invariants from 1 run, 12 steps, in invariant.json")
    assert "  order: " in err
    assert "every parameter" in err
    document = json.loads((tmp_path / "invariant.json").read_text())
    assert document["runs"] == ["good"]
    assert document["created_with"]["confidence"] == 0.99
    dropped = json.loads((tmp_path / "invariant.json.dropped.json").read_text())["dropped"]
    assert {"relation", "params", "text", "reason", "detail", "examples"} == set(dropped[0])


def test_unreadable_lines_are_counted(infer: Infer, good: Path, capsys) -> None:
    (file,) = good.glob("*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:40], b"\x00garbled\n", *lines[40:], b'{"k":"ca']))
    assert infer("-t", good) == 0
    assert "note: 2 unreadable lines skipped" in capsys.readouterr().err


ENDED = "2026-01-01T00:00:00+00:00"
SOME = {"calls": [], "states": [], "kinds": ["step"], "exact": False}


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"settings": {"needs": SOME, "every": 1}}, "only what some checks need was recorded"),
        ({"settings": {"needs": None, "every": 10}}, "one step in 10 was recorded"),
        ({"exit_status": 1, "ended": ENDED}, "the run ended with exit status 1"),
        ({"exit_status": 130, "signal": "SIGINT"}, "the run was ended by SIGINT"),
        ({"settings": {"needs": None, "every": 1}, "exit_status": 0}, None),
    ],
)
def test_why_less_could_be_learned(infer: Infer, tmp_path: Path, capsys, facts, said) -> None:
    """Told once for all runs that share it."""
    for name in ("one", "two"):
        write(tmp_path / name, healthy_run(12), **facts)
    assert infer("-t", tmp_path / "one", "-t", tmp_path / "two") == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if "note:" in line]
    assert len(notes) == (said is not None)
    assert all(note.startswith(f"  note: one, two: {said}") for note in notes)


def test_a_folder_of_runs_and_runs_by_name(
    infer: Infer, good: Path, tmp_path: Path, capsys
) -> None:
    other = write(tmp_path / "runs" / "other", healthy_run(9))
    assert infer("-t", good.parent, "-o", "a.json") == 0
    assert "2 runs, 21 steps" in capsys.readouterr().err
    assert infer("-t", other, "-t", good, "-t", good, "-o", "b.json", "--jobs", 1) == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_options_reach_the_engine(infer: Infer, good: Path, monkeypatch) -> None:
    seen = {}

    def fake(runs, **options):
        seen.update(options, names=[run.name for run in runs])
        raise KeyboardInterrupt

    monkeypatch.setattr("traincheck.infer.engine.infer", fake)
    words = ["--relation", "order", "--relation", "contains", "--min-examples", 3]
    assert infer("-t", good, *words, "--confidence", 0.5, "--jobs", 4) == entry.INTERRUPTED
    assert sorted(seen["relations"]) == ["contains", "order"]
    assert seen["limits"] == Limits(confidence=0.5, examples=3)
    assert (seen["jobs"], seen["names"]) == (4, ["good"])


def test_one_relation(infer: Infer, good: Path, tmp_path: Path) -> None:
    assert infer("-t", good, "--relation", "order") == 0
    learned = read_invariants(tmp_path / "invariant.json")
    assert {i.hypothesis.relation for i in learned} == {"order"}


def test_an_output_that_exists_is_kept(infer: Infer, good: Path, tmp_path: Path, capsys) -> None:
    assert infer("-t", good) == 0
    first = (tmp_path / "invariant.json").read_bytes()
    capsys.readouterr()
    assert infer("-t", good, "--confidence", 0.5) == 2
    assert "overwrite this one with --force" in capsys.readouterr().err
    assert infer("-t", good, "-o", "new.json") == 0
    assert infer("-t", good, "--update", "new.json", "-o", "invariant.json") == 2
    assert (tmp_path / "invariant.json").read_bytes() == first
    assert infer("-t", good, "--update", "invariant.json", "-o", "./invariant.json") == 0
    assert infer("-t", good, "--confidence", 0.5, "--force") == 0
    assert (tmp_path / "invariant.json").read_bytes() != first


def test_a_link_loop_is_bad_input(infer: Infer, good: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "invariant.json").symlink_to("invariant.json")
    assert infer("-t", good, "--update", "invariant.json", "-o", "new.json") == 2
    assert "invariant.json" in capsys.readouterr().err


def test_why_not(infer: Infer, good: Path, capsys) -> None:
    assert infer("-t", good, "--why-not", "SCHEDULER") == 0
    assert "0 dropped statements contain 'SCHEDULER':" in capsys.readouterr().err
    assert infer("-t", good, "--force", "--why-not", "weight of a linear") == 0
    err = capsys.readouterr().err
    assert "every weight of a Linear changes" in err
    assert "another invariant says it: " in err


def test_why_not_reads_what_is_there(infer: Infer, good: Path, tmp_path: Path, capsys) -> None:
    assert infer("-t", good) == 0
    (good / "events.gone").write_text("")
    for file in good.glob("*.jsonl"):
        file.unlink()
    capsys.readouterr()
    assert infer("--why-not", "weight of a linear") == 0
    assert "another invariant says it: " in capsys.readouterr().err
    assert infer("--why-not", "zero_grad comes before") == 0
    assert "kept as order-" in capsys.readouterr().err
    assert infer("--why-not", "gradients are zeroed by the optimizer") == 0
    err = capsys.readouterr().err
    assert "No run suggests such a statement. The most similar statements are:" in err
    (tmp_path / "invariant.json.dropped.json").unlink()
    assert infer("--why-not", "buffer") == 2
    assert "fix: learn again" in capsys.readouterr().err


def test_runs_are_added_without_reading_the_old_ones(
    infer: Infer, good: Path, tmp_path: Path
) -> None:
    more = write(tmp_path / "runs" / "more", healthy_run(9, scheduler=True))
    assert infer("-t", good, "-t", more, "-o", "both.json", "--confidence", 0.95) == 0
    assert infer("-t", good, "-o", "one.json", "--confidence", 0.95) == 0
    good.rename(tmp_path / "away")
    assert infer("--update", "one.json", "-t", more) == 0
    for end in ("", ".stats", ".dropped.json"):
        both, one = (tmp_path / f"{name}.json{end}" for name in ("both", "one"))
        assert one.read_bytes() == both.read_bytes()


def test_the_seed_of_hashing_changes_no_byte(good: Path, tmp_path: Path) -> None:
    more = write(tmp_path / "runs" / "more", healthy_run(9, scheduler=True, eval_every=2))
    found = []
    for seed in ("1", "2"):
        out = tmp_path / seed
        out.mkdir()
        code = "from traincheck.cli.main import infer_main; infer_main()"
        words = ["-t", str(good), "-t", str(more), "-o", str(out / "invariant.json")]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code, *words], env=environment, cwd=out, check=True)
        found.append([path.read_bytes() for path in sorted(out.iterdir())])
    assert len(found[0]) == 3
    assert found[0] == found[1]


def test_nothing_to_add_to(infer: Infer, good: Path, capsys) -> None:
    assert infer("-t", good) == 0
    Path("invariant.json.stats").unlink()
    assert infer("--update", "invariant.json", "-t", good) == 2
    err = capsys.readouterr().err
    assert "invariant.json.stats does not exist" in err
    assert "fix: " in err


def test_no_invariants_to_add_to(infer: Infer, good: Path, capsys) -> None:
    assert infer("--update", "nope.json", "-t", good) == 2
    assert "error: nope.json does not exist\n" in capsys.readouterr().err


def test_no_run_at_all(infer: Infer, capsys) -> None:
    assert infer() == 2
    assert "fix: name a run: -t DIR" in capsys.readouterr().err


def test_an_unknown_relation(infer: Infer, good: Path, capsys) -> None:
    assert infer("-t", good, "--relation", "no_such") == 2
    err = capsys.readouterr().err
    assert "no relation 'no_such'" in err
    assert "fix: choose one of contains, order, input_output, periodic" in err


BAD = {
    "missing": (lambda path: None, "does not exist"),
    "empty folder": (lambda path: path.mkdir(), "has no run"),
    "file": (lambda path: path.write_text("x"), "is a file"),
    "no step": (
        lambda path: write(path, TraceBuilder().process().model("Net", MLP).build()),
        "has no complete training step",
    ),
    "unfinished": (
        lambda path: write(
            path,
            TraceBuilder().process().model("Net").optimizer().step().build(last_complete=False),
        ),
        "has no complete training step",
    ),
    "garbled": (
        lambda path: (path.mkdir(), (path / "events-r0-p1-t0.jsonl").write_bytes(b"\x00{]\n" * 9)),
        "",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_trace_is_named(infer: Infer, tmp_path: Path, capsys, case: str) -> None:
    make, said = BAD[case]
    path = tmp_path / "bad"
    make(path)
    assert infer("-t", path) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert str(path) in err
    assert said in err
    assert "  fix: " in err
    assert not (tmp_path / "invariant.json").exists()


@pytest.mark.parametrize("output", ["runs", "nowhere/invariant.json", "file/invariant.json"])
def test_an_unusable_output_is_named_before_the_work(
    infer: Infer, good: Path, tmp_path: Path, capsys, monkeypatch, output: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("traincheck.infer.engine.infer", lambda *a, **k: pytest.fail("too late"))
    assert infer("-t", good, "-o", output) == 2
    err = capsys.readouterr().err
    assert f"error: {output}: cannot be written" in err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk(infer: Infer, good: Path, capsys) -> None:
    assert infer("-t", good, "-o", "/dev/full") == 2
    assert "error: /dev/full: cannot be written: No space left" in capsys.readouterr().err


def test_nothing_learned_is_said_and_is_no_error(infer: Infer, tmp_path: Path, capsys) -> None:
    short = write(
        tmp_path / "short", TraceBuilder().process().model("Net").optimizer().step().build()
    )
    assert infer("-t", short, "--relation", "order") == 0
    err = capsys.readouterr().err
    assert err.startswith("0 invariants")
    assert "fix: record more steps" in err
    assert read_invariants(tmp_path / "invariant.json") == []


def test_a_bar_on_a_terminal_only(monkeypatch, capsys) -> None:
    with cmd_infer._progress() as tell:
        assert tell is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with cmd_infer._progress() as tell:
        assert tell is not None
        tell(1, 3)
    assert "learning" in capsys.readouterr().err
