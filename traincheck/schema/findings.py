"""Verdicts, violations and findings: the results of checks, and their presentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from traincheck.schema.claims import Context, Row
from traincheck.schema.events import Event
from traincheck.schema.facts import Fact
from traincheck.schema.record import Record
from traincheck.schema.shown import finding_line, report_line

SEVERITIES = ("info", "warning", "error")  # rising
TIERS = ("finding", "observation", "advice")
_RARE = 50  # one in so many healthy programs
FINDINGS = 1  # exit status: findings at or above --fail-on
NOTHING_CHECKED = 4  # exit status


def is_rare(seen: int, programs: int) -> bool:
    """Whether so few healthy programs have an observation that it is shown without an option."""
    return seen * _RARE <= programs


class Verdict(str, Enum):
    """The result of one check on one run."""

    HELD = "held"
    VIOLATED = "violated"
    NOT_TRIGGERED = "not_triggered"
    NOT_OBSERVABLE = "not_observable"


class Symptom(str, Enum):
    """The kind of a violation; grouping by cause uses it."""

    MISSING_STEP = "missing_step"  # gradients are computed, no optimizer step uses them
    MISSING_ZERO_GRAD = "missing_zero_grad"  # gradients of an earlier step are used again
    # The optimizer steps when there is nothing to apply.
    STEP_WITHOUT_GRADIENT = "step_without_gradient"
    NO_BACKWARD = "no_backward"  # a step of training without a backward pass
    NOT_IN_OPTIMIZER = "not_in_optimizer"  # a trained parameter is in no optimizer
    HOLDS_OTHERS = "holds_others"  # an optimizer updates tensors that no model has
    EVAL_MODE = "eval_mode"  # trained while in evaluation mode
    TRAINING_MODE = "training_mode"  # in training mode where it is only to be used
    NO_GRADIENT = "no_gradient"  # a parameter gets no gradient
    DETACHED = "detached"  # a result through which no gradient flows back, where it should
    FROZEN = "frozen"  # a parameter does not require grad where it did
    UNFROZEN = "unfrozen"  # a parameter is trained that is to stay as it is
    STRUCTURE = "structure"  # a model has other parameters or buffers than it should
    NOT_UPDATED = "not_updated"  # a step leaves a parameter as it was
    # A buffer or optimizer state does not change where it should.
    STATE_UNCHANGED = "state_unchanged"
    MISSING_CALL = "missing_call"  # a call did not happen where it should
    MADE_ANEW = "made_anew"  # an optimizer that was made later steps in the place of one
    EXTRA_CALL = "extra_call"  # a call happens more often than it should
    GRADIENT_LOST = "gradient_lost"  # gradients are cleared before a step could apply them
    APPLIED_TWICE = "applied_twice"  # one gradient is applied by two optimizers, or added twice
    WRONG_ORDER = "wrong_order"  # a call comes too late or too early to have its effect
    STEPS_SKIPPED = "steps_skipped"  # a scaler never lets its optimizer step
    SCHEDULE = "schedule"  # the learning rate does not follow the training
    SILENT_WRITE = "silent_write"  # a variable changes although it is frozen
    OVERWRITTEN = "overwritten"  # a parameter that is trained changes between two steps
    OUT_OF_STEP = "out_of_step"  # ranks do not do the same things in the same order
    NOT_SYNCHRONIZED = "not_synchronized"  # gradients are not exchanged between ranks
    RANKS_DIFFER = "ranks_differ"  # what should be equal on all ranks is not
    SHARING_LOST = "sharing_lost"  # names that shared one tensor no longer do
    NOT_RESTORED = "not_restored"  # state that was saved is not back after loading
    REPEATED_DATA = "repeated_data"  # samples or random draws come again where they should not
    LOSS_INPUT = "loss_input"  # a loss or attention is given what it is not made for
    UNMASKED = "unmasked"  # attention is given no mask where it should be, or the wrong one
    BATCH_CONTENT = "batch_content"  # tokens, mask and labels of a batch do not fit together
    PRECISION = "precision"  # a dtype that is too coarse, or not the one asked for
    NON_FINITE = "non_finite"  # what is NaN or infinite spreads
    INITIALIZATION = "initialization"  # weights begin where nothing can be learned
    GRADIENT_SIZE = "gradient_size"  # gradients or updates explode or vanish
    DEAD_UNITS = "dead_units"  # units or filters that pass nothing on
    NOT_LEARNING = "not_learning"  # the loss says that training does not help
    ADVICE = "advice"  # it works, but could be better
    WARNED = "warned"  # torch itself said so
    SETTING = "setting"  # a number that users tune is another one, and does the same
    WRONG_VALUE = "wrong_value"  # an argument or result differs from what it should be


class Topic(str, Enum):
    """The topic of a violation, if its symptom and subject leave that open.

    Grouping by cause reads it. The code that writes the sentences of a violation sets it.
    """

    REQUIRES_GRAD = "requires_grad"  # whether tensors require grad
    MODE = "mode"  # a value that depends on training and evaluation mode
    MASK = "mask"  # a mask of attention, causal or for padding
    MAGNITUDE = "magnitude"  # a computed number: loss, norm, element, share of units
    ROWS = "rows"  # the number of rows that a model is trained on in a step
    COUNT = "count"  # the number of calls, which is `measured`
    ORDER = "order"  # the order of calls
    SCHEDULER = "scheduler"  # a learning-rate scheduler
    CLIPPING = "clipping"  # the clipping of gradients
    AUTOCAST = "autocast"  # autocast


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The subject of a violation; at least one field is set.

    variable: ``Net.fc1.weight``; module: its path.
    """

    api: str | None = None
    variable: str | None = None
    module: str | None = None


