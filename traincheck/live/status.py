"""The status of a run, from its manifest, the ends of its event files, and a live check's file.

Reads a few kilobytes, whatever the size of the trace.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traincheck.live.checked import Checked, read_checked
from traincheck.schema.codec import decode
from traincheck.schema.events import Event
from traincheck.schema.files import open_regular
from traincheck.schema.findings import FINDINGS, NOTHING_CHECKED
from traincheck.store.lines import MAX_LINE_BYTES
from traincheck.store.manifest import Manifest, process_exists, read_manifest
from traincheck.store.reader import event_files

_TAIL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """Where a run stands.

    Attributes:
        run: its directory.
        state: "running"; "ended", with exit status 0; "failed", with another one or by a signal;
            "lost", its processes are gone and its end was not recorded; "unknown", it was recorded
            on another machine and has no end; "removed", there is no such folder.
        exit_status: of the program; None if it is not known to have ended.
        step: the latest step that any rank has begun; None before the first.
        ranks: rank -> its latest step.
        idle_s: seconds since the last record; None without records.
        bytes: size of the event files.
        checked: what a live check has found; None without one.
        is_checking: whether this check still runs.
    """

    run: str
    state: str
    exit_status: int | None = None
    step: int | None = None
    ranks: Mapping[int, int] = field(default_factory=dict)
    idle_s: float | None = None
    bytes: int = 0
    checked: Checked | None = None
    is_checking: bool = False

    @property
    def verdict(self) -> int:
        """Exit status of a command that shows it: 0, `FINDINGS` or `NOTHING_CHECKED`."""
        if self.checked is None or not self.checked.summary.get("checked_steps"):
            return (
                FINDINGS if self.checked is not None and self.checked.serious else (NOTHING_CHECKED)
            )
        return FINDINGS if self.checked.serious else 0


def run_status(directory: Path) -> RunStatus:
    """The status of the run in a directory, at this moment.

    Raises:
        TraceFormatError: a newer traincheck wrote the run.
    """
    manifest = read_manifest(directory)[0]
    ranks: dict[int, int] = {}
    pids, written_s, size = set(), 0.0, 0
    for path, rank, stream in event_files(directory):
        try:
            facts = path.stat()
            last = last_event(path, rank, stream)
        except OSError:  # renamed or removed since the folder was listed
            continue
        size += facts.st_size
        written_s = max(written_s, facts.st_mtime)
        pids.add(int(stream[1 : stream.index("-")]))
        if last is not None and last.step is not None:
            ranks[rank] = max(last.step, ranks.get(rank, 0))
    checked = read_checked(directory)
    is_local = manifest is None or manifest.hostname in (None, platform.node())
    return RunStatus(
        run=str(directory),
        state=_state(manifest, pids, is_local=is_local) if directory.is_dir() else "removed",
        exit_status=None if manifest is None else manifest.exit_status,
        step=max(ranks.values(), default=None),
        ranks=dict(sorted(ranks.items())),
        idle_s=round(max(0.0, time.time() - written_s), 1) if written_s else None,
        bytes=size,
        checked=checked,
        is_checking=checked is not None
        and not checked.over
        and is_local
        and process_exists(checked.pid),
    )


def _state(manifest: Manifest | None, pids: set[int], *, is_local: bool) -> str:
    if manifest is not None and manifest.ended is not None:
        return "failed" if manifest.exit_status or manifest.signal else "ended"
    if not is_local:
        return "unknown"
    launcher = None if manifest is None else manifest.launcher_pid
    known = pids if launcher is None else {launcher, *pids}
    return "running" if any(map(process_exists, known)) else "lost"


def last_event(path: Path, rank: int, stream: str) -> Event | None:
    """The last whole event of a file; None if there is none in its last 16 MB.

    Raises:
        OSError: the file cannot be read.
    """
    length = _TAIL_BYTES
    with open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        while length <= MAX_LINE_BYTES:
            start = max(0, size - length)
            file.seek(start)
            lines = file.read(size - start).split(b"\n")[:-1]  # the last one has no line feed
            for line in reversed(lines if start == 0 else lines[1:]):
                with contextlib.suppress(ValueError):
                    return decode(line, rank, stream)
            if start == 0:
                return None
            length *= 4
    return None


def status_line(status: RunStatus) -> str:
    """The status in one line of ``name=value``; "-" stands for an unknown value."""
    checked = status.checked
    codes = sorted({str(found.get("code")) for found in checked.shown}) if checked else []
    values: dict[str, Any] = {
        "state": status.state,
        "step": status.step,
        "checked": checked.step if checked else None,
        "findings": checked.number("finding") if checked else None,
        "observations": checked.number("observation") if checked else None,
        "advice": checked.number("advice") if checked else None,
        "errors": checked.counts.get("error", 0) if checked else None,
        "codes": ",".join(codes) or None,
        "ranks": len(status.ranks),
        "idle_s": status.idle_s,
        "exit_status": status.exit_status,
        "run": status.run,
    }
    return " ".join(f"{name}={'-' if value is None else value}" for name, value in values.items())


def status_json(status: RunStatus) -> dict[str, Any]:
    """The status as JSON values; findings are as in the JSON report, without evidence."""
    checked = status.checked
    return {
        "state": status.state,
        "exit_status": status.exit_status,
        "step": status.step,
        "ranks": {str(rank): step for rank, step in status.ranks.items()},
        "idle_s": status.idle_s,
        "bytes": status.bytes,
        "checked_step": checked.step if checked else None,
        "is_checking": status.is_checking,
        "summary": dict(checked.summary) if checked else None,
        "counts": dict(checked.counts) if checked else None,
        "tally": dict(checked.tally) if checked else None,
        "findings": list(checked.findings) if checked else None,
        "run": status.run,
    }
