"""TC608: a model that is set back to its first weights."""

from __future__ import annotations

from tests.checking import fires, quiet
from tests.rules.resuming import PARTS, PATH, Resuming
from traincheck.schema.events import Event, StateEvent
from traincheck.schema.findings import Verdict


def run(
    *,
    moved: bool = False,
    evaluate: bool = True,
    save: bool = False,
    new_optimizer: bool = False,
    restore: bool = False,
) -> list[Event]:
    builder = Resuming().process().model("Net")
    assert isinstance(builder, Resuming)
    first = {
        e.name: "xxh3-128:moved" if moved else e.summary.fingerprint
        for e in builder.events
        if isinstance(e, StateEvent) and e.summary is not None
    }
    builder.optimizer()
    for _ in range(2):
        builder.steps(2)
        builder.checkpoint("load_state_dict", target="Net", matched=4, changed=4, values=first)
        if restore:
            builder.load_optimizer()
        if evaluate:
            builder.forward(grad=False)
        if save:
            builder.checkpoint("save", path=PATH, parts=PARTS)
        if new_optimizer:
            builder.end_step()
            builder.optimizers.clear()
            builder.optimizer()
    return builder.steps(2).build()


BROKEN = run()


def test_fires_at_the_load_once_training_goes_on() -> None:
    finding = fires("TC608", BROKEN)
    assert (finding.first_step, finding.violations) == (1, 1)
    assert finding.subject.module == "Net"


def test_fires_when_it_is_saved() -> None:
    assert fires("TC608", run(evaluate=False, save=True)).first_step == 1


def test_quiet_when_the_average_moved() -> None:
    assert quiet("TC608", run(moved=True)) is Verdict.HELD


def test_quiet_on_folds_and_searches() -> None:
    assert quiet("TC608", run(new_optimizer=True)) is Verdict.HELD
    assert quiet("TC608", run(restore=True)) is Verdict.HELD
    assert quiet("TC608", run(evaluate=False)) is Verdict.HELD


def copied(
    first: bool = True, *, moves: bool = True, times: int = 2, new_optimizer: bool = False
) -> list[Event]:
    """Evaluations with the first weights, of which no load tells."""
    builder = Resuming().process().model("Net")
    assert isinstance(builder, Resuming)
    values = {
        e.name: e.summary.fingerprint if first else "xxh3-128:moved"
        for e in builder.events
        if isinstance(e, StateEvent) and e.summary is not None
    }
    names = list(values)
    builder.optimizer()
    for _ in range(times):
        builder.steps(2, not_updated=() if moves else names)
        builder.mark("evaluated", model="Net", values=values)
        builder.forward(grad=False)
        if new_optimizer:
            builder.end_step()
            builder.optimizers.clear()
            builder.optimizer()
    return builder.steps(1).build()


def test_fires_when_the_first_weights_are_copied_in_by_hand() -> None:
    finding = fires("TC608", copied())
    assert (finding.first_step, finding.subject.module) == (1, "Net")


def test_quiet_when_evaluated_weights_moved_or_never_move() -> None:
    assert quiet("TC608", copied(first=False)) is Verdict.HELD
    assert quiet("TC608", copied(moves=False)) is Verdict.HELD
    assert quiet("TC608", copied(times=1)) is Verdict.HELD
    assert quiet("TC608", copied(new_optimizer=True)) is Verdict.HELD
