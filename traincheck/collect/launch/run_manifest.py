"""The manifest of a run, which the launcher writes at the start and at the end.

The store reads it.
"""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from time import monotonic_ns
from typing import Any

import orjson

from traincheck.collect import masking
from traincheck.collect.launch.settings import Settings
from traincheck.schema.files import (
    cut_space,
    end_of_data,
    open_regular,
    parse_json,
    private,
    read_regular,
)
from traincheck.schema.layout import (
    EVENT_GLOB,
    FAULTS_GLOB,
    FOLLOWED,
    HALTED,
    MANIFEST,
    SCHEMA_VERSION,
    UNUSED_GLOB,
    parse_event_file_name,
    storage_notes,
)
from traincheck.schema.words import counted
from traincheck.version import VERSION

NOT_TRACED_GLOB = "not-traced-p*.json"

# Only these enter a trace: they change how training computes, or identify the process. Any other
# may be a secret.
ENVIRONMENT = (
    "ACCELERATE_MIXED_PRECISION", "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "GROUP_RANK", "HIP_VISIBLE_DEVICES",
    "KMP_AFFINITY", "KMP_BLOCKTIME", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MKL_NUM_THREADS",
    "NCCL_ALGO", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_DEBUG", "NCCL_IB_DISABLE", "NCCL_NET_GDR_LEVEL",
    "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_PROTO", "NCCL_SHM_DISABLE",
    "NCCL_TIMEOUT", "NODE_RANK", "NUMEXPR_NUM_THREADS", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS", "PYTHONHASHSEED", "PYTHONOPTIMIZE", "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF", "RANK", "SLURM_LOCALID", "SLURM_NNODES", "SLURM_NODEID",
    "SLURM_NTASKS", "SLURM_PROCID", "TORCHDYNAMO_DISABLE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_COMPILE_DISABLE", "TORCH_CUDNN_V8_API_DISABLED", "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_AVOID_RECORD_STREAMS",
    "TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_HIGH_PRIORITY", "TORCH_SHOW_CPP_STACKTRACES",
    "WORLD_SIZE",
)  # fmt: skip


def started(
    settings: Settings, command: Sequence[str], environ: Mapping[str, str]
) -> dict[str, Any]:
    """The manifest before the program runs. Fields that are known at the end are null or empty."""
    return {
        "schema_version": SCHEMA_VERSION,
        "created_with": {
            "traincheck": VERSION,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "hostname": platform.node(),
        },
        "run_id": settings.run_id,
        "command": masking.command([as_text(word) for word in command]),
        "cwd": as_text(os.getcwd()),
        "launcher_pid": os.getpid(),
        "started": _now(),
        "ended": None,
        "exit_status": None,
        "signal": None,
        "ended_ns": None,
        "interrupted": None,
        "settings": settings.summary(),
        "environment": {name: as_text(environ[name]) for name in ENVIRONMENT if name in environ},
        "processes": [],
        "notes": interpreter_notes(command),
    }


def ended(
    manifest: Mapping[str, Any], directory: Path, returncode: int, interrupted: str | None = None
) -> dict[str, Any]:
    """The manifest after the program ended.

    Args:
        manifest: the one before it ran.
        directory: of the run.
        returncode: its status, -n when signal n ended it.
        interrupted: the signal that requested the end.
    """
    processes = find_processes(directory)
    for process in processes:
        if not os.path.exists(f"/proc/{process['pid']}"):  # it writes no more
            for name in process["files"]:
                cut_space(directory / name)
    is_followed = _take(directory, FOLLOWED)
    if _take(directory, HALTED):
        interrupted = "--halt"
    notes = [*manifest["notes"], *_not_traced(directory), *_cut_off(directory)]
    notes += [*storage_notes(directory), *_faults(directory)]
    notes += _not_imported(directory, {process["pid"] for process in processes})
    if not processes and not notes:
        notes.append(_why_nothing(returncode, is_followed=is_followed))
    return {
        **manifest,
        "ended": _now(),
        "ended_ns": monotonic_ns(),
        "interrupted": interrupted,
        "exit_status": exit_status(returncode),
        "signal": _signal_name(-returncode) if returncode < 0 else None,
        "processes": processes,
        "notes": notes,
    }


def _take(directory: Path, name: str) -> bool:
    """Whether an empty file was left for the launcher. It is removed."""
    try:
        (directory / name).unlink()
    except OSError:
        return False
    return True


def _why_nothing(returncode: int, *, is_followed: bool) -> str:
    """Why no process left events, as far as known."""
    unseen = "none could be recorded (python -E, -I, -S, or an environment without PYTHONPATH)"
    if returncode == 0:
        why = (
            "torch was imported, but the program made no recorded call"
            if is_followed
            else f"no process used torch, or {unseen}"
        )
    else:
        signal_name = _signal_name(-returncode) if returncode < 0 else ""
        ended = f"was ended by {signal_name}" if signal_name else f"ended with status {returncode}"
        before = "a call was recorded" if is_followed else f"a process used torch, or {unseen}"
        why = f"the program {ended} before {before}"
    return f"nothing was recorded: {why}"


def exit_status(returncode: int) -> int:
    """Exit status as in a shell: 128+n for a program that signal n ended."""
    return returncode if returncode >= 0 else 128 - returncode


