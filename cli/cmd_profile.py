"""traincheck profile: the layers of a training step, of a recorded one, or of two compared.

Reads the command line; collect/profile/ records, traincheck/profile/ reads and shows.
"""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traincheck.collect.launch.settings import MOST_STEPS
from traincheck.errors import UsageError
from traincheck.schema.findings import FINDINGS
from traincheck.schema.layout import EVENT_GLOB, PROFILED

from . import _completion
from ._options import form, shared
from ._outputs import require_writable, write_page
from ._program_args import PROGRAM, Program, ProgramCommand, is_command

if TYPE_CHECKING:
    from traincheck.profile.numbers import Profile
    from traincheck.profile.table import TableOptions

_DEFAULT_STEP, _DEFAULT_STEPS = 10, 3
_NOTHING_CHECKED = 4


class ProfileCommand(ProgramCommand):
    """Options may follow the folder of a trace; behind a script they belong to the program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = next((word for word in args if not word.startswith("-")), "")
        if not _is_trace(first):
            return super().parse_args(ctx, args)
        ctx.meta[PROGRAM] = Program(tuple(args), first)
        return click.Command.parse_args(self, ctx, args)


@click.command(cls=ProfileCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument(
    "script", required=False, metavar="SCRIPT [ARGS]... | DIR", shell_complete=_completion.files
)
@click.option(
    "--step",
    type=click.IntRange(min=0, max=MOST_STEPS),
    default=_DEFAULT_STEP,
    show_default=True,
    help="The first profiled step, from 0. The first steps of a program are slower than others.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1, max=1000),
    default=_DEFAULT_STEPS,
    show_default=True,
    help="Number of profiled steps. The one of median duration is shown.",
)
@click.option(
    "--depth",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Levels of modules in the tree.",
)
@click.option("--sort", metavar="COLUMN", help="List the layers in the order of this column.")
@click.option("--columns", metavar="NAMES", help="Columns of the table, separated by commas.")
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Show only the first N rows.")
@form("text", "json", "csv", help="Format of the profile.")
@shared("output", help="Write the profile to FILE. [default: stdout]")
@click.option(
    "--trace",
    metavar="DIR",
    shell_complete=_completion.folders,
    help="New folder for the trace; it is kept.",
)
@shared("html")
@click.option("--rank", type=click.IntRange(min=0), help="Show this rank. [default: the lowest]")
@click.option("--stop", is_flag=True, help="End the program after the profiled steps.")
@click.option(
    "--first-nonfinite",
    is_flag=True,
    help="Show only the first NaN or infinity; exit with 1 if there is one.",
)
@click.option(
    "--diff",
    metavar="A.json",
    shell_complete=_completion.files,
    help="Compare two profiles in JSON: --diff A.json B.json.",
)
@click.pass_context
def profile(ctx: click.Context, /, **options: Any) -> int:
    """Profile the layers of a training step: time, memory, FLOPs, shapes, the first NaN.

    Runs the program unchanged and measures some of its steps. All other steps run at full speed.

    \b
    Examples:
      traincheck profile train.py
      traincheck profile --step 100 --steps 5 --stop train.py --lr 0.1
      traincheck profile --sort retained --top 10 -- torchrun --nproc-per-node 2 train.py
      traincheck profile --format json -o a.json train.py
      traincheck profile --diff a.json b.json
      traincheck profile traces/run --first-nonfinite

    \b
    Columns: out, in, dtype, calls, params, trainable, flops, fwd-self, fwd, bwd-self, bwd, self,
    total, retained, retained-self, gradients, states.

    \b
    Exit status, the first that applies:
      1  with --first-nonfinite, a NaN or infinity was found; with --diff, the profiles differ
      n  exit status of the program, if it is not 0 and --stop did not end it
      4  no step was profiled: the program has too few
      0  none of these
      2  bad input or usage; the program was not started
      3  a bug of traincheck
    """  # noqa: D301  # click reads the escape
    table = _table_options(options)
    require_writable(options["output"])
    require_writable(options["html"])
    if options["diff"] is not None:
        return _compare(options)
    program: Program = ctx.meta[PROGRAM]
    script = options["script"]
    if script is not None and _is_trace(script):
        if options["first_nonfinite"]:
            return _first_nonfinite(Path(script), options)
        from traincheck.profile.numbers import read_profile

        found = read_profile(Path(script), rank=options["rank"])
        _write(found, table, options)
        write_page(options["html"], script, profile=found)
        return 0
    return _run(program, table, options)


def _is_trace(word: str) -> bool:
    return Path(word).is_dir() and any(Path(word).glob(EVENT_GLOB))


def _table_options(options: dict[str, Any]) -> TableOptions:
    from traincheck.profile.table import DEFAULT, TableOptions

    names = options["columns"]
    columns = tuple(filter(None, (name.strip() for name in names.split(",")))) if names else DEFAULT
    sort = options["sort"] or ("self" if options["top"] else None)
    return TableOptions(depth=options["depth"], sort=sort, columns=columns, top=options["top"])


# -- a program


def _run(program: Program, table: TableOptions, options: dict[str, Any]) -> int:
    from traincheck.collect.launch.launcher import launch, new_run_id
    from traincheck.collect.launch.settings import Settings
    from traincheck.schema.claims import Needs
    from traincheck.store.reader import TraceReader

    from ._live import StopAt

    command = _command(program)
    with tempfile.TemporaryDirectory(prefix="traincheck-profile-") as folder:
        directory = Path(options["trace"] or Path(folder) / "trace").absolute()
        settings = Settings(
            directory=str(directory),
            run_id=new_run_id(command),
            needs=Needs(kinds=frozenset({"profile"})),
            profile=(options["step"], options["steps"]),
        )
        stopper = StopAt(directory, PROFILED, is_on=options["stop"])
        try:
            outcome = launch(command, settings, on_start=stopper.start)
        finally:
            stopper.end()
        status = 0 if stopper.has_stopped else outcome.exit_status
        found = _profiles(directory)
        if not found:
            events = TraceReader(directory, may_be_empty=True).events()
            steps = sum(1 for event in events if event.kind == "step")
            why = f"the run had {steps} steps, and --step is {options['step']}"
            _warn(f"no step was profiled: {why if steps else 'no training step was seen'}")
            return status or _NOTHING_CHECKED
        profile = _of_rank(found, options["rank"])
        if len(found) > 1:
            _warn(f"rank {profile.rank} of {len(found)} is shown; --rank shows another one")
        if options["first_nonfinite"]:
            return _tell_origin(profile) or status
        _write(profile, table, options)
        write_page(options["html"], directory, profile=profile)
        return status


def _command(program: Program) -> list[str]:
    """The command to run: a script with its arguments, or the words after ``--``."""
    from traincheck.collect.launch.launcher import check_command, script_command, shell_command

    script, words = program.script, program.words
    if script is None:
        if not words:
            raise UsageError("no program to profile", fix="traincheck profile train.py")
        check_command(words, example="traincheck profile")
        return list(words)
    if Path(script).is_dir():
        raise UsageError(
            f"{script} is a folder without a trace", fix="name a script, or the folder of a run"
        )
    if script.endswith((".sh", ".bash")):
        return shell_command(script, words)
    if is_command(script):
        raise UsageError(
            f"{script!r} is a command, not a script", fix=f"traincheck profile -- {script}"
        )
    return script_command(script, words)


# -- traces and files


def _profiles(directory: Path) -> dict[int, Profile]:
    from traincheck.profile.numbers import profiles_of
    from traincheck.store.reader import TraceReader

    return profiles_of(TraceReader(directory, may_be_empty=True).events())


def _of_rank(found: dict[int, Profile], rank: int | None) -> Profile:
    if rank is not None and rank not in found:
        ranks = ", ".join(map(str, sorted(found)))
        raise UsageError(f"rank {rank} has no profiled step", fix=f"there are {ranks}")
    return found[min(found) if rank is None else rank]


def _write(profile: Profile, table: TableOptions, options: dict[str, Any]) -> None:
    if options["form"] == "json":
        from traincheck.profile.tree import document
        from traincheck.schema.files import dump_json

        text = dump_json(document(profile)).decode() + "\n"
    elif options["form"] == "csv":
        from traincheck.profile.tree import rows_of

        rows, written = rows_of(profile.typical), io.StringIO()
        if rows:
            writer = csv.DictWriter(written, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        text = written.getvalue()
    else:
        from traincheck.profile.table import table as table_text

        text = table_text(profile, table)
    _put(text, options["output"])


def _put(text: str, output: str | None) -> None:
    if output is None:
        click.echo(text, nl=False)
    else:
        Path(output).write_text(text, encoding="utf-8")


def _compare(options: dict[str, Any]) -> int:
    from traincheck.profile.difference import changes, difference_text, read_document

    if options["html"]:
        raise UsageError("--diff writes no page", fix="leave out --html")
    if options["script"] is None:
        raise UsageError("--diff needs two profiles", fix="traincheck profile --diff A.json B.json")
    names = [options["diff"], options["script"]]
    before, after = map(read_document, names)
    _put(difference_text(before, after, names), options["output"])
    return FINDINGS if changes(before, after) else 0


def _first_nonfinite(directory: Path, options: dict[str, Any]) -> int:
    """From the profiled steps of a trace; of a trace without them, as rule TC701 finds it."""
    found = _profiles(directory)
    if found:
        return _tell_origin(_of_rank(found, options["rank"]))
    from traincheck.api import check
    from traincheck.report.text_report import one_line

    report = check(directory, rules=True, select=["TC701"])
    for finding in report.findings:
        click.echo(one_line(finding))
    if not report.findings:
        click.echo("no NaN and no infinity was recorded")
    return FINDINGS if report.findings else 0


def _tell_origin(profile: Profile) -> int:
    from traincheck.profile.table import origin_text

    click.echo(origin_text(profile.origin, len(profile.steps)))
    return 0 if profile.origin is None or profile.origin.is_skipped else FINDINGS


def _warn(text: str) -> None:
    click.echo(f"traincheck: {text}", err=True)
