"""Values that a shell completes for options: paths, codes, names. Click completes the rest.

Each function is a `shell_complete` of click: it gets the beginning of a word.
"""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

Items = list[CompletionItem]


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Files, which the shell finds."""
    return [CompletionItem(incomplete, type="file")]


def folders(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Folders, which the shell finds."""
    return [CompletionItem(incomplete, type="dir")]


def codes(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Codes of rules with their titles, and names of relations; of several, the last one."""
    from traincheck.relations.registry import RELATIONS
    from traincheck.rules.table import RULES

    before, comma, last = incomplete.rpartition(",")
    known = {rule.info.code: rule.info.title for rule in RULES} | dict.fromkeys(RELATIONS, "")
    return [
        CompletionItem(f"{before}{comma}{code}", help=title or None)
        for code, title in known.items()
        if code.lower().startswith(last.lower())
    ]


def formats(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Formats of reports."""
    from traincheck.report.registry import FORMATS

    return _beginning(FORMATS.entries(), incomplete)


def reports(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """FORMAT=FILE."""
    if "=" in incomplete:
        return files(ctx, param, incomplete)
    return [CompletionItem(f"{item.value}=") for item in formats(ctx, param, incomplete)]


def receivers(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Names of receivers; those of files after ``=``."""
    from traincheck.receivers.base import COMMAND, RECEIVERS

    if "=" in incomplete:
        return files(ctx, param, incomplete)
    return _beginning(
        [*(name for name in RECEIVERS.entries() if name != COMMAND), "none"], incomplete
    )


def trackers(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Names of trackers of metrics."""
    from traincheck.metrics.trackers import TRACKERS

    return _beginning(TRACKERS.entries(), incomplete)


def presets(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Names of shipped invariant files."""
    from traincheck.presets import preset_names

    return _beginning(preset_names(), incomplete)


def relations(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Names of relations."""
    from traincheck.relations.registry import RELATIONS

    return _beginning(RELATIONS, incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> Items:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
