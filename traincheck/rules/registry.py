"""All rules that come with traincheck, by code, and those that installed packages add."""

from __future__ import annotations

from importlib.metadata import EntryPoint

from traincheck.errors import UsageError
from traincheck.packages import offered
from traincheck.rules.table import RULES
from traincheck.schema.protocols import Rule

ENTRY_POINTS = "traincheck.rules"


def all_rules() -> tuple[Rule, ...]:
    """The table, then the rules that other packages offer as entry points ``traincheck.rules``.

    Raises:
        UsageError: a package offers a rule whose code is taken, or something that is no rule.
    """
    rules = {rule.info.code: rule for rule in RULES}
    for entry in offered(ENTRY_POINTS):
        rule = _load(entry)
        if rule.info.code in rules:
            raise UsageError(
                f"{entry.value} offers rule {rule.info.code}, which exists already",
                fix="uninstall the package or give its rule another code",
            )
        rules[rule.info.code] = rule
    return tuple(rules.values())


def _load(entry: EntryPoint) -> Rule:
    try:
        rule: Rule = entry.load()()
        is_rule = bool(rule.info.code) and callable(rule.monitor) and rule.needs is not None
    except Exception as error:  # whatever a foreign module may raise
        raise UsageError(
            f"{entry.value} cannot be used as a rule: {type(error).__name__}: {error}",
            fix="repair or uninstall the package that offers it",
        ) from error
    if not is_rule:
        raise UsageError(f"{entry.value} is no rule", fix="uninstall the package that offers it")
    return rule
