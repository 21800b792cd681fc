"""Violations about the arguments of a loss."""

from __future__ import annotations

from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation


def loss_violation(
    code: str, call: CallEvent, message: str, *, expected: str, observed: str, cause: str = ""
) -> Violation:
    """A violation about the arguments of a loss."""
    return Violation(
        check_id=code,
        step=call.step,
        rank=call.rank,
        stage=call.stage,
        subject=Subject(api=call.api, module=call.module),
        symptom=Symptom.LOSS_INPUT,
        message=message,
        expected=expected,
        observed=observed,
        evidence=(call,),
        likely_cause=cause,
    )
