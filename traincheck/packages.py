"""Other packages: what they offer as entry points, and those that only some functions need."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from traincheck.errors import MissingDependencyError, UsageError, suggested


def offered(group: str) -> list[EntryPoint]:
    """The entry points of a group that installed packages offer, in an order that never changes.

    Nothing is imported.
    """
    return sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value))


class Registry:
    """Things by name: ours, then those of other packages. Only what is asked for is imported.

    Args:
        group: name of the entry points.
        kind: the word for such a thing. title: the word at its first mention, if it is longer.
        built_in: name -> ``module:attribute`` of ours.

    Attributes:
        built_in: ours, as entry points.
    """

    def __init__(
        self, group: str, kind: str, built_in: Mapping[str, str], *, title: str = ""
    ) -> None:
        self._group, self._kind, self._title = group, kind, title or kind
        self.built_in = {name: EntryPoint(name, at, group) for name, at in built_in.items()}

    def entries(self) -> dict[str, EntryPoint]:
        """Ours, then those of other packages.

        Raises:
            UsageError: a package offers one whose name is taken.
        """
        entries = dict(self.built_in)
        for entry in offered(self._group):
            if entry.name in entries:
                raise UsageError(
                    f"{entry.value} offers {self._title} {entry.name!r}, which exists already",
                    fix=f"uninstall the package or rename its {self._kind}",
                )
            entries[entry.name] = entry
        return entries

    def find(self, name: str, hidden: str = "") -> EntryPoint:
        """The one of a name; nothing is imported. hidden: a name that is not for users.

        Raises:
            UsageError: there is none of this name.
        """
        entries = self.entries()
        if name not in entries:
            known = [one for one in entries if one != hidden]
            raise UsageError(
                f"there is no {self._title} {name!r}",
                fix=f"{suggested(name, known)}There are {', '.join(known)}",
            )
        return entries[name]


def imported(name: str, what: str, package: str = "") -> Any:
    """A module of a package that is not required.

    Args:
        name: of the module.
        what: the name of the program, for the message.
        package: to install; empty if it is named as the module is.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = package or name.partition(".")[0]
        raise MissingDependencyError(
            f"{what} needs the package {package}: {error}", fix=f"pip install {package}"
        ) from error
