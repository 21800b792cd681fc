"""All rules that come with traincheck, by code, and those that installed packages add."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from traincheck.errors import UsageError
from traincheck.rules.attention import table as attention
from traincheck.rules.batch_content import table as batch_content
from traincheck.rules.checkpoints import table as checkpoints
from traincheck.rules.configuration import table as configuration
from traincheck.rules.data import table as data
from traincheck.rules.efficiency import table as efficiency
from traincheck.rules.ledger import table as ledger
from traincheck.rules.losses import table as losses
from traincheck.rules.modes import table as modes
from traincheck.rules.numerics import table as numerics
from traincheck.rules.origins import table as origins
from traincheck.rules.parameters import table as parameters
from traincheck.rules.precision import table as precision
from traincheck.rules.probes import table as probes
from traincheck.rules.provenance import table as provenance
from traincheck.rules.ranks import table as ranks
from traincheck.rules.schedules import table as schedules
from traincheck.rules.shapes import table as shapes
from traincheck.rules.step_window import table as step_window
from traincheck.rules.torch_warnings import table as torch_warnings
from traincheck.schema.protocols import Rule

ENTRY_POINTS = "traincheck.rules"
_THEMES = (
    attention,
    batch_content,
    checkpoints,
    configuration,
    data,
    efficiency,
    ledger,
    losses,
    modes,
    numerics,
    origins,
    parameters,
    precision,
    probes,
    provenance,
    ranks,
    schedules,
    shapes,
    step_window,
    torch_warnings,
)
RULES: tuple[Rule, ...] = tuple(
    sorted((rule for theme in _THEMES for rule in theme.RULES), key=lambda rule: rule.info.code)
)


def all_rules() -> tuple[Rule, ...]:
    """The table, then the rules that other packages offer as entry points ``traincheck.rules``.

    Raises:
        UsageError: a package offers a rule whose code is taken, or something that is no rule.
    """
    rules = {rule.info.code: rule for rule in RULES}
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda e: (e.name, e.value)):
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
