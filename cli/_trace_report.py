"""The output of `traincheck trace show`: an overview of a run, as text or JSON; events as lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

import orjson

from traincheck.schema.codec import encode, placed
from traincheck.schema.files import dump_json
from traincheck.schema.words import counted, printable, printable_json
from traincheck.store.summary import ApiUse, Summary, summarize

if TYPE_CHECKING:
    from rich.console import Console

    from traincheck.schema.events import Event
    from traincheck.store.lines import Skip
    from traincheck.store.manifest import Manifest
    from traincheck.store.reader import ProcessInfo, TraceReader

_NS_PER_MS = 1e6
_NS_PER_US = 1e3
_MOST_ROWS = 10
_HEADER = ("k", "n", "t", "s", "g")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A run as `trace show` prints it. skips: the first of the skipped lines."""

    path: str
    manifest: Manifest | None
    processes: Sequence[ProcessInfo]
    summary: Summary
    skipped: int
    skips: Sequence[Skip]
    notes: Sequence[str]


def overview(
    reader: TraceReader, progress: Callable[[TraceReader], AbstractContextManager[None]]
) -> Overview:
    """Read a run once and summarize it."""
    with progress(reader):
        summary = summarize(reader.events())
    manifest = reader.manifest
    return Overview(
        path=str(reader.path),
        manifest=manifest,
        processes=reader.processes,
        summary=summary,
        skipped=reader.skipped,
        skips=list(reader.skips),
        notes=[*reader.notes, *(manifest.notes if manifest is not None else ())],
    )


def event_json(event: Event) -> str:
    """The event as in its file, with rank and stream."""
    return printable_json(dump_json(placed(event)).decode())


def event_line(event: Event) -> str:
    """The event as a line for people."""
    record = orjson.loads(encode(event))
    rest = {name: value for name, value in record.items() if name not in _HEADER}
    step = "-" if event.step is None else event.step
    names = ("api", "name", "text", "op", "loader", "source", "category")
    subject = next((str(rest.pop(name)) for name in names if name in rest), "")
    head = f"r{event.rank} {event.stream} step {step} {event.stage:<5} {event.kind:<9}"
    return printable(f"{head} {subject} {dump_json(rest).decode() if rest else ''}".rstrip())


