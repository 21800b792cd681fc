"""Write events to a run directory in the format of a recording. For tests, benchmarks and tools.

Training processes write through collect/trace_writer/emitter.py instead.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType

from traincheck.errors import OutputError
from traincheck.schema.codec import encode
from traincheck.schema.events import Event
from traincheck.schema.files import private
from traincheck.schema.layout import EVENT_GLOB, MANIFEST, event_file_name
from traincheck.store.manifest import Manifest, write_manifest

_BUFFER_LINES = 512


class TraceWriter:
    """An event sink that makes a trace; use it as a context manager or close it.

    Args:
        directory: the run directory; created if missing, must not contain a trace.
        manifest: facts about the run; ``close`` fills in the end if it is missing.

    Raises:
        OutputError: the directory cannot be written, is a file, or contains a trace.
    """

    def __init__(self, directory: Path | str, manifest: Manifest | None = None) -> None:
        self.directory = Path(directory)
        self._lines: dict[tuple[int, str], list[bytes]] = {}
        now = _now()
        given = manifest or Manifest(run_id=self.directory.name, started=now)
        self._manifest = given
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if (self.directory / MANIFEST).exists() or any(self.directory.glob(EVENT_GLOB)):
                raise OutputError(f"{self.directory} already holds a trace", fix="name a new one")
            write_manifest(self.directory, given)
        except OSError as error:
            raise self._failed(error) from error

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def emit(self, event: Event) -> None:
        """Add an event to the file of its rank and stream.

        Raises:
            OutputError: the disk is full or the directory gone.
        """
        key = (event.rank, event.stream)
        lines = self._lines.get(key)
        if lines is None:
            lines = self._lines[key] = []
        lines.append(encode(event))
        if len(lines) >= _BUFFER_LINES:
            self._write(key)

    def flush(self) -> None:
        """Write all emitted events.

        Raises:
            OutputError: the disk is full or the directory gone.
        """
        for key in self._lines:
            self._write(key)

    def close(self) -> None:
        """Write the remaining events, and the end to the manifest.

        Raises:
            OutputError: the disk is full or the directory gone.
        """
        self.flush()
        given = self._manifest
        facts = {name: getattr(given, name) for name in given.__dataclass_fields__}
        if given.ended is None:
            facts.update(ended=_now(), exit_status=0)
        if not given.processes:
            facts["processes"] = self._processes()
        try:
            write_manifest(self.directory, Manifest(**facts))
        except OSError as error:
            raise self._failed(error) from error

    def _write(self, key: tuple[int, str]) -> None:
        lines = self._lines[key]
        if not lines:
            return
        try:
            with open(self._path(key), "ab", opener=private) as file:
                file.write(b"\n".join(lines) + b"\n")
        except OSError as error:
            raise self._failed(error) from error
        lines.clear()

    def _path(self, key: tuple[int, str]) -> Path:
        rank, stream = key
        pid, _, thread = stream.partition("-")
        return self.directory / event_file_name(rank, int(pid[1:]), int(thread[1:]))

    def _processes(self) -> tuple[dict[str, object], ...]:
        files: dict[tuple[int, int], list[str]] = {}
        for rank, stream in sorted(self._lines):
            pid = int(stream[1 : stream.index("-")])
            files.setdefault((rank, pid), []).append(self._path((rank, stream)).name)
        return tuple(
            {"rank": rank, "pid": pid, "files": names} for (rank, pid), names in files.items()
        )

    def _failed(self, error: OSError) -> OutputError:
        return OutputError(
            f"cannot write the trace to {self.directory}: {error.strerror or error}",
            fix="name a writable folder, on a disk with free space",
        )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
