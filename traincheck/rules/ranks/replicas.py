"""Causes for parameters that differ between ranks although DistributedDataParallel is used.

Shared by the rules for single causes and the rule for all other cases, so that each parameter is
reported once.
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar, NamedTuple

from traincheck.readings.distributed.rank_steps import REPLICAS, SYNC, RankStep, Wrap
from traincheck.readings.distributed.ranks import RunStep
from traincheck.rules.base.step_rule import RankRule
from traincheck.schema.events import CallEvent, Event, StateEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import DDP_FORWARD, Families


class Reason(Enum):
    """Reasons why ranks differ, one rule each."""

    OUTSIDE = "outside"  # not a parameter that the wrapper was built with
    BYPASSED = "bypassed"  # the wrapper was not called
    UNSYNCHRONIZED = "unsynchronized"  # the last micro-batch runs under no_sync()
    RATES = "rates"  # ranks use different learning rates


class Cause(NamedTuple):
    """A reason with its evidence.

    message: a clause with the placeholder ``{name}`` of the parameter.
    """

    reason: Reason
    rank: int
    module: str | None
    message: str
    expected: str
    observed: str
    evidence: tuple[Event, ...]


def cause_of(name: str, step: RunStep) -> Cause | None:
    """The cause visible in this step; None if ``name`` is not wrapped or no cause is visible."""
    if step.wrap_of(name) is None:
        return None
    for number, page in step.pages.items():
        rank = step.ranks[number]
        wrap = next(wrap for wrap in rank.wraps.values() if wrap.covers(name))
        cause = _outside(name, rank.parameter(name), wrap, number) or _unarmed(page, wrap, number)
        if cause is not None:
            return cause
    # Ranks that step with different learning rates.
    first = step.first_rank
    rates = {number: page.end.lr if page.end else {} for number, page in step.pages.items()}
    for number, page in step.pages.items():
        for owner in sorted(rates[first].keys() & rates[number].keys()):
            here, there = rates[number][owner], rates[first][owner]
            calls = [call for call in page.updates() if call.owner == owner]
            if calls and len(here) == len(there) and here != there:
                own, other = next((a, b) for a, b in zip(here, there) if a != b)
                return Cause(
                    reason=Reason.RATES,
                    rank=number,
                    module=None,
                    message=f"rank {number} updates {{name}} with a learning rate of {own:.3g}, "
                    f"rank {first} with {other:.3g}",
                    expected="all ranks use the same learning rate",
                    observed=f"rank {first}: {other:.3g}, rank {number}: {own:.3g}",
                    evidence=(calls[-1],),
                )
    return None


def _outside(name: str, look: StateEvent, wrap: Wrap, rank: int) -> Cause | None:
    if name not in wrap.parameters:
        why = "did not require grad when DistributedDataParallel was built"
    elif wrap.ids[name] != look.identity:
        why = "is another object than when DistributedDataParallel was built"
    else:
        return None
    return Cause(
        reason=Reason.OUTSIDE,
        rank=rank,
        module=None,
        message=f"{{name}} {why}",
        expected="DistributedDataParallel was built with every parameter that is trained",
        observed=why,
        evidence=(wrap.event, look),
    )


def _unarmed(page: RankStep, wrap: Wrap, rank: int) -> Cause | None:
    if page.reduces_by_hand:
        return None
    update = next(iter(page.updates()), None)
    call = None if update is None else _bypass(page, wrap)
    if call is not None:
        return Cause(
            reason=Reason.BYPASSED,
            rank=rank,
            module=call.module,
            message=(
                f"{call.module} is called with gradients, but its DistributedDataParallel wrapper "
                "is not, so the gradient of {name} is not exchanged"
            ),
            expected="a training step calls the wrapper",
            observed=f"only {call.module} is called, not the wrapper",
            evidence=(wrap.event, call),
        )
    # The last training call of a wrapper before the first optimizer step that follows one.
    forward = None
    for call in page.calls:
        if call.api == DDP_FORWARD and call.module == wrap.module and call.grad_enabled:
            forward = call
        elif call.family == Families.OPTIMIZER_STEP and forward is not None:
            break
    if forward is not None and update is not None and forward.args.get(SYNC) is False:
        return Cause(
            reason=Reason.UNSYNCHRONIZED,
            rank=rank,
            module=wrap.module,
            message=(
                f"the last forward of {wrap.module} before the optimizer steps runs without "
                "synchronization (no_sync), so each rank applies its own gradient to {name}"
            ),
            expected="the last micro-batch before a step is synchronized",
            observed="require_backward_grad_sync is False in the last forward before the step",
            evidence=(update, forward),
        )
    return None


def _bypass(page: RankStep, wrap: Wrap) -> CallEvent | None:
    """The first training call of a wrapped model in a step that does not use its wrapper."""
    first = None
    for call in page.calls:
        if call.family != Families.MODULE or not call.grad_enabled or call.module is None:
            continue
        if call.module == wrap.module or call.module.startswith(f"{wrap.module}."):
            if call.api == DDP_FORWARD:
                return None
            first = first or call
    return first


class CauseRule(RankRule):
    """Reports the parameters that differ for one reason, each once."""

    reason: ClassVar[Reason]
    needs = REPLICAS

    def judge(self, step: RunStep) -> list[Violation]:
        if not step.is_complete or not all(rank.wraps for rank in step.ranks.values()):
            return []
        self.triggered += 1
        found = []
        for name in step.different:
            cause = None if name in self.reported else cause_of(name, step)
            if cause is not None and cause.reason is self.reason:
                self.reported.add(name)
                found += self.found(
                    step.end,
                    step=step.step,
                    rank=cause.rank,
                    stage="train",
                    subject=Subject(variable=name, module=cause.module),
                    symptom=Symptom.NOT_SYNCHRONIZED,
                    message=f"{cause.message.format(name=name)}; the ranks differ there after the "
                    "step",
                    expected=cause.expected,
                    observed=cause.observed,
                    evidence=cause.evidence,
                )
        return found
