"""The line of the program that a finding points to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from traincheck.schema.torch_api import Families

if TYPE_CHECKING:  # the recorder imports this module, and has no msgspec
    from traincheck.schema.events import Event

_FROM = " from "  # "lib/site-packages/trainer.py:40 from train.py:12"
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")


def is_installed(path: str) -> bool:
    """Whether a file belongs to an installed package."""
    return _INSTALLED.search(path) is not None


def called_from(place: str, program: str) -> str:
    """A line of a package, with the line of the program that led to it."""
    return f"{place}{_FROM}{program}"


def program_line(place: str) -> str:
    """The line of the program, where a place names it after that of a package."""
    return place.rpartition(_FROM)[2]


def short(place: str | None) -> str:
    """``train.py:12`` for a place with folders; empty if there is none."""
    return program_line(place or "").replace("\\", "/").rpartition("/")[2]


def in_package(path: str) -> str:
    """The path below the folder of packages; any other path as it is."""
    return _INSTALLED.split(path)[-1]


def where(evidence: Iterable[Event]) -> str | None:
    """The first source line in the evidence; lines of the program come before those of packages."""
    places = [
        (str(place), getattr(event, "family", None) == Families.MODULE)
        for event in evidence
        # For an experiment, ``where`` is a module.
        if (place := getattr(event, "place" if event.kind == "probe" else "where", None))
    ]
    return program_line(min(places, key=_remoteness)[0]) if places else None


def _remoteness(place: tuple[str, bool]) -> tuple[bool, bool, bool]:
    """Packages come last; a forward pass comes after a more specific line."""
    path, is_forward = place
    return is_installed(program_line(path)), is_installed(path), is_forward
