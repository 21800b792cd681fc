"""The library's calls: the same as the commands, as values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import MLP, TraceBuilder, healthy_run
from traincheck.api import check
from traincheck.errors import TraceFormatError, UsageError, nearest, suggested
from traincheck.schema.claims import Hypothesis, Invariant
from traincheck.schema.findings import Verdict
from traincheck.schema.invariant_file import write_invariants
from traincheck.store.writer import TraceWriter

CLAIM = {"outer": "step", "role": "parameter", "change": "changed"}


def record(directory: Path, builder: TraceBuilder | None = None) -> Path:
    with TraceWriter(directory) as writer:
        for event in healthy_run(3) if builder is None else builder.build():
            writer.emit(event)
    return directory


def claims(path: Path, **params: object) -> Path:
    claim = Hypothesis(relation="contains", params={**CLAIM, **params})
    write_invariants(path, [Invariant(id="one", hypothesis=claim, text="a claim")], {}, [])
    return path


def test_checks_a_run_by_rules(tmp_path: Path) -> None:
    report = check(record(tmp_path / "run"))
    assert report.findings == []
    assert report.verdicts["TC201"] is Verdict.HELD
    assert (report.events, report.skipped_lines) == (len(healthy_run(3)), 0)


def test_finds_what_the_command_finds(tmp_path: Path) -> None:
    broken = TraceBuilder().process().model("Net", MLP).optimizer().steps(3, omit={"zero_grad"})
    run = record(tmp_path / "run", broken)
    assert [finding.code for finding in check(run).findings] == ["TC201"]
    assert check(run, rules=False).verdicts == {}
    chosen = list(check(run, select=["TC1"]).verdicts)
    assert {"TC101", "TC102"} <= set(chosen)
    assert all(code.startswith("TC1") for code in chosen)
    assert "TC201" not in check(run, ignore=["TC201"]).verdicts


def test_an_invariant_that_cannot_be_used_is_not_observable(tmp_path: Path) -> None:
    path = claims(tmp_path / "a.json", change="unheard of")
    report = check(record(tmp_path / "run"), [path], rules=False)
    assert report.verdicts == {"one": Verdict.NOT_OBSERVABLE}


def test_one_id_for_two_claims_is_refused(tmp_path: Path) -> None:
    run = record(tmp_path / "run")
    one, two = claims(tmp_path / "1.json"), claims(tmp_path / "2.json", leaf="weight")
    check(run, [one, one])
    with pytest.raises(UsageError, match="'one' for different invariants"):
        check(run, [one, two])


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError):
        check(tmp_path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("TC101", "TC101"),
        ("TC11", "TC118"),
        ("TC1O1", "TC101"),
        ("TCl01", "TC101"),
        ("TC1l8", "TC118"),
        ("contain", "contains"),
        ("ordre", "order"),
        ("con", "contains"),
    ],
)
def test_nearest(name: str, expected: str) -> None:
    assert nearest(name, ["TC101", "TC118", "TC201", "contains", "order"]) == expected


@pytest.mark.parametrize(
    ("name", "like"),
    [("wanbd", "wandb"), ("slack", ""), ("e-mail", ""), ("web", "webhook")],
)
def test_only_a_name_that_is_like_it_is_suggested(name: str, like: str) -> None:
    said = f"did you mean {like}? " if like else ""
    assert suggested(name, ["wandb", "mlflow", "tensorboard", "webhook"]) == said
    assert suggested(name, []) == ""
