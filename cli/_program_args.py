"""Shared by the commands that run a program: the words of the program, and its settings.

Starts nothing.
"""

from __future__ import annotations

import difflib
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from traincheck.errors import UsageError
from traincheck.schema.claims import Needs
from traincheck.schema.invariant_file import read_invariants

from ._os_errors import ignore_closed_stderr

if TYPE_CHECKING:
    from traincheck.check.engine import Engine

_SCRIPTS = (".py", ".sh", ".bash")
_SCRIPT_OPTIONS = {"script": "-p", "shell": "-s"}  # parameters of click whose value is the script
_CHOICES = {  # options of collect and run that check has too
    "invariants": "-i",
    "no_rules": "--no-rules",
    "select": "--select",
    "ignore": "--ignore",
    "config": "--config",
    "baseline": "--baseline",
}
PROGRAM = "traincheck.program"  # key in click's context


@dataclass(frozen=True, slots=True)
class Program:
    """A command line, split at the script or at ``--``.

    own: words for click, the script included. script: the script, if there is one.
    words: what belongs to the program. stray: words that stand where a script is missing.
    """

    own: tuple[str, ...]
    script: str | None = None
    words: tuple[str, ...] = ()
    stray: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """The words for click, without the script."""
        return tuple(word for word in self.own if word != self.script)


def require_checks(engine: Engine) -> None:
    """Refuse a run without checks: "no findings" would be misleading.

    Raises:
        UsageError: no check was chosen.
    """
    if not engine.infos:
        raise UsageError("no check is selected", fix="widen --select, narrow --ignore, or add -i")


