"""Identify the program of a process: its parameters, and the file name of its script.

Many programs are called train.py. A claim that is limited to a program applies to processes of one
file name whose parameters are mostly the same. A script may also be renamed: under another file
name, it applies to processes whose parameters are exactly the same, and whose script has mostly the
same lines.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from typing import Any
from zlib import crc32

from traincheck.readings.provider import RunState
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, MarkEvent, StateEvent, StepEvent
from traincheck.schema.marks import Marks

SEEN = frozenset({"parameter@new"})  # parameters needed to distinguish programs with one file name
_MARK = "#"  # between the file name and the sketch
_WHOLE = "="  # between the sketch and the digest of all parameters
_SOURCE = "~"  # between the digest and the sketch of the script
_LINE_DIGITS = 4  # of each part of the sketch of a script, in hex
_KEPT_LINES = 24  # the smallest ones
_DIGITS = 6  # of each part of a sketch, in hex
_KEPT = 16  # parts of a sketch: the smallest ones, a fair sample
_SHARE = 0.5  # of the parts that must agree
_ENOUGH = 4  # parts of a program whose parameters are a subset of another's: it has lost the rest
_TELLING = 4  # parameters that identify a model; fewer, such as those of one layer, are common


def program_of(mark: MarkEvent) -> str | None:
    """The file name of the script, from the mark that begins a file."""
    argv0 = mark.data.get("argv0")
    return posixpath.basename(argv0.replace("\\", "/")) or None if isinstance(argv0, str) else None


def source_of(mark: MarkEvent) -> str:
    """The sketch of the script, from the mark that begins a file; empty if it has none."""
    source = mark.data.get("source")
    return source if isinstance(source, str) else ""


def file_of(program: str) -> str:
    """The file name alone: ``train.py`` of ``train.py#1b2c3d...``."""
    return program.partition(_MARK)[0]


def core_of(program: str) -> str:
    """The file name and the sketch of the parameters: by these, runs are those of one program."""
    return program.partition(_SOURCE)[0].partition(_WHOLE)[0]


def alike(first: str, second: str) -> bool:
    """Whether both names, with their parameters as far as known, may be of one program."""
    if file_of(first) != file_of(second):
        return False
    mine, theirs = (_parts(name) for name in (first, second))
    if not mine or not theirs:
        return True  # not known
    # A full sketch has the smallest parts only.
    limit = min(max(parts) if len(parts) == _KEPT else "g" for parts in (mine, theirs))
    mine, theirs = ({p for p in parts if p <= limit} for parts in (mine, theirs))
    if _is_part(mine, theirs) or _is_part(theirs, mine):
        return True
    return len(mine & theirs) >= _SHARE * max(len(mine), len(theirs))


def _is_part(some: set[str], of: set[str]) -> bool:
    return len(some) >= _ENOUGH and some <= of


def _parts(program: str) -> set[str]:
    sketch = program.partition(_MARK)[2].partition(_SOURCE)[0].partition(_WHOLE)[0]
    return {sketch[i : i + _DIGITS] for i in range(0, len(sketch), _DIGITS)}


def _digest(program: str) -> str:
    return program.partition(_MARK)[2].partition(_SOURCE)[0].partition(_WHOLE)[2]


def _lines(source: str) -> set[str]:
    return {source[i : i + _LINE_DIGITS] for i in range(0, len(source), _LINE_DIGITS)}


def _are_similar(first: str, second: str) -> bool:
    """Whether two sketches of scripts have half of their lines in common; True if one is empty."""
    mine, theirs = _lines(first), _lines(second)
    if not mine or not theirs:
        return True  # not known
    both = sorted(mine | theirs)[:_KEPT_LINES]  # a fair sample of the lines of both
    return sum(line in mine and line in theirs for line in both) >= _SHARE * len(both)


