"""Settings of a recording, passed to every process of a run in one environment variable.

Does not import torch: the launcher and the command line also load this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import urandom
from pathlib import Path
from typing import Any, Literal

import orjson

from traincheck.errors import UsageError
from traincheck.schema.claims import Needs, needs_json, own_needs
from traincheck.schema.layout import LARGEST_WHOLE

VARIABLE = "TRAINCHECK_SETTINGS"
MOST_STEPS = LARGEST_WHOLE
LEVELS = ("default", "deep")
VIEWS = ("diff",)
Level = Literal["default", "deep"]

_AS_THEY_ARE = (
    "level", "every", "warmup", "whole", "fold", "view", "outputs", "sketch", "checksums",
)  # fmt: skip
_PACKAGE = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one run, the same in all its processes.

    directory: absolute path of the run directory.
    every: record every n-th step, from 1.
    warmup: number of first steps that are all recorded, from 0.
    whole: record each recorded step completely, even if checks need less.
    instrument: the user's own packages to record calls of.
    fold: omit calls within models from repeated evaluation forwards; for rules alone.
    view: "diff" to record what the comparison of runs needs; empty for no such view.
    outputs: of which modules outputs are fingerprinted in this view: all, root, or a glob of paths.
    sketch: record the linear sketch of each tensor in this view.
    checksums: the steps in which checksums are taken, as `parse_schedule` reads it; empty for none.
    needs: the requested records; None for everything of the level.
    monitor: the metrics of a monitored run, as `MonitorView.to_json` gives them; None for none.
    profile: the first step whose layers are profiled, and the number of such steps; None: none.
    probe: whether experiments are made on copies of the process.
    source: whether the source files of the program are copied into the trace.
    package: folder of the traincheck that launched the run, for interpreters that lack it.
    secret: hex digits, the key of the fingerprints of rows. It is not in the trace.
    """

    directory: str
    run_id: str
    level: Level = "default"
    every: int = 1
    warmup: int = 0
    whole: bool = False
    fold: bool = False
    view: str = ""
    outputs: str = "root"
    sketch: bool = False
    checksums: str = ""
    instrument: tuple[str, ...] = ()
    needs: Needs | None = None
    monitor: Mapping[str, Any] | None = None
    profile: tuple[int, int] | None = None
    probe: bool = False
    source: bool = False
    package: str = _PACKAGE
    secret: str = field(default_factory=lambda: urandom(16).hex(), compare=False, repr=False)

    @property
    def packages(self) -> tuple[str, ...]:
        """The recorded packages of the user: the named ones, and those that checks need."""
        needed = frozenset() if self.needs is None else self.needs.packages
        return tuple(sorted({*self.instrument, *needed}))

    @property
    def is_deep(self) -> bool:
        """Whether operators are recorded, on request or because checks need them."""
        return "deep" in (self.level, "" if self.needs is None else self.needs.level)

    def to_env(self) -> dict[str, str]:
        """The variable that `from_env` reads, to be added to a child's environment."""
        names = ("directory", "run_id", "package", "secret")
        own = {name: getattr(self, name) for name in names}
        record = {**own, **self.summary()}
        return {VARIABLE: orjson.dumps(record).decode()}

    def summary(self) -> dict[str, Any]:
        """The recorded view for the manifest, as JSON values."""
        return {
            **{name: getattr(self, name) for name in _AS_THEY_ARE},
            "instrument": list(self.instrument),
            "needs": None if self.needs is None else needs_json(self.needs),
            **({} if self.monitor is None else {"monitor": self.monitor}),
            **({} if self.profile is None else {"profile": list(self.profile)}),
            **({"probe": True} if self.probe else {}),
            **({"source": True} if self.source else {}),
        }


def from_env(environ: Mapping[str, str]) -> Settings | None:
    """Settings of the run that this process belongs to; None outside of a run.

    Raises:
        UsageError: the variable is not valid, for example from another version.
    """
    raw = environ.get(VARIABLE)
    if not raw:
        return None
    try:
        record = orjson.loads(raw)
        needs, profile = record.pop("needs"), record.pop("profile", None)
        return Settings(
            **{**record, "instrument": tuple(record["instrument"])},
            profile=None if profile is None else (int(profile[0]), int(profile[1])),
            needs=None if needs is None else own_needs(needs),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(
            f"{VARIABLE} does not contain the settings of a run: {error!r}",
            fix="do not set it by hand; start the program with traincheck-collect",
        ) from error
