"""Names of the files in a run directory: one manifest, one event file per thread."""

from __future__ import annotations

import re
from pathlib import Path

SCHEMA_VERSION = 1  # of the event files and the manifest; invariant files have it too
LARGEST_WHOLE = 1 << 53  # of the numbers that every reader of JSON reads exactly
MANIFEST = "manifest.json"
EVENT_GLOB = "events-*.jsonl"
LOST_GLOB = "storage-lost-*"
LOW_GLOB = "storage-low-*"
FAULTS_GLOB = "faults-p*.json"
UNUSED_GLOB = "unused-p*.txt"
FOLLOWED = "followed"  # empty; a process has imported torch and is recorded
HALTED = "halted"  # empty; traincheck stopped the program because of --halt
PROBED = "probed"  # empty; a process has made its last planned experiment
PROFILED = "profiled"  # empty; a process has written its last profiled step
SOURCES = "sources"  # a folder: copies of the source files that ran
CHECKED = "checked.json"  # what a live check has found so far: live/checked.py
_EVENT_FILE = re.compile(r"events-r(\d+)-(p\d+-t\d+)\.jsonl\Z")


def lost_file_name(pid: int, *, is_low: bool = False) -> str:
    """Name of the empty file that a process leaves when its records could not be written.

    is_low: recording stopped because the disk was nearly full.
    """
    return f"storage-{'low' if is_low else 'lost'}-p{pid}"


def storage_notes(directory: Path) -> list[str]:
    """One sentence for each process whose recording ended early for lack of disk space."""
    reasons = {
        LOST_GLOB: "could not write all of its records, most likely on a full disk",
        LOW_GLOB: "stopped recording, because the disk of the trace was nearly full and the rest "
        "is reserved for the program",
    }
    return [
        f"process {path.name.rpartition('-p')[2]} {reason}: its trace ends before the program did"
        for pattern, reason in reasons.items()
        for path in sorted(directory.glob(pattern))
    ]


def faults_file_name(pid: int) -> str:
    """Name of the file in which a process reports failures of traincheck."""
    return f"faults-p{pid}.json"


def unused_file_name(pid: int) -> str:
    """Name of the file with the requested packages that a process did not import."""
    return f"unused-p{pid}.txt"


def event_file_name(rank: int, pid: int, thread: int) -> str:
    """Name of the event file of one thread.

    thread: 0 for the main thread, then in order of first event; reused after a thread has ended.
    """
    return f"events-r{rank}-p{pid}-t{thread}.jsonl"


def parse_event_file_name(name: str) -> tuple[int, str] | None:
    """Rank and stream (``p<pid>-t<thread>``) from an event file's name; None when it is not one."""
    match = _EVENT_FILE.match(name)
    return (int(match[1]), match[2]) if match else None
