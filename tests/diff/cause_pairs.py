"""Pairs of hand-made runs for the table of causes: for each cause one that has it, and near misses.

A near miss looks like the cause, and lacks a part of its proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.diff.run_pairs import (
    Choose,
    edited,
    new_value,
    numbered,
    of,
    output,
    state,
    training,
    whole,
    with_event,
    without,
)
from traincheck.schema.events import (
    CallEvent,
    CheckpointEvent,
    CollectiveEvent,
    Event,
    MarkEvent,
    OptimizerEvent,
    RngEvent,
    StateEvent,
)
from traincheck.schema.torch_api import Families

CODE = "def forward(model, x):\n    return model(x)\n"
OTHER_CODE = CODE.replace("model(x)", "2 * model(x)")
Run = list[Event]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs, and the arguments of the comparison.

    options: by default both programs have the same code.
    """

    a: Run
    b: Run
    options: dict[str, Any] = field(default_factory=dict)


def pair(change: Callable[[Run], Run], a: Run | None = None, **options: Any) -> Pair:
    """A run, and the same run after a change."""
    first = whole(training()) if a is None else a
    return Pair(first, change(first), {"code_a": CODE, "code_b": CODE, **options})


def then(*changes: Callable[[Run], Run]) -> Callable[[Run], Run]:
    """Several changes of one run."""

    def change(run: Run) -> Run:
        for one in changes:
            run = one(run)
        return run

    return change


def edit(choose: Choose, **fields: Any) -> Callable[[Run], Run]:
    """Fields of the chosen events are others."""
    return lambda run: edited(run, choose, **fields)


def value(choose: Choose, norm: float = 2.0) -> Callable[[Run], Run]:
    """The chosen variable has another content."""
    return lambda run: new_value(run, choose, norm)


def drop(choose: Choose) -> Callable[[Run], Run]:
    """The chosen events are missing."""
    return lambda run: without(run, choose)


# --- what the changes choose ---------------------------------------------------------------------

SEEDED = of("rng", 0, change="seed")
BATCH, FIRST_BATCH = of("batch", 2), of("batch", 0)
ORDER = edit(BATCH, indices=(50, 51, 52))
ROWS = ["1" * 16, "2" * 16, "3" * 16]
OTHER_ROWS = edit(BATCH, samples=ROWS)
LAYER = of("call", 2, module="Net.fc2", family=Families.MODULE)
ROOT = of("call", 2, root=True)
LOSS = of("call", 2, api="torch.nn.functional.cross_entropy")
BACKWARD = of("call", 2, api=Families.BACKWARD)
UPDATE = of("call", 2, family=Families.OPTIMIZER_STEP)
CLEARS = of("call", 2, family=Families.ZERO_GRAD)
WEIGHT, GRADIENT = state("parameter", 2), state("gradient", 2)
MOMENT = state("optimizer_state", 2, "Net.fc1.weight/exp_avg")
NAMES = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "bn.weight", "bn.bias")


def first(name: str = "Net.fc1.weight") -> Choose:
    """Chooses the initial value of a parameter."""
    return of("state", 0, role="parameter", name=name, change="new")


def generator(moment: str, step: int, text: str, source: str = "torch") -> Callable[[Run], Run]:
    """A generator is in another state at a moment of a step."""
    chosen = of("rng", step, change="state", moment=moment, source=source)
    return edit(chosen, fingerprint=f"xxh3:{text:f>32}")


def scaled(*norms: float) -> Callable[[Run], Run]:
    """The gradients of step 2 have these norms."""
    changes = [
        value(state("gradient", 2, f"Net.{name}"), norm)
        for name, norm in zip(NAMES, norms, strict=True)
    ]
    return then(*changes)


def more(kind: type, before: Choose = UPDATE, **fields: Any) -> Callable[[Run], Run]:
    """One event more, before the chosen one."""
    return lambda run: with_event(run, before, kind, **fields)


CLIP = more(CallEvent, api="torch.nn.utils.clip_grad_norm_", span=30_000)
REDUCE = more(CollectiveEvent, op="all_reduce")


def groups(**hyper: Any) -> Callable[[Run], Run]:
    """The optimizer is created with other settings."""

    def change(run: Run) -> Run:
        return [
            event.replace(groups=tuple(g.replace(hyper={**g.hyper, **hyper}) for g in event.groups))
            if isinstance(event, OptimizerEvent)
            else event
            for event in run
        ]

    return change


def optimizer(cls: str) -> Callable[[Run], Run]:
    """The optimizer is of another class."""
    return edit(lambda event: isinstance(event, OptimizerEvent), cls=cls)


