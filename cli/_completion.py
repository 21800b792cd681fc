"""What a shell completes for values of options: paths, codes, names. Click completes the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

Find = Callable[[str], Iterable[CompletionItem]]


def complete_values(command: click.Command) -> None:
    """Let a command, and all commands in it, complete what their parameters are called."""
    if isinstance(command, click.Group):
        for member in command.commands.values():
            complete_values(member)
    for parameter in command.params:
        find = _BY_NAME.get(parameter.name or "") or _BY_METAVAR.get(parameter.metavar or "")
        if find is not None and parameter.type is click.STRING:
            parameter.type = _Text(find)


class _Text(click.types.StringParamType):
    """A text whose beginnings are completed by a function."""

    def __init__(self, find: Find) -> None:
        self._find = find

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return list(self._find(incomplete))


def _files(incomplete: str) -> Iterable[CompletionItem]:
    yield CompletionItem(incomplete, type="file")  # the shell finds them


def _folders(incomplete: str) -> Iterable[CompletionItem]:
    yield CompletionItem(incomplete, type="dir")


def _codes(incomplete: str) -> Iterable[CompletionItem]:
    """Codes of rules with their titles, and names of relations; of several, the last one."""
    from traincheck.relations.registry import RELATIONS
    from traincheck.rules.registry import RULES

    before, comma, last = incomplete.rpartition(",")
    known = {rule.info.code: rule.info.title for rule in RULES} | dict.fromkeys(RELATIONS, "")
    for code, title in known.items():
        if code.lower().startswith(last.lower()):
            yield CompletionItem(f"{before}{comma}{code}", help=title or None)


def _formats(incomplete: str) -> Iterable[CompletionItem]:
    from traincheck.report.registry import all_sinks

    return _beginning(all_sinks(), incomplete)


def _reports(incomplete: str) -> Iterable[CompletionItem]:
    if "=" in incomplete:
        return _files(incomplete)
    return (CompletionItem(f"{item.value}=") for item in _formats(incomplete))


def _presets(incomplete: str) -> Iterable[CompletionItem]:
    from traincheck.presets import preset_names

    return _beginning(preset_names(), incomplete)


def _relations(incomplete: str) -> Iterable[CompletionItem]:
    from traincheck.relations.registry import RELATIONS

    return _beginning(RELATIONS, incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> Iterable[CompletionItem]:
    return (CompletionItem(name) for name in names if name.startswith(incomplete))


_BY_METAVAR: dict[str, Find] = {
    "CODE": _codes,
    "DIR": _folders,
    "FILE": _files,
    "FILE...": _files,
    "[FILE]": _files,
    "FORM": _formats,
    "FORMAT=FILE": _reports,
    "INV": _files,
    "SCRIPT": _files,
    "SCRIPT [ARGS]...": _files,
}
_BY_NAME: dict[str, Find] = {"presets": _presets, "relation": _relations, "names": _relations}
