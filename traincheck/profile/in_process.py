"""`traincheck.profile`: profile the steps of a block of code in this process."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from traincheck.collect.active_session import CURRENT
from traincheck.collect.launch.settings import Settings
from traincheck.collect.launch.signals import refuse_other_systems
from traincheck.errors import OutputError, UsageError
from traincheck.profile.layers import Origin, Peak, StepRecord
from traincheck.profile.numbers import Profile, step_of
from traincheck.profile.table import DEFAULT, TableOptions, table
from traincheck.profile.tree import document, tree_of
from traincheck.schema.claims import Needs
from traincheck.schema.events import ProfileEvent
from traincheck.schema.files import dump_json

if TYPE_CHECKING:
    from traincheck.collect.profile.recorder import ProfileRecorder
    from traincheck.collect.session.session import Session

_MOST_STEPS = 100


class ProfileRun:
    """A block that is profiled: a context manager, made by `profile`.

    In a process that is recorded already, the block is profiled within that recording.
    """

    def __init__(self, subjects: tuple[Any, ...], *, depth: int | None, steps: int) -> None:
        if steps < 1:
            raise UsageError(f"steps is {steps!r}", fix="make it 1 or more")
        self._given = subjects
        self._depth, self._most = depth, steps
        self._steps: list[StepRecord] = []
        self._recorder: ProfileRecorder | None = None
        self._session: Session | None = None
        self._folder: Path | None = None

    # -- life

    def __enter__(self) -> ProfileRun:
        """Begin.

        Raises:
            UsageError: it has begun already, or a subject is no model and no optimizer.
            LaunchError: this system is not Linux.
        """
        from traincheck.collect.profile.recorder import ProfileRecorder
        from traincheck.collect.session.attach import WatchedObjects, attach, optimizers_of

        if self._recorder is not None:
            raise UsageError("this profile has begun already", fix="make another one")
        refuse_other_systems()
        subjects = WatchedObjects()
        subjects.add_all(self._given, is_strict=True)
        current: Any = CURRENT.session
        if current is None:
            if not subjects.optimizers:
                subjects.add_all(optimizers_of(subjects.models), is_strict=True)
            current = self._session = self._new_session()
            attach(current, subjects)
        first = current.clock.step or 0
        self._steps.clear()
        self._recorder = ProfileRecorder(current, first, self._most, write=self._take)
        self._recorder.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.finish()
        session, self._session = self._session, None
        if session is not None:
            session.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _new_session(self) -> Session:
        from traincheck.collect.session.session import Session

        try:
            self._folder = Path(tempfile.mkdtemp(prefix="traincheck-profile-"))
        except OSError as error:
            raise OutputError(
                f"no temporary folder can be made: {error.strerror}",
                fix="set TMPDIR to a folder that can be written",
            ) from error
        settings = Settings(
            directory=str(self._folder),
            run_id=self._folder.name,
            needs=Needs(kinds=frozenset({"profile"})),
        )
        session = Session(settings)
        session.start()
        return session

    def _take(self, step: int | None, fields: Mapping[str, Any]) -> None:
        if not any(layer["calls"] for layer in fields["layers"]):
            return  # the block began within a step, or called no module
        event = ProfileEvent(len(self._steps), 0, step, "train", **fields)
        self._steps.append(step_of(event))

    # -- results

    @property
    def profile(self) -> Profile:
        """The profiled steps.

        Raises:
            UsageError: nothing was profiled yet.
        """
        if not self._steps:
            raise UsageError(
                "no step was profiled yet", fix="call the model within the block, then read this"
            )
        return Profile(steps=self._steps)

    @property
    def peak(self) -> Peak:
        """The largest memory, and the layers that hold it."""
        return self.profile.peak

    @property
    def origin(self) -> Origin | None:
        """The first NaN or infinity that spread; None if there is none."""
        return self.profile.origin

    def tree(self) -> dict[str, Any]:
        """``{"Net": {"info": {...}, "children": {...}}}``; docs/profile.md lists the fields."""
        return tree_of(self.profile)

    def to_dict(self) -> dict[str, Any]:
        """The whole profile, as ``--format json`` writes it."""
        return document(self.profile)

    def to_json(self, path: Path | str) -> None:
        """Write it to a file, for ``traincheck profile --diff``."""
        Path(path).write_bytes(dump_json(self.to_dict()) + b"\n")

    def table(
        self, *, sort: str | None = None, columns: tuple[str, ...] = DEFAULT, top: int | None = None
    ) -> str:
        """The report as text.

        Args:
            sort: a column; the layers are a list in its order then.
            columns: names of columns.
            top: the most rows of a sorted list.

        Raises:
            UsageError: a column does not exist, or nothing was profiled yet.
        """
        options = TableOptions(depth=self._depth, sort=sort, columns=columns, top=top)
        return table(self.profile, options)

    def _repr_html_(self) -> str:
        from traincheck.page.notebook import pre_html

        return pre_html(str(self))

    def __str__(self) -> str:
        """The report, or how to get one."""
        return self.table() if self._steps else "a profile without steps"


def profile(*subjects: Any, depth: int | None = 3, steps: int = _MOST_STEPS) -> ProfileRun:
    """Profile the layers of each training step in a ``with`` block.

    For example::

        with traincheck.profile(model) as p:
            model(x).sum().backward()
            optimizer.step()
        print(p)

    Args:
        subjects: models and optimizers. Optimizers of the models are found; models that are called
            in the block are, too.
        depth: levels of modules in the table; None for all.
        steps: the most steps that are profiled.

    Raises:
        UsageError: ``steps`` is less than 1.
    """
    return ProfileRun(subjects, depth=depth, steps=steps)
