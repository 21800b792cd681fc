"""Record this very process for the length of a ``with`` block, and read back what was written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from traincheck.collect.launch.settings import Settings
from traincheck.collect.session.session import Session
from traincheck.collect.tensors.loss_graph import IS_TOLD
from traincheck.schema.codec import decode
from traincheck.schema.events import Event
from traincheck.schema.layout import EVENT_GLOB, parse_event_file_name

# Some observers read sizes from the nodes of the autograd graph, and are off where torch has none.
_REASON = "nodes of this torch tell no sizes"
needs_sizes = pytest.mark.skipif(not IS_TOLD, reason=_REASON)


def skip_without_sizes() -> None:
    """For helpers of tests: end the test where `needs_sizes` would."""
    if not IS_TOLD:
        pytest.skip(_REASON)


class Recording:
    """A session that runs, and its events once it has ended."""

    def __init__(self, folder: Path, session: Session) -> None:
        self.folder = folder
        self.session = session
        self.events: list[Event] = []

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.kind == kind]

    def calls(self, api: str) -> list[Any]:
        """Calls whose api or family is ``api``."""
        return [e for e in self.of("call") if api in (e.api, e.family)]

    def changes(self, role: str, name: str | None = None) -> list[tuple[str, str]]:
        """Name and change of the state events of a role, in order."""
        return [
            (e.name, e.change)
            for e in self.of("state")
            if e.role == role and (name is None or e.name == name)
        ]

    def marks(self, text: str) -> list[Any]:
        return [event for event in self.of("mark") if event.text == text]


def read_folder(folder: Path) -> list[Event]:
    """All events of a run directory, file after file."""
    events = []
    for path in sorted(folder.glob(EVENT_GLOB)):
        rank, stream = parse_event_file_name(path.name)
        for line in path.read_bytes().splitlines():
            with suppress(ValueError):  # torn: the write of it failed
                events.append(decode(line, rank, stream))
    return events


@contextmanager
def recording(folder: Path, *, must_be_whole: bool = True, **settings: Any) -> Iterator[Recording]:
    """Record the block. ``must_be_whole``: fail when an instrument was off or failed meanwhile."""
    folder.mkdir(exist_ok=True)
    session = Session(Settings(directory=str(folder), run_id="test", **settings))
    session.start()
    run = Recording(folder, session)
    try:
        yield run
    finally:
        session.stop()
        run.events = read_folder(folder)
    if must_be_whole:
        assert set(session.instruments.values()) == {"on"}, session.instruments
        assert not run.marks("fault"), run.marks("fault")
        assert not run.marks("dropped")
