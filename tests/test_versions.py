"""Judging recordings of several versions of torch: what counts as broken, as lacking, as found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import harness, versions
from benchmarks.silent_bugs.case import CaseError, load_cases
from traincheck.errors import UsageError

MISSED = {"rules": False, "presets": False}
FOUND = {"rules": True, "presets": False}
QUIET = {"rules": [], "presets": []}
ALARMED = {"rules": [], "presets": ["contains (warning, step 3): ..."]}


def clean(name="gan", triggered=400, broken=0, alarms=None):
    return {"program": name, "triggered": triggered, "broken": broken, "alarms": alarms or QUIET}


def bug(name="A13", mark="RULE", found=None, alarms=None):
    return {"program": name, "mark": mark, "found": found or FOUND, "alarms": alarms or QUIET}


def result(lines, bugs=()):
    return {**versions.sums(lines, bugs), "clean": lines, "bugs": list(bugs)}


def test_sums_leave_out_what_did_not_run():
    lacking = {"program": "vae", "lacks": "No module named 'sklearn'"}
    found = result([clean(broken=2), clean("vae", 100), lacking], [bug(), bug(found=MISSED)])
    assert (found["pipelines"], found["triggered"], found["broken"]) == (2, 500, 2)
    assert found["percent"] == 0.4
    assert (found["cases"], found["by rules"], found["by presets"]) == (2, 1, 0)
    assert (found["by either"], found["lacking"], found["failed"], found["alarms"]) == (1, 1, 0, 0)


def test_what_is_broken_is_told():
    assert versions.promises(result([clean()], [bug(), bug(mark="REF", found=MISSED)])) == []
    assert "2 of 400" in versions.promises(result([clean(broken=2)]))[0]
    assert versions.promises(result([clean(broken=1)])) == []
    assert "false alarm" in versions.promises(result([clean(alarms=ALARMED)]))[0]
    assert "false alarm" in versions.promises(result([], [bug(alarms=ALARMED)]))[0]
    assert "missed" in versions.promises(result([], [bug(found=MISSED)]))[0]
    assert "broke" in versions.promises(result([{"program": "gan", "error": "it broke"}]))[0]


LACKING = """Traceback (most recent call last):
[rank0]: ImportError: cannot import name 'fully_shard' from 'torch.distributed.fsdp' (/a/b.py)
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: main.py FAILED
"""


def done(returncode, stderr=""):
    return harness.Done(
        argv=(),
        returncode=returncode,
        stdout="",
        stderr=stderr,
        wall_s=0,
        cpu_s=0,
        peak_mb=0,
    )


def unreadable():
    raise UsageError("no events", fix="record again")


def test_a_program_that_an_installation_cannot_run_is_no_failure():
    lacks = versions.outcome("a", unreadable, lambda: done(1, LACKING))["lacks"]
    assert lacks.startswith("ImportError: cannot import name 'fully_shard'")
    assert versions.outcome("a", unreadable, lambda: done(3))["lacks"] == "it ends with 3"
    failed = versions.outcome("a", lambda: done(1, LACKING).expect(), lambda: done(0))
    assert "fully_shard" in failed["error"]
    assert "no events" in versions.outcome("a", unreadable, lambda: done(0))["error"]


def test_one_case_of_each_kind_stands_for_all():
    cases = load_cases()
    some = versions.representative(cases)
    kinds = {(case.class_, case.mark, case.launcher) for case in cases}
    assert {(case.class_, case.mark, case.launcher) for case in some} == kinds
    assert len(some) == len(kinds) < len(cases)


def test_an_installation_tells_its_versions():
    one = versions.probed(sys.executable)
    assert one.python == ".".join(map(str, sys.version_info[:3]))
    with pytest.raises(SystemExit, match="needs torch"):
        versions.probed("/nowhere/python")


def test_a_program_that_there_is_not(capsys):
    assert versions.main([sys.executable, "--case", "Z99"]) == 2
    assert "Z99" in capsys.readouterr().err
    with pytest.raises(CaseError, match="Z99"):
        versions.chosen(["Z99"], {})


@pytest.mark.slow
def test_what_this_installation_records(tmp_path: Path, capsys):
    words = [sys.executable, "--case", "A13", "--clean", "plain_digits"]
    out = tmp_path / "versions.json"
    assert versions.main([*words, "--keep", str(tmp_path), "--json", str(out)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line[0].isdigit()]
    assert line.split()[-6:] == ["1", "1", "1", "1", "0", "0"]  # cases, found, lacking, failed
    assert '"plain_digits"' in out.read_text()