class Example(Record, frozen=True, kw_only=True):
    """One decided instance of a hypothesis: the answer, its context, details if negative.

    Attributes:
        step: the step that it belongs to, which may precede the step in which it was decided.
        topic, measured: those of the violation.
    """

    holds: bool
    context: Context
    step: int | None = None
    rank: int = 0
    stage: str = "train"
    subject: Subject = Subject()
    expected: str = ""
    observed: str = ""
    evidence: tuple[Event, ...] = ()
    symptom: Symptom = Symptom.MISSING_CALL
    topic: Topic | None = None
    measured: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One proof that a check broke.

    topic: its topic, if symptom and subject leave that open. measured: number of calls, if the
    topic is `Topic.COUNT`.

    title, likely_cause, fix: more specific texts than those of the check. optimizer: the optimizer
    concerned, if the process has several.
    provisional: later events may show that the check holds. withdrawn: they did; the violation with
    the same check, symptom and subject no longer counts.
    """

    check_id: str
    step: int | None
    rank: int
    stage: str
    subject: Subject
    symptom: Symptom
    message: str
    expected: str
    observed: str
    topic: Topic | None = None
    measured: int | None = None
    evidence: tuple[Event, ...] = ()
    title: str = ""
    likely_cause: str = ""
    fix: str = ""
    optimizer: str = ""
    provisional: bool = False
    withdrawn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckInfo:
    """The constant texts of a check.

    Attributes:
        kind: "invariant" or "rule".
        code: ``TC104``, or the name of the relation.
        headline: title of a finding of an invariant, if it differs from that of its symptom.
        title_of_several, fix_of_several: title and fix if a process has several optimizers, with
        ``{optimizer}`` for the one concerned.
    """

    check_id: str
    kind: str
    code: str
    severity: str
    title: str
    headline: str = ""
    likely_cause: str = ""
    fix: str = ""
    title_of_several: str = ""
    fix_of_several: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppressed:
    """Why a violation is not reported.

    Attributes:
        by: "comment", "configuration" or "baseline".
        reason: that the user gave.
        where: the file that suppresses it, and the line.
    """

    by: str
    reason: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Also:
    """A check that broke by the same bug. text: its statement; subjects: names, sorted."""

    check: str
    kind: str
    code: str
    text: str
    first_step: int | None
    violations: int
    subjects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Finding:
    """Violations of one cause folded together, as reported.

    Attributes:
        id: of check and subject, the same in every run.
        topic: of the violation that heads the group.
        variables: all names concerned, sorted.
        explains: ids of the checks that it explains.
        also: the texts of these.
        comparison: what a reference run did and what this one did, or what two ranks did.
        compared: the names of the two that are compared.
        steps: number of steps in which it was seen, at least.
        suppressed: why it is not reported; None if it is.
        provisional: later events may withdraw it, so no program is stopped for it.
        healthy: how many of how many healthy programs have it too; None if that is not known.
    """

    id: str
    check: str
    kind: str
    code: str
    severity: str
    title: str
    message: str
    step: int | None
    first_step: int | None
    last_step: int | None
    rank: int
    stage: str
    violations: int
    subject: Subject
    expected: str
    observed: str
    topic: Topic | None = None
    evidence: tuple[Event, ...] = ()
    likely_cause: str = ""
    fix: str = ""
    variables: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()
    also: tuple[Also, ...] = ()
    comparison: tuple[Row, ...] = ()
    compared: tuple[str, str] = ("the reference", "this run")
    steps: int = 1
    suppressed: Suppressed | None = None
    provisional: bool = False
    healthy: tuple[int, int] | None = None

    @property
    def tier(self) -> str:
        """Its place in a report: "finding", "observation" (info, and rare), or "advice"."""
        if self.severity != "info":
            return "finding"
        return "advice" if self.healthy is None or not is_rare(*self.healthy) else "observation"

    def __repr__(self) -> str:
        return f"<{finding_line(self)}>"

    def _repr_html_(self) -> str:
        from traincheck.page.notebook import finding_html

        return finding_html(self)


class Findings(tuple[Finding, ...]):
    """Findings, the first cause first. A notebook shows them as HTML, a terminal one a line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(map(repr, self)) or "<no findings>"

    def _repr_html_(self) -> str:
        from traincheck.page.notebook import findings_html

        return findings_html(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Presentation:
    """How a report is shown.

    Attributes:
        fail_on: lowest severity that counts as failure.
        info, suppressed: show these findings in full too.
        verbose: show every finding in full, with everything that it explains.
        allow_empty: a run in which nothing was checked is not a failure.
        require_steps: fewer recorded training steps are a failure.
    """

    fail_on: str = "warning"
    info: bool = False
    suppressed: bool = False
    verbose: bool = False
    allow_empty: bool = False
    require_steps: int = 0

    def fails(self, finding: Finding) -> bool:
        """Whether a finding makes the exit status 1."""
        return SEVERITIES.index(finding.severity) >= SEVERITIES.index(self.fail_on)

    def tier(self, finding: Finding) -> str:
        """`Finding.tier`. Advice that makes the exit status 1 is a finding."""
        return "finding" if self.fails(finding) else finding.tier

    def shows(self, finding: Finding) -> bool:
        """Whether it is shown in full. Advice is folded into one line unless asked for."""
        return self.info or self.tier(finding) != "advice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A checkpoint that was written.

    Attributes:
        path: of the file or folder, as the program gave it; None where that is not known.
        step: the step in which it was written.
        rank: the rank that wrote it.
        where: ``file:line`` of the call.
    """

    path: str | None
    step: int
    rank: int = 0
    where: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a program failed.

    Attributes:
        text: a predicate, "was ended by SIGTERM".
        sender: who may have sent the signal; empty if none is known.
        fix: a next step if it ended too early to be checked.
    """

    text: str
    sender: str = ""
    fix: str = "correct the error that ended the program; its output shows it"

    @property
    def whole(self) -> str:
        """The predicate and who may have sent the signal."""
        return f"{self.text} ({self.sender})" if self.sender else self.text


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report:
    """The result of checking one run.

    Attributes:
        steps: number of training steps.
        checked_steps: number of recorded ones, which were checked.
        verdicts, infos: one per check id.
        unobservable: the reason, for checks that could not be decided.
        suppressed: findings that were accepted.
        root: directory that source locations are relative to.
        sources: directories below which source may be read. They do not come from the trace.
        hostname, started, program: machine, start in seconds since 1970, and script of the run;
        empty or 0 if not known.
        is_partial: a part of the run was not recorded, or not read.
        saves: the checkpoints that the run wrote, the latest of each file.
        ended: how the program failed, if it did.
        facts: what readers saw in the whole run; empty before it has ended, and without readers.
    """

    events: int
    steps: int
    ranks: int
    verdicts: dict[str, Verdict]
    findings: Sequence[Finding]
    skipped_lines: int = 0
    notes: Sequence[str] = ()
    infos: Mapping[str, CheckInfo] = field(default_factory=dict)
    unobservable: Mapping[str, str] = field(default_factory=dict)
    suppressed: Sequence[Finding] = ()
    root: str = ""
    sources: Sequence[Path] = ()
    hostname: str = ""
    started: float = 0.0
    program: str = ""
    is_partial: bool = False
    saves: Sequence[Save] = ()
    presentation: Presentation = field(default_factory=Presentation)
    checked_steps: int = 0
    ended: Ending | None = None
    facts: Sequence[Fact] = ()

    def __repr__(self) -> str:
        return f"<report: {report_line(self)}>"

    def _repr_html_(self) -> str:
        from traincheck.page.notebook import report_html

        return report_html(self)

    @property
    def tally(self) -> Counter[str]:
        """The number of findings of each tier. All counts that are shown are these."""
        return Counter(map(self.presentation.tier, self.findings))

    def count(self, verdict: Verdict) -> int:
        """Number of checks with ``verdict``."""
        return sum(1 for v in self.verdicts.values() if v is verdict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was checked: no training step was recorded, or no check was triggered.

        A warning or an error counts without a step, too. Advice and checks that held do not: a
        program that builds its model and then finds no data has them too.
        """
        if any(found.severity != "info" for found in (*self.findings, *self.suppressed)):
            return False
        is_triggered = self.count(Verdict.HELD) + self.count(Verdict.VIOLATED) > 0
        return not (self.checked_steps and is_triggered)

    @property
    def is_short(self) -> bool:
        """Whether fewer training steps were recorded than are required."""
        return self.checked_steps < self.presentation.require_steps

    @property
    def exit_status(self) -> int:
        """Exit status of a command that shows this report: 0, `FINDINGS` or `NOTHING_CHECKED`."""
        if any(map(self.presentation.fails, self.findings)):
            return FINDINGS
        is_failed = self.is_short or (self.is_empty and not self.presentation.allow_empty)
        return NOTHING_CHECKED if is_failed else 0
