"""A profile as text: a tree or a sorted list, and what was and was not measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from traincheck.errors import UsageError, suggested
from traincheck.profile.layers import OUTSIDE, Layer, Origin
from traincheck.profile.numbers import Profile, milliseconds, percent, shape, short, size
from traincheck.schema.words import counted

_GAP = "  "
_NOTHING = "-"
_MOST_UNCOUNTED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the table. number: what it is sorted by."""

    title: str
    text: Callable[[Layer], str]
    number: Callable[[Layer], float]


def _timed(number: Callable[[Layer], int]) -> Callable[[Layer], str]:
    return lambda layer: milliseconds(number(layer)) if number(layer) else _NOTHING


def _counted(number: Callable[[Layer], int]) -> Callable[[Layer], str]:
    return lambda layer: short(number(layer)) if number(layer) else "0"


def _sized(number: Callable[[Layer], int]) -> Callable[[Layer], str]:
    return lambda layer: size(number(layer))


def _column(
    title: str, form: Callable[[Callable[[Layer], int]], Callable[[Layer], str]],
    number: Callable[[Layer], int],
) -> Column:  # fmt: skip
    return Column(title=title, text=form(number), number=number)


def _parameters(layer: Layer) -> int:
    return sum(one.elements for one in layer.tensors())


COLUMNS: dict[str, Column] = {
    "out": Column(
        title="out shape",
        text=lambda layer: shape(layer.outputs[0].shape) if layer.outputs else _NOTHING,
        number=lambda layer: layer.output_bytes,
    ),
    "in": Column(
        title="in shape",
        text=lambda layer: shape(layer.inputs[0].shape) if layer.inputs else _NOTHING,
        number=lambda layer: layer.input_bytes,
    ),
    "dtype": Column(
        title="dtype",
        text=lambda layer: layer.outputs[0].dtype if layer.outputs else _NOTHING,
        number=lambda layer: layer.output_bytes,
    ),
    "calls": _column("calls", _counted, lambda layer: layer.calls + layer.recomputed),
    "params": _column("params", _counted, _parameters),
    "trainable": _column(
        "trainable",
        _counted,
        lambda layer: sum(one.elements for one in layer.tensors() if one.is_trained),
    ),
    "flops": _column("FLOPs", _counted, lambda layer: layer.flops),
    "fwd-self": _column("fwd self", _timed, lambda layer: layer.forward.own),
    "fwd": _column("fwd ms", _timed, lambda layer: layer.forward.total),
    "bwd-self": _column("bwd self", _timed, lambda layer: layer.backward_own),
    "bwd": _column("bwd ms", _timed, lambda layer: layer.backward_total),
    "self": _column("self ms", _timed, lambda layer: layer.forward.own + layer.backward_own),
    "total": _column("ms", _timed, lambda layer: layer.forward.total + layer.backward_total),
    "retained": _column("retained", _sized, lambda layer: layer.sum("retained")),
    "retained-self": _column("retained self", _sized, lambda layer: layer.retained),
    "gradients": _column(
        "gradients", _sized, lambda layer: sum(one.gradient_bytes for one in layer.tensors())
    ),
    "states": _column(
        "states", _sized, lambda layer: sum(one.state_bytes for one in layer.tensors())
    ),
}
DEFAULT = ("out", "params", "flops", "fwd-self", "fwd", "bwd-self", "bwd", "retained")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """How to show a profile.

    Attributes:
        depth: levels of modules; None for all.
        sort: name of a column; the layers are a list in its order then, without a tree.
        columns: names of columns.
        top: the most rows of a sorted list; None for all.
    """

    depth: int | None = 3
    sort: str | None = None
    columns: Sequence[str] = DEFAULT
    top: int | None = None

    def __post_init__(self) -> None:
        for name in (*self.columns, *([self.sort] if self.sort else [])):
            if name not in COLUMNS:
                raise UsageError(
                    f"there is no column {name!r}",
                    fix=f"{suggested(name, list(COLUMNS))}There are {', '.join(COLUMNS)}",
                )


def table(profile: Profile, options: TableOptions | None = None) -> str:
    """The whole report: a headline, the layers, and how they were measured.

    Raises:
        UsageError: a column does not exist.
    """
    options = options or TableOptions()
    notes = [f"{label:<10} {text}" for label, text in footer(profile)]
    cells = cells_of(profile, options)
    widths = [max(map(len, column)) for column in zip(*cells)]
    last = len(widths) - 1
    body = [
        _GAP.join(
            cell.ljust(width) if number in (0, 1, last) else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths))
        )
        for row in cells
    ]
    lines = [headline(profile), "", *body, "", *notes]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def headline(profile: Profile) -> str:
    """The profiled model and step, in one line."""
    step = profile.typical
    tensors = step.tensors()
    inputs = step.facts.get("inputs") or []
    parts = [
        f"{', '.join(root.name for root in step.roots) or 'no module was called'}: "
        f"{short(sum(one.elements for one in tensors))} parameters "
        f"({size(sum(one.bytes for one in tensors))})",
    ]
    if inputs:
        parts.append("inputs " + ", ".join(f"[{shape(s)}] {dtype}" for s, dtype in inputs[:3]))
    devices = ", ".join(step.facts.get("devices", {})) or step.clock
    dtypes = ", ".join(step.facts.get("dtypes", {}))
    parts.append(", ".join(filter(None, (devices, dtypes))))
    parts.append(f"step {milliseconds(step.duration_ns)} ms")
    return "; ".join(parts)


