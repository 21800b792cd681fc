"""The lines of the terminal view: a function of the run, its status, and what the keys chose.

Every line fits the width. Names and texts come from the trace, so they are made printable.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from traincheck.live.checked import Checked, tier_of
from traincheck.live.status import RunStatus
from traincheck.live.timeline import BLOCKS, LiveTimeline, sparkline
from traincheck.page.timeline import GRADIENT, LOSS, RATE
from traincheck.report.lines import COLOURS
from traincheck.schema.shown import advice_text
from traincheck.schema.words import counted, printable

_T = TypeVar("_T")
OVERVIEW, FINDINGS, HELP = "overview", "findings", "help"
MODEL_ORDER = "model order"
_STATES = {
    "running": "bold green",
    "ended": "green",
    "failed": "bold red",
    "lost": "bold red",
    "removed": "yellow",
    "unknown": "yellow",
}
_SHORT = {
    "learning rate": "lr",
    "gradient norm": "grad norm",
    "parameter norm": "param norm",
    "activation rms": "act rms",
    "update over parameter": "upd/param",
    "gradient norm by variable": "grad norm",
    "rms of the difference to the reference": "diff rms",
}
_NUMBER = 12  # characters of a column of numbers
_LEAST_CURVE = 6
_LEAST_NAME, _LEAST_HISTORY, _MOST_HISTORY = 18, 12, 60
_MEGA = 1e6
_KEYS = (
    ("q", "quit"),
    ("s, S", "sort layers by the next or previous column"),
    ("1 to 9", "sort layers by this column; 0: order of the model"),
    ("r", "reverse the order"),
    ("up, down", "scroll a line; PageUp, PageDown, Home and End scroll more"),
    ("/", "show only layers whose name contains a text; Escape ends it"),
    ("f", "show all findings with cause and fix"),
    ("l", "show the layers"),
    ("space", "hold the screen; the run is still read"),
    ("?", "show this list"),
)


@dataclass(slots=True, kw_only=True)
class Choice:
    """The choice that the keys made.

    Attributes:
        page: OVERVIEW, FINDINGS or HELP.
        sort: name of the column that layers are sorted by, or MODEL_ORDER.
        is_reversed: the smallest first.
        offset: first line that is shown of the list.
        only: text that names of layers contain.
        is_typing: keys go to this text.
        is_held: the screen does not change.
    """

    page: str = OVERVIEW
    sort: str = MODEL_ORDER
    is_reversed: bool = False
    offset: int = 0
    only: str = ""
    is_typing: bool = False
    is_held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Everything that is shown.

    Attributes:
        program: its script, or the name of the run.
        timeline: the run so far.
        status: where it stands.
        checked: findings and verdicts; None if nothing checks the run.
        behind: bytes that are not read yet.
        output: the last lines that the program wrote, where it runs under the view.
        blocks: of sparklines.
    """

    program: str
    timeline: LiveTimeline
    status: RunStatus
    checked: Checked | None
    behind: int = 0
    output: Sequence[str] = ()
    blocks: str = BLOCKS


def screen(scene: Scene, choice: Choice, width: int, height: int | None = None) -> list[Text]:
    """The lines of the view.

    Args:
        scene: what is shown.
        choice: what the keys chose; its offset is limited to what there is.
        width: characters of a line.
        height: number of lines; None for as many as there are.
    """
    head = [_header(scene, width), _curves(scene, width)]
    foot = [_footer(scene, width), _keys(choice, width)] if height else [_footer(scene, width)]
    if scene.output:
        title = Text("output of the program", style="dim")
        foot = [title, *(Text(f"  {printable(line)}") for line in scene.output), *foot]
    room = None if height is None else max(0, height - len(head) - len(foot))
    if choice.page == HELP:
        body = [
            Text(f"  {key:<9}", style="bold").append(text, style="not bold") for key, text in _KEYS
        ][:room]
    elif choice.page == FINDINGS:
        body = _scrolled(list(_all_findings(scene.checked, width)), choice, room)
    else:
        body = _overview(scene, choice, width, room)
    if room is not None:
        body += [Text()] * (room - len(body))
    return [_fitted(line, width) for line in (*head, *body, *foot)]


