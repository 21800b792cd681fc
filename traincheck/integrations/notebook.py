"""The extension for IPython: ``%load_ext traincheck``, then ``%%traincheck`` checks a cell."""

from __future__ import annotations

import argparse
import ast
import shlex
from typing import Any, NoReturn

from traincheck.errors import UsageError
from traincheck.integrations.watch_options import Options
from traincheck.integrations.watching import Watch

_NAME = "traincheck"
_LISTS = ("select", "ignore", "invariants", "to")


def load(shell: Any) -> None:
    """Add the magic to a shell of IPython."""

    def magic(line: str, cell: str) -> None:
        run_cell(shell, line, cell)

    magic.__doc__ = _parser().format_help()
    shell.register_magic_function(magic, magic_kind="cell", magic_name=_NAME)


def run_cell(shell: Any, line: str, cell: str) -> None:
    """Run a cell in a watch, and show the report below its output.

    Models and optimizers of the notebook are watched, and those that the cell makes.

    Raises:
        UsageError: an option of the line is not usable.
        BaseException: those of the cell. The report is shown before.
    """
    from traincheck.collect.session.attach import WatchedObjects

    options = options_of(line)
    known = WatchedObjects()
    # The values of the user's names.
    known.add_all(
        [value for name, value in list(shell.user_ns.items()) if not name.startswith("_")],
        is_strict=False,
    )
    run = Watch((*known.models, *known.optimizers), options)
    codes = _compiled(shell, cell)
    run.start()
    try:
        for code in codes:
            exec(code, shell.user_global_ns, shell.user_ns)  # the cell of the user
    finally:
        run.stop()
        data, metadata = shell.display_formatter.format(run)
        shell.display_pub.publish(data, metadata)
        shell.user_ns["_traincheck"] = run


def options_of(line: str) -> Options:
    """The options of a line such as ``--every 10 --select TC2``.

    Raises:
        UsageError: one is not usable.
    """
    try:
        given = _parser().parse_args(shlex.split(line))
    except ValueError as error:  # a quotation mark is missing
        raise UsageError(f"%%{_NAME} {line}: {error}", fix="close the quotes") from error
    chosen = {name: value for name, value in vars(given).items() if value is not None}
    for name in _LISTS:
        texts = chosen.get(name, ())
        split = name in ("select", "ignore")
        chosen[name] = [one for text in texts for one in (text.split(",") if split else [text])]
    return Options.of(chosen)


class _Parser(argparse.ArgumentParser):
    """A parser that raises; it does not end the kernel."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%{_NAME}: {message}", fix=self.format_usage().strip())


def _parser() -> _Parser:
    parser = _Parser(prog=f"%%{_NAME}", add_help=False, description="Check the training in a cell.")
    parser.add_argument("--every", type=int, metavar="N", help="check every N-th step")
    parser.add_argument("--warmup", type=int, metavar="N", help="check the first N steps, too")
    parser.add_argument("--limit", type=int, metavar="N", help="stop after N checked steps")
    parser.add_argument("--select", action="append", metavar="CODE", help="check only these")
    parser.add_argument("--ignore", action="append", metavar="CODE", help="skip these")
    parser.add_argument(
        "-i", "--invariants", action="append", metavar="INV", help="also check these"
    )
    parser.add_argument("--no-rules", dest="rules", action="store_false", help="skip the rules")
    parser.add_argument("--halt", action="store_true", help="stop at the first error")
    parser.add_argument("--probe", action="store_true", help="also make experiments on copies")
    parser.add_argument("-o", "--output", metavar="DIR", help="keep the trace")
    parser.add_argument("--to", action="append", metavar="NAME", help="send findings to a receiver")
    return parser


def _compiled(shell: Any, cell: str) -> list[Any]:
    """The code of a cell, at the lines of the notebook; its last expression is displayed.

    Raises:
        SyntaxError: the cell is no Python.
    """
    source = shell.transform_cell(f"# %%{_NAME}\n{cell}")  # the line of the magic counts
    # Versions of IPython count a cell before or after it runs; its input is always the last one.
    number = len(shell.user_ns["In"]) - 1
    name = shell.compile.cache(source, number, raw_code=source)
    body = shell.compile.ast_parse(source, filename=name).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    codes = [shell.compile(ast.Module(body, []), name, "exec")]
    if last is not None:
        codes.append(shell.compile(ast.Interactive([last]), name, "single"))
    return codes
