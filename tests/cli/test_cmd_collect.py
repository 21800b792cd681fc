"""traincheck-collect: from words on the command line to what the launcher is given."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from traincheck.cli import main as entry
from traincheck.collect.launch import launcher as launching
from traincheck.collect.launch.launcher import Outcome
from traincheck.collect.launch.settings import Settings, from_env
from traincheck.rules.table import RULES
from traincheck.schema.claims import Hypothesis, Invariant, Needs
from traincheck.schema.comparison.diff_view import DIFF_NEEDS
from traincheck.schema.invariant_file import write_invariants


class Collect:
    """Runs the command line with a launcher that only remembers what it was told to do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, outcome: Outcome) -> None:
        self.monkeypatch = monkeypatch
        self.outcome = outcome
        self.command: list[str] = []
        self.settings = Settings(directory="", run_id="")
        self.launches = 0
        monkeypatch.setattr(launching, "launch", self._launch)

    def __call__(self, *words: str) -> int:
        self.monkeypatch.setattr(sys, "argv", ["traincheck-collect", *words])
        return entry.collect_main()

    def _launch(self, command: list[str], settings: Settings) -> Outcome:
        self.command, self.settings = command, settings
        self.launches += 1
        return self.outcome


@pytest.fixture
def collect(monkeypatch, tmp_path) -> Collect:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "run.sh").write_text("")
    return Collect(monkeypatch, Outcome(exit_status=0, processes=1))


def invariant(name: str, needs: Needs) -> Invariant:
    return Invariant(id=name, hypothesis=Hypothesis(relation="order", params={}), needs=needs)


def invariant_file(path: Path, *needs: Needs) -> str:
    invariants = [invariant(f"i{n}", need) for n, need in enumerate(needs)]
    write_invariants(path, invariants, created_with={}, runs=[])
    return str(path)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("-p train.py", [sys.executable, "train.py"]),
        ("-p train.py --lr 1 x", [sys.executable, "train.py", "--lr", "1", "x"]),
        ("-p train.py x --every 2", [sys.executable, "train.py", "x", "--every", "2"]),
        ("--every 2 -p train.py --lr 1", [sys.executable, "train.py", "--lr", "1"]),
        ("-p train.py --every 2 -- --lr 1", [sys.executable, "train.py", "--lr", "1"]),
        ("--script=train.py --lr 1", [sys.executable, "train.py", "--lr", "1"]),
        ("-ptrain.py --lr 1", [sys.executable, "train.py", "--lr", "1"]),
        ("-s run.sh a -o x", ["sh", "run.sh", "a", "-o", "x"]),
        ("-p train.py -- --lr 1 -- y", [sys.executable, "train.py", "--lr", "1", "--", "y"]),
        ("-s run.sh -- -o x", ["sh", "run.sh", "-o", "x"]),
        ("-- env A=1 train", ["env", "A=1", "train"]),
    ],
)
def test_the_command_is_the_programs(collect, words, command) -> None:
    assert collect(*words.split()) == 0
    assert collect.command == command


def test_without_options_everything_is_recorded_with_the_defaults(collect, tmp_path) -> None:
    collect("-p", "train.py")
    found = collect.settings
    assert found == Settings(directory=found.directory, run_id=found.run_id, source=True)
    assert Path(found.directory) == tmp_path / "traces" / found.run_id
    assert found.needs is None


def test_options_reach_the_settings(collect, tmp_path) -> None:
    words = "-p train.py -o run --every 5 --warmup 2 --level deep --instrument a.b"
    collect(*words.split())
    found = collect.settings
    assert found.directory == str(tmp_path / "run")
    assert (found.every, found.warmup, found.level, found.instrument) == (5, 2, "deep", ("a.b",))


def test_needs_are_those_of_all_invariants(collect, tmp_path) -> None:
    one, two, three = (Needs(calls=frozenset({name})) for name in ("a", "b", "c"))
    first = invariant_file(tmp_path / "1.json", one, two)
    second = invariant_file(tmp_path / "2.json", three)
    collect("-p", "train.py", "-i", first, "-i", second)
    assert collect.settings.needs == one | two | three


def test_needs_of_rules_are_added(collect, tmp_path) -> None:
    own = Needs(calls=frozenset({"a"}))
    collect("-p", "train.py", "--rules")
    rules = collect.settings.needs
    assert all(rule.needs | rules == rules for rule in RULES)
    assert rules != Needs()
    collect("-p", "train.py", "--rules", "-i", invariant_file(tmp_path / "1.json", own))
    assert collect.settings.needs == rules | own


def test_a_view_has_its_needs_and_options(collect, tmp_path) -> None:
    words = ("--view", "diff", "--outputs", "Net.a.*", "--sketch")
    assert collect("--rules", *words, "-p", "train.py") == 0
    settings = collect.settings
    assert (settings.view, settings.outputs, settings.sketch) == ("diff", "Net.a.*", True)
    assert settings.whole
    assert not settings.fold
    assert settings.needs is not None
    assert settings.needs | DIFF_NEEDS == settings.needs != DIFF_NEEDS
    assert collect("--view", "diff", "-p", "train.py") == 0
    assert (collect.settings.needs, collect.settings.outputs) == (DIFF_NEEDS, "root")
    (tmp_path / "traincheck.toml").write_text('[collect]\nview = "diff"\nsketch = true\n')
    assert collect("-p", "train.py") == 0
    assert (collect.settings.view, collect.settings.sketch) == ("diff", True)
    assert from_env(collect.settings.to_env()) == collect.settings


