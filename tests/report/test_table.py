"""The forms of a report: ours, and those of other packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from traincheck import packages
from traincheck.errors import UsageError
from traincheck.report import registry
from traincheck.report.registry import FORMATS, load_format


def offer(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    entry = EntryPoint(name=name, value=value, group="traincheck.report_sinks")
    monkeypatch.setattr(packages, "entry_points", lambda group: [entry])


def test_table_and_folder_agree() -> None:
    folder = Path(registry.__file__).parent
    assert {f"{name}_report" for name in FORMATS.built_in} == {
        p.stem for p in folder.glob("*_report.py")
    }


def test_formats_of_other_packages_come_after_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "theirs", "traincheck.report.json_report:write_json")
    assert list(FORMATS.entries()) == [*FORMATS.built_in, "theirs"]


@pytest.mark.parametrize("name", FORMATS.built_in)
def test_every_format_of_the_table_is_there(name: str) -> None:
    assert load_format(name).__name__ == f"write_{name}"


def test_a_format_that_there_is_not_is_named() -> None:
    with pytest.raises(UsageError, match="no report format 'yaml'") as caught:
        load_format("yaml")
    assert caught.value.fix == f"There are {', '.join(FORMATS.built_in)}"


def test_a_name_that_is_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "json", "traincheck.report.json_report:write_json")
    with pytest.raises(UsageError, match="'json', which exists already"):
        FORMATS.entries()


def test_a_format_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "theirs", "no_such_module:f")
    with pytest.raises(UsageError, match="'theirs' cannot be loaded: ModuleNotFoundError"):
        load_format("theirs")
    assert load_format("text")
