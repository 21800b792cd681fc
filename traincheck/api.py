"""The library in a few calls, for programs and notebooks.

What a command does, without the printing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from traincheck.check.engine import Engine, watch
from traincheck.errors import UsageError, nearest
from traincheck.relations._table import RELATIONS
from traincheck.rules._table import all_rules
from traincheck.schema.findings import CheckInfo, Report, Violation
from traincheck.schema.invariant_file import read_invariants

if TYPE_CHECKING:
    from traincheck.schema.claims import Invariant
    from traincheck.schema.protocols import Rule
    from traincheck.store.reader import TraceReader
    from traincheck.store.tail import TailReader

OnViolation = Callable[[Violation, CheckInfo], None]


def check(
    run: str | Path,
    invariants: Sequence[str | Path] = (),
    *,
    rules: bool = True,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> Report:
    """Check a recorded run.

    Args:
        run: its directory.
        invariants: invariant files.
        rules: whether to check the built-in rules too.
        select: codes of rules and names of relations to check; none for all. A code may be the
            beginning of one: ``TC1``.
        ignore: codes and names to leave out.

    Raises:
        TraceFormatError, InvariantFormatError, UsageError: ``run``, a file or a code is not usable.
    """
    from traincheck.store.reader import TraceReader

    engine = make_engine(invariants, rules=rules, select=select, ignore=ignore)
    return check_source(engine, TraceReader(run))


def make_engine(
    invariants: Sequence[str | Path] = (),
    *,
    rules: bool = True,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> Engine:
    """An engine for the checks that are asked for; arguments as for `check`."""
    learned = _distinct(i for path in invariants for i in read_invariants(path))
    built_in: Iterable[Rule] = all_rules() if rules else ()
    _refuse_unknown([*select, *ignore])
    chosen = [rule for rule in built_in if _is_chosen(rule.info.code, select, ignore)]
    kept = [i for i in learned if _is_chosen(i.hypothesis.relation, select, ignore)]
    return Engine(kept, chosen, RELATIONS)


def check_source(
    engine: Engine,
    source: TraceReader | TailReader,
    on_violation: OnViolation | None = None,
    *,
    is_live: bool = False,
) -> Report:
    """Feed a run to an engine and conclude, with what its reader knows about it.

    Args:
        engine: made for this run.
        source: a finished run, or one to follow.
        on_violation: told of each violation that is the first of its check about its subject.
        is_live: an interrupt ends the following, not the conclusion.

    Raises:
        TraceFormatError: the run holds no events.
    """
    try:
        watch(engine, source.events(engine.wants), on_violation)
    except KeyboardInterrupt:
        if not is_live:
            raise
    return conclude(engine, source)


def conclude(engine: Engine, source: TraceReader | TailReader) -> Report:
    """The report of an engine that was fed from ``source``, with what its reader knows."""
    engine.count_unread(source.left_out)
    report = engine.finish()
    notes = (*_run_notes(source), *report.notes)
    return replace(report, skipped_lines=source.skipped, notes=notes)


def _run_notes(source: TraceReader | TailReader) -> list[str]:
    """How the run ended, where that bears on what could be seen, and what its manifest says."""
    manifest = source.manifest
    if manifest is None:
        return list(source.notes)
    notes = [*source.notes, *manifest.notes]
    if manifest.signal:
        notes.append(f"the run was ended by {manifest.signal}: its last step may be unfinished")
    elif manifest.exit_status:
        notes.append(f"the run ended with exit status {manifest.exit_status}")
    return notes


def _distinct(invariants: Iterable[Invariant]) -> list[Invariant]:
    """Each invariant once: files may share some. One id for two claims could not be reported."""
    known: dict[str, Invariant] = {}
    for invariant in invariants:
        other = known.setdefault(invariant.id, invariant)
        if (other.hypothesis, other.precondition) != (invariant.hypothesis, invariant.precondition):
            raise UsageError(
                f"two invariant files use the id {invariant.id!r} for different invariants",
                fix="check them one at a time, or infer one file from all runs",
            )
    return list(known.values())


def _is_chosen(code: str, select: Sequence[str], ignore: Sequence[str]) -> bool:
    return (not select or code.startswith(tuple(select))) and not code.startswith(tuple(ignore))


def _refuse_unknown(codes: Iterable[str]) -> None:
    known = [*(rule.info.code for rule in all_rules()), *RELATIONS]
    for code in codes:
        if not code or not any(name.startswith(code) for name in known):
            raise UsageError(
                f"no rule and no relation is called {code!r}",
                fix=f"did you mean {nearest(code, known)}? traincheck rules lists the codes",
            )
