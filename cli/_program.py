"""What the commands that run a program share: its words after ``--``, its settings.

Starts nothing.
"""

from __future__ import annotations

import difflib
import shlex
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traincheck.errors import UsageError
from traincheck.schema.claims import Needs
from traincheck.schema.invariant_file import read_invariants

if TYPE_CHECKING:
    from traincheck.check.engine import Engine

_SCRIPTS = (".py", ".sh", ".bash")
PROGRAM = "traincheck.program"  # key in click's context: the words after --


def refuse_nothing_to_check(engine: Engine) -> None:
    """Without any check, "no findings" would sound as if all were well.

    Raises:
        UsageError: no check was chosen.
    """
    if not engine.infos:
        raise UsageError("no check is left to run", fix="select more, ignore less, or give -i")


class ProgramCommand(click.Command):
    """Takes the words after ``--`` away before click reads options: they belong to the program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = args
        if "--" in args:
            place = args.index("--")
            own, ctx.meta[PROGRAM] = args[:place], args[place + 1 :]
        try:
            return super().parse_args(ctx, list(own))  # click empties the list it is given
        except click.NoSuchOption as error:
            raise UsageError(
                f"{ctx.command_path} has no option {error.option_name}",
                fix=_option_fix(error, own, ctx.command_path),
            ) from error


def is_command(word: str) -> bool:
    """Whether a word is a command that the shell would find, and no script."""
    is_script = word.endswith(_SCRIPTS) or Path(word).exists()
    return not is_script and shutil.which(word) is not None


def _option_fix(error: click.NoSuchOption, own: Sequence[str], ours: str) -> str:
    """What was probably meant: an option of ours misspelt, or one of the program before ``--``."""
    name = error.option_name
    nearest = difflib.get_close_matches(name, error.possibilities or (), n=1, cutoff=0.75)
    if nearest:
        return f"did you mean {nearest[0]}? Options of the program go after --"
    place = next((n for n, word in enumerate(own) if word.split("=")[0] == name), None)
    before = own[:place]
    if place is not None and not any(word.endswith(_SCRIPTS) for word in before):
        begin = next((n for n, word in enumerate(before) if is_command(word)), place)
        if begin < place or name == "-m":  # a command, or python's own way to name a program
            words = [*own[:begin], "--", *["python"] * (begin == place), *own[begin:]]
            return shlex.join([*ours.split(), *words])
    if name == "-p" and place is not None and own[place + 1 :]:  # as traincheck-collect has it
        return f"give the script without -p: {shlex.join([*own[:place], *own[place + 1 :]])}"
    rest = [name] if place is None else own[place:]
    return f"options of the program go after --: -- {shlex.join(rest)}"


def invariant_needs(paths: Iterable[str]) -> Needs:
    """The union of what the invariants of these files need.

    Raises:
        UsageError: a file holds no invariant.
        InvariantFormatError: it is not such a file.
    """
    needs = Needs()
    for path in paths:
        invariants = read_invariants(path)
        if not invariants:
            raise UsageError(
                f"{path} holds no invariants, so nothing would be recorded for it",
                fix="leave it out, or infer from more runs",
            )
        for invariant in invariants:
            needs |= invariant.needs
    return needs
