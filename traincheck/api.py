"""The library in a few calls, for programs and notebooks: the commands without printing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincheck.check.engine import Engine, watch
from traincheck.check.run_overview import RunOverview
from traincheck.check.suppression.policy import SuppressionPolicy
from traincheck.check.suppression.source_files import SourceFiles, program_in, trusted_folders
from traincheck.check.wording.sentences import ending
from traincheck.config import Config
from traincheck.errors import UsageError, nearest
from traincheck.facts.table import READERS
from traincheck.rules.docs import docs_of
from traincheck.rules.options import configured
from traincheck.rules.registry import all_rules
from traincheck.schema.events import MarkEvent
from traincheck.schema.findings import Ending, Report
from traincheck.schema.invariant_file import read_invariants
from traincheck.schema.layout import storage_notes
from traincheck.schema.marks import Marks
from traincheck.schema.observations.processes import Sources
from traincheck.store.manifest import is_going_on, one_step_in

if TYPE_CHECKING:
    from traincheck.facts.card import Card
    from traincheck.readings.provider import Follower
    from traincheck.report.facts_source import File
    from traincheck.schema.claims import Invariant
    from traincheck.schema.protocols import Relation, Rule
    from traincheck.store.manifest import Manifest
    from traincheck.store.reader import TraceReader
    from traincheck.store.tail import PollReader, TailReader

_BY_USER = frozenset({"SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"})
_TOGETHER = 10  # consecutive steps that some checks need: TC202 needs as many


def check(
    run: str | Path,
    invariants: Sequence[str | Path] = (),
    *,
    rules: bool = True,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    config: Config | None = None,
) -> Report:
    """Check a recorded run.

    Args:
        run: the run directory.
        invariants: invariant files.
        rules: whether to check the built-in rules too.
        select: codes of rules and names of relations to check; empty for all. A code may be a
        prefix: ``TC1``.
        ignore: codes and names to omit.
        config: the configuration of the project, see `load_config`; ``select`` and ``ignore``
        override it. None for the defaults.

    Raises:
        TraceFormatError, InvariantFormatError, UsageError: ``run``, a file or a code is not usable.
    """
    from traincheck.store.reader import TraceReader

    reader = TraceReader(run, may_be_empty=True)
    engine = make_engine(
        invariants,
        rules=rules,
        select=select,
        ignore=ignore,
        config=config,
        sources=SourceFiles(lambda: root_of(reader), trusted_folders(run)),
        program=lambda: program_of(reader),
        followers=READERS,
    )
    return check_source(engine, reader)


def facts(run: str | Path, population: str | Path | None = None) -> Card:
    """The facts of a recorded run, the most unusual first, with what the rules find in it.

    Args:
        run: the run directory.
        population: a file with counts of healthy programs; they are added to the shipped ones.

    Raises:
        TraceFormatError, UsageError: ``run`` or ``population`` is not usable.
    """
    from traincheck.facts.card import card_of, head_of
    from traincheck.facts.population import read_population, shipped
    from traincheck.store.reader import TraceReader

    known = shipped() if population is None else shipped() | read_population(Path(population))
    reader = TraceReader(run, may_be_empty=True)
    engine, overview = make_engine(followers=READERS), RunOverview()
    sources: list[MarkEvent] = []
    for event in reader.events():
        engine.observe(event)
        overview.add(event)
        if isinstance(event, MarkEvent) and event.text == Sources.text:
            sources.append(event)
    report = conclude(engine, reader)
    script = program_of(reader).replace("\\", "/").rpartition("/")[2]
    head = head_of(overview, script, report.steps)
    return card_of(report.facts, known, report.findings, head, sources)


def annotated_source(run: str | Path, card: Card) -> list[File]:
    """The source of a run, from the copies in its trace, with facts beside their lines."""
    from traincheck.diff.sources import program_of as source_copies
    from traincheck.report.facts_source import annotated

    changed = [path for mark in card.sources for path in mark.data.get("changed", ())]
    return list(annotated(card, source_copies(Path(run), card.sources), changed))


def make_engine(
    invariants: Sequence[str | Path] = (),
    *,
    rules: bool = True,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    config: Config | None = None,
    sources: SourceFiles | None = None,
    program: Callable[[], str] = str,
    followers: Sequence[type[Follower]] = (),
) -> Engine:
    """An engine for the selected checks; arguments as for `check`.

    ``sources`` reads the source of the run; None for none. ``program`` returns the script of the
    run, possibly from the trace. ``followers`` are the readers of its facts.
    """
    config = (config or Config()).narrowed(select, ignore)
    learned = _distinct(i for path in invariants for i in read_invariants(path))
    kept = [i for i in learned if _is_chosen(i.hypothesis.relation, config)]
    chosen = chosen_rules(config)
    policy = SuppressionPolicy(config.suppress, sources, program)
    relations = _relations() if kept else {}
    return Engine(kept, chosen if rules else (), relations, policy, followers)


def _relations() -> Mapping[str, Relation]:
    """All relations. Loading them takes nearly as long as loading the rules."""
    from traincheck.relations.registry import RELATIONS

    return RELATIONS


def chosen_rules(config: Config) -> tuple[Rule, ...]:
    """The rules that a configuration selects, with its options.

    Raises:
        UsageError: a code or an option is unknown.
    """
    known = all_rules()
    said = f"{config.path}: " if config.path else ""
    if config.select or config.ignore or config.suppress:
        codes = [*(rule.info.code for rule in known), *_relations()]
        names = {docs_of(rule).name: rule.info.code for rule in known}
        _refuse_unknown((*config.select, *config.ignore), codes, names)
        for suppression in config.suppress:
            _refuse_unknown([suppression.code], codes, names, said)
    try:
        known = configured(known, config.rules)
    except UsageError as error:
        raise UsageError(f"{said}{error.message}", fix=error.fix) from error
    return tuple(rule for rule in known if _is_chosen(rule.info.code, config))


def root_of(source: TraceReader | TailReader | PollReader) -> str:
    """The working directory of a run, to which its source locations are relative."""
    return source.manifest.cwd if source.manifest else ""


def program_of(source: TraceReader | TailReader | PollReader) -> str:
    """The script of a run; empty if its manifest has none."""
    return program_in(source.manifest.command) if source.manifest else ""


def check_source(engine: Engine, source: TraceReader | TailReader) -> Report:
    """Feed a run to its engine and conclude the report, with the notes of its reader.

    Raises:
        TraceFormatError: the run cannot be read.
    """
    watch(engine, source.events())
    return conclude(engine, source)


def conclude(engine: Engine, source: TraceReader | TailReader | PollReader) -> Report:
    """The report of an engine that was fed from ``source``, with the notes of its reader."""
    manifest = source.manifest
    if manifest is not None and manifest.ended is not None:
        # The end of the run as a mark for checks.
        by_user = manifest.signal if manifest.signal in _BY_USER else None
        data = {
            "exit_status": manifest.exit_status or 0,
            "interrupted": manifest.interrupted or by_user,
        }
        engine.end(
            MarkEvent(0, manifest.ended_ns or 0, None, "train", text=Marks.RUN_ENDED, data=data)
        )
    report = engine.finish()
    sampled = _sampling_notes(manifest.settings) if manifest else ()
    policy = _policy(engine)
    unused = policy.unused({info.code for info in engine.infos.values()})
    notes = (*run_notes(source), *sampled, *report.notes, *unused, *policy.sources.notes())
    return replace(
        _placed(report, engine, source),
        skipped_lines=source.skipped,
        notes=notes,
        ended=_how_it_failed(manifest),
        is_partial=bool(storage_notes(source.path) or (manifest and is_going_on(manifest))),
    )


def so_far(engine: Engine, source: TraceReader | TailReader | PollReader) -> Report:
    """The present report of an engine, with the places of the run but without notes."""
    return _placed(engine.so_far(), engine, source)


def _placed(
    report: Report, engine: Engine, source: TraceReader | TailReader | PollReader
) -> Report:
    """The report with what is needed to find and to read the source of the run."""
    manifest = source.manifest
    return replace(
        report,
        root=root_of(source),
        sources=_policy(engine).sources.trusted,
        hostname=(manifest.hostname if manifest else None) or "",
        started=_seconds(manifest.started if manifest else None),
        program=program_of(source),
    )


def _policy(engine: Engine) -> SuppressionPolicy:
    policy = engine.suppress if isinstance(engine.suppress, SuppressionPolicy) else None
    return policy or SuppressionPolicy()


def _seconds(moment: str | None) -> float:
    try:
        return datetime.fromisoformat(moment).timestamp() if moment else 0.0
    except ValueError:
        return 0.0


def _sampling_notes(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Notes if few steps were recorded together with the next one."""
    every, warmup = one_step_in(settings), settings.get("warmup")
    if every == 1 or (isinstance(warmup, int) and warmup >= _TOGETHER):
        return ()
    return (
        f"one step in {every:,} was recorded: bugs that need consecutive steps to show, such as "
        "gradients cleared before they are used, cannot be found; record the first steps, too: "
        "--warmup 20",
    )


