"""The card of a run: its facts in the order of how unusual they are among healthy programs.

What a rule tells as info is a fact, too, and is ordered with the others. Findings stand before
them, and matters of taste behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from traincheck.check.run_overview import RunOverview
from traincheck.facts.kinds import PARTS
from traincheck.facts.population import UNUSUAL, Population, rarity_of
from traincheck.facts.table import KINDS
from traincheck.schema.events import MarkEvent
from traincheck.schema.facts import Fact
from traincheck.schema.findings import Finding
from traincheck.schema.places import where
from traincheck.schema.words import counted, joined

RULES = "rules"  # the part of what a rule tells
_TASTE = "TC9"  # begins the codes of advice that most programs get
_SHOWN_MODELS = 3


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a card.

    Attributes:
        fact: what was seen.
        text: its sentence.
        programs: how many healthy programs show a fact of this class.
        among: how many have the kind; 0 where neither is known.
        rarity: in (0, 1]; the smaller, the more unusual.
        severity: of a finding; empty for a fact.
    """

    fact: Fact
    text: str
    programs: int
    among: int
    rarity: float
    severity: str = ""

    @property
    def part(self) -> str:
        return RULES if self.severity else KINDS[self.fact.kind].part

    @property
    def is_finding(self) -> bool:
        """Whether a rule says that it is wrong."""
        return self.severity in ("warning", "error")

    @property
    def is_taste(self) -> bool:
        return bool(self.severity) and self.fact.kind.startswith(_TASTE)

    @property
    def is_unusual(self) -> bool:
        return self.rarity <= UNUSUAL and not self.is_finding and not self.is_taste


@dataclass(frozen=True, slots=True)
class Card:
    """All lines: findings, then facts, the most unusual first.

    Attributes:
        lines: in this order.
        programs: how many healthy programs they are compared with.
        head: ``60 steps of train.py: Policy (11,020 parameters), AdamW``.
        sources: the marks that tell which source files the trace holds.
    """

    lines: Sequence[Line] = field(default_factory=tuple)
    programs: int = 0
    head: str = ""
    sources: Sequence[MarkEvent] = ()

    @property
    def findings(self) -> list[Line]:
        """The findings of rules, advice apart."""
        return [line for line in self.lines if line.is_finding]

    @property
    def unusual(self) -> list[Line]:
        """The facts that few healthy programs have."""
        return [line for line in self.lines if line.is_unusual]

    @property
    def usual(self) -> list[Line]:
        """The other lines, by part."""
        rest = [line for line in self.lines if not (line.is_unusual or line.is_finding)]
        order = (*PARTS, RULES)
        return sorted(rest, key=lambda line: order.index(line.part))


def card_of(
    facts: Iterable[Fact],
    population: Population,
    findings: Iterable[Finding] = (),
    head: str = "",
    sources: Sequence[MarkEvent] = (),
) -> Card:
    """Order facts by rarity, then by how much of the run they concern."""
    lines = [
        Line(
            fact,
            KINDS.sentence(fact),
            population.count(fact),
            population.having.get(fact.kind, 0),
            _rarity(fact, population),
        )
        for fact in facts
    ]
    lines += map(_line_of, findings)
    lines.sort(key=lambda line: (not line.is_finding, line.rarity, -line.fact.share))
    return Card(lines, population.programs, head, sources)


def _rarity(fact: Fact, population: Population) -> float:
    """The rarity of a fact. The calm class of a kind that nobody has counted is taken for usual."""
    is_counted = fact.kind in population.having or not population.programs
    is_calm = fact.seen_as == next(iter(KINDS[fact.kind].classes))
    return 1.0 if is_calm and not is_counted else population.rarity(fact)


def _line_of(finding: Finding) -> Line:
    """A finding as a line. That of which no count is known is taken for usual."""
    seen, among = finding.healthy or (0, 0)
    fact = Fact(
        kind=finding.code,
        of=finding.variables[0] if finding.variables else "",
        seen_as="told",
        where=where(finding.evidence) or "",
        first_step=finding.first_step,
    )
    text = f"{finding.code}: {finding.title}"
    rarity = rarity_of(seen, among, among) if among else 1.0
    return Line(fact, text, seen, among, rarity, finding.severity)


def among_programs(line: Line) -> str:
    """``1 of 214 healthy programs``; empty where that is not known."""
    if not line.among:
        return ""
    return f"{line.programs:,} of {line.among:,} healthy programs"


def head_of(run: RunOverview, script: str, steps: int) -> str:
    """``60 steps of train.py: Policy (11,020 parameters), AdamW``."""
    sizes = {name: sum(members.values()) for name, members in run.parameters.items() if members}
    models = [f"{name} ({size:,} parameters)" for name, size in sizes.items()]
    classes = Counter(cls.rpartition(".")[2] for cls in run.optimizers.values())
    optimizers = [f"{n} {cls}" if n > 1 else cls for cls, n in classes.items()]
    what = ", ".join(filter(None, (joined(models, _SHOWN_MODELS), joined(optimizers))))
    return f"{counted(steps, 'step')} of {script or 'a program'}" + (f": {what}" if what else "")
