"""The timeline of a run for a terminal view, with lines of blocks for its numbers."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from traincheck.metrics.trace import Gathered
from traincheck.page.build import add_metrics
from traincheck.page.timeline import DRAWN_ROLES, FIRST_SEEN, GRADIENT, Timeline
from traincheck.schema.events import Event, MetricsEvent

if TYPE_CHECKING:
    from traincheck.live.light import LightState
    from traincheck.schema.metrics.requests import MonitorView

_RATE_STEPS = 64  # the rate is that of so many steps
_RATE_NS = 30_000_000_000  # and not of older ones
SPREAD = "rank spread"
NEWS = frozenset({"step", "stage", "metrics"})  # kinds of events


class LiveTimeline(Timeline):
    """The timeline of a run that goes on. Its memory is that of a `Timeline`.

    Attributes:
        stage: of the last step or change of stage.
        latest: curve -> what it is of -> rank -> its last number; infinite if it is not finite.
        latest_of_layers: map -> layer -> rank -> its last number.
        view: which metrics a monitored run was asked for; None for all.
    """

    def __init__(self, view: MonitorView | None = None) -> None:
        super().__init__()
        self.view = view
        self.stage = "init"
        self.latest: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        self.latest_of_layers: dict[str, dict[str, dict[int, float]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        self._ends: dict[int, deque[tuple[int, int]]] = defaultdict(
            lambda: deque(maxlen=_RATE_STEPS)
        )
        self._ordered: tuple[tuple[int, ...], list[str]] = ((), [])
        self._gathered = Gathered()
        self._gathered_step: int | None = None

    def note(self, event: Event) -> None:
        """Take in an event of `NEWS`, after `add`."""
        if event.kind == "step":
            self.stage = event.stage
            if event.step is not None:
                self._ends[event.rank].append((event.time_ns, event.step))
        elif event.kind == "stage":
            self.stage = event.stage
        elif isinstance(event, MetricsEvent):
            if event.step != self._gathered_step:  # ranks come after each other within a step
                self.settle()
                self._gathered_step = event.step
            self._gathered.add(event)

    def enter_light(self, event: LightState) -> None:
        """Take in a change of a variable, as `enter` does. Nearly all events are one."""
        if event.role not in DRAWN_ROLES:
            return
        stats = event.summary.stats if event.summary is not None else None
        if stats is None or stats.nonfinite or event.step is None or event.change in FIRST_SEEN:
            self.enter(event)
        else:
            self.norms[event.rank][event.role][event.name] = stats.norm

    def curve(self, name: str, of: str, rank: int, step: int, value: float) -> None:
        """Enter a number of a curve."""
        super().curve(name, of, rank, step, value)
        self.latest[name][of][rank] = value if math.isfinite(value) else math.inf

    def layers(self, name: str, rank: int, step: int, numbers: Mapping[str, float]) -> None:
        """Enter numbers of layers in a step into a map."""
        super().layers(name, rank, step, numbers)
        kept, rows = self.latest_of_layers[name], self.maps[name].rows
        for layer, value in numbers.items():
            if layer in rows:
                kept[layer][rank] = value if math.isfinite(value) else math.inf

    def settle(self) -> None:
        """Enter the metrics of the last step: nothing follows that would complete it."""
        add_metrics(self, self._gathered.take(self.view))

    @property
    def last_step(self) -> int | None:
        """The last step of the rank that is ahead; None before the first."""
        return self.axis.last if self.axis.last >= 0 else None

    @property
    def steps_per_s(self) -> float | None:
        """How fast the lowest rank trained over its last steps; None if not known."""
        if not self._ends:
            return None
        ends = self._ends[min(self._ends)]
        recent = [end for end in ends if end[0] >= ends[-1][0] - _RATE_NS]
        if len(recent) < 2:  # noqa: PLR2004  # two points make a rate
            return None
        (first_ns, first), (last_ns, last) = recent[0], recent[-1]
        return (last - first) * 1e9 / (last_ns - first_ns) if last_ns > first_ns else None

    def value(self, name: str, layer: str) -> float:
        """The last number of a layer, the largest of all ranks; NaN if there is none."""
        if name == SPREAD:
            return self.spread(layer)
        return max(self.latest_of_layers[name].get(layer, {}).values(), default=math.nan)

    def spread(self, layer: str) -> float:
        """How far the ranks are apart in the first map, relative to the largest number."""
        name = self.columns[0] if self.maps else ""
        found = self.latest_of_layers[name].get(layer, {}).values()
        if len(found) < 2:  # noqa: PLR2004  # one rank has no spread
            return math.nan
        high, low = max(found), min(found)
        if math.isinf(high):
            return 0.0 if math.isinf(low) else math.inf
        return (high - low) / high if high else 0.0

    @property
    def columns(self) -> list[str]:
        """Names of the numbers that layers have; the gradient norm comes first."""
        known = sorted(self.maps, key=lambda name: name != GRADIENT)
        return [*known, *([SPREAD] if len(self.ranks) > 1 and known else [])]

    def names(self) -> list[str]:
        """All layers with a number, in the order of the model."""
        sizes = (len(self.modules), len(self.variables), *(len(g.rows) for g in self.maps.values()))
        if sizes != self._ordered[0]:  # the order costs more than the rest of a screen
            known = dict.fromkeys(layer for found in self.maps.values() for layer in found.rows)
            self._ordered = sizes, self.in_model_order(known)
        return list(self._ordered[1])

    def history(self, name: str, layer: str) -> list[float]:
        """The largest number of all ranks in each column of the axis; NaN where there is none."""
        grid = self.maps.get(self.columns[0] if name == SPREAD else name)
        if grid is None:
            return []
        found = grid.spread([layer]) if name == SPREAD else grid.highest([layer])
        return [] if found is None else [float(number) for number in found[0]]

    def curve_history(self, name: str) -> list[float]:
        """The same of a curve."""
        parts = self.curves[name].values() if name in self.curves else ()
        return largest([row.high for ranks in parts for row in ranks.values()])


def largest(rows: Sequence[Sequence[float]]) -> list[float]:
    """The largest number in each column; NaN where no row has one."""
    if len(rows) == 1:
        return list(rows[0])
    made = []
    for index in range(max(map(len, rows), default=0)):
        here = [row[index] for row in rows if index < len(row) and not math.isnan(row[index])]
        made.append(max(here) if here else math.nan)
    return made


BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-=+*%@"
NOT_FINITE = "!"
_LOG_FROM = 100.0  # ratio of the largest to the smallest number from which the scale is logarithmic


def sparkline(numbers: Sequence[float], width: int, blocks: str = BLOCKS) -> str:
    """The numbers in at most ``width`` characters.

    Args:
        numbers: one a column; NaN is a gap, an infinity is shown as ``!``.
        width: characters.
        blocks: from the lowest to the highest.
    """
    folded = _folded(numbers, width)
    known = [number for number in folded if math.isfinite(number)]
    if not known:
        return "".join(_block(number, 0.0, 0.0, blocks) for number in folded)
    low, high = min(known), max(known)
    if low > 0 and high / low >= _LOG_FROM:
        folded = [math.log(n) if math.isfinite(n) else n for n in folded]
        low, high = math.log(low), math.log(high)
    return "".join(_block(number, low, high, blocks) for number in folded)


def _folded(numbers: Sequence[float], width: int) -> list[float]:
    """At most ``width`` numbers, the largest of neighbours; none is left out."""
    count = len(numbers)
    if count <= width:
        return list(numbers)
    made = []
    for index in range(width):
        part = numbers[index * count // width : (index + 1) * count // width]
        made.append(max((n for n in part if not math.isnan(n)), default=math.nan))
    return made


def _block(number: float, low: float, high: float, blocks: str) -> str:
    if math.isnan(number):
        return " "
    if math.isinf(number):
        return NOT_FINITE
    span = high / 2 - low / 2  # halves: the difference may be larger than any number
    if span <= 0:
        return blocks[0]
    return blocks[min(len(blocks) - 1, int((number / 2 - low / 2) / span * len(blocks)))]
