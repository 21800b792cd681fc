"""The forms of a report: ours, and those of other packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from traincheck.errors import UsageError
from traincheck.report import registry
from traincheck.report.registry import SINKS, all_sinks, load_sink


def offer(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    entry = EntryPoint(name=name, value=value, group=registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])


def test_table_and_folder_agree() -> None:
    folder = Path(registry.__file__).parent
    assert {f"{name}_report" for name in SINKS} == {p.stem for p in folder.glob("*_report.py")}


def test_sinks_of_other_packages_come_after_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "theirs", "traincheck.report.json_report:write_json")
    assert list(all_sinks()) == [*SINKS, "theirs"]


@pytest.mark.parametrize("name", SINKS)
def test_every_sink_of_the_table_is_there(name: str) -> None:
    assert load_sink(name).__name__ == f"write_{name}"


def test_a_format_that_there_is_not_is_named() -> None:
    with pytest.raises(UsageError, match="no report format 'yaml'") as caught:
        load_sink("yaml")
    assert caught.value.fix == f"one of {', '.join(SINKS)}"


def test_a_name_that_is_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "json", "traincheck.report.json_report:write_json")
    with pytest.raises(UsageError, match="'json', which exists already"):
        all_sinks()


def test_a_sink_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "theirs", "no_such_module:f")
    with pytest.raises(UsageError, match="'theirs' cannot be loaded: ModuleNotFoundError"):
        load_sink("theirs")
    assert load_sink("text")