def _header(scene: Scene, width: int) -> Text:
    timeline, status = scene.timeline, scene.status
    step = timeline.last_step
    rate = timeline.steps_per_s
    skipped = max((n - timeline.recorded[rank] for rank, n in timeline.steps.items()), default=0)
    state = status.state + (f" ({status.exit_status})" if status.state == "failed" else "")
    parts = [
        Text(printable(Path(scene.program).name), style="bold"),
        Text(state, style=_STATES.get(status.state, "")),
        Text(f"step {step:,}" if step is not None else "no step yet"),
        Text(f"{rate:.3g} steps/s" if rate is not None else ""),
        Text(counted(max(1, len(timeline.ranks)), "rank")),
        Text(f"mode {timeline.stage}"),
        Text(f"{skipped:,} steps not recorded" if skipped else ""),
    ]
    return _joined(parts, width)


def _curves(scene: Scene, width: int) -> Text:
    timeline = scene.timeline
    shown = [name for name in (LOSS, RATE, GRADIENT) if timeline.latest.get(name)]
    if not shown:
        return Text("no loss or learning rate was recorded so far", style="dim")
    parts = []
    for name in shown:
        ranks = next(iter(timeline.latest[name].values()))
        line = Text(f"{_SHORT.get(name, name)} ", style="dim")
        parts.append(line.append(number(ranks[min(ranks)]), style="bold"))
    taken = sum(cell_len(part.plain) + 3 for part in parts)
    room = max(_LEAST_CURVE, min(_MOST_HISTORY, (width - taken) // len(shown)))
    for name, line in zip(shown, parts):
        history = sparkline(timeline.curve_history(name), room, scene.blocks)
        line.append(f" {history}", style="cyan")
    return _joined(parts, width)


def _overview(scene: Scene, choice: Choice, width: int, room: int | None) -> list[Text]:
    most = 20 if room is None else max(1, room // 5)
    found = list(_short_findings(scene.checked, most))
    left = None if room is None else max(0, room - len(found))
    if left == 0:
        return found[:room]
    return [*found, *_layers(scene, choice, width, left)]


def _short_findings(checked: Checked | None, most: int) -> Iterator[Text]:
    if checked is None:
        return
    shown = checked.shown
    for found in shown[:most]:
        yield _headline(found)
    left = checked.number("finding") + checked.number("observation") - len(shown[:most])
    advice = checked.number("advice")
    rest = [f"{left} more"] if left > 0 else []
    rest += [advice_text(advice)] if advice else []
    if rest:
        yield Text(f"{' and '.join(rest)}: press f", style="dim")


def _headline(found: Mapping[str, Any]) -> Text:
    severity = str(found.get("severity"))
    step = found.get("first_step")
    at = "before the first step" if step is None else f"at step {step:,}"
    rank = f" on rank {found['rank']}" if found.get("rank") else ""
    kind = severity if tier_of(found) == "finding" else tier_of(found)
    line = Text(f"{kind.upper()} {found.get('code')} ", style=COLOURS.get(severity, ""))
    return line.append(f"{at}{rank}: {printable(str(found.get('title')))}")


def _all_findings(checked: Checked | None, width: int) -> Iterator[Text]:
    if checked is None or not checked.findings:
        yield Text("nothing checks this run" if checked is None else "no findings", style="dim")
        return
    for found in checked.findings:
        yield _headline(found)
        place = found.get("where") or {}
        texts = {
            "": found.get("message"),
            "likely cause: ": found.get("likely_cause"),
            "line: ": f"{place.get('file')}:{place.get('line')}" if place else "",
            "fix: ": found.get("fix"),
        }
        for label, given in texts.items():
            text = printable(str(given or ""))
            for line in textwrap.wrap(f"{label}{text}", max(20, width - 4)) if text else ():
                yield Text(f"    {line}")
        yield Text()
    left = sum(checked.counts.values()) - len(checked.findings)
    if left > 0:
        yield Text(f"and {counted(left, 'more finding')}: see the report", style="dim")


def _layers(scene: Scene, choice: Choice, width: int, room: int | None) -> list[Text]:
    timeline = scene.timeline
    columns = timeline.columns
    if not columns:
        return [Text("no numbers of layers so far", style="dim")]
    sort = choice.sort if choice.sort in columns else columns[0]
    names = sorted_layers(timeline, choice)
    shown = [sort, *(name for name in columns if name != sort)]
    longest = max(map(cell_len, map(printable, names)), default=0)
    name_width = max(_LEAST_NAME, min(longest, width // 3))
    fit = max(1, (width - name_width - _LEAST_HISTORY - 2) // (_NUMBER + 1))
    shown = shown[:fit]
    history = min(_MOST_HISTORY, width - name_width - 2 - len(shown) * (_NUMBER + 1))
    head = Text(set_cell_size(f"layer ({len(names):,})", name_width), style="dim")
    for name in shown:
        mark = (" ^" if choice.is_reversed else " v") if name == choice.sort else ""
        head.append(f" {_SHORT.get(name, name)[: _NUMBER - len(mark)] + mark:>{_NUMBER}}")
    head.append("  over the steps"[: history + 2])
    lines = [head]
    for layer in _scrolled(names, choice, None if room is None else max(0, room - 1)):
        line = Text(_name(printable(layer), name_width))
        for name in shown:
            line.append(f" {number(timeline.value(name, layer)):>{_NUMBER}}")
        drawn = sparkline(timeline.history(shown[0], layer), history, scene.blocks)
        lines.append(line.append(f"  {drawn}", style="cyan"))
    return lines


def sorted_layers(timeline: LiveTimeline, choice: Choice) -> list[str]:
    """The layers that are chosen, in the chosen order; layers without the number come last."""
    names = [name for name in timeline.names() if choice.only.lower() in name.lower()]
    if choice.sort not in timeline.columns:
        return names[::-1] if choice.is_reversed else names
    value: Callable[[str], float] = lambda name: timeline.value(choice.sort, name)  # noqa: E731
    known = [name for name in names if not math.isnan(value(name))]
    known.sort(key=value, reverse=not choice.is_reversed)
    return [*known, *(name for name in names if math.isnan(value(name)))]


def _scrolled(lines: list[_T], choice: Choice, room: int | None) -> list[_T]:
    """The lines, or names of layers, that are in sight."""
    if room is None:
        return lines
    choice.offset = max(0, min(choice.offset, len(lines) - room))
    return lines[choice.offset : choice.offset + room]


def _footer(scene: Scene, width: int) -> Text:
    checked, status = scene.checked, scene.status
    parts = []
    if checked is None:
        parts.append(Text("not checked: see --check", style="yellow"))
    else:
        names = ("held", "violated", "not_triggered", "not_observable")
        counts = [(checked.summary.get(name, 0), name.replace("_", " ")) for name in names]
        parts.append(Text("checks " + " ".join(f"{n} {name}" for n, name in counts if n)))
        if checked.step is not None:
            parts.append(Text(f"to step {checked.step:,}"))
    if scene.behind >= _MEGA / 10:
        parts.append(Text(f"{scene.behind / _MEGA:,.1f} MB behind", style="yellow"))
    elif status.idle_s is not None and status.state == "running":
        parts.append(Text(f"last record {status.idle_s:.1f} s ago"))
    parts.append(Text(f"{status.bytes / _MEGA:,.1f} MB"))
    line = _joined(parts, width)
    line.stylize("dim")
    return line


def _keys(choice: Choice, width: int) -> Text:
    if choice.is_typing or choice.only:
        end = "Enter, Escape" if choice.is_typing else "/ to change it"
        return Text(f"filter: {printable(choice.only)}  ({end})", style="reverse")
    held = "HELD  " if choice.is_held else ""
    by = choice.sort if choice.sort != MODEL_ORDER else "model"
    text = f"{held}q quit  s sort ({_SHORT.get(by, by)})  r reverse  / filter  f findings  ? help"
    return Text(text, style="reverse" if choice.is_held else "dim")


def _joined(parts: Sequence[Text], width: int) -> Text:
    """The parts with space between them, as many as fit."""
    line = Text()
    for part in parts:
        if part.plain and cell_len(line.plain) + 2 + cell_len(part.plain) <= width:
            line.append("  " if line.plain else "").append_text(part)
    return line if line.plain or not parts else parts[0]


def _name(name: str, width: int) -> str:
    """A name in exactly ``width`` cells; its end tells layers apart."""
    if cell_len(name) <= width:
        return set_cell_size(name, width)
    return set_cell_size("~" + name[-(width - 1) :], width)


def _fitted(line: Text, width: int) -> Text:
    line = line.copy()
    line.no_wrap = True
    line.truncate(width)
    return line


def number(value: float) -> str:
    """A number in at most nine characters; "-" if there is none."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "not finite"
    if value == 0 or 1e-3 <= abs(value) < 1e5:  # noqa: PLR2004  # readable without an exponent
        return f"{value:.4g}"
    return f"{value:.2e}"
