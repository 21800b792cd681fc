"""traincheck-collect: record one run of a program.

Reads the command line and the configuration; the work is in traincheck/collect/launch/launcher.py.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from traincheck.collect.launch.settings import VIEWS, Level, Settings
from traincheck.errors import UsageError
from traincheck.schema.checksums import parse_schedule

from . import _completion
from ._options import configuration, overridden, shared
from ._os_errors import say
from ._program_args import PROGRAM, Program, ProgramCommand, check_command_line, invariant_needs

if TYPE_CHECKING:
    from traincheck.config import CollectConfig, Config
    from traincheck.schema.claims import Needs

_LEVELS = get_args(Level)


@click.command(
    cls=ProgramCommand,
    context_settings={"help_option_names": ["-h", "--help"]},
    options_metavar="[OPTIONS] -p SCRIPT [ARGS]...",
)
@click.option(
    "-p",
    "--script",
    metavar="SCRIPT",
    shell_complete=_completion.files,
    help="Python script to run.",
)
@click.option(
    "-s", "--shell", metavar="SCRIPT", shell_complete=_completion.files, help="Shell script to run."
)
@shared("output_folder")
@shared(
    "invariants", help="Record only the events that the invariants of this file need. Repeatable."
)
@click.option(
    "--rules",
    is_flag=True,
    help="Record only the events that the selected built-in rules need (in addition to -i).",
)
@shared("every", help="Record every N-th step. With -i, --every 1 records every step in full.")
@shared(
    "warmup",
    help="Record the first N steps in full, regardless of --every. Some bugs need consecutive "
    "steps to show (for example gradients cleared before they are used).",
)
@click.option(
    "--checksums",
    metavar="STEPS",
    help="Also record a checksum and statistics of each parameter, gradient, buffer, optimizer "
    "state, random generator and batch, in the steps STEPS: all, every=100, first=10, 5:8, or "
    "several with commas; rank=0 restricts it to a rank. See traincheck trace checksums.",
)
@click.option("--level", type=click.Choice(_LEVELS), help="Level of detail; deep adds operators.")
@click.option(
    "--view",
    type=click.Choice(VIEWS),
    help="Record for one purpose: diff for the comparison of runs. Records the states of random "
    "generators, fingerprints of variables, batches, losses and outputs, and a digest of each "
    "phase of a step.",
)
@click.option(
    "--outputs",
    metavar="all|root|GLOB",
    help="With --view: the modules whose outputs are fingerprinted. GLOB matches paths, such as "
    "'Net.layers.*'. [default: root]",
)
@click.option(
    "--sketch",
    is_flag=True,
    help="With --view: also record a linear sketch of each tensor, which tells how large a "
    "difference is. Costs about 10 ms for a million elements.",
)
@shared("probe")
@shared("no_source")
@click.option(
    "--instrument",
    metavar="PKG",
    multiple=True,
    help="Also record calls into this package of yours. Repeatable.",
)
@shared(
    "select",
    help="Rules (by code or prefix, such as TC201 or TC2) and relations (by name) for --rules and "
    "--check. Repeatable; separate several with commas. [default: all]",
)
@shared("ignore")
@shared("config")
@click.option(
    "--check",
    is_flag=True,
    help="Check the run while it is recorded, with the rules and the invariants of -i.",
)
@shared("halt", help="Stop the program at the first finding of severity error. Implies --check.")
@click.option(
    "--quiet", is_flag=True, help="Do not print where the trace is when the run has ended."
)
@click.pass_context
def collect(ctx: click.Context, /, **options: Any) -> int:
    """Record a training program, without any change to it.

    The program runs as it does without traincheck: same arguments, working directory, output, exit
    status and random numbers. Every Python process that it starts is recorded too. When the program
    has ended, one line on stderr shows where the trace is.

    \b
    Examples:
      traincheck-collect -p train.py
      traincheck-collect -o traces/good -p train.py --lr 0.1 --epochs 2
      traincheck-collect -s run.sh
      traincheck-collect -o traces/good -- python -m package.train --lr 0.1
      traincheck-collect -o traces/ddp -- torchrun --nproc-per-node 2 train.py
      traincheck-collect -i invariant.json -p train.py
      traincheck-collect -i invariant.json --every 10 -p train.py --lr 0.1
      traincheck-collect --view diff --outputs all -o traces/a -p train.py

    Options of traincheck may also follow the script directly. From the first other word on, all
    words are passed to the script.

    \b
    Exit status: that of the program, 128+n if signal n ended it; 2 if it could not be started.
    """  # noqa: D301  # click reads the escape
    from traincheck.collect.launch.launcher import launch, new_run_id

    command = _command(options, ctx.meta[PROGRAM])
    project = configuration(options)
    config = overridden(project.collect, options)
    needs = _needs(config, project)
    checksums = options["checksums"] or ""
    if checksums:
        parse_schedule(checksums)  # refuse what is not one before the program runs
    run_id = new_run_id(command)
    directory = Path(config.output) if config.output else Path("traces") / run_id
    settings = replace(
        _settings(config, directory=str(directory.absolute()), run_id=run_id, needs=needs),
        checksums=checksums,
        probe=options["probe"],
        source=not options["no_source"],
    )
    where = shlex.quote(str(directory))
    again = check_command_line(directory, {**options, "invariants": config.invariants})
    if options["check"] or options["halt"]:
        from traincheck.report.run_summary import RunSummary

        from ._live import LiveCheck, engine_for, write_summary

        engine = engine_for(command, config.invariants, project)
        live = LiveCheck(engine, Path(settings.directory), halts=options["halt"])
        outcome = launch(command, settings, on_start=live.start)
        report = live.finish()
        if not options["quiet"]:
            trace = f"{where}; full report: {again}"
            write_summary(RunSummary(report=report, watched=live.watched, trace=trace))
        return outcome.exit_status  # that of the program, also with findings
    outcome = launch(command, settings)
    if not options["quiet"]:
        line = f"trace in {where}; next: {again}" if outcome.processes else f"no trace in {where}"
        say("; ".join([f"traincheck: {line}", *outcome.notes]))
    return outcome.exit_status


def _command(options: dict[str, Any], program: Program) -> list[str]:
    """The command to run, from -p, -s or the words after ``--``."""
    from traincheck.collect.launch.launcher import check_command, script_command, shell_command

    script, shell, words = options["script"], options["shell"], program.words
    if program.stray:
        first = program.stray[0]
        names = {".py": "-p", ".sh": "-s", ".bash": "-s"}
        name = names.get(Path(first).suffix, "--")
        line = shlex.join(["traincheck-collect", *program.own, name, *program.stray])
        raise UsageError(f"unexpected argument {first!r}", fix=line)
    if script and shell:
        raise UsageError("-p and -s cannot be used together", fix="name one program to run")
    if script:
        return script_command(script, words)
    if shell:
        return shell_command(shell, words)
    if not words:
        raise UsageError(
            "no program to run",
            fix="traincheck-collect -p train.py, or traincheck-collect -- torchrun train.py",
        )
    check_command(words)
    return list(words)


def _needs(config: CollectConfig, project: Config) -> Needs | None:
    """The union of what the invariants and, if asked for, the rules need; None for everything."""
    if not config.invariants and not config.rules and not config.view:
        return None
    needs = invariant_needs(config.invariants)
    if config.view:
        from traincheck.schema.comparison.diff_view import DIFF_NEEDS

        needs |= DIFF_NEEDS
    if config.rules:
        from traincheck.api import chosen_rules

        rules = chosen_rules(project)
        if not rules and not config.invariants and not config.view:
            raise UsageError("no rule is selected", fix="widen --select, or narrow --ignore")
        for rule in rules:
            needs |= rule.needs
    return needs


def _settings(
    config: CollectConfig, *, directory: str, run_id: str, needs: Needs | None
) -> Settings:
    """Settings with what was given; the rest keeps the defaults of Settings."""
    level = config.level
    if level is not None and level not in _LEVELS:
        raise UsageError(f"level is {level!r}", fix=f"one of {', '.join(_LEVELS)}")
    if config.view not in (None, *VIEWS):
        raise UsageError(f"view is {config.view!r}", fix=f"one of {', '.join(VIEWS)}")
    if not config.view and (config.sketch or config.outputs is not None):
        name = "sketch" if config.sketch else "outputs"
        raise UsageError(f"{name} is set without a view", fix="add --view diff")
    given = {
        "level": level,
        "every": config.every,
        "warmup": config.warmup,
        "view": config.view,
        "outputs": config.outputs,
    }
    return Settings(
        directory=directory,
        run_id=run_id,
        needs=needs,
        instrument=config.instrument,
        whole=config.every is not None or bool(config.view),
        sketch=config.sketch,
        fold=bool(config.rules) and not (config.invariants or config.view) and config.every is None,
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
    )
