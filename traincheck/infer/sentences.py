"""A claim and its precondition as one English sentence."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.readings.programs import file_of
from traincheck.relations.phrasing import of_programs
from traincheck.schema.claims import PROGRAM, Condition, Precondition, Scalar
from traincheck.schema.words import listed

_CONDITION_TEXTS: dict[tuple[str, Scalar], str] = {
    ("frozen", False): "no parameter of the model is frozen",
    ("frozen", True): "a parameter of the model is frozen",
    ("has_step", False): "no optimizer steps",
    ("has_step", True): "an optimizer steps",
}
_OPERATORS = {"==": "is", "!=": "is not", ">": "is above", "<=": "is at most"}


def sentence(text: str, precondition: Precondition) -> str:
    """Join both: ``Every parameter changes, if requires_grad is true.`` is an example."""
    programs: dict[tuple[Condition, ...], list[str]] = {}
    for clause in precondition.clauses:
        rest = tuple(c for c in clause if c.feature != PROGRAM)
        names = programs.setdefault(rest, [])
        names += [file_of(str(c.value)) for c in clause if c.feature == PROGRAM]
    if len(programs) == 1:
        ((rest, names),) = programs.items()
        names = list(dict.fromkeys(names))
        if not text.startswith(f"In {listed(names)}, " if names else "In "):
            text = of_programs(names, text)
        clauses = _clause(rest)
    else:
        clauses = " or ".join(
            " and ".join(
                filter(
                    None,
                    (_clause(rest), f"in {listed(list(dict.fromkeys(names)))}" if names else ""),
                )
            )
            for rest, names in programs.items()
        )
    return f"{text}, if {clauses}." if clauses else f"{text}."


def _clause(conditions: Sequence[Condition]) -> str:
    return " and ".join(_condition(condition) for condition in conditions)


def _condition(condition: Condition) -> str:
    value = condition.value
    if condition.op == "==" and (condition.feature, value) in _CONDITION_TEXTS:
        return _CONDITION_TEXTS[condition.feature, value]
    shown = str(value).lower() if isinstance(value, bool) or value is None else str(value)
    return f"{condition.feature} {_OPERATORS[condition.op]} {shown}"
