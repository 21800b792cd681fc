"""The card of facts as text, Markdown and JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import orjson
from rich.text import Text

from traincheck.facts.card import RULES, Card, Line, among_programs
from traincheck.facts.compare import Contrast
from traincheck.facts.kinds import PARTS
from traincheck.facts.table import KINDS
from traincheck.report.facts_source import File
from traincheck.report.lines import page, paragraph, table
from traincheck.schema.places import short
from traincheck.schema.words import all_printable, counted, printable

_FOLDED = 2  # usual lines of a part that are told; the rest is counted
_CONTRASTS = 12  # differences of two runs that are told; the rest is counted


def write_facts_text(card: Card, stream: TextIO, *, everything: bool = False) -> None:
    """Write the card for people, at most about 40 lines unless ``everything`` is asked for."""
    console = page(stream)
    with console.capture() as written:
        paragraph(console, Text(printable(card.head), style="bold"))
        paragraph(console, Text(printable(_summary(card))))
        for title, lines in (("findings of rules", card.findings), ("unusual", card.unusual)):
            if lines:
                console.print()
                paragraph(console, Text(title, style="bold"))
                table(console, [_row(line, card) for line in lines], indent=2)
        rest = list(_usual(card.usual, everything=everything))
        if rest:
            console.print()
            paragraph(console, Text("usual", style="bold"))
            table(console, rest, indent=2)
    stream.writelines(f"{line.rstrip()}\n" for line in written.get().splitlines())


_READING = """\
traincheck recorded this run; its rules found what stands under "Findings". A fact is what was seen,
with the number of healthy programs that show the same. It says nothing of why, and nothing of
whether it is wrong: healthy programs have unusual facts, too. Hold each against what the program is
meant to do, at the line that is named, before you call it a bug. Some steps are recorded in full,
the others in outline, so a number is of the steps or rows that were read."""


def write_facts_brief(card: Card, files: Sequence[File], stream: TextIO) -> None:
    """Write one text for an assistant: all facts, the source that they are about, and the gaps."""
    stream.write(f"# {printable(card.head)}\n\n{_READING}\n")
    for title, lines in (
        ("Findings", card.findings),
        ("Unusual facts, the rarest first", card.unusual),
        ("Usual facts", card.usual),
    ):
        stream.write(f"\n## {title}\n\n" + ("" if lines else "None.\n"))
        for line in lines:
            known = _programs(line, card)
            label = line.severity or line.part
            text = f"- {label}: {_text(line)}" + (f"; {known}" if known else "")
            stream.write(f"{printable(text)}\n")
    stream.write("\n## Source, with facts below their lines\n\n```text\n")
    write_annotated_text(files, stream)
    seen = {line.fact.kind for line in card.lines}
    unseen = [kind.name for kind in KINDS if kind.name not in seen]
    stream.write("```\n\n## What was not looked at\n\n")
    stream.write("- Numbers that the program prints or logs, and its intention.\n")
    if unseen:
        stream.write(
            f"- Of these kinds of facts the trace shows nothing: {', '.join(sorted(unseen))}.\n"
        )


def write_facts_markdown(card: Card, stream: TextIO) -> None:
    """Write the card as Markdown, with a table of the unusual facts."""
    stream.write(f"# Facts of a run\n\n{printable(card.head)}. {printable(_summary(card))}\n")
    for title, lines in (
        ("Findings of rules", card.findings),
        ("Unusual", card.unusual),
        ("Usual", card.usual),
    ):
        if lines:
            stream.write(
                f"\n## {title}\n\n| part | what was seen | healthy programs |\n|---|---|---|\n"
            )
        for line in lines:
            cells = (line.part, _text(line), _programs(line, card))
            stream.write(
                f"| {' | '.join(printable(cell).replace('|', chr(92) + '|') for cell in cells)} |\n"
            )


def facts_json(card: Card) -> dict[str, Any]:
    """The card as JSON, all lines in the order of their rarity."""
    return {
        "head": card.head,
        "programs": card.programs,
        "facts": [fact_row(line) for line in card.lines],
    }


def write_json(value: dict[str, Any], stream: TextIO) -> None:
    """Write JSON with printable text."""
    found = all_printable(value)
    stream.write(orjson.dumps(found, option=orjson.OPT_INDENT_2, default=str).decode() + "\n")


def fact_row(line: Line) -> dict[str, Any]:
    """One line of a card as a row of a table."""
    fact = line.fact
    return {
        "part": line.part,
        "kind": fact.kind,
        "of": fact.of,
        "class": fact.seen_as,
        "text": line.text,
        "values": dict(fact.values),
        "where": fact.where,
        "count": fact.count,
        "looks": fact.looks,
        "first_step": fact.first_step,
        "ranks": list(fact.ranks),
        "healthy_programs": line.programs,
        "with_the_kind": line.among,
        "rarity": line.rarity,
        "unusual": line.is_unusual,
    }


def _summary(card: Card) -> str:
    if not card.programs:
        return "There are no healthy programs to compare with: the order means nothing."
    known = f"{card.programs:,} healthy programs"
    if not card.unusual:
        return f"No fact of this run is unusual among {known}. Facts are no verdicts."
    return (
        f"{counted(len(card.unusual), 'fact')} that few of {known} have, the most unusual first. "
        "A fact is a place to look, not a verdict."
    )


def _row(line: Line, card: Card) -> tuple[str, str]:
    if line.is_finding:
        return line.severity, _text(line)
    return line.part, "\n".join(filter(None, (_text(line), _programs(line, card))))


def _text(line: Line) -> str:
    return line.text + (f" ({short(line.fact.where)})" if line.fact.where else "")


def _programs(line: Line, card: Card) -> str:
    """The number of healthy programs that show the same; empty where that is not known."""
    whole = among_programs(line)
    return f"{whole} that have it" if 0 < line.among < card.programs else whole


def _usual(lines: Sequence[Line], *, everything: bool) -> Iterator[tuple[str, str]]:
    by_part: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_part[line.part].append(line)
    for part in (*PARTS, RULES):
        found = by_part.get(part, [])
        shown = found if everything else found[:_FOLDED]
        left = len(found) - len(shown)
        for number, line in enumerate(shown):
            more = f" (and {left:,} more)" if left and number == len(shown) - 1 else ""
            yield part if not number else "", line.text + more


def write_contrasts_text(
    found: Sequence[Contrast], a: Card, b: Card, stream: TextIO, *, everything: bool = False
) -> None:
    """Write what two runs do differently: a line of each side, 12 differences by default."""
    console = page(stream)
    shown = found if everything else found[:_CONTRASTS]
    with console.capture() as written:
        paragraph(console, Text(f"A: {printable(a.head)}"))
        paragraph(console, Text(f"B: {printable(b.head)}"))
        console.print()
        if not found:
            paragraph(console, Text("All facts are of the same classes."))
        else:
            verb = "differs" if len(found) == 1 else "differ"
            head = f"{counted(len(found), 'fact')} {verb} in class, the most unusual first."
            paragraph(console, Text(head, style="bold"))
        for one in shown:
            console.print()
            sides = (("A", one.a), ("B", one.b))
            rows = [(name, _side(lines, one.more)) for name, lines in sides]
            table(console, [(f"{one.part}  {rows[0][0]}", rows[0][1]), rows[1]], indent=2)
        if len(found) > len(shown):
            console.print()
            paragraph(console, Text(f"and {len(found) - len(shown):,} more: --all shows them"))
    stream.writelines(f"{line.rstrip()}\n" for line in written.get().splitlines())


def _side(lines: Sequence[Line], more: int) -> str:
    text = "\n".join(printable(_text(line)) for line in lines) or "(not seen)"
    if lines and more:
        text += f"\nand {counted(more, 'usual fact')} more of {printable(lines[0].fact.of)}"
    return text


def contrasts_json(found: Sequence[Contrast], a: Card, b: Card) -> dict[str, Any]:
    """The differences of two runs as JSON."""
    return {
        "a": a.head,
        "b": b.head,
        "programs": b.programs,
        "differ": [
            {"part": one.part, "rarity": one.rarity, "more": one.more}
            | {
                name: [fact_row(line) for line in lines]
                for name, lines in (("a", one.a), ("b", one.b))
            }
            for one in found
        ],
    }


def write_annotated_text(files: Sequence[File], stream: TextIO) -> None:
    """Write source with its facts below the lines that they are about."""
    for number, file in enumerate(files):
        stream.write(("\n" if number else "") + f"{printable(file.path)}\n")
        if file.changed:
            stream.write("      was written after the program had begun: not shown\n")
        for row in file.rows:
            if not row.number:
                stream.write("      ...\n")
                continue
            stream.write(f"{row.number:5} {printable(row.code)}".rstrip() + "\n")
            for line in row.facts:
                sign = "!" if line.is_unusual or line.is_finding else "."
                seen = f"  [{line.programs:,} of {line.among:,}]" if line.among else ""
                stream.write(f"    {sign}   {printable(line.text)}{seen}\n")
    if not files:
        stream.write("No fact has a line of which the trace holds a copy.\n")
