"""Find run directories, and describe paths that contain none. Reads names, not events."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from traincheck.errors import InvariantFormatError, TraceFormatError
from traincheck.schema.invariant_file import read_invariants
from traincheck.schema.layout import EVENT_GLOB, MANIFEST
from traincheck.schema.words import joined
from traincheck.store.manifest import is_going_on, read_manifest

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
