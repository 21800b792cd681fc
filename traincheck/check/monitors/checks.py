"""The checks of a run: rules and invariants, with what each of them needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from traincheck.check.monitors.invariant_monitor import InvariantMonitor
from traincheck.check.monitors.program_filter import programs_by_invariant
from traincheck.check.monitors.subscriptions import Subscription, invariant_subscription
from traincheck.readings.provider import RunStates
from traincheck.schema.claims import Invariant, Needs
from traincheck.schema.findings import CheckInfo
from traincheck.schema.protocols import Relation, Rule, is_for_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """The checks of a run.

    Attributes:
        rules: built-in checks.
        invariants: by name of their relation.
        relations: by name.
        needs: by id of the check.
        infos: by id of the check.
        unusable: id of an invariant -> why it cannot be checked.
        programs: id of an invariant that is restricted to programs -> these programs.
    """

    rules: tuple[Rule, ...]
    invariants: Mapping[str, tuple[Invariant, ...]]
    relations: Mapping[str, Relation]
    needs: Mapping[str, Needs]
    infos: Mapping[str, CheckInfo]
    unusable: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def needs_of(self, invariants: Iterable[Invariant]) -> tuple[Needs, tuple[str, ...]]:
        """The union of what invariants need, and their ids."""
        needs = Needs()
        for invariant in invariants:
            needs |= self.needs[invariant.id]
        return needs, tuple(invariant.id for invariant in invariants)

    def for_run(self, run_states: RunStates) -> list[Subscription]:
        """A subscription for each relation that sees all ranks. run_states: those of the run."""
        found = []
        for name, invariants in self.invariants.items():
            if is_for_run(self.relations[name]):
                monitor = InvariantMonitor(self.relations[name], invariants, run_states=run_states)
                found.append(invariant_subscription(monitor, *self.needs_of(invariants)))
        return found


def prepare(
    invariants: Iterable[Invariant], rules: Iterable[Rule], relations: Mapping[str, Relation]
) -> Checks:
    """Collect the checks. Invariants that this version cannot check are listed as unusable."""
    needs: dict[str, Needs] = {}
    infos: dict[str, CheckInfo] = {}
    unusable: dict[str, str] = {}
    by_relation: dict[str, list[Invariant]] = defaultdict(list)
    rules = tuple(rules)
    for rule in rules:
        needs[rule.info.check_id], infos[rule.info.check_id] = rule.needs, rule.info
    for invariant in invariants:
        claim = invariant.hypothesis
        relation = relations.get(claim.relation)
        needs[invariant.id] = Needs()
        infos[invariant.id] = CheckInfo(
            check_id=invariant.id,
            kind="invariant",
            code=claim.relation,
            severity="info",
            title=invariant.text,
        )
        if relation is None:
            unusable[invariant.id] = f"this version knows no relation {claim.relation!r}"
            continue
        try:
            relation.decider([claim])  # so that one bad claim does not disable its relation
            learned = invariant.needs  # only the file knows where a call was one of these
            needs[invariant.id] = replace(
                relation.needs(claim), level=learned.level, packages=learned.packages
            )
            infos[invariant.id] = relation.info(claim, invariant.id, invariant.text)
            by_relation[claim.relation].append(invariant)
        except Exception as error:  # parameters that no version of the relation ever wrote
            unusable[invariant.id] = failure_text(error)
    return Checks(
        rules=rules,
        invariants={name: tuple(found) for name, found in sorted(by_relation.items())},
        relations=relations,
        needs=needs,
        infos=infos,
        unusable=unusable,
        programs=programs_by_invariant(i for found in by_relation.values() for i in found),
    )


def failure_text(error: Exception) -> str:
    """Why a check was disabled, when it raised ``error``."""
    return f"the check failed with {type(error).__name__}: {error}"