def cells_of(profile: Profile, options: TableOptions) -> list[list[str]]:
    """The table: titles of its columns, then a row for each layer."""
    step = profile.typical
    columns = [COLUMNS[name] for name in options.columns]
    rows: list[tuple[str, Layer]] = []
    if options.sort:
        layers = sorted(step.layers(), key=COLUMNS[options.sort].number, reverse=True)
        rows = [(layer.path, layer) for layer in layers[: options.top]]
    else:
        for root in step.roots:
            rows += [(root.name, root), *_below(root, "", 1, options.depth)]
    cells = [["", "class", *(column.title for column in columns), "notes"]]
    cells += [
        [label, layer.kind, *(column.text(layer) for column in columns), _notes(layer)]
        for label, layer in rows
    ]
    return cells


def _below(layer: Layer, indent: str, level: int, depth: int | None) -> Iterator[tuple[str, Layer]]:
    if depth is not None and level >= depth:
        return
    for child in layer.children:
        is_last = child is layer.children[-1]
        yield f"{indent}{'└' if is_last else '├'} {child.name}", child
        yield from _below(child, indent + ("  " if is_last else "│ "), level + 1, depth)


def _notes(layer: Layer) -> str:
    notes = []
    if layer.calls > 1:
        notes.append(f"{layer.calls} calls")
    if not layer.calls and not layer.children and layer.cls:
        notes.append("not called")
    if layer.recomputed:
        notes.append(f"computed again {milliseconds(layer.again.total)} ms")
    if layer.varies:
        notes.append("shapes vary")
    if layer.output_bad:
        notes.append("output not finite")
    if layer.gradient_out_bad or layer.gradient_in_bad:
        notes.append("gradient not finite")
    return ", ".join(notes)


def footer(profile: Profile) -> Iterator[tuple[str, str]]:
    """Labels and texts below the table: phases, memory, the first NaN, how it was measured."""
    step = profile.typical
    spent = step.phases
    again, beside = spent.get("recompute", 0), step.outside.backward_own
    yield _line(
        "phases",
        [
            f"forward {milliseconds(spent.get('forward', 0))} ms",
            f"backward {milliseconds(spent.get('backward', 0) + again)} ms"
            + (f" ({milliseconds(again)} computed again)" if again else "")
            + (f" ({milliseconds(beside)} outside of modules)" if beside else ""),
            f"optimizer {milliseconds(spent.get('optimizer', 0))} ms",
            f"loader {milliseconds(spent.get('loader', 0))} ms",
            f"outside {milliseconds(spent.get('outside', 0))} ms",
        ],
    )
    yield from _memory(profile)
    yield _line("first NaN", [origin_text(profile.origin, len(profile.steps))])
    yield from _how(profile)


def _memory(profile: Profile) -> Iterator[tuple[str, str]]:
    peak = profile.peak
    when = "at the end of the forward pass" if peak.at is None else f"in the backward of {peak.at}"
    if peak.is_measured:
        when = f"in {peak.at}"
    held = [f"{kind} {size(count)}" for kind, count in peak.held_by.items() if count]
    yield _line("memory", [f"peak {size(peak.bytes)} {when}", *held])
    if peak.layers:
        yield _line("held by", [f"{path} {size(count)}" for path, count in peak.layers])


def _how(profile: Profile) -> Iterator[tuple[str, str]]:
    step = profile.typical
    numbers = [one.number for one in profile.steps]
    which = f"step {numbers[0]}" if len(numbers) == 1 else f"steps {numbers[0]}-{numbers[-1]}"
    clock = "events of the GPU" if step.clock == "cuda" else "clock of the CPU"
    chosen = f"step {step.number} of {which}" if len(numbers) > 1 else which
    yield _line(
        "times",
        [
            f"{chosen} (median duration)" if len(numbers) > 1 else chosen,
            clock,
            f"recording took {percent(profile.overhead)} more, in no number above",
        ],
    )
    peak = "counted by the allocator" if profile.peak.is_measured else "counted from tensors"
    found = [f"{name} x{times}" for name, times in step.uncounted.items()]
    uncounted = ", ".join(found[:_MOST_UNCOUNTED]) or "none"
    if len(found) > _MOST_UNCOUNTED:
        uncounted += f" and {len(found) - _MOST_UNCOUNTED} more"
    yield _line(
        "counts",
        [
            "FLOPs: fma = 2, causal not halved, elementwise 0",
            f"without a formula: {uncounted}",
            f"memory {peak}; temporary tensors are not in it"
            if not profile.peak.is_measured
            else f"memory {peak}",
        ],
    )
    if not step.complete:
        yield _line("note", ["the run ended within this step"])
    if step.unseen:
        parts = [f"{reason} ({times})" for reason, times in step.unseen.items()]
        yield _line("not seen", parts)


def origin_text(origin: Origin | None, steps: int) -> str:
    """The first NaN or infinity, in one sentence."""
    if origin is None:
        return f"none in {counted(steps, 'step')}: operations, loss, gradients, updated parameters"
    module = origin.module or OUTSIDE
    place = f" at {origin.where}" if origin.where else ""
    what = {
        "forward": f"{origin.operation} in {module} returns {origin.value}",
        "loss": f"the loss is {origin.value}",
        "given": f"{origin.operation or 'an input'} holds {origin.value} before it is used",
        "backward": f"the gradient of {origin.operation} in {module} is {origin.value}; the "
        "forward pass is finite",
        "gradient": f"the gradient of {origin.operation} becomes {origin.value} after the backward "
        "pass",
        "optimizer": f"the update makes {origin.operation} {origin.value}; its gradient is finite",
    }[origin.phase]
    skipped = "; the gradient scaler skipped this update, as it should" if origin.is_skipped else ""
    return f"step {origin.step}, {origin.phase}: {what}{place}{skipped}"


def _line(label: str, parts: Sequence[str]) -> tuple[str, str]:
    return label, " · ".join(parts)
