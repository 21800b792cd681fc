"""Sentences of *consistent*: its claims, and what broke them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traincheck.facts.distributed.collectives import Pair
from traincheck.facts.distributed.ranks import RunStep
from traincheck.relations.base import counterexample
from traincheck.relations.consistent.kinds import CALLS, COUNTED, NORMS, RECEIVED, SHAPES, WRAPPED
from traincheck.relations.phrasing import ROLE_NAMES, display_name, in_program
from traincheck.schema.events import StepEvent
from traincheck.schema.findings import Example, Subject, Symptom
from traincheck.schema.torch_api import Families
from traincheck.schema.words import counted


def text_of(params: Mapping[str, Any]) -> str:
    """The claim as a sentence."""
    of = params.get("of")
    if of == SHAPES:
        return "All ranks pass tensors of one shape and dtype to each collective"
    if of == RECEIVED:
        return "Each rank receives what another rank sent, or holds after the same collective"
    if "copy" in params:
        text = f"Whenever {params['copy']} changes, it is a copy of {params['source']}"
    elif of == CALLS:
        call = display_name(COUNTED[params["call"]])
        text = f"All ranks call {call} equally often in every step"
    elif of == NORMS:
        text = "All ranks clip gradients by the same norm"
    else:
        who = "parameter of a model in DistributedDataParallel"
        if of != WRAPPED:
            who = f"{ROLE_NAMES[params['role']]} under {params['under']}"
        text = f"Every {who} is the same on all ranks after every step"
    return in_program(params, text)


def ranks_differ(name: str, others: Sequence[int], step: RunStep) -> Example:
    """A variable differs between ranks."""
    first = min(step.ranks)
    who = ", ".join(map(str, others))
    return counterexample(
        step.end,
        Subject(variable=name),
        f"{name} is the same on all ranks",
        f"the content on rank {who} differs from rank {first}",
        Symptom.RANKS_DIFFER,
    ).replace(rank=others[0])


def norms_differ(norms: Mapping[int, float], step: RunStep) -> Example:
    """Ranks clip by different norms."""
    return counterexample(
        step.end,
        Subject(api=Families.CLIP_NORM),
        "all ranks clip by the same norm",
        ", ".join(f"rank {rank}: {norm:.6g}" for rank, norm in norms.items()),
        Symptom.RANKS_DIFFER,
    ).replace(rank=max(norms))


def exchange_differs(of: str, pair: Pair, values: Sequence[str]) -> Example:
    """Ranks give, or get, different tensors in one collective call."""
    first, other, receiver = pair.first, pair.other, pair.receiver
    steps = [event.step for event in (first, other) if event.step is not None]
    shown = [value.rpartition(":")[2][:8] if of == RECEIVED else value for value in values]
    is_shape = of == SHAPES
    verb, what = ("pass", "shape") if is_shape else ("receive", "content")
    return counterexample(
        receiver,
        Subject(api=f"torch.distributed.{receiver.op}", variable=receiver.variable),
        f"all ranks {verb} the same {what} in call {receiver.number} of {receiver.op}",
        f"rank {first.rank}: {shown[0]}, rank {other.rank}: {shown[1]}",
        Symptom.OUT_OF_STEP if is_shape else Symptom.RANKS_DIFFER,
        evidence=(first, other),
        stage=receiver.stage,
    ).replace(step=min(steps, default=None))


def counts_differ(api: str, counts: Mapping[int, int], step: RunStep) -> Example:
    """Ranks call a landmark unequally often in a step."""
    usual = max(counts.values())
    who = next(rank for rank, count in counts.items() if count < usual)
    return counterexample(
        step.end,
        Subject(api=api),
        f"all ranks call {display_name(api)} equally often",
        ", ".join(f"rank {rank} calls it {counted(n, 'time')}" for rank, n in counts.items()),
        Symptom.OUT_OF_STEP,
    ).replace(rank=who)


def not_copied(name: str, source: str, event: StepEvent) -> Example:
    """A model changes to something that the other does not hold."""
    return counterexample(
        event,
        Subject(variable=name),
        f"{name} is copied from {source}",
        "it changes to something else",
        Symptom.NOT_RESTORED,
    )