def write(directory: Path, manifest: Mapping[str, Any], *, is_first: bool = False) -> None:
    """Write the manifest atomically: a reader finds the old one or the new one, never a part.

    Args:
        directory: of the run.
        manifest: its content.
        is_first: there must be none yet. Another launcher may begin at the same moment.

    Raises:
        FileExistsError: there is one, and ``is_first``.
        OSError: it could not be written. An earlier manifest still exists.
    """
    temporary = directory / f".{MANIFEST}.{os.getpid()}"
    try:
        with open(temporary, "wb", opener=private) as file:
            file.write(orjson.dumps(manifest, option=orjson.OPT_INDENT_2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if is_first:
            # Rename a file unless the name exists; without hard links, as atomically as possible.
            path = directory / MANIFEST
            try:
                os.link(temporary, path)
            except FileExistsError:
                raise
            except OSError:
                temporary.replace(path)
        else:
            temporary.replace(directory / MANIFEST)
    finally:
        temporary.unlink(missing_ok=True)


def find_processes(directory: Path) -> list[dict[str, Any]]:
    """The processes that left events, by rank and process id; names of their files, and size."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for path in sorted(directory.glob(EVENT_GLOB)):
        parsed = parse_event_file_name(path.name)
        if parsed is not None:
            rank, stream = parsed
            pid = int(stream[1:].split("-")[0])
            empty: dict[str, Any] = {"rank": rank, "pid": pid, "files": [], "bytes": 0}
            process = found.setdefault((rank, pid), empty)
            process["files"].append(path.name)
            with open_regular(path) as file:  # without the space for further events
                process["bytes"] += end_of_data(file.fileno())
    return [process for _, process in sorted(found.items())]


def interpreter_notes(command: Sequence[str]) -> list[str]:
    """Notes about an interpreter in the command that ignores PYTHONPATH or site."""
    if not command or not Path(command[0]).name.startswith(("python", "pypy")):
        return []
    flags = _interpreter_flags(command[1:])
    return [
        f"not traced: python -{flag} ignores PYTHONPATH or site" for flag in "IES" if flag in flags
    ]


def _interpreter_flags(arguments: Sequence[str]) -> str:
    """The one-letter flags before the script, -c or -m."""
    flags = ""
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-") or argument.startswith("--") or argument == "-":
            break
        for place, letter in enumerate(argument[1:], start=2):
            if letter in "cm":
                return flags
            if letter in "WX":  # takes a value: the rest of this argument, or the next one
                if place == len(argument):
                    next(rest, None)
                break
            flags += letter
    return flags


def _not_traced(directory: Path) -> list[str]:
    """One sentence for each process that should have been traced but could not be."""
    notes = []
    for path in sorted(directory.glob(NOT_TRACED_GLOB)):
        try:
            note = parse_json(read_regular(path))
            notes.append(
                f"process {path.stem.rpartition('-p')[2]} ({note['executable']}, {note['argv0']}) "
                f"was not traced: {note['reason']}"
            )
        except (OSError, ValueError, KeyError, TypeError):
            notes.append(f"a process was not traced, and its reason is unreadable: {path.name}")
    return notes


def _faults(directory: Path) -> list[str]:
    """One sentence for each process in which traincheck failed."""
    notes = []
    for path in sorted(directory.glob(FAULTS_GLOB)):
        pid = path.stem.rpartition("-p")[2]
        try:
            note = parse_json(read_regular(path))
            times = sum(fault["times"] for fault in note["faults"])
            first = note["faults"][0]
            off = f"; switched off: {', '.join(note['off'])}" if note["off"] else ""
            notes.append(
                f"recording failed {counted(times, 'time')} in process {pid} because of a bug in "
                f"traincheck, first in {first['in']}: {first['reason']}{off}"
            )
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            notes.append(f"recording failed in process {pid}, and {path.name} is unreadable")
    return notes


def _not_imported(directory: Path, pids: set[int]) -> list[str]:
    """A sentence for the requested packages that no process had imported at its end."""
    lacking: list[set[str]] = []
    for path in directory.glob(UNUSED_GLOB):
        try:
            lacking.append(set(read_regular(path).decode("utf-8").split()))
        except (OSError, ValueError):  # it names none, then
            lacking.append(set())
    if not lacking or len(lacking) < len(pids):
        return []
    names = ", ".join(sorted(set.intersection(*lacking)))
    return [f"no process imported {names}, so no calls to it were recorded"] if names else []


def _cut_off(directory: Path) -> list[str]:
    """One sentence for each event file whose last record is cut off: later records are missing."""
    notes = []
    for path in sorted(directory.glob(EVENT_GLOB)):
        try:
            with open_regular(path) as file:
                if file.seek(0, os.SEEK_END) == 0:
                    continue
                file.seek(-1, os.SEEK_END)
                is_whole = file.read(1) == b"\n"
        except OSError as error:
            notes.append(f"{path.name} cannot be read: {error.strerror}")
            continue
        if not is_whole:
            notes.append(
                f"{path.name} ends within a record: the process was killed, or the disk is full"
            )
    return notes


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals between the first and the last have no name
        return f"SIG{number}"


def as_text(value: str) -> str:
    """Text of the operating system for JSON: bytes that are not UTF-8 become escapes."""
    return os.fsencode(value).decode("utf-8", "backslashreplace")


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
