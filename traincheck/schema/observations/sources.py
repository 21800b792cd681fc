"""Copies of the user's source files that ran, for the comparison of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from traincheck.schema.observations.base import Observation


@dataclass(frozen=True, slots=True)
class Sources(Observation):
    """Source files of the program that this process has loaded since the last such record.

    The run directory holds a copy of each: `sources/<copy>`, readable by its owner alone, in which
    texts that look like secrets are masked. Files of installed packages are left out. Not recorded
    with `--no-source`.

    Attributes:
        script: path of the file that runs as `__main__`; empty if there is none.
        files: name of the copy by path. Copies with one name are the same.
        changed: paths of files that were written after the process had started, so that the copy
            may not be what runs.
        left_out: how many further files have no copy: too many, too large, or not readable.
    """

    text: ClassVar[str] = "sources"
    instrument: ClassVar[str] = "transforms"
    is_for_checks: ClassVar[bool] = False

    script: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    left_out: int = 0
