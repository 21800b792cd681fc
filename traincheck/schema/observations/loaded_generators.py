"""States of random generators that a loaded file holds, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from traincheck.schema.observations.base import Observation


@dataclass(frozen=True, slots=True)
class LoadedGenerator:
    """One state of a random generator in a loaded object, at the end of the next update.

    Attributes:
        key: its place in the object, such as `rng.torch`; `[]` for indices and other numbers.
        generator: `torch`, `python`, `numpy` or `cuda`.
        restored: whether a generator got this state, and was not seeded since.
        seeded: whether the global generator was seeded since the load, or since it got this state.
        drawn: whether the global generator has another state than at the load.
        owned: whether the program holds further generators of this kind.
    """

    key: str
    generator: str
    restored: bool
    seeded: bool
    drawn: bool
    owned: bool


@dataclass(frozen=True, slots=True)
class LoadedGenerators(Observation):
    """The first update ends after a load of states of random generators.

    The states of ranks in one list are one state, which is restored if any of them is.

    Attributes:
        where: line of the load.
        states: those that the file holds.
    """

    text: ClassVar[str] = "loaded generators"
    instrument: ClassVar[str] = "checkpoint"

    where: str | None
    states: tuple[LoadedGenerator, ...]
