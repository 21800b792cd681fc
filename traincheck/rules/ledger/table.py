"""Rules about what is in force: hyper-parameters, metrics, orders and samples, by code."""

from __future__ import annotations

from traincheck.rules.ledger.tc065_loaded_setting_replaces_asked import LoadedSettingReplacesAsked
from traincheck.rules.ledger.tc066_setting_written_elsewhere import SettingWrittenElsewhere
from traincheck.rules.ledger.tc067_schedule_holds_old_groups import ScheduleHoldsOldGroups
from traincheck.rules.ledger.tc068_rate_set_for_one_group import RateSetForOneGroup
from traincheck.rules.ledger.tc069_rate_overwritten_by_scheduler import RateOverwrittenByScheduler
from traincheck.rules.ledger.tc070_metric_for_two_phases import MetricForTwoPhases
from traincheck.rules.ledger.tc071_metric_never_reset import MetricNeverReset
from traincheck.rules.ledger.tc072_drawn_order_lost import DrawnOrderLost
from traincheck.rules.ledger.tc073_dataset_written_when_read import DatasetWrittenWhenRead
from traincheck.rules.ledger.tc074_rate_decayed_to_nothing import RateDecayedToNothing
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
    LoadedSettingReplacesAsked(),
    SettingWrittenElsewhere(),
    ScheduleHoldsOldGroups(),
    RateSetForOneGroup(),
    RateOverwrittenByScheduler(),
    MetricForTwoPhases(),
    MetricNeverReset(),
    DrawnOrderLost(),
    DatasetWrittenWhenRead(),
    RateDecayedToNothing(),
)
