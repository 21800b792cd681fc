"""traincheck diff: the first difference between two runs, or the ranks of one.

The runs are recorded ones, or those of a program that is recorded here.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traincheck.errors import (
    LaunchError,
    OutputError,
    TraceFormatError,
    TraincheckError,
    UsageError,
)

from . import _completion
from ._options import form, shared
from ._os_errors import say
from ._outputs import require_writable, write_page

if TYPE_CHECKING:
    from traincheck.collect.launch.settings import Settings
    from traincheck.collect.launch.signals import ProgramStopper
    from traincheck.diff.difference import Difference

_FORMS = ("text", "json", "markdown", "junit", "sarif", "github")
_COMMAND = "traincheck.command"  # key in click's context
_SHOWN = 20
COULD_NOT_RUN = 125  # `git bisect run` skips a commit with this status
_TRACES = "traces"
_FIRST_LOOK_S = 1.0
_LATEST_LOOK_S = 30.0
_SHARE = 5  # a look waits at least this many times as long as the last one took
Compare = Callable[[str, str], "Difference"]


class _WithCommand(click.Command):
    """A command whose words after ``--`` are those of a program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = tuple(args[end + 1 :])
        return super().parse_args(ctx, args[:end])


@click.command(
    cls=_WithCommand,
    context_settings={"help_option_names": ["-h", "--help"]},
    options_metavar="[OPTIONS]",
)
@click.argument("runs", nargs=-1, metavar="A B", shell_complete=_completion.folders)
@click.option(
    "--twice",
    is_flag=True,
    help="Record the program after -- twice: the first difference is not deterministic.",
)
@click.option(
    "--against", is_flag=True, help="Record the program after --, and compare it with run A."
)
@shared("halt", help="With --against: stop the program at the first difference.")
@click.option("--ranks", is_flag=True, help="Compare the ranks of one run with its rank 0.")
@click.option(
    "--rank", default="", metavar="R[:R]", help="Rank of A, and of B. [default: all of both]"
)
@click.option("--steps", default="", metavar="FIRST:END", help="Steps of A. [default: all]")
@click.option(
    "--until",
    default="",
    metavar="STEP",
    help="Stop before this step of A: a number, or resume+3.",
)
@click.option(
    "--phase",
    multiple=True,
    metavar="PHASE",
    help="Compare these phases: rng, batch, forward, loss, gradient, optimizer_state, parameter, "
    "buffer. Repeatable; separate several with commas. [default: all]",
)
@click.option("--select", multiple=True, metavar="GLOB", help="Compare these names. Repeatable.")
@click.option("--ignore", multiple=True, metavar="GLOB", help="Leave these names out. Repeatable.")
@click.option(
    "--map",
    "maps",
    multiple=True,
    metavar="OLD=NEW",
    help="A part of names in A, and the same in B. OLD=NEW1|NEW2 if it is several there.",
)
@click.option("--exact", is_flag=True, help="Compare bit for bit. [default]")
@click.option(
    "--rtol", type=float, metavar="X", help="Relative tolerance, as of torch.testing.assert_close."
)
@click.option("--atol", type=float, metavar="X", help="Absolute tolerance.")
@click.option(
    "--control",
    multiple=True,
    metavar="DIR",
    shell_complete=_completion.folders,
    help="Another run of the program of A: by how much it differs is noise. Repeatable.",
)
@click.option(
    "--spread",
    type=float,
    default=3.0,
    show_default=True,
    metavar="X",
    help="With --control: this many times the noise is still alike.",
)
@click.option(
    "--resume",
    type=click.Choice(["auto", "no"]),
    default="auto",
    show_default=True,
    help="Align a run that loads a state of the other with the step it continues from.",
)
@click.option("--all", "shows_all", is_flag=True, help="Also list the other differences.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=_SHOWN,
    show_default=True,
    help="With --all: how many.",
)
@form(*_FORMS, help="Format of the report.")
@shared("output")
@shared("html")
@click.pass_context
def diff(ctx: click.Context, /, runs: tuple[str, ...], **options: Any) -> int:
    """Find the first difference between two recorded runs, its cause, and the code that differs.

    Compares step by step in the order in which one thing causes the next: settings, random
    generators, batch, forward pass, loss, gradients, optimizer state, parameters, buffers,
    evaluation, what is saved. A cause is told only with its proof. A run that resumes the other is
    aligned with it.

    \b
    Examples:
      traincheck diff traces/a traces/b
      traincheck diff traces/full traces/resumed --until resume+3
      traincheck diff traces/a traces/b --rtol 1e-5
      traincheck diff traces/a traces/b --control traces/a2
      traincheck diff traces/ddp --ranks
      traincheck diff traces/a traces/b --html diff.html
      traincheck diff --twice -- python train.py
      git bisect run traincheck diff traces/good --against --halt -- python train.py

    \b
    Exit status:
      0    the runs are the same
      1    they differ
      2    bad input or usage
      3    a bug of traincheck
      4    nothing could be compared
      125  with --against: the program could not be run, or nothing could be compared
    """  # noqa: D301  # click reads the escape
    require_writable(options["output"])
    require_writable(options["html"])
    command = ctx.meta[_COMMAND]
    _refuse_mixture(options, command)
    if options["against"]:
        return _against(runs, command, options)
    found = _twice(runs, command, options) if options["twice"] else _compared(runs, options)
    _write(found, options)
    return found.exit_status


