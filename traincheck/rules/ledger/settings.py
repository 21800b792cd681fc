"""Settings that the program asked for, and that are not in force."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.readings.optimizers import Course, Load
from traincheck.rules.base.rule import BuiltInRule, fresh
from traincheck.rules.base.step_rule import InForceRule, line, subject
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, OptimizerEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.loads import (
    ATTRIBUTE,
    DEFAULTS,
    OTHER_KEY,
    STATE_DICT,
    IneffectiveWrite,
    LoadedSetting,
)
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import Families

_UPDATES = 3  # with the loaded value
_BASE = "initial_lr"


class LoadedSettingReplacesAsked(InForceRule, code="TC065"):
    """loaded-setting-replaces-asked: a checkpoint replaces the hyper-parameters asked for.

    What it checks:
        After optimizer.load_state_dict(), the optimizer does not train to the end with a learning
        rate, weight decay or momentum that contradicts what its constructor was given.

    Why it matters:
        load_state_dict() also restores hyper-parameters. A second stage with a smaller rate trains
        with the rate of the first stage.

    Fires on:
        - A loaded rate that is constant to the end and larger than the one asked for.
        - A loaded rate that an earlier optimizer of the same run was created with.
        - A loaded weight decay, momentum or betas that differ from what was asked for.
        - A schedule that starts from the base rate of the checkpoint, and not from the rate asked
          for.

    Stays quiet on:
        - Rates that change after the load, by a scheduler or by the program.
        - Values that the program sets again after the load.
        - Constructors that leave the default, or a rate of zero.
        - A loaded rate below the one asked for: an earlier run may have decayed it.
        - Values that were changed since the constructor, such as by a search for a rate.

    Fix:
        Set group["lr"] in optimizer.param_groups after optimizer.load_state_dict().

    Source:
        https://github.com/pytorch/examples/issues/816, https://github.com/NVIDIA/Megatron-LM/issues/963
    """

    title = "The checkpoint replaces hyper-parameters that the program asks for"
    likely_cause = (
        "optimizer.load_state_dict() restores the hyper-parameters of the checkpoint together with "
        "its state, and nothing sets them again."
    )
    fix = (
        "Set the values again after the load: for group in optimizer.param_groups: "
        'group["lr"] = lr.'
    )

    def finish(self) -> Sequence[Violation]:
        found = []
        for course in self.ledger.courses.values():
            for load in course.loads[-1:]:
                self.triggered += 1
                settings = [s for s in load.settings if self._is_contradiction(course, load, s)]
                if settings and load.updates >= _UPDATES:
                    names = list(dict.fromkeys(setting.name for setting in settings))
                    first = settings[0]
                    several = f" (and {', '.join(names[1:])})" if names[1:] else ""
                    how = "its schedule starts from" if first.name == _BASE else "trains with"
                    name = "lr" if first.name == _BASE else first.name
                    observed = (
                        f"{course.label} was created with "
                        f"{name}={first.before}{line(course.made.where)}"
                        f" and {how} {first.loaded} of the checkpoint{several}"
                    )
                    found += self.found(
                        load.mark,
                        subject=subject(course),
                        symptom=Symptom.SCHEDULE,
                        message=f"the load replaces {name} of {course.label}{line(load.where)}",
                        expected=f"{name}={first.before}, as asked for",
                        observed=observed,
                        evidence=(course.made, load.mark),
                    )
        return found

    def _is_contradiction(self, course: Course, load: Load, setting: LoadedSetting) -> bool:
        if setting.later != setting.loaded or setting.is_default:
            return False
        if repr(_asked(course.made, setting)) != setting.before:
            return False  # it was written since
        if setting.name == _BASE:
            return course.takes_base_rate
        if course.schedulers:
            return False
        if setting.name != "lr":
            return True
        asked, loaded = _number(setting.before), _number(setting.loaded)
        if load.varies or asked is None or loaded is None:
            return False
        return loaded > asked > 0 or self._was_asked_before(course, loaded, setting.group)

    def _was_asked_before(self, course: Course, rate: float, group: int) -> bool:
        """Whether an earlier optimizer of this class was created with this rate, not decayed."""
        for other in self.ledger.courses.values():
            if other is course:
                return False
            rates = other.asked("lr")
            if other.made.cls == course.made.cls and group < len(rates) and rates[group] == rate:
                return True
        return False


def _asked(made: OptimizerEvent, setting: LoadedSetting) -> object:
    if setting.group >= len(made.groups):
        return None
    name = "lr" if setting.name == _BASE else setting.name
    value = made.groups[setting.group].hyper.get(name)
    return tuple(value) if isinstance(value, (list, tuple)) else value


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


_PLACES = {
    STATE_DICT: "a copy of its groups that state_dict() returned",
    DEFAULTS: "optimizer.defaults, which only new groups read",
    ATTRIBUTE: "an attribute that it does not read",
    OTHER_KEY: "a key of its groups that it does not read",
}

# Names of hyper-parameters under which the program writes them
_NAMES = {
    "learning_rate": "lr", "lrate": "lr", "LR": "lr", "decay": "weight_decay",
    "weight_decay_rate": "weight_decay",
}  # fmt: skip


class SettingWrittenElsewhere(BuiltInRule, code="TC066"):
    """setting-written-elsewhere: a learning rate is set where the optimizer does not read it.

    What it checks:
        Hyper-parameters that the program writes reach the groups that the optimizer uses.

    Why it matters:
        The optimizer trains with the first rate to the end. The schedule has no effect, and a rate
        that is printed from the same place looks right.

    Fires on:
        - optimizer.state_dict()["param_groups"][0]["lr"] = lr, without a load.
        - optimizer.defaults["lr"] = lr.
        - optimizer.lr = lr.
        - group["learning_rate"] = lr.

    Stays quiet on:
        - State dicts that are changed to be loaded or saved.
        - Values that the groups have, too.
        - Attributes of optimizers that the program defines.

    Fix:
        Write to the groups in use: for group in optimizer.param_groups: group["lr"] = lr.

    Source:
        https://github.com/pytorch/examples/issues/64
    """

    title = "A hyper-parameter is set where the optimizer does not read it"
    likely_cause = (
        "The program writes to a copy of the groups, or to a place from which groups are only made."
    )
    fix = "Write to the groups in use: for group in optimizer.param_groups: {expected}."
    needs = Needs(
        calls=frozenset({Families.OPTIMIZER_STEP}), kinds=frozenset({"optimizer", "step"})
    ) | needs_of(IneffectiveWrite)
    _made: dict[str, OptimizerEvent] = fresh(dict)
    _found: dict[tuple[str, str], Violation] = fresh(dict)

    def observe(self, event: Event) -> Sequence[Violation]:
        if isinstance(event, OptimizerEvent):
            self._made.setdefault(event.id, event)
        elif isinstance(event, CallEvent):
            self.triggered += (event.family or event.api) == Families.OPTIMIZER_STEP
        found = observed(event, IneffectiveWrite)
        if found is None or found.place not in _PLACES:
            return ()
        key = found.owner, found.name
        if key in self._found:
            return ()
        made = self._made.get(found.owner)
        label = found.owner if made is None else f"{found.owner} ({made.cls.rpartition('.')[2]})"
        observed_text = (
            f"{found.name} of {label} is set to {found.written} in {_PLACES[found.place]}"
            f"{line(found.where)}, and stays {found.in_force}"
        )
        self._found[key] = violation = self.violation(
            event,
            subject=Subject(api=Families.OPTIMIZER_STEP, variable=found.owner),
            symptom=Symptom.SCHEDULE,
            message=f"{found.name} of {label} is written where the optimizer does not read it",
            expected=f'group["{_NAMES.get(found.name, found.name)}"] = value',
            observed=observed_text,
            evidence=(event,) if made is None else (made, event),
        )
        return [violation]