class ProgramCommand(click.Command):
    """A command that runs a program: the words after the script belong to the program.

    The script is the first argument, or the value of ``-p`` or ``-s``. Options of ours stand before
    it. As ``-p`` is an option itself, options of ours may also follow it directly.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = {
            name: param
            for param in self.get_params(ctx)
            if isinstance(param, click.Option)
            for name in (*param.opts, *param.secondary_opts)
        }
        takes_script = any(isinstance(param, click.Argument) for param in self.params)
        place, end = _count_own(args, options)
        rest = args[place:]
        if rest and takes_script and rest[0] != "--":
            place, end, rest = place + 1, place + 1, args[place + 1 :]
        own, script = tuple(args[:place]), args[end - 1].rpartition("=")[2] if end else None
        if rest[:1] == ["--"]:
            program = Program(own, script, words=tuple(rest[1:]))
        elif script is None:
            program = Program(own, stray=tuple(rest))
        else:
            program = Program(own, script, words=tuple(rest))
            if not ctx.resilient_parsing:
                _reject_between(ctx.command_path, program, own[end:])
                _note_passed_on(program, options, ctx.help_option_names)
        ctx.meta[PROGRAM] = program
        try:
            return super().parse_args(ctx, list(own))  # click empties the list it is given
        except click.NoSuchOption as error:
            raise UsageError(
                f"{ctx.command_path} has no option {error.option_name}",
                fix=_option_fix(error, args, ctx.command_path, options, takes_script=takes_script),
            ) from error

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        program = ctx.meta.get(PROGRAM)
        if program is not None and (program.script or program.words):
            return [CompletionItem(incomplete, type="file")]  # the program's, as the shell does
        return super().shell_complete(ctx, incomplete)


def _count_own(args: Sequence[str], options: Mapping[str, click.Option]) -> tuple[int, int]:
    """How many words are ours at the beginning, and where the value of -p or -s ends, or 0."""
    place = end = 0
    while place < len(args) and args[place] != "--":
        word = args[place]
        name, is_long = word.partition("=")[0], word.startswith("--")
        option = options.get(name if is_long else word[:2])
        if option is None and (end or not word.startswith("-") or word == "-"):
            break
        has_value = "=" in word if is_long else len(word) > len("-o")
        place += 1
        if option is not None and not (option.is_flag or option.count or has_value):
            place += 1
        if option is not None and option.name in _SCRIPT_OPTIONS:
            end = min(place, len(args))
    return min(place, len(args)), end


def _reject_between(path: str, program: Program, between: Sequence[str]) -> None:
    """`-p train.py -o x --lr 1`: only the user knows whose ``-o`` that is."""
    if not between or not program.words:
        return
    before = program.own[: len(program.own) - len(between)]
    ours = shlex.join([*path.split(), *between, *before, *program.words])
    theirs = shlex.join([*path.split(), *before, "--", *between, *program.words])
    raise UsageError(
        f"{between[0]} is ambiguous: it stands between {program.script} and its arguments",
        fix=f"put options of traincheck before the script: {ours}\n"
        f"  or, if it is an argument of {program.script}: {theirs}",
    )


def _note_passed_on(
    program: Program, options: Mapping[str, click.Option], helps: Sequence[str]
) -> None:
    """Note words of the program that are also options of ours; ``--`` silences the note."""
    names = dict.fromkeys(word.partition("=")[0] for word in program.words)
    passed = [name for name in names if name in options and name not in helps]
    if passed:
        was = "was" if len(passed) == 1 else "were"
        with ignore_closed_stderr():
            click.echo(
                f"traincheck: note: {', '.join(passed)} {was} passed to {program.script}; "
                "put options of traincheck before the script",
                err=True,
            )


def is_command(word: str) -> bool:
    """Whether a word is a command that the shell would find, and not a script."""
    return not is_script(word) and shutil.which(word) is not None


def program_command(program: Program, ours: str) -> list[str]:
    """The command to run: a script with its arguments, or the words after ``--``.

    Args:
        program: the split command line.
        ours: the command of traincheck that runs it, for the advice.

    Raises:
        UsageError: no program is named, or a command stands where a script must.
        LaunchError: the program cannot be found.
    """
    from traincheck.collect.launch.launcher import check_command, script_command, shell_command

    script, words = program.script, program.words
    if script is None:
        if not words:
            raise UsageError(
                "no program to run", fix=f"{ours} train.py, or {ours} -- torchrun train.py"
            )
        check_command(words, example=ours)
        return list(words)
    if script.endswith((".sh", ".bash")):
        return shell_command(script, words)
    if is_command(script):
        line = shlex.join([*ours.split(), *program.options, "--", script, *words])
        raise UsageError(f"{script!r} is a command, not a script", fix=line)
    return script_command(script, words)


def is_script(word: str) -> bool:
    """Whether a word names a script."""
    return word.endswith(_SCRIPTS) or Path(word).is_file()


def suggested_run(words: Sequence[str]) -> str | None:
    """The `traincheck run` command line that was probably meant."""
    words = words[1:] if words[:1] == ["-p"] else words
    if words and is_script(words[0]):
        return shlex.join(["traincheck", "run", *words])
    if words[:1] == ["-m"]:
        return shlex.join(["traincheck", "run", "--", "python", *words])
    words = words[1:] if words[:1] == ["--"] else words
    if words and is_command(words[0]):
        return shlex.join(["traincheck", "run", "--", *words])
    return None


def check_command_line(directory: Path, options: Mapping[str, Any]) -> str:
    """The command that checks a recorded run by the checks that these options chose."""
    words = ["traincheck-check", "-t", str(directory)]
    for name, option in _CHOICES.items():
        given = options.get(name) or ()
        if given is True:
            words.append(option)
            continue
        for value in (given,) if isinstance(given, str) else given:
            words += [option, value]
    return shlex.join(words)


def _option_fix(
    error: click.NoSuchOption,
    args: Sequence[str],
    ours: str,
    options: Mapping[str, click.Option],
    *,
    takes_script: bool,
) -> str:
    """The option that was probably meant: one of ours misspelt, or one of the program."""
    name = error.option_name
    if len(name) > len("-q"):
        nearest = difflib.get_close_matches(name, error.possibilities or (), n=1, cutoff=0.75)
    else:  # as other commands abbreviate --quiet; what -m and -p mean is said below
        is_known = name in ("-m", "-p")
        nearest = [] if is_known else [one for one in options if one.startswith(f"-{name}")]
    if nearest:
        meant = " or ".join(nearest)
        return f"did you mean {meant}? Put arguments of the program after its script"
    place = next((n for n, word in enumerate(args) if word.partition("=")[0] == name), len(args))
    before, rest = args[:place], args[place:]
    if name == "-m":  # python's own way to name a program
        return shlex.join([*ours.split(), *before, "--", "python", *rest])
    if name == "-p" and rest[1:]:  # as traincheck-collect has it
        return f"name the script without -p: {shlex.join([*ours.split(), *before, *rest[1:]])}"
    script = next((n for n, word in enumerate(rest) if word.endswith(_SCRIPTS)), None)
    if script is None:
        return f"put arguments of the program after its script; {ours} --help lists the options"
    begin = script - (rest[script - 1] in ("-p", "-s", "--script", "--shell"))
    # Up to the next option of ours, the words are those of the program.
    kept = next((n for n in range(1, begin) if rest[n].partition("=")[0] in options), begin)
    named = rest[begin : script + 1]
    named = named if takes_script or begin < script else ["-p", *named]
    moved = [*before, *rest[kept:begin], *named, *rest[:kept], *rest[script + 1 :]]
    return f"put arguments of the program after its script: {shlex.join([*ours.split(), *moved])}"


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
                f"{path} has no invariants, so nothing would be recorded for it",
                fix="leave it out, or learn from more runs",
            )
        for invariant in invariants:
            needs |= invariant.needs
    return needs