def run_notes(source: TraceReader | TailReader | PollReader) -> list[str]:
    """Notes about the end of the run, if it limits the checks, and the notes of its manifest."""
    manifest = source.manifest
    if manifest is None:
        return list(source.notes)
    notes = [*source.notes, *manifest.notes]
    how = _how_it_failed(manifest)
    if how is not None:
        unfinished = ": its last step may be unfinished" if how.sender else ""
        notes.append(f"the run {how.whole}{unfinished}")
    return notes


def _how_it_failed(manifest: Manifest | None) -> Ending | None:
    if manifest is None:
        return None
    return ending(manifest.signal, manifest.exit_status, manifest.interrupted)


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


def _is_chosen(code: str, config: Config) -> bool:
    is_selected = not config.select or code.startswith(config.select)
    return is_selected and not code.startswith(config.ignore)


def _refuse_unknown(
    codes: Iterable[str], known: Sequence[str], names: Mapping[str, str], said: str = ""
) -> None:
    """Names of rules, for users who pass a name instead of the code."""
    for code in codes:
        if not code or not any(name.startswith(code) for name in known):
            likely = names.get(code) or nearest(code, known)
            raise UsageError(
                f"{said}no rule and no relation is called {code!r}",
                fix=f"did you mean {likely}? traincheck rules lists the codes",
            )
