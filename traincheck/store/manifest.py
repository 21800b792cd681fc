"""Run directories and their manifests: where they are, how a run was started, and how it ended.

Any manifest is read; an unreadable one is a note. The launcher writes it
(collect/launch/run_manifest.py). Tools that make traces write it with this module.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import orjson

from traincheck.errors import InvariantFormatError, TraceFormatError
from traincheck.schema.files import parse_json, put_bytes, read_regular
from traincheck.schema.invariant_file import read_invariants
from traincheck.schema.layout import EVENT_GLOB, MANIFEST, SCHEMA_VERSION, storage_notes
from traincheck.schema.words import joined

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


_DEPTH = 2  # maximum depth of the search in folders of runs
_SHOWN = 5
_MAKE_ONE = "record a run with traincheck-collect, and name its folder"


def is_run(path: Path) -> bool:
    """Whether a directory looks like a run: it has a manifest or event files."""
    return (path / MANIFEST).is_file() or any(path.glob(EVENT_GLOB))


def is_bare(path: Path) -> bool:
    """Whether there is nothing yet, so that a run may begin: no folder, or no files."""
    try:
        return not any(path.iterdir())
    except FileNotFoundError:
        return True
    except OSError:  # a file, a loop of links, not readable: the reader reports it
        return False


def find_runs(path: Path | str) -> list[Path]:
    """The run at ``path``, or the runs in it up to two folders deep, sorted.

    Raises:
        TraceFormatError: there is no run; the message describes the path.
    """
    path = Path(path)
    _check_directory(path)
    if is_run(path):
        return [path]
    runs = sorted(_runs_below(path, _DEPTH))
    if not runs:
        raise TraceFormatError(f"{path} has no run: {_contents(path)}", fix=_advice(path))
    return runs


def check_run(path: Path, *, may_be_empty: bool = False) -> None:
    """Test that ``path`` is one run with event files, finished or not.

    Args:
        path: of its directory.
        may_be_empty: whether a run that ended without event files is accepted.

    Raises:
        TraceFormatError: it is not; the message describes the path.
    """
    _check_directory(path)
    if any(path.glob(EVENT_GLOB)):
        return
    if (path / MANIFEST).is_file():
        manifest, _ = read_manifest(path)
        if manifest is not None and is_going_on(manifest):
            raise TraceFormatError(
                f"the run in {path} has just started, and nothing is recorded yet",
                fix=f"try again later, or follow the run: traincheck-check -t {path} --follow",
            )
        if may_be_empty:
            return
        raise TraceFormatError(
            f"{path} has a manifest but no event files: {_contents(path)}",
            fix=f"nothing was recorded: read the notes in {path / MANIFEST}, and check that the "
            "program imports torch",
        )
    runs = sorted(_runs_below(path, _DEPTH))
    if runs:
        names = joined([str(run.relative_to(path)) for run in runs], _SHOWN)
        raise TraceFormatError(
            f"{path} is a folder of runs, not a run: {names}",
            fix=f"name one of them, e.g. {runs[-1]}",
        )
    raise TraceFormatError(f"{path} is not a trace: {_contents(path)}", fix=_advice(path))


def _check_directory(path: Path) -> None:
    if path.is_dir():
        return
    if path.is_file():
        with suppress(InvariantFormatError):
            read_invariants(path)
            raise TraceFormatError(
                f"{path} is an invariant file, not a run",
                fix=f"name a run with -t, and pass this file with -i {path}",
            )
    if path.exists():
        fix = f"name the run directory, {path.parent}" if is_run(path.parent) else _MAKE_ONE
        raise TraceFormatError(f"{path} is a file, not a run directory", fix=fix)
    reason = "does not exist"
    try:
        path.stat()
    except FileNotFoundError:
        pass
    except OSError as error:  # Path.exists hides loops of links
        reason = f"cannot be read: {error.strerror}"
    raise TraceFormatError(
        f"{path} {reason}", fix=f"check the path; the working directory is {Path.cwd()}"
    )


def _runs_below(path: Path, depth: int) -> list[Path]:
    try:
        folders = [child for child in path.iterdir() if child.is_dir() and child.name[0] != "."]
    except PermissionError:
        return []
    found = []
    for child in folders:
        if is_run(child):
            found.append(child)
        elif depth > 1:
            found.extend(_runs_below(child, depth - 1))
    return found


def _advice(path: Path) -> str:
    packed = sorted(path.glob(f"{EVENT_GLOB}.*"))
    if packed:
        return f"its event files are compressed: unpack {packed[0].name} and the others"
    return _MAKE_ONE


def _contents(path: Path) -> str:
    try:
        names = sorted(child.name + "/" * child.is_dir() for child in path.iterdir())
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    if not names:
        return "it is empty"
    return f"it holds {joined(names, _SHOWN)}"
