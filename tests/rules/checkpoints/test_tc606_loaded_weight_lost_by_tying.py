"""TC606: a loaded weight that is given up for another one."""

from __future__ import annotations

from tests.builders import LINEAR, TraceBuilder
from tests.checking import fires, quiet
from tests.golden import mentions
from tests.rules.resuming import Resuming
from traincheck.schema.events import Event, StateEvent
from traincheck.schema.findings import Verdict

EMBED, HEAD = "Net.embed.weight", "Net.head.weight"


def run(
    *, values: dict[str, str] | None = None, tie: bool = True, late: bool = False
) -> list[Event]:
    builder = Resuming().process()
    given = {EMBED: "xxh3-128:1", HEAD: "xxh3-128:2"} if values is None else values
    load = {"target": "Net", "matched": 2, "changed": 2, "values": given}
    if not late:
        builder.checkpoint("load_state_dict", **load)  # type: ignore[attr-defined]
    builder.model("Net", {"embed.weight": LINEAR, "head.weight": LINEAR})
    for event in list(builder.events):
        if isinstance(event, StateEvent):
            content = "xxh3-128:2" if event.name == HEAD and not tie else "xxh3-128:1"
            summary = event.summary.replace(fingerprint=content)  # type: ignore[union-attr]
            identity = event.identity if event.name == EMBED or not tie else _first(builder)
            builder.edit(event, summary=summary, identity=identity)
    if late:
        builder.checkpoint("load_state_dict", **load)  # type: ignore[attr-defined]
    return builder.optimizer().steps(2).build()


def _first(builder: TraceBuilder) -> int:
    return next(e.identity for e in builder.events if isinstance(e, StateEvent))


BROKEN = run()


def test_fires_when_weights_are_tied_after_a_load_of_two() -> None:
    finding = fires("TC606", BROKEN)
    assert finding.subject.variable == HEAD
    assert mentions(finding, EMBED)


def test_quiet_when_they_stay_two() -> None:
    assert quiet("TC606", run(tie=False)) is Verdict.HELD


def test_quiet_when_both_were_loaded_with_the_same_values() -> None:
    equal = {EMBED: "xxh3-128:1", HEAD: "xxh3-128:1"}
    assert quiet("TC606", run(values=equal)) is Verdict.HELD


def test_quiet_when_only_one_was_loaded() -> None:
    assert quiet("TC606", run(values={EMBED: "xxh3-128:1"})) is Verdict.HELD


def test_quiet_when_they_were_tied_before() -> None:
    assert quiet("TC606", run(late=True)) is Verdict.HELD
