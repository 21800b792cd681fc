"""Start a program so that its Python processes record themselves, and wait for its end.

Does not record, and never loads torch.
"""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

from traincheck.collect.launch import run_manifest
from traincheck.collect.launch.settings import Settings
from traincheck.collect.launch.signals import SignalRelay, refuse_other_systems
from traincheck.errors import LaunchError, MissingDependencyError, OutputError
from traincheck.schema.files import open_regular
from traincheck.schema.layout import EVENT_GLOB, MANIFEST

BOOTSTRAP = Path(__file__).resolve().parent / "bootstrap"

OnStart: TypeAlias = Callable[["subprocess.Popen[bytes]"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended.

    Attributes:
        exit_status: of the program; 128+n for signal n.
        processes: number of processes that left events.
        notes: those of the manifest.
    """

    exit_status: int
    processes: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Descriptors that a program gets as its streams; None for those of this process."""

    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None


def launch(
    command: Sequence[str],
    settings: Settings,
    *,
    on_start: OnStart | None = None,
    streams: Streams | None = None,
) -> Outcome:
    """Run a program to its end; streams, working directory and signals as if it were run directly.

    Args:
        command: the program and its arguments.
        settings: the requested records, and the directory.
        on_start: called with the running process; must not block.
        streams: of the program; by default those of this process.

    Raises:
        OutputError: the run directory cannot be made or holds a trace; nothing was started.
        LaunchError: the operating system cannot start the program, or is not Linux.
        MissingDependencyError: the program would run with this Python, which has no torch.
    """
    refuse_other_systems()
    _require_torch(command[0])
    directory = Path(settings.directory)
    if os.pathsep in str(BOOTSTRAP):
        raise LaunchError(
            f"the folder of traincheck, {str(BOOTSTRAP)!r}, cannot be put on PYTHONPATH",
            fix=f"install traincheck in a folder without {os.pathsep!r} in its path",
        )
    if run_manifest.as_text(settings.directory) != settings.directory:
        raise OutputError(
            f"the name of the output path is not UTF-8: {run_manifest.as_text(settings.directory)}",
            fix="name a folder whose path is UTF-8",
        )
    made = _make_directory(directory)
    manifest = run_manifest.started(settings, command, os.environ)
    try:
        run_manifest.write(directory, manifest, is_first=True)
    except FileExistsError:
        raise _already_holds(directory) from None
    except OSError as error:
        _discard(directory, made=made)
        raise _output_error(directory, error) from error
    try:
        environ = child_environment(settings, os.environ)
        streams = streams or Streams()
        with SignalRelay() as relay:
            # close_fds=False: descriptors of the caller, such as <(...), reach the program.
            process = subprocess.Popen(
                list(command),
                env=environ,
                close_fds=False,
                stdin=streams.stdin,
                stdout=streams.stdout,
                stderr=streams.stderr,
            )
            relay.attach(process)
            if on_start is not None:
                on_start(process)
            returncode, interrupted = process.wait(), relay.interrupted
    except OSError as error:
        _discard(directory, made=made)
        raise LaunchError(
            f"cannot start {command[0]!r}: {error.strerror or error}",
            fix="check that this machine can run it, and that its interpreter exists",
        ) from error
    manifest = run_manifest.ended(manifest, directory, returncode, interrupted)
    notes = list(manifest["notes"])
    try:
        run_manifest.write(directory, manifest)
    except OSError as error:  # the status of the program matters more than the end of the manifest
        notes.append(f"{directory / MANIFEST} could not be completed: {error.strerror}")
    return Outcome(
        exit_status=manifest["exit_status"],
        processes=len(manifest["processes"]),
        notes=tuple(notes),
    )


def script_command(script: str, arguments: Sequence[str] = ()) -> list[str]:
    """The command that runs a Python script with this interpreter.

    Raises:
        LaunchError: there is no such file, or it is a folder.
    """
    _check_file(script)
    return [sys.executable, script, *arguments]


def shell_command(script: str, arguments: Sequence[str] = ()) -> list[str]:
    """The command that runs a shell script, with the interpreter of its first line, else with sh.

    Raises:
        LaunchError: there is no such file, or it is a folder.
    """
    _check_file(script)
    try:
        with open_regular(script) as file:
            first = file.readline(256)
    except OSError as error:
        raise LaunchError(
            f"script {script!r} cannot be read: {error.strerror}", fix="check its permissions"
        ) from error
    if not first.startswith(b"#!"):
        return ["sh", script, *arguments]
    # Like the kernel: one interpreter, and the rest of the line is one argument.
    return [*os.fsdecode(first[2:]).strip().split(maxsplit=1), script, *arguments]


def check_command(command: Sequence[str], example: str = "traincheck-collect -p") -> None:
    """Test whether a command can be started.

    Args:
        command: its words.
        example: a command that runs a script, for the advice.

    Raises:
        LaunchError: it is not found, not executable, or a folder.
    """
    name = command[0]
    if shutil.which(name) is not None:
        return
    if Path(name).suffix == ".py" and Path(name).is_file():
        raise LaunchError(
            f"{name!r} is a Python script, not a command",
            fix=f"{example} {name}, or {example.removesuffix(' -p')} -- python {name}",
        )
    if Path(name).is_dir():
        raise LaunchError(f"{name!r} is a folder, not a program", fix="name a program to run")
    if Path(name).exists():
        raise LaunchError(f"{name!r} is not executable", fix=f"chmod +x {name}")
    raise LaunchError(
        f"command not found: {name!r}", fix="check the spelling, or use the full path"
    )


def new_run_id(command: Sequence[str]) -> str:
    """A unique name for a run: ``<script>-<YYYYmmdd-HHMMSS>-<short id>``."""
    scripts = [word for word in command if word.endswith((".py", ".sh"))]
    stem = Path(scripts[0] if scripts else command[0]).stem
    safe = re.sub(r"[^A-Za-z0-9_.]+", "-", stem).strip("-.") or "run"
    return f"{safe[:60]}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def child_environment(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the program, plus the settings and the bootstrap folder on PYTHONPATH."""
    found = environ.get("PYTHONPATH")
    path = f"{BOOTSTRAP}{os.pathsep}{found}" if found else str(BOOTSTRAP)
    return {**environ, **settings.to_env(), "PYTHONPATH": path}


def _require_torch(program: str) -> None:
    """Refuse to start this Python without torch: nothing would be recorded.

    Another program may start a Python that has it.
    """
    if _is_this_python(program) and not _has_torch():
        raise MissingDependencyError(
            f"recording needs torch, which is not installed for {sys.executable}",
            fix="pip install 'traincheck[torch]'",
        )


def _is_this_python(program: str) -> bool:
    """Whether a command starts the interpreter of this process, in the same environment."""
    found = shutil.which(program)
    if not found or not sys.executable:
        return False
    is_beside = os.path.dirname(os.path.abspath(found)) == os.path.dirname(sys.executable)
    return is_beside and os.path.samefile(found, sys.executable)


def _has_torch() -> bool:
    try:
        return importlib.util.find_spec("torch") is not None
    except (ImportError, ValueError):  # a finder that refuses it, a module without a spec
        return sys.modules.get("torch") is not None


def _check_file(script: str) -> None:
    path = Path(script)
    if path.is_dir():
        raise LaunchError(f"script {script!r} is a folder", fix="name a script in this folder")
    if not path.exists():
        raise LaunchError(
            f"script {script!r} does not exist",
            fix=f"check the path; the working directory is {os.getcwd()}",
        )


def _make_directory(directory: Path) -> bool:
    """Create the run directory, or test an existing one. Returns whether it was created."""
    try:
        try:
            directory.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            if not directory.is_dir():
                raise OutputError(
                    f"output path {str(directory)!r} is a file",
                    fix="name a folder that does not exist",
                ) from None
        else:
            return True
        if (directory / MANIFEST).exists() or any(directory.glob(EVENT_GLOB)):
            raise _already_holds(directory)
        if any(directory.glob(f"*/{MANIFEST}")):
            raise OutputError(
                f"{str(directory)!r} is a folder of runs", fix=f"-o {directory / 'NAME'}"
            )
    except OSError as error:
        raise _output_error(directory, error) from error
    return False


def _discard(directory: Path, *, made: bool) -> None:
    """Remove the files of a run that did not start; a folder that existed before stays."""
    try:
        (directory / MANIFEST).unlink(missing_ok=True)
        if made:
            directory.rmdir()
    except OSError:  # the error that is reported is the one that stopped the start
        return


def _already_holds(directory: Path) -> OutputError:
    return OutputError(
        f"{str(directory)!r} already holds a trace",
        fix="name a new folder with -o, or omit -o to use one under traces/",
    )


def _output_error(directory: Path, error: OSError) -> OutputError:
    return OutputError(
        f"cannot write the trace to {str(directory)!r}: {error.strerror or error}",
        fix="name a writable folder with -o, on a disk with free space",
    )
