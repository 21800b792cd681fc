"""The manifest of a run: command, time, end. Any manifest is read; an unreadable one is a note.

The launcher writes it (collect/launch/run_manifest.py). Tools that make traces write it with this
module.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import orjson

from traincheck.errors import TraceFormatError
from traincheck.schema.files import put_bytes
from traincheck.schema.json_text import parse_json
from traincheck.schema.layout import MANIFEST, SCHEMA_VERSION, storage_notes
from traincheck.schema.reading import read_regular

# The note of a run that has not ended, by whether its launcher is alive.
_UNENDED = {
    True: "the run is still going on; follow it to its end with traincheck-check --follow",
    False: "the launcher was killed before the run ended; the end of the run may be missing",
    None: "the run has not ended, or its launcher was killed; the end may be missing",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Facts about a run. Fields that are known at its end are None or empty while it runs.

    Attributes:
        schema_version: of the trace format.
        run_id: name of the run.
        command: the command line.
        cwd: working directory at the start.
        started: ISO 8601 time in UTC.
        ended: ISO 8601 time in UTC; None while it runs, or when its launcher was killed.
        exit_status: of the program; 128+n for signal n.
        signal: name of the signal that ended it.
        ended_ns: when it ended, on the monotonic clock of the events of this machine.
        interrupted: the signal that requested the end, or "--halt".
        launcher_pid: process id of the launcher; None if not known.
        created_with: versions of traincheck and Python, platform, hostname.
        settings: the view that was recorded: level, every, warmup, needs.
        environment: variables of the allow-list that were set.
        processes: rank, pid, files and their size in bytes of each process, once the run ended.
        notes: what was not observed, as sentences.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str = ""
    command: tuple[str, ...] = ()
    cwd: str = ""
    started: str | None = None
    ended: str | None = None
    exit_status: int | None = None
    signal: str | None = None
    ended_ns: int | None = None
    interrupted: str | None = None
    launcher_pid: int | None = None
    created_with: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    processes: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def hostname(self) -> str | None:
        """The machine on which the launcher ran."""
        name = self.created_with.get("hostname")
        return name if isinstance(name, str) else None


def read_manifest(directory: Path) -> tuple[Manifest | None, list[str]]:
    """The manifest of a run, and its errors as sentences; None if there is none.

    Raises:
        TraceFormatError: a newer traincheck wrote it.
    """
    path = directory / MANIFEST
    try:
        record = parse_json(read_regular(path))
    except FileNotFoundError:
        return None, [f"{path} is missing, so it is not known when and how the run ended"]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return None, [f"{path} cannot be read and is ignored: {reason}"]
    if not isinstance(record, dict) or "schema_version" not in record:
        return None, [f"{path} is not the manifest of a trace and is ignored"]
    version = record["schema_version"]
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise TraceFormatError(
            f"{path} has schema version {version}; this traincheck reads up to {SCHEMA_VERSION}",
            fix="read it with the version of traincheck that wrote it, or a later one",
        )
    # Keep the fields of the right type, and name the others.
    facts: dict[str, Any] = {}
    notes = []
    for name, kind in get_type_hints(Manifest).items():
        if record.get(name) is None:
            continue
        try:
            facts[name] = msgspec.convert(record[name], kind)
        except msgspec.ValidationError:
            notes.append(f"{path}: field {name!r} has the wrong form and is ignored")
    return Manifest(**facts), notes


def one_step_in(settings: Mapping[str, Any]) -> int:
    """Every how many steps one was recorded, from the settings of a manifest; 1 if not known."""
    every = settings.get("every")
    return every if isinstance(every, int) and every > 1 else 1


def is_going_on(manifest: Manifest) -> bool | None:
    """Whether a run has not ended and its launcher is alive; None if not known."""
    if manifest.ended is not None:
        return False
    if manifest.launcher_pid is None or manifest.hostname != platform.node():
        return None
    return process_exists(manifest.launcher_pid)


def process_exists(pid: int) -> bool:
    """Whether a process of this machine is alive."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def lost_notes(directory: Path, manifest: Manifest | None) -> list[str]:
    """Lost records that the manifest does not mention, because the disk was full."""
    known = () if manifest is None else manifest.notes
    return [note for note in storage_notes(directory) if note not in known]


def ending_notes(directory: Path, manifest: Manifest | None) -> list[str]:
    """The records that are missing at the end of a run, as sentences."""
    if manifest is None:
        return []
    if manifest.ended is None and manifest.launcher_pid is not None:
        return [_UNENDED[is_going_on(manifest)]]
    notes = []
    for process in manifest.processes:
        size, files = process.get("bytes"), process.get("files")
        if not isinstance(size, int) or not isinstance(files, list):
            continue
        paths = [directory / str(name) for name in files]
        missing = size - sum(path.stat().st_size for path in paths if path.is_file())
        if missing > 0:  # processes that outlive the launcher may write more
            notes.append(
                f"{missing:,} bytes of the events of process {process.get('pid')} are missing: the "
                "trace was cut, or copied in part"
            )
    return notes


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Replace the manifest atomically: a reader finds the old one or the new one, never a part.

    Raises:
        OSError: it could not be written.
    """
    content = orjson.dumps(asdict(manifest), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    put_bytes(directory / MANIFEST, content)