def _compared(runs: Sequence[str], options: dict[str, Any]) -> Difference:
    from traincheck.diff.library import diff as compare

    expected = 1 if options["ranks"] else 2
    if len(runs) != expected:
        names = "one run" if options["ranks"] else "two runs"
        raise UsageError(
            f"{len(runs)} runs are named, and {names} {'is' if expected == 1 else 'are'} compared",
            fix="traincheck diff A --ranks" if options["ranks"] else "traincheck diff A B",
        )
    return compare(*runs, **choices(options))


def choices(options: dict[str, Any]) -> dict[str, Any]:
    """The options of the command as those of `traincheck.diff`."""
    return {
        "rtol": options["rtol"],
        "atol": options["atol"],
        "control": options["control"],
        "spread": options["spread"],
        "rank": options["rank"],
        "steps": options["steps"],
        "until": options["until"],
        "phase": [name for text in options["phase"] for name in text.split(",") if name],
        "select": options["select"],
        "ignore": options["ignore"],
        "map": options["maps"],
        "resume": options["resume"] == "auto",
        "ranks": options["ranks"],
    }


def _twice(runs: Sequence[str], command: Sequence[str], options: dict[str, Any]) -> Difference:
    from traincheck.diff.library import diff as compare

    if runs:
        raise UsageError(
            f"--twice compares two runs of one program, and {runs[0]!r} is named",
            fix="traincheck diff --twice -- python train.py",
        )
    return run_twice(command, lambda a, b: compare(a, b, **choices(options)))


def _against(runs: Sequence[str], command: Sequence[str], options: dict[str, Any]) -> int:
    from traincheck.diff.library import diff as compare
    from traincheck.store.reader import TraceReader

    if len(runs) != 1:
        raise UsageError(
            f"{len(runs)} runs are named, and --against needs one",
            fix="traincheck diff traces/good --against -- python train.py",
        )
    TraceReader(runs[0])  # refuses what is no run, before the program is started
    chosen = choices(options)
    try:
        found, status = run_against(
            runs[0], command, lambda a, b: compare(a, b, **chosen), halts=options["halt"]
        )
    except LaunchError as error:
        click.echo(f"error: {error.message}", err=True)
        return COULD_NOT_RUN
    if found is None:
        return COULD_NOT_RUN
    _write(found, options)
    if found.first is not None:
        return found.exit_status
    return COULD_NOT_RUN if status or not found.same else 0


def _refuse_mixture(options: dict[str, Any], command: Sequence[str]) -> None:
    modes = [name for name in ("twice", "against", "ranks") if options[name]]
    if len(modes) > 1:
        raise UsageError(
            f"--{modes[0]} and --{modes[1]} exclude each other", fix="leave one of them out"
        )
    if command and not (options["twice"] or options["against"]):
        raise UsageError(
            "a program is named, and nothing is to be recorded",
            fix="add --twice, or --against with a run",
        )
    if options["halt"] and not options["against"]:
        raise UsageError("--halt is only for --against", fix="leave it out, or add --against")
    if options["exact"] and (options["rtol"] is not None or options["atol"] is not None):
        raise UsageError("--exact and a tolerance exclude each other", fix="leave one of them out")


def _write(found: Difference, options: dict[str, Any]) -> None:
    from traincheck.report.difference.forms import FORMS

    write_page(options["html"], found.b, difference=found)
    write = FORMS[options["form"]]
    shown = options["limit"] if options["shows_all"] else 0
    if options["output"] is None:
        write(found, sys.stdout, shown)
        return
    try:
        with Path(options["output"]).open("w", encoding="utf-8", errors="backslashreplace") as file:
            write(found, file, shown)
    except OSError as error:
        raise OutputError(
            f"{options['output']}: cannot be written: {error.strerror or error}",
            fix="choose a file in a writable directory with room",
        ) from error


# -- programs that are recorded here


