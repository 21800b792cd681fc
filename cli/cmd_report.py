"""traincheck report: a recorded run as one HTML page.

Reads the command line; page/ does the work.
"""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traincheck.presets import preset_path

from . import _completion
from ._options import configuration, shared
from ._outputs import require_writable, save_page
from .cmd_check import one_run, progress

if TYPE_CHECKING:
    pass

_NAME = "report.html"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("directory", metavar="DIR", shell_complete=_completion.folders)
@click.option(
    "--against",
    metavar="DIR2",
    shell_complete=_completion.folders,
    help="Also compare the run with this one, and mark the first difference.",
)
@shared("invariants")
@shared("presets")
@shared("no_rules")
@shared("select")
@shared("ignore")
@shared("config")
@shared("output", default=_NAME, show_default=True, help="Where to write the page.")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
def report(**options: Any) -> int:
    """Write a page about a recorded run: findings, curves, layers over steps, steps in detail.

    The page is one file. It needs no network and no server, so it can be sent, attached and kept.
    It holds names, lines and numbers of the run, never contents of tensors.

    \b
    Examples:
      traincheck report traces/run
      traincheck report traces/new -i invariant.json -o new.html
      traincheck report traces/new --against traces/good --open

    \b
    Exit status:
      0  the page was written
      2  bad input or usage
      3  a bug of traincheck
    """  # noqa: D301  # click reads the escape
    from traincheck.api import make_engine, program_of, root_of
    from traincheck.check.suppression.source_files import SourceFiles, trusted_folders
    from traincheck.page.build import page_of_run
    from traincheck.report.sentences import conclusion
    from traincheck.store.reader import TraceReader

    require_writable(options["output"])
    config = configuration(options)
    run = one_run(options["directory"])
    reader = TraceReader(run, may_be_empty=True)
    engine = make_engine(
        [*options["invariants"], *map(preset_path, options["presets"])],
        rules=not options["no_rules"],
        config=config,
        sources=SourceFiles(lambda: root_of(reader), trusted_folders(run)),
        program=lambda: program_of(reader),
    )
    other, difference = None, None
    if options["against"] is not None:
        from traincheck.diff.library import diff

        against = one_run(options["against"])
        other, difference = TraceReader(against), diff(against, run)
    with progress(reader):
        html, found = page_of_run(engine, reader, against=other, difference=difference)
    path = Path(options["output"])
    save_page(str(path), html)
    size = f"{len(html.encode()) / 1e3:,.0f} kB"
    click.echo(f"{conclusion(found)}; page in {path} ({size})", err=True)
    if options["opens"]:
        webbrowser.open_new_tab(path.absolute().as_uri())
    return 0
