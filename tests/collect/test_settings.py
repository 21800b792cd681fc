"""Settings survive the way through the environment, and foreign content is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincheck.collect.launch.settings import VARIABLE, Settings, from_env
from traincheck.errors import UsageError
from traincheck.schema.claims import Needs

names = st.frozensets(st.text(min_size=1, max_size=20), max_size=3)
needs = st.builds(Needs, calls=names, states=names, kinds=names, exact=st.booleans())


@given(
    st.builds(
        Settings,
        directory=st.text(),
        run_id=st.text(),
        level=st.sampled_from(["default", "deep"]),
        every=st.integers(1, 1000),
        warmup=st.integers(0, 1000),
        instrument=st.lists(st.text(), max_size=3).map(tuple),
        needs=st.none() | needs,
        package=st.text(),
    )
)
def test_the_environment_gives_back_what_was_put_in(settings: Settings) -> None:
    assert from_env(settings.to_env()) == settings


def test_one_variable_holds_everything() -> None:
    assert list(Settings(directory="/run", run_id="r").to_env()) == [VARIABLE]


def test_outside_of_a_run_there_are_no_settings() -> None:
    assert from_env({}) is None
    assert from_env({VARIABLE: ""}) is None


def test_the_summary_keeps_folders_of_this_machine_out() -> None:
    summary = Settings(directory="/secret/run", run_id="r", package="/secret/traincheck").summary()
    assert "/secret" not in str(summary)
    assert summary["needs"] is None


@pytest.mark.parametrize(
    "raw",
    [
        "{",
        "[]",
        "null",
        "{}",
        '{"needs": null}',
        '{"needs": 3, "instrument": [], "directory": "/"}',
    ],
)
def test_foreign_content_is_refused(raw: str) -> None:
    with pytest.raises(UsageError, match=VARIABLE):
        from_env({VARIABLE: raw})


def test_settings_of_a_newer_version_are_refused() -> None:
    raw = Settings(directory="/run", run_id="r").to_env()[VARIABLE]
    newer = raw.replace('"every"', '"unheard_of":1,"every"')
    assert from_env({VARIABLE: raw}) is not None
    with pytest.raises(UsageError):
        from_env({VARIABLE: newer})