def run_twice(command: Sequence[str], compare: Compare) -> Difference:
    """Record a program twice, and compare the two runs.

    Raises:
        UsageError: there is no program.
        TraincheckError: it could not be started, or nothing was recorded.
    """
    _check(command, "traincheck diff --twice")
    folders = []
    for number in (1, 2):
        folder = _new_folder(command, f"-{number}")
        _record(command, _settings(folder), None)
        folders.append(folder)
    say(f"traincheck: traces in {folders[0]} and {folders[1]}")
    return replace(compare(*map(str, folders)), labels=("run 1", "run 2"))


def run_against(
    reference: str, command: Sequence[str], compare: Compare, *, halts: bool
) -> tuple[Difference | None, int]:
    """Record a program, and compare it with a recorded run, while it runs with ``halts``.

    Returns:
        The difference, None if nothing was recorded; and the exit status of the program, 0 if it
        was stopped at a difference.

    Raises:
        UsageError: there is no program.
        LaunchError: it could not be started.
    """
    _check(command, "traincheck diff A --against")
    folder = _new_folder(command, "")
    watcher = _Watcher(reference, folder, compare) if halts else None
    status = _record(command, _settings(folder, reference), watcher)
    if watcher is not None and watcher.is_stopped:
        status = 0
    try:
        found = compare(reference, str(folder))
    except TraceFormatError as error:
        say(f"traincheck: {error.message}")
        return None, status
    say(f"traincheck: trace in {folder}")
    return found, status


class _Watcher:
    """Compares a run while it is recorded, and stops the program at the first difference."""

    def __init__(self, reference: str, folder: Path, compare: Compare) -> None:
        self.is_stopped = False
        self._reference, self._folder, self._compare = reference, folder, compare
        self._ended = threading.Event()
        self._stop: ProgramStopper | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True, name="traincheck-diff")

    def start(self, process: subprocess.Popen[bytes]) -> None:
        """The program runs."""
        from traincheck.collect.launch.signals import ProgramStopper

        self._stop = ProgramStopper(process, self._folder)
        self._thread.start()

    def finish(self) -> None:
        """The program has ended."""
        self._ended.set()
        if self._stop is not None:
            self._thread.join()

    def _watch(self) -> None:
        wait_s = _FIRST_LOOK_S
        while not self._ended.wait(wait_s):
            began = time.monotonic()
            if self._differs():
                self.is_stopped = True
                assert self._stop is not None
                self._stop()
                return
            wait_s = max(_FIRST_LOOK_S, min(_LATEST_LOOK_S, _SHARE * (time.monotonic() - began)))

    def _differs(self) -> bool:
        try:
            return self._compare(self._reference, str(self._folder)).first is not None
        except TraincheckError:  # nothing is recorded yet
            return False


def _record(command: Sequence[str], settings: Settings, watcher: _Watcher | None) -> int:
    from traincheck.collect.launch.launcher import launch

    try:
        outcome = launch(command, settings, on_start=None if watcher is None else watcher.start)
    finally:
        if watcher is not None:
            watcher.finish()
    if outcome.exit_status and not (watcher and watcher.is_stopped):
        say(f"traincheck: the program ended with exit status {outcome.exit_status}")
    return outcome.exit_status


def _settings(folder: Path, reference: str | None = None) -> Settings:
    """The view in which the reference was recorded; else the view of comparisons, with outputs."""
    from traincheck.collect.launch.settings import Settings
    from traincheck.schema.claims import own_needs
    from traincheck.schema.comparison.diff_view import DIFF, DIFF_NEEDS
    from traincheck.store.reader import TraceReader

    common: dict[str, Any] = {"directory": str(folder.absolute()), "run_id": folder.name}
    if reference is None:
        return Settings(
            **common, view=DIFF, outputs="all", whole=True, source=True, needs=DIFF_NEEDS
        )
    manifest = TraceReader(reference).manifest
    known = dict(manifest.settings) if manifest is not None else {}
    needs = known.pop("needs", None)
    names = ("level", "every", "warmup", "whole", "fold", "view", "outputs", "sketch")
    chosen = {name: known[name] for name in names if name in known}
    packages = tuple(known.get("instrument", ()))
    own = None if needs is None else own_needs(needs)
    return Settings(**common, **chosen, instrument=packages, needs=own)


def _new_folder(command: Sequence[str], suffix: str) -> Path:
    from traincheck.collect.launch.launcher import new_run_id

    return Path(_TRACES) / f"{new_run_id(command)}{suffix}"


def _check(command: Sequence[str], example: str) -> None:
    from traincheck.collect.launch.launcher import check_command

    if not command:
        raise UsageError("no program to run", fix=f"{example} -- python train.py")
    check_command(command, example=f"{example} --")
