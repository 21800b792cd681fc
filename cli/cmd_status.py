"""traincheck status: one line about a run, for scripts.

Reads the command line; live/status.py does the work.
"""

from __future__ import annotations

import click

from . import _completion


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
