"""The page docs/cuda.md from the figures of ``make gpu``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

HOW = """\
`make gpu` writes this page in less than eight minutes, on a machine with one GPU and 16 cores. It
installs what is missing into a virtual environment, and measures at most three rounds. All kinds of
recording take turns with the plain program on the same GPU. A figure is the median wall time of a
step, divided by that of the plain program. *again* is the plain program a second time: its distance
from 1 is the noise. No step reads its loss, so only the recorder waits for the GPU.

- default: everything is recorded, in every step.
- selective: what the model's own invariants need.
- rules: what the built-in rules need.
- skipped: steps that `--every` leaves out."""
_COLUMNS = ("again", "default", "selective", "rules", "skipped")


def page(result: dict[str, Any]) -> str:
    """The page, as Markdown."""
    return "\n".join(_lines(result)).rstrip("\n") + "\n"


def _lines(result: dict[str, Any]) -> Iterator[str]:
    yield from ("# Recording on CUDA devices", "")
    if result["is_dry_run"]:
        yield from ("**A dry run at tiny sizes on a CPU: these are not figures of a GPU.**", "")
    machine = result["machine"]
    yield f"Measured on {result['date']}: {result['device'] or 'no CUDA device'}, "
    yield f"{machine['cores']} cores, Python {machine['python']}, torch {machine['torch']}."
    yield from ("", HOW, "")
    yield from (f"- {problem}" for problem in result["problems"])
    yield from _overhead(result["parts"])
    yield from _checks(result["parts"])


def _overhead(parts: dict[str, Any]) -> Iterator[str]:
    measured = [
        part for name, part in parts.items() if name.startswith("overhead") and "ratios" in part
    ]
    if not measured:
        return
    yield from ("## Overhead", "")
    yield f"| model | parameters | plain ms | {' | '.join(_COLUMNS)} | rounds | peak memory, MB |"
    yield "|---" * (len(_COLUMNS) + 5) + "|"
    for part in measured:
        ratios = [_cell(part["ratios"].get(name)) for name in _COLUMNS]
        peak = part["peak_mb"]
        row = [
            part["model"],
            f"{part['params'] / 1e6:.1f} M",
            f"{part['plain_ms']['median']:.2f}",
            *ratios,
            part["rounds"],
            f"{peak['plain']}, recorded {peak['default']}",
        ]
        yield "| " + " | ".join(map(str, row)) + " |"
    yield ""


def _checks(parts: dict[str, Any]) -> Iterator[str]:
    yield from ("## Checks", "", "| part | result | seconds |", "|---|---|---|")
    for name, part in parts.items():
        said = f"{part['status']}: {part['reason']}" if "reason" in part else part["status"]
        yield f"| {name} | {said}{_detail(part)} | {part['seconds']} |"


def _detail(part: dict[str, Any]) -> str:
    if "tests" in part:
        return ", " + ", ".join(f"{count} {word}" for word, count in part["tests"].items())
    if "same" in part:
        words = {
            True: "identical",
            False: "different",
            None: "the plain run does not repeat itself",
        }
        return ", " + "; ".join(f"{name}: {words[same]}" for name, same in part["same"].items())
    if "faults" in part:
        return f", {sum(map(len, part['faults'].values()))} faults"
    return ""


def _cell(figures: dict[str, float] | None) -> str:
    if figures is None:
        return "-"
    return f"{figures['median']:.3f} ({figures['min']:.3f}-{figures['max']:.3f})"
