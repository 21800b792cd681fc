"""traincheck top and traincheck status: a terminal view of a run, and one line about it.

Read the command line; live/ does the work.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from . import _completion

if TYPE_CHECKING:
    pass


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("directory", metavar="DIR", shell_complete=_completion.folders)
@click.option(
    "--check",
    "checks",
    is_flag=True,
    help="Check the run here by the built-in rules, if nothing else checks it. "
    "[default: show what its live check has found]",
)
@click.option("--once", is_flag=True, help="Print what is recorded up to now, and end.")
def top(directory: str, *, checks: bool, once: bool) -> int:
    """Watch a run in the terminal: steps, loss, learning rate, findings, and layers by any number.

    Reads the files of the run only, so it also works over SSH, beside a run that another terminal
    started, and on a recorded run. The run does not notice it.

    Keys: q quits, s sorts the layers by the next column, r reverses the order, / filters by name,
    f shows all findings, ? lists all keys. Without a terminal, the view is printed once.

    \b
    Examples:
      traincheck top traces/live
      traincheck top traces/recorded --check
      traincheck top traces/live --once > now.txt

    \b
    Exit status:
      0  the view was ended, or printed
      2  bad input or usage
      3  a bug of traincheck
    """  # noqa: D301  # click reads the escape
    from rich.console import Console

    from traincheck.api import make_engine
    from traincheck.live.keyboard import Keyboard
    from traincheck.live.viewer import Viewer

    from .cmd_check import one_run

    run = one_run(directory)
    console = Console(file=sys.stdout, highlight=False, force_jupyter=False)
    is_shown = console.is_terminal and not console.is_dumb_terminal and not once
    keys = sys.stdin.fileno() if is_shown and sys.stdin is not None and sys.stdin.isatty() else None
    engine = make_engine() if checks else None
    viewer = Viewer(run, console, engine=engine, keyboard=Keyboard(keys))
    if not is_shown:
        viewer.print_once()
        return 0
    try:
        viewer.show()
    except KeyboardInterrupt:  # a usual way to end it
        return 0
    return 0


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("directory", metavar="DIR", shell_complete=_completion.folders)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the findings.")
def status(directory: str, *, as_json: bool) -> int:
    """Print where a run stands, in one line.

    Reads the files of the run only, a few kilobytes of them, and checks nothing itself. Findings
    are those of the live check: of traincheck run, or of traincheck-check --follow. A value that is
    not known is "-".

    \b
    state     running, ended, failed (not with exit status 0), lost (the processes are gone and no
              end was recorded), or unknown (recorded on another machine)
    step      the latest step that any rank has begun
    checked   the last step that was checked on all ranks
    findings  how many there are, observations and advice apart; errors: those of severity error
    codes     of the findings and observations
    idle_s    seconds since the last record

    \b
    Examples:
      traincheck status traces/live
      traincheck status traces/live --json | jq .checked_step
      while traincheck status traces/live | grep -q state=running; do sleep 60; done

    \b
    Exit status:
      0  no findings so far, advice apart
      1  findings
      2  bad input or usage
      3  a bug of traincheck
      4  nothing was checked so far
    """  # noqa: D301  # click reads the escape
    import orjson

    from traincheck.live.status import run_status, status_json, status_line
    from traincheck.schema.words import printable, printable_json

    from .cmd_check import one_run

    found = run_status(one_run(directory))
    if as_json:
        text = orjson.dumps(status_json(found), option=orjson.OPT_INDENT_2).decode()
        click.echo(printable_json(text))
    else:
        click.echo(printable(status_line(found)))
    return found.verdict
