"""A load replaces the hyper-parameters that the program asked for, and nothing sets them again."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.readings.hyperparameters import Course, Load
from traincheck.rules.ledger.in_force_rule import InForceRule, line, subject
from traincheck.schema.events import OptimizerEvent
from traincheck.schema.findings import Symptom, Violation
from traincheck.schema.observations.loads import LoadedSetting

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
                    found.append(self._violation(course, load, settings))
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

    def _violation(
        self, course: Course, load: Load, settings: Sequence[LoadedSetting]
    ) -> Violation:
        names = list(dict.fromkeys(setting.name for setting in settings))
        first = settings[0]
        several = f" (and {', '.join(names[1:])})" if names[1:] else ""
        how = "its schedule starts from" if first.name == _BASE else "trains with"
        name = "lr" if first.name == _BASE else first.name
        observed = (
            f"{course.label} was created with {name}={first.before}{line(course.made.where)}"
            f" and {how} {first.loaded} of the checkpoint{several}"
        )
        return self.violation(
            load.mark,
            subject=subject(course),
            symptom=Symptom.SCHEDULE,
            message=f"the load replaces {name} of {course.label}{line(load.where)}",
            expected=f"{name}={first.before}, as asked for",
            observed=observed,
            evidence=(course.made, load.mark),
        )


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
