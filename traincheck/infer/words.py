"""A claim and its precondition as one English sentence."""

from __future__ import annotations

from traincheck.schema.claims import Condition, Precondition

_OPERATORS = {"==": "is", "!=": "is not", ">": "is above", "<=": "is at most"}


def sentence(text: str, precondition: Precondition) -> str:
    """Join them: ``Every parameter changes, if requires_grad is true.`` is one."""
    clauses = " or ".join(
        " and ".join(_condition(condition) for condition in clause)
        for clause in precondition.clauses
    )
    return f"{text}, if {clauses}." if clauses else f"{text}."


def _condition(condition: Condition) -> str:
    value = condition.value
    shown = str(value).lower() if isinstance(value, bool) or value is None else str(value)
    return f"{condition.feature} {_OPERATORS[condition.op]} {shown}"