def reordered(run: Run) -> Run:
    """The optimizer holds its parameters in another order."""
    return [
        event.replace(
            groups=tuple(g.replace(params=g.params[::-1], ids=g.ids[::-1]) for g in event.groups)
        )
        if isinstance(event, OptimizerEvent)
        else event
        for event in run
    ]


def exchanged(run: Run) -> Run:
    """Two parameters begin with the values of each other."""
    names = "Net.fc1.weight", "Net.fc2.weight"
    values = [next(e.summary for e in run if first(name)(e)) for name in names]  # type: ignore[union-attr]
    run = edited(run, first(names[0]), summary=values[1])
    return edited(run, first(names[1]), summary=values[0])


def initialized(*apis: str) -> Callable[[Run], Run]:
    """Parameters are initialized by these functions, before the first batch."""
    made: list[Callable[[Run], Run]] = [
        more(CallEvent, first(), api=f"torch.nn.init.{api}", span=40_000 + n,
             args={"tensor": output(str(n))}, result=output(str(n)))
        for n, api in enumerate(apis)
    ]  # fmt: skip
    return then(*made)


def loads(
    path: str, *names: str, content: str = "a", owner: str | None = None
) -> Callable[[Run], Run]:
    """A file is loaded before the first batch, which gives some parameters their values."""
    values = dict.fromkeys(names, f"xxh3:{content:c>32}")
    return then(
        more(CheckpointEvent, FIRST_BATCH, op="load", path=path, where="train.py:9"),
        more(CheckpointEvent, FIRST_BATCH, op="load_state_dict", target="__main__.Net",
             owner=owner, values=values, where="train.py:10"),
    )  # fmt: skip


def worker(start: str) -> Callable[[Run], Run]:
    """A worker of the loader, whose generator of NumPy begins in a state."""
    data = {"worker": 0, "workers": 2, "start": {"numpy": start}}
    return more(MarkEvent, FIRST_BATCH, text="worker", data=data)


def scalar(number: float) -> dict[str, Any]:
    """The recorded form of a number."""
    return {"dtype": "float32", "shape": [], "device": "cpu", "value": number}


def close(text: str) -> dict[str, Any]:
    """An output that differs from others in the last bits."""
    number = 1.0 if text == "x" else 1.0000001
    return {**output(text), "stats": {"norm": number}}


def scored(run: Run) -> Run:
    """The loss functions have results."""
    return edited(run, LOSS, result=scalar(1.0), args={"input": output("x"), "target": output("y")})


def python_started(text: str, *, is_drawn: bool = True) -> Callable[[Run], Run]:
    """The generator of Python begins in a state, and the loading of the first batch draws."""

    def change(run: Run) -> Run:
        def event(moment: str, what: str) -> RngEvent:
            return RngEvent(
                *run[0].header, source="python", fingerprint=f"xxh3:{what:>032}", moment=moment
            )

        place = next(n for n, one in enumerate(run) if FIRST_BATCH(one))
        after = event("forward", f"{text}1" if is_drawn else text)
        before = [event("start", text), event("loader", text)]
        return numbered(
            [*run[:1], *before, *run[1:place], run[place], after.replace(step=0), *run[place + 1 :]]
        )

    return change


def resumed(*changes: Callable[[Run], Run], run: Run | None = None, at: int = 3) -> Pair:
    """A run, and one that loads the state that it has after some steps, and goes on."""
    a = whole(training(6)) if run is None else run
    known: dict[tuple[str, str], StateEvent] = {}
    for event in a:
        if isinstance(event, StateEvent) and event.summary is not None and (event.step or 0) < at:
            known[event.role, event.name] = event
    begun: Run = []
    for event in a:
        if isinstance(event, StateEvent) and event.stage == "init":
            event = known[event.role, event.name].replace(step=0, stage="init", change="new")  # noqa: PLW2901
        if event.stage == "init" or event.kind == "optimizer":
            begun.append(event)
    given = {
        event.name: event.summary.fingerprint
        for event in known.values()
        if event.role == "parameter" and event.summary is not None
    }
    load = CheckpointEvent(
        *begun[-1].header, op="load_state_dict", target="__main__.Net", values=given,
        where="train.py:9",
    )  # fmt: skip
    later = [e.replace(step=e.step - at) for e in a if e.step is not None and e.step >= at]
    b: Run = numbered([*begun, load, *later])
    for change in changes:
        b = change(b)
    return Pair(a, b, {"code_a": CODE, "code_b": CODE})
