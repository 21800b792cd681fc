"""One case: what is damaged, how, and which commands read it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fuzz import mutations as m

_CHECKS = (
    ("check", "-t", "run"),
    ("check", "-t", "run", "-i", "invariant.json"),
    ("check", "-t", "run", "-v", "--show-info", "--show-suppressed"),
    ("check", "-t", "run", "--follow"),
    *(("check", "-t", "run", "-i", "invariant.json", "--format", form)
      for form in ("json", "sarif", "junit", "github")),
)  # fmt: skip
_TRACES = (
    *_CHECKS,
    *_CHECKS,
    ("trace", "show", "run"),
    ("trace", "show", "run", "--format", "json"),
    ("trace", "show", "run", "--events"),
    ("trace", "show", "run", "--events", "--format", "json"),
    ("trace", "export", "run", "-o", "out"),
    ("infer", "-t", "run", "-o", "out.json"),
    ("infer", "-t", "run", "-t", "good", "-o", "out.json"),
    ("invariants", "validate", "invariant.json", "-t", "run"),
    ("infer", "--update", "invariant.json", "-t", "run", "-o", "out.json"),
)
# Without the end of a run in its manifest, following it waits for long.
_MANIFESTS = tuple(command for command in _TRACES if "--follow" not in command)
_INVARIANTS = (
    ("check", "-t", "run", "-i", "invariant.json"),
    ("check", "-t", "run", "-i", "invariant.json", "--format", "json"),
    ("check", "-t", "run", "-i", "invariant.json", "--format", "sarif"),
    ("invariants", "list", "invariant.json"),
    ("invariants", "list", "invariant.json", "--format", "json"),
    ("invariants", "show", "schedule", "invariant.json"),
    ("invariants", "diff", "invariant.json", "whole.json"),
    ("invariants", "diff", "whole.json", "invariant.json", "--format", "json"),
    ("invariants", "validate", "invariant.json", "-t", "good"),
    ("infer", "--update", "invariant.json", "-t", "run", "-o", "out.json"),
    ("infer", "--why-not", "zero"),
    ("collect", "-i", "invariant.json", "-o", "out", "--", "true"),
    ("run", "-i", "invariant.json", "-o", "out", "--", "true"),
)
_STATISTICS = (
    ("infer", "--update", "invariant.json", "-t", "run", "-o", "out.json"),
    ("invariants", "merge", "invariant.json", "whole.json", "-o", "out.json"),
)
_CONFIGS = (
    ("check", "-t", "run", "--config", "config.toml"),
    ("check", "-t", "run", "--config", "config.toml", "--format", "json"),
    ("collect", "--config", "config.toml", "-o", "out", "--", "true"),
)
_TEXT = (*m.BYTES, m.long_line, *(m.word,) * 8)
_DOCUMENT = (*m.BYTES, *m.JSON, *m.JSON, m.long_line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An input, the ways to damage it, the commands that read it. weight: share of the cases."""

    path: str
    ways: Sequence[m.Mutate]
    commands: Sequence[Sequence[str]]
    weight: int


_EVENTS = "run/events-r0-p1000-t0.jsonl"
TARGETS = (
    Target(path=_EVENTS, ways=(*m.BYTES, *m.LINES, *m.JSON, *m.JSON, *m.JSON), commands=_TRACES,
           weight=40),
    Target(path="run/manifest.json", ways=_DOCUMENT, commands=_MANIFESTS, weight=12),
    Target(path="run/faults-p1000.json", ways=_DOCUMENT, commands=_TRACES, weight=1),
    Target(path="invariant.json", ways=_DOCUMENT, commands=_INVARIANTS, weight=16),
    Target(path="invariant.json.stats", ways=(*m.BYTES, m.bomb, *map(m.packed, m.JSON * 2)),
           commands=_STATISTICS, weight=8),
    Target(path="invariant.json.dropped.json", ways=_DOCUMENT,
           commands=(("infer", "--why-not", "zero"),
                     ("invariants", "show", "schedule", "invariant.json")),
           weight=3),
    Target(path="baseline.json", ways=_DOCUMENT,
           commands=(("check", "-t", "run", "--baseline", "baseline.json"),
                     ("run", "--baseline", "baseline.json", "-o", "out", "--", "true")), weight=4),
    Target(path="config.toml", ways=_TEXT, commands=_CONFIGS, weight=6),
    Target(path="project/pyproject.toml", ways=_TEXT,
           commands=(("check", "-t", "../run"), ("collect", "-o", "out", "--", "true")), weight=4),
    Target(path="parquet/calls.parquet", ways=(*m.BYTES, m.long_line),
           commands=(("parquet", "parquet"),), weight=3),
    Target(path="parquet/states.parquet", ways=m.BYTES, commands=(("parquet", "parquet"),),
           weight=1),
    Target(path="train.py", ways=(*m.BYTES, *m.LINES, m.word), commands=_CHECKS, weight=3),
)  # fmt: skip
_PLACED = 0.12  # share of the cases in which something else lies at the path


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One damaged input and one command. place: what lies at the path in place of a file."""

    number: int
    target: Target
    way: m.Mutate | None
    place: m.Place | None
    command: Sequence[str]
    seed: str

    @property
    def cwd(self) -> str:
        """Where the command is run, below the folder of the inputs."""
        return "project" if self.target.path.startswith("project") else "."

    def __str__(self) -> str:
        how = self.way or self.place
        name = getattr(how, "__qualname__", "?")
        return (
            f"case {self.number}: {name} of {self.target.path}: traincheck {' '.join(self.command)}"
        )

    def prepare(self, corpus: Path, folder: Path) -> None:
        """Make the inputs in ``folder``, one of them damaged."""
        shutil.copytree(corpus, folder, symlinks=True)
        shutil.copy(corpus / "invariant.json", folder / "whole.json")
        shutil.copy(corpus / "invariant.json.stats", folder / "whole.json.stats")
        path = folder / self.target.path
        content = path.read_bytes()
        if self.place is not None:
            path.unlink()
            self.place(path)
        elif self.way is not None:
            path.write_bytes(self.way(content, random.Random(self.seed)))


def cases(seed: int, count: int) -> Iterator[Case]:
    """The first cases of a seed; each depends on nothing but the seed and its number."""
    weights = [target.weight for target in TARGETS]
    for number in range(count):
        name = f"{seed}-{number}"
        rng = random.Random(name)
        target = rng.choices(TARGETS, weights)[0]
        is_placed = rng.random() < _PLACED
        yield Case(
            number=number,
            target=target,
            way=None if is_placed else rng.choice(target.ways),
            place=rng.choice(m.PLACES) if is_placed else None,
            command=rng.choice(target.commands),
            seed=name,
        )