def test_an_option_of_a_view_without_one_is_a_mistake(collect, tmp_path, capfd) -> None:
    assert collect("--sketch", "-p", "train.py") == 2
    assert "sketch is set without a view" in capfd.readouterr().err
    assert collect("--outputs", "all", "-p", "train.py") == 2
    (tmp_path / "traincheck.toml").write_text('[collect]\nview = "all"\n')
    assert collect("-p", "train.py") == 2
    assert "view is 'all'" in capfd.readouterr().err
    assert not collect.launches


def test_a_configuration_file_gives_options_and_the_command_line_wins(collect, tmp_path) -> None:
    (tmp_path / "c.toml").write_text('[collect]\nevery = 5\nwarmup = 2\nlevel = "deep"\n')
    collect("-p", "train.py", "--config", "c.toml", "--every", "7", "--warmup", "0")
    found = collect.settings
    assert (found.every, found.warmup, found.level) == (7, 0, "deep")


def test_the_exit_status_is_the_programs(collect, capfd) -> None:
    collect.outcome = Outcome(exit_status=137, processes=1)
    assert collect("-p", "train.py", "-o", "run") == 137
    said = "traincheck: trace in run; next: traincheck-check -t run\n"
    assert capfd.readouterr().err == said


def test_the_next_command_checks_what_was_recorded_for(collect, tmp_path, capfd) -> None:
    invariant_file(tmp_path / "a b.json", Needs())
    collect("-o", "run", "-i", "a b.json", "-p", "train.py")
    said = "traincheck: trace in run; next: traincheck-check -t run -i 'a b.json'\n"
    assert capfd.readouterr().err == said


def test_notes_are_told_in_the_same_line(collect, capfd) -> None:
    collect.outcome = Outcome(exit_status=0, processes=0, notes=("nobody used torch",))
    collect("-p", "train.py", "-o", "a run")
    text = capfd.readouterr().err
    assert text == "traincheck: no trace in 'a run'; nobody used torch\n"


def test_a_quiet_run_tells_nothing(collect, capfd) -> None:
    collect("-p", "train.py", "--quiet")
    assert capfd.readouterr().err == ""
    assert collect.launches == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "no program to run"),
        ("--", "no program to run"),
        ("train.py", "fix: traincheck-collect -p train.py\n"),
        ("train.py --lr", "fix: traincheck-collect -p train.py --lr\n"),
        ("-o x train.py -y", "fix: traincheck-collect -o x -p train.py -y\n"),
        ("--lr 1 -p train.py y", "script: traincheck-collect -p train.py --lr 1 y\n"),
        ("-z train.py", "script: traincheck-collect -p train.py -z\n"),
        ("-z -o x train.py y", "script: traincheck-collect -o x -p train.py -z y\n"),
        ("-z 3 -o x -p train.py", "script: traincheck-collect -o x -p train.py -z 3\n"),
        ("run.sh", "fix: traincheck-collect -s run.sh\n"),
        ("torchrun train.py", "fix: traincheck-collect -- torchrun train.py\n"),
        (
            "-p train.py -o x --lr 1",
            "script: traincheck-collect -o x -p train.py --lr 1\n",
        ),
        ("-p train.py -o x --lr 1", "train.py: traincheck-collect -p train.py -- -o x --lr 1\n"),
        ("--evry 2 -p train.py", "did you mean --every?"),
        ("-q -p train.py", "did you mean --quiet?"),
        ("-p train.py -s run.sh", "cannot be used together"),
        ("-p nowhere.py", "'nowhere.py' does not exist"),
        ("-s nowhere.sh", "'nowhere.sh' does not exist"),
        ("-p .", "is a folder"),
        ("-- ./train.py", "-p ./train.py"),
        ("-- no-such-program-anywhere", "no-such-program-anywhere"),
        ("-p train.py --every 0", "every"),
        ("-p train.py --every x", "every"),
        ("-p train.py --every 99999999999999999999999", "every"),
        ("-p train.py --level all", "level"),
        ("-p train.py -i nowhere.json", "nowhere.json"),
        ("-p train.py -i train.py", "train.py"),
        ("-p train.py -i empty.json", "has no invariants"),
        ("-p train.py --config nowhere.toml", "nowhere.toml"),
        ("-p train.py --config zero.toml", "every is 0"),
        ("-p train.py --config level.toml", "one of default, deep"),
        ("-p train.py -o", "-o"),
    ],
)
def test_a_mistake_is_named_and_nothing_starts(collect, tmp_path, capfd, words, said) -> None:
    invariant_file(tmp_path / "empty.json")
    (tmp_path / "zero.toml").write_text("[collect]\nevery = 0\n")
    (tmp_path / "level.toml").write_text('[collect]\nlevel = "all"\n')
    before = sorted(tmp_path.rglob("*"))
    assert collect(*words.split()) == 2
    shown = capfd.readouterr()
    assert said in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""
    assert collect.launches == 0
    assert sorted(tmp_path.rglob("*")) == before
