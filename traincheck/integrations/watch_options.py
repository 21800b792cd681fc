"""The options of a watch, as `traincheck.watch` and the callbacks of frameworks take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from traincheck.errors import UsageError, nearest

_OTHER_WORDS = {"interval": "every", "every_n_steps": "every", "max_steps": "limit"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to watch.

    Attributes:
        every: check every n-th step.
        warmup: number of first steps that are all checked, regardless of ``every``.
        limit: stop after so many checked steps; None for no limit.
        invariants: invariant files to check.
        rules: whether to check the built-in rules.
        select: codes of rules and names of relations to check. Empty: those of the project's
        configuration, else all.
        ignore: codes and names to omit, in the same way.
        output: folder for the trace; None: the trace is not kept.
        halt: raise TrainingHalted at the first finding of severity error.
        probe: also make experiments on copies of the process, as ``traincheck probe`` does.
        to: receivers of the findings, ``NAME`` or ``NAME=TARGET`` as for ``--to``. Each one has a
        process; the training does not wait for it, except at the end of the watch.
    """

    every: int = 1
    warmup: int = 0
    limit: int | None = None
    invariants: Sequence[str | Path] = ()
    rules: bool = True
    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    output: str | Path | None = None
    halt: bool = False
    probe: bool = False
    to: Sequence[str] = ()

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Options by name.

        Raises:
            UsageError: a name or a value is not usable.
        """
        known = [one.name for one in fields(cls)]
        for name in given:
            if name not in known:
                likely = _OTHER_WORDS.get(name) or nearest(name, known)
                raise UsageError(
                    f"traincheck.watch has no option {name!r}",
                    fix=f"did you mean {likely}? There are {', '.join(known)}",
                )
        return cls(**given)

    def __post_init__(self) -> None:
        for name, lowest in (("every", 1), ("warmup", 0), ("limit", 0)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < lowest):
                raise UsageError(f"{name} is {value!r}", fix=f"make it {lowest} or more")
        for name in ("select", "ignore", "invariants", "to"):
            if isinstance(getattr(self, name), str):
                raise UsageError(f"{name} is one string", fix=f"{name}=[{getattr(self, name)!r}]")
