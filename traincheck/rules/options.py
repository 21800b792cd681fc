"""Options of rules, as a configuration may set them.

They are annotated attributes of the class, or keyword arguments of its constructor if a rule of
another package has one. Defaults are in the classes and nowhere else.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from traincheck.errors import UsageError, nearest, suggested
from traincheck.schema.protocols import Rule
from traincheck.schema.values import is_number

Settings = Mapping[str, Mapping[str, Any]]  # code -> option -> value


def _is_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)


# Annotation -> how to say it, and what fits.
_FORMS: Mapping[Any, tuple[str, Callable[[Any], bool]]] = {
    float: ("a number", is_number),
    int: ("a whole number", lambda value: type(value) is int),
    bool: ("true or false", lambda value: isinstance(value, bool)),
    str: ("a string", lambda value: isinstance(value, str)),
    tuple[str, ...]: ("a list of strings", _is_texts),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of a rule. form: its type in words."""

    name: str
    default: Any
    form: str
    fits: Callable[[Any], bool]


def options_of(rule: Rule) -> dict[str, Option]:
    """The options of a rule by name."""
    kind = type(rule)
    constructor: Callable[..., None] = kind.__init__
    parameters = {} if constructor is object.__init__ else inspect.signature(constructor).parameters
    defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
    defaults |= getattr(kind, "options", {})
    try:
        types = typing.get_type_hints(kind) | typing.get_type_hints(constructor)
    except NameError:  # a type that only the type checker can see
        types = {}
    found = {}
    for name, default in defaults.items():
        if not name.startswith("_"):
            annotation = _bare(types.get(name, type(default)))
            form, fits = _FORMS.get(annotation, ("a value", lambda _: True))
            found[name] = Option(name=name, default=default, form=form, fits=fits)
    return found


def configured(rules: Iterable[Rule], settings: Settings) -> tuple[Rule, ...]:
    """The rules with the options that are set.

    Args:
        rules: with their defaults.
        settings: for some of them.

    Raises:
        UsageError: a code, an option or the type of a value is wrong.
    """
    by_code = {rule.info.code: rule for rule in rules}
    for code, values in settings.items():
        if code not in by_code:
            raise UsageError(
                f"[rules.{code}]: no rule has this code",
                fix=f"{suggested(code, by_code)}traincheck rules lists them",
            )
        by_code[code] = _with(by_code[code], values)
    return tuple(by_code.values())


def _with(rule: Rule, values: Mapping[str, Any]) -> Rule:
    code, known = rule.info.code, options_of(rule)
    given = {}
    for name, value in values.items():
        if name not in known:
            raise UsageError(
                f"[rules.{code}]: the rule has no option {name!r}",
                fix=f"did you mean {nearest(name, known)!r}?" if known else "it has no options",
            )
        option = known[name]
        if not option.fits(value):
            raise UsageError(f"[rules.{code}]: {name} is {value!r}", fix=f"make it {option.form}")
        given[name] = tuple(value) if isinstance(value, list) else value
    try:
        return type(rule)(**given) if given else rule
    except ValueError as error:
        raise UsageError(f"[rules.{code}]: {error}", fix="give another value") from error


def _bare(annotation: Any) -> Any:
    """``float | None`` -> ``float``."""
    parts = [part for part in typing.get_args(annotation) if part is not type(None)]
    is_optional = type(None) in typing.get_args(annotation)
    return parts[0] if is_optional and len(parts) == 1 else annotation