def to_json(found: Overview) -> str:
    """The overview as one JSON object, indented."""
    summary = found.summary
    out = {
        "schema_version": 1,
        "path": found.path,
        "manifest": None if found.manifest is None else asdict(found.manifest),
        "notes": found.notes,
        "processes": [
            {"rank": p.rank, "pid": p.pid, "threads": len(p.files), **p.facts}
            for p in found.processes
        ],
        "events": summary.events,
        "kinds": dict(summary.kinds),
        "stages": dict(summary.stages),
        "steps": [asdict(use) for _, use in sorted(summary.steps.items())],
        "apis": [asdict(use) for use in _by_time(summary)],
        "models": [asdict(use) for use in summary.models.values()],
        "optimizers": [asdict(use) for use in summary.optimizers.values()],
        "loaders": [asdict(use) for use in summary.loaders.values()],
        "seeds": _records(("source", "seed"), summary.seeds.items()),
        "warnings": _records(("category", "text", "where"), summary.warnings.items()),
        "checkpoints": _records(("op", "path", "target"), summary.checkpoints.items()),
        "collectives": dict(summary.collectives),
        "marks": _records(("text", "data"), summary.marks.items()),
        "skipped_lines": found.skipped,
        "skips": [
            {"file": skip.path.name, "line": skip.line, "reason": skip.reason}
            for skip in found.skips[:_MOST_ROWS]
        ],
    }
    return printable_json(
        dump_json(out, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()
    )


def print_text(found: Overview, stream: TextIO, top: int) -> None:
    """Print the overview for people."""
    from rich.console import Console

    console = Console(file=stream, highlight=False, soft_wrap=True)
    for title, lines in _sections(found):
        _section(console, title, lines)
    _apis(console, found.summary, top)
    for title, lines in _last_sections(found):
        _section(console, title, lines)


def _section(console: Console, title: str, lines: Sequence[str]) -> None:
    """A title and its lines; nothing without lines."""
    from rich.markup import escape

    if not lines:
        return
    console.print(f"[bold]{escape(printable(title))}[/bold]")
    for line in lines[:_MOST_ROWS]:
        console.print(f"  {escape(printable(line))}")
    if len(lines) > _MOST_ROWS:
        console.print(
            f"  [dim]and {len(lines) - _MOST_ROWS} more; show all with --format json[/dim]"
        )


def _sections(found: Overview) -> list[tuple[str, list[str]]]:
    summary = found.summary
    is_sampled = found.manifest is None or found.manifest.settings.get("every") != 1
    return [
        (found.path, _run_lines(found.manifest)),
        ("Processes", [_process_line(p) for p in found.processes]),
        ("Steps", _step_lines(summary, is_sampled=is_sampled)),
        ("Events", [_counts(summary.kinds), "by stage: " + _counts(summary.stages)]),
        ("Models", _model_lines(summary)),
        ("Optimizers", _optimizer_lines(summary)),
        ("Batches", _loader_lines(summary)),
        ("Random seeds", [f"{s}: {seed}{_times(n)}" for (s, seed), n in summary.seeds.items()]),
        ("Collectives", [_counts(summary.collectives)] if summary.collectives else []),
    ]


def _last_sections(found: Overview) -> list[tuple[str, list[str]]]:
    summary = found.summary
    checkpoints = [
        " ".join(part for part in (op, path, target) if part) + _times(n)
        for (op, path, target), n in summary.checkpoints.items()
    ]
    warnings = [
        f"{category}: {text}{f' ({where})' if where else ''}{_times(n)}"
        for (category, text, where), n in summary.warnings.items()
    ]
    skips = [f"{skip.path.name}:{skip.line}: {skip.reason}" for skip in found.skips]
    if found.skipped > len(skips):
        skips.append(f"and {found.skipped - len(skips)} more")
    return [
        ("Checkpoints", checkpoints),
        ("Warnings of the program", warnings),
        (
            "Not observed",
            [
                *_disabled_instruments(found.processes),
                *_sampled_parts(found.processes),
                *found.notes,
            ],
        ),
        ("Marks", [f"{text} {data}{_times(n)}" for (text, data), n in summary.marks.items()]),
        (f"Skipped lines: {found.skipped}", skips),
    ]


def _run_lines(manifest: Manifest | None) -> list[str]:
    if manifest is None:
        return ["no manifest"]
    lines = [f"command   {' '.join(manifest.command)}"] if manifest.command else []
    if manifest.started:
        lines.append(f"started   {manifest.started}{_duration(manifest)}")
    if manifest.ended is None:
        lines.append("ended     not yet, or the launcher was killed")
    elif manifest.signal:
        lines.append(f"ended     by {manifest.signal}")
    else:
        lines.append(f"ended     with exit status {manifest.exit_status}")
    view = ", ".join(f"{k} {v}" for k, v in manifest.settings.items() if k in ("level", "every"))
    if view:
        part = (
            ""
            if manifest.settings.get("needs") is None
            else ", only events that selected checks need"
        )
        lines.append(f"recorded  {view}{part}")
    return lines


def _duration(manifest: Manifest) -> str:
    try:
        began = datetime.fromisoformat(manifest.started or "")
        ended = datetime.fromisoformat(manifest.ended or "")
        return f", took {(ended - began).total_seconds():.1f} s"
    except (ValueError, TypeError):
        return ""


def _process_line(process: ProcessInfo) -> str:
    facts = process.facts
    role = " (worker)" if process.is_worker else ""
    versions = ", ".join(
        f"{name} {facts[name]}" for name in ("python", "torch", "traincheck") if name in facts
    )
    threads = counted(len(process.files), "thread")
    script = f" {facts['argv0']}" if facts.get("argv0") else ""
    return f"rank {process.rank} pid {process.pid}{role}:{script} {threads}; {versions}"


def _step_lines(summary: Summary, *, is_sampled: bool) -> list[str]:
    lines = []
    for rank, use in sorted(summary.steps.items()):
        left = use.steps - use.recorded
        why = "skipped by sampling" if is_sampled else "with events missing"
        sampled = f", {left} of them {why}" if left else ""
        last = ", and an unfinished one" if use.is_last_unfinished else ""
        lines.append(f"rank {rank}: {use.steps:,}{sampled}{last}")
    return lines


def _model_lines(summary: Summary) -> list[str]:
    lines = []
    for use in summary.models.values():
        frozen = use.tensors - use.trainable_tensors
        held = f"{use.elements:,} parameters in {use.tensors} tensors"
        without = f", {frozen} of them frozen" if frozen else ""
        buffers = f", {use.buffers} buffers" if use.buffers else ""
        lines.append(f"{use.name} ({use.cls or 'never called'}): {held}{without}{buffers}")
    return lines


def _optimizer_lines(summary: Summary) -> list[str]:
    lines = []
    for use in summary.optimizers.values():
        where = f" made at {use.where}" if use.where else ""
        lines.append(f"{use.id} {use.cls}{where}")
        for index, group in enumerate(use.groups):
            rate = _learning_rate(use.first_lr, use.last_lr, index)
            lines.append(f"  group {index}: {group.parameters} tensors{rate}")
    return lines


def _learning_rate(first: Sequence[float], last: Sequence[float], index: int) -> str:
    rates = [rates[index] for rates in (first, last) if index < len(rates)]
    shown = " -> ".join(dict.fromkeys(f"{rate:g}" for rate in rates if rate is not None))
    return f", lr {shown}" if shown else ""


def _loader_lines(summary: Summary) -> list[str]:
    return [
        f"{use.loader}: {use.batches:,} batches, {use.epochs} epochs, {use.workers} workers"
        f"{f', {use.sampler}' if use.sampler else ''}; "
        + ", ".join(f"{path} {form}" for path, form in use.leaves.items())
        for use in summary.loaders.values()
    ]


def _apis(console: Console, summary: Summary, top: int) -> None:
    """A table of the APIs that took most time, as wide as their names need."""
    from rich.markup import escape

    uses = _by_time(summary)
    if not uses or not top:
        return
    width = max(len(printable(use.api)) for use in uses[:top])
    console.print("[bold]Calls[/bold] (time from entry to exit, inner calls included)")
    console.print(f"  [dim]{'':{width}} {'calls':>10} {'total ms':>12} {'mean us':>10}[/dim]")
    for use in uses[:top]:
        total_ms, mean_us = use.total_ns / _NS_PER_MS, use.total_ns / use.calls / _NS_PER_US
        failed = f"  {use.exceptions:,} failed" if use.exceptions else ""
        name = escape(f"{printable(use.api):{width}}")
        console.print(f"  {name} {use.calls:>10,} {total_ms:>12,.1f} {mean_us:>10,.0f}{failed}")
    if len(uses) > top:
        console.print(f"  [dim]and {len(uses) - top} other APIs; show more with --top[/dim]")


def _by_time(summary: Summary) -> list[ApiUse]:
    return sorted(summary.apis.values(), key=lambda use: (-use.total_ns, use.api))


def _disabled_instruments(processes: Sequence[ProcessInfo]) -> list[str]:
    """The instruments that were off, each once."""
    found: dict[str, None] = {}
    for process in processes:
        instruments = process.facts.get("instruments")
        if isinstance(instruments, dict):
            for name, state in instruments.items():
                if state != "on":
                    found[f"instrument {name}: {state}"] = None
    return list(found)


def _sampled_parts(processes: Sequence[ProcessInfo]) -> list[str]:
    """Events that were recorded in some steps only, each kind once."""
    from traincheck.check.verdicts import TraceView
    from traincheck.schema.claims import BATCH_CONTENT

    found: dict[str, None] = {}
    for view in (TraceView.from_data(process.facts) for process in processes):
        if view.recorded is None:
            continue
        rare = view.recorded.sampled_states
        missing = {
            "calls within models in training": view.recorded.sampled_calls,
            "changes of variables": rare - {BATCH_CONTENT},
            "fingerprints of batches": rare & {BATCH_CONTENT},
        }
        for what, names in missing.items():
            if names:
                found[f"{what}, in steps other than {view.schedule}"] = None
    return list(found)


def _counts(counts: dict[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count:,}" for name, count in ordered)


def _times(count: int) -> str:
    return f" ({count:,} times)" if count > 1 else ""


def _records(names: Sequence[str], items: Iterable[tuple[tuple[Any, ...], int]]) -> list[Any]:
    return [{**dict(zip(names, key)), "count": count} for key, count in items]