class Sketch:
    """A sketch of the parameters of a process: name, class of the module, and shape.

    The order of the parameters does not matter.

    source: the sketch of the script, which is part of the name; empty if not known.
    """

    def __init__(self) -> None:
        self.source = ""
        self._parts: set[str] = set()
        self._digest = ""  # of the parameters that were known when the first step ended

    @property
    def size(self) -> int:
        """Number of parameters; it only grows."""
        return len(self._parts)

    def observe(self, event: Event) -> tuple[()]:
        """Enter a new parameter."""
        if isinstance(event, StateEvent) and event.role == "parameter" and event.change == "new":
            cls = (event.module_class or "").rpartition(".")[2]
            shape = () if event.summary is None else tuple(event.summary.shape)
            name = f"{event.name} {cls} {shape}".encode()
            self._parts.add(f"{crc32(name):08x}"[:_DIGITS])
        elif isinstance(event, StepEvent) and (
            event.complete or event.counters.get("optimizer_step", 0)
        ):
            self.end_first_step()
        return ()

    def end_first_step(self) -> None:
        """Fix the digest: later phases of a run may add models."""
        if self._parts and not self._digest:
            self._digest = f"{crc32(''.join(sorted(self._parts)).encode()):08x}"

    def of(self, program: str) -> str:
        """The name of a program with its parameters, for claims that are limited to it."""
        kept = "".join(sorted(self._parts)[:_KEPT])
        digest = f"{_WHOLE}{self._digest}" if self._digest else ""
        source = f"{_SOURCE}{self.source}" if self.source else ""
        return f"{program}{_MARK}{kept}{digest}{source}" if kept else program

    def fits(self, programs: Iterable[str], *, is_whole: bool) -> bool:
        """Whether this may be one of ``programs``, all of one file name.

        is_whole: all parameters are known; else a subset may still become the rest.
        """
        return any(self._is_like(_parts(program), is_whole=is_whole) for program in programs)

    def is_same(self, program: str) -> bool:
        """Whether ``program`` is this one under another file name.

        It trains exactly these parameters, and most lines of its script are the same. A program of
        an old file has no digest and no lines: its sketch decides. Models of few parameters
        identify no program.
        """
        mine, theirs = self._beside(_parts(program))
        if len(theirs) < _TELLING or mine != theirs:
            return False
        digest = _digest(program)
        if digest and self._digest and digest != self._digest:
            return False
        return _are_similar(self.source, program.partition(_SOURCE)[2])

    def likeness(self, program: str) -> float:
        """The share of common parts among the parts of both."""
        mine, theirs = self._beside(_parts(program))
        return len(mine & theirs) / max(1, len(mine | theirs))

    def _beside(self, theirs: set[str]) -> tuple[set[str], set[str]]:
        # A full sketch has the smallest parts only.
        limit = max(theirs) if len(theirs) == _KEPT else "g"
        return {part for part in self._parts if part <= limit}, theirs

    def _is_like(self, theirs: set[str], *, is_whole: bool) -> bool:
        if not theirs or not self._parts:
            return True  # not known
        mine, theirs = self._beside(theirs)
        if _is_part(mine, theirs):
            return True
        common = len(mine & theirs)
        shares = (common / len(theirs), common / max(1, len(mine)))
        return (min(shares) if is_whole else max(shares)) >= _SHARE


class ProgramName(RunState):
    """The program of the events: the file name of the script; None until known."""

    reads = Needs(kinds=frozenset({"mark"}))

    def __init__(self) -> None:
        self.name: str | None = None

    def observe(self, event: Event) -> None:
        """Enter the mark that begins a file."""
        if isinstance(event, MarkEvent) and event.text == Marks.PROCESS and self.name is None:
            self.name = program_of(event)

    def fits(self, params: Mapping[str, Any]) -> bool:
        """Whether a claim with these parameters applies to this program."""
        return "program" not in params or params["program"] == self.name


class RunProgram(RunState):
    """The file name of the script, and the parameters of all processes together.

    Args:
        claims: parameters of the claims that `fits` will be asked about.
    """

    reads = Needs(kinds=frozenset({"mark"}), states=SEEN)

    def __init__(self, claims: Iterable[Mapping[str, Any]] = ()) -> None:
        self._name = ProgramName()
        self._sketch = Sketch()
        self._known: dict[tuple[str, int], bool] = {}
        self._programs = {str(params["program"]) for params in claims if "program" in params}

    @property
    def name(self) -> str | None:
        """The name for claims that are limited to this program; None until known."""
        return None if self._name.name is None else core_of(self._sketch.of(self._name.name))

    def observe(self, event: Event) -> None:
        """Enter a start, or a parameter."""
        if isinstance(event, StateEvent):
            if event.change == "new":
                self._sketch.observe(event)
        else:
            self._name.observe(event)
            if isinstance(event, MarkEvent) and event.text == Marks.PROCESS:
                self._sketch.source = self._sketch.source or source_of(event)

    def fits(self, params: Mapping[str, Any]) -> bool:
        """Whether a claim with these parameters applies to this program."""
        program = params.get("program")
        if program is None:
            return True
        key = (program, self._sketch.size)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._is_program(program)
        return known

    def _is_program(self, program: str) -> bool:
        if file_of(program) == self._name.name:
            return self._sketch.fits((program,), is_whole=False)
        return namesakes(self._name.name, self._sketch, self._programs) == {program}


def namesakes(name: str | None, sketch: Sketch, programs: Iterable[str]) -> set[str]:
    """The programs that train the model of a process whose script has another file name.

    Args:
        name: file name of the script of the process; None if it is not known.
        sketch: of its parameters.
        programs: that are known. If one of them has this file name, the script was not renamed,
            and the result is empty.
    """
    programs = set(programs)
    if any(file_of(program) == name for program in programs):
        return set()
    return {program for program in programs if sketch.is_same(program)}
