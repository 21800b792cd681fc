"""`make versions`: an environment for each version of torch, tests counted, a row in the page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import harness, versions
from benchmarks.versions import BEGIN, END, Row

CASES = """<testsuites><testsuite tests="5">
<testcase classname="tests.a" name="holds" time="0.1"/>
<testcase classname="tests.a" name="breaks[1]"><failure message="no">...</failure></testcase>
<testcase classname="tests.a" name="breaks[1]"><error message="teardown">...</error></testcase>
<testcase classname="tests.b" name="left"><skipped message="no zsh"/></testcase>
</testsuite></testsuites>
"""
PAGE = f"# Title\n\n{BEGIN}| {' | '.join(versions.HEADER)} |\n{'|---' * 8}|\n{END}\nafter\n"


def row(torch: str, tests: str = "tests", failed: tuple[str, ...] | None = ()) -> Row:
    return Row(torch, "3.11.7", tests, 1234, failed, 5, "0123abcd", "2026-11-28")


def rows_of(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("| 2")]


def test_what_pip_is_asked_for() -> None:
    asked = [versions.requirement(torch) for torch in ("2.4", "2.14.1", "newest")]
    assert asked == ["torch==2.4.*", "torch==2.14.1", "torch"]


def test_a_pin_that_needs_a_newer_torch_is_replaced() -> None:
    pins, instead = versions.constraints("2.4.1")
    assert "transformers<5" in instead
    assert not [pin for pin in pins if pin.startswith(("transformers", "tokenizers", "torch="))]
    assert any(pin.startswith("torchmetrics==") for pin in pins)
    pins, instead = versions.constraints("2.10.0")  # newer than 2.6, though the text sorts before
    assert instead == []
    assert any(pin.startswith("transformers==5") for pin in pins)
    assert not [pin for pin in pins if pin.startswith("torch=")]


def test_results_are_counted_by_test(tmp_path: Path) -> None:
    file = tmp_path / "result.xml"
    assert versions.counted(file) == (0, None, 0)
    file.write_text(CASES)
    assert versions.counted(file) == (1, ("tests.a::breaks[1]",), 1)
    file.write_text(CASES[:80])  # the run was killed
    assert versions.counted(file)[1] is None


def test_a_row_takes_the_place_of_an_earlier_one() -> None:
    page = versions.merged(PAGE, [row("2.13.0"), row("2.4.1"), row("2.13.0", "tests/diff")])
    again = versions.merged(
        page, [row("2.13.0", failed=("tests.a::b",)), row("2.10.0", failed=None)]
    )
    texts = rows_of(again)
    assert [text.split(" | ")[0][2:] for text in texts] == ["2.4.1", "2.10.0", "2.13.0", "2.13.0"]
    assert "| tests | 1,234 | 1 | 5 | 0123abcd |" in texts[2]
    assert "| did not end |" in texts[1]
    assert again.startswith("# Title\n\n")
    assert again.endswith("\nafter\n")
    with pytest.raises(ValueError, match="no table"):
        versions.merged("# Title\n", [])


def test_a_python_that_there_is_not_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert versions.interpreter("") == sys.executable
    assert capsys.readouterr().err == ""
    assert versions.interpreter("3.99") == sys.executable
    assert "there is no python3.99" in capsys.readouterr().err


@pytest.mark.parametrize("whole", [True, False])
def test_nothing_is_installed_outside_of_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """What is left of one that was deleted in part is made again; pip takes no other Python."""
    (tmp_path / "2.4.1" / "bin").mkdir(parents=True)
    (tmp_path / "2.4.1" / "bin" / "python").symlink_to(sys.executable)
    if whole:
        (tmp_path / "2.4.1" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    asked = []

    def run(words: list[str | Path], **_: object) -> harness.Done:
        asked.append([str(word) for word in words])
        out = "2.4.1+cpu 3.11.7\n"
        return harness.Done(
            argv=(), returncode=0, stdout=out, stderr="", wall_s=0, cpu_s=0, peak_mb=0
        )

    monkeypatch.setattr(harness, "run", run)
    versions.prepare("2.4.1", tmp_path)
    assert any("venv" in words for words in asked) is not whole
    installs = [words for words in asked if "pip" in words]
    assert len(installs) == 2
    assert all("--require-virtualenv" in words for words in installs)


def test_each_version_has_its_row_and_one_that_cannot_be_installed_stops_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(version: str, folder: Path) -> tuple[Path, str, str]:
        if version == "9.9":
            raise harness.CommandFailedError("no matching distribution")
        return folder / version / "bin" / "python", version, "3.11.7"

    monkeypatch.setattr(versions, "prepare", prepare)
    monkeypatch.setattr(versions, "tested", lambda *_: (3, (), 0))
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    words = ["--page", str(page), "--tests", "tests/diff", "tests/rules", "--without", "slow"]
    assert versions.main(["2.4.1", "9.9", "2.13.0", *words]) == 2
    assert [text[:9] for text in rows_of(page.read_text())] == ["| 2.4.1 |", "| 2.13.0 "]
    assert "| tests/diff tests/rules, not slow | 3 | 0 |" in page.read_text()
    monkeypatch.setattr(versions, "tested", lambda *_: (3, ("a",), 0))
    assert versions.main(["2.4.1", *words]) == 1


def test_a_real_run_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The options that pytest is given, on one small module, in the running environment."""
    module = tmp_path / "test_three.py"
    module.write_text(
        "import pytest\ndef test_a(): pass\ndef test_b(): assert 0\n"
        "@pytest.mark.gpu\ndef test_c(): pass\n@pytest.mark.slow\ndef test_d(): pass\n"
    )
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "python"
    command.symlink_to(sys.executable)
    monkeypatch.setenv("PYTHONPATH", ":".join(one for one in sys.path if one))
    passed, failed, skipped = versions.tested(command, [str(module)], ["gpu", "slow"], 1)
    log = (tmp_path / "tests.log").read_text()
    assert (passed, skipped) == (1, 0), log
    assert failed is not None
    assert [name.rpartition("::")[2] for name in failed] == ["test_b"]


def test_the_page_has_the_table() -> None:
    page = versions.PAGE.read_text(encoding="utf-8")
    assert versions.merged(page, []) == page
    assert rows_of(page.partition(BEGIN)[2].partition(END)[0])
