"""The base class of rules, rules that judge single events, and faults that must repeat."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypedDict, TypeVar, cast

from traincheck.readings.provider import RunState
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import CheckInfo, Subject, Symptom, Topic, Violation

if TYPE_CHECKING:
    from typing_extensions import Unpack

_Rule = TypeVar("_Rule", bound="BuiltInRule")
_State = TypeVar("_State")


class _Fresh(Generic[_State]):
    def __init__(self, make: Callable[[], _State]) -> None:
        self.make = make


def fresh(make: Callable[[], _State]) -> _State:
    """State of a rule, as a class attribute: each run of the rule makes its own."""
    return cast(_State, _Fresh(make))


class Told(TypedDict):
    """Fields of a violation that each rule states."""

    subject: Subject
    symptom: Symptom
    message: str
    expected: str
    observed: str


class Stated(Told, total=False):
    """The same, fields that few violations have, and the step where it is an earlier one."""

    step: int | None
    topic: Topic | None
    measured: int | None
    title: str
    likely_cause: str
    fix: str
    optimizer: str
    provisional: bool


class Fields(Stated, total=False):
    """The same, and what else a violation has from its event."""

    rank: int
    stage: str
    evidence: tuple[Event, ...]


class BuiltInRule(ABC):
    """A built-in check, and one run of that check.

    A rule states its code and severity once, in the class statement. Its docstring is its
    documentation, and its class attributes are the texts of a finding, its options (public, with
    an annotation and the default), and its state at the start of a run (private, see `fresh`).
    `monitor` makes the instance that observes the events of one process, or of all ranks if
    ``scope`` is "run". A rule that receives fewer events than it needs names them as ``observes``.

    Attributes:
        needs: events, calls and states that it reads.
        aliases: former names.
        options: the defaults of its options.
        uses: the run state that it reads, which its method ``bind`` gets.
        triggered: how often the situation occurred that it checks.
        reported: subjects that it reported; a rule that reports each once asks here.
        is_over: it found all that it can find in this process, or saw that it can find nothing.
    """

    info: CheckInfo
    code: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[Mapping[str, Any]] = {}
    uses: ClassVar[Sequence[type[RunState]]] = ()
    needs: Needs
    title: ClassVar[str]
    title_of_several: ClassVar[str] = ""
    likely_cause: ClassVar[str]
    fix: ClassVar[str]
    fix_of_several: ClassVar[str] = ""
    triggered: int
    reported: set[Any]
    is_over: bool
    _options: dict[str, Any]
    _fresh: ClassVar[Mapping[str, Callable[[], Any]]] = {}

    def __init_subclass__(
        cls, *, code: str = "", severity: str = "warning", aliases: tuple[str, ...] = ()
    ) -> None:
        super().__init_subclass__()
        own = vars(cls)
        states = {name: each.make for name, each in own.items() if isinstance(each, _Fresh)}
        cls._fresh = {**cls._fresh, **states}
        options = {
            name: own[name]
            for name, kind in own.get("__annotations__", {}).items()
            if name in own
            and not name.startswith("_")
            and not kind.startswith("ClassVar")
            and name not in BuiltInRule.__annotations__
        }
        cls.options = {**cls.options, **options}
        if not code:
            return
        cls.code = code
        cls.aliases = aliases
        cls.info = CheckInfo(
            check_id=code,
            kind="rule",
            code=code,
            severity=severity,
            title=cls.title,
            title_of_several=cls.title_of_several,
            likely_cause=cls.likely_cause,
            fix=cls.fix,
            fix_of_several=cls.fix_of_several,
        )

    def __new__(cls: type[_Rule], **options: Any) -> _Rule:
        """Make a rule that remembers its options."""
        self = super().__new__(cls)
        self._options = options
        return self

    @property
    def observes(self) -> Needs:
        """The events that it gets if it uses run state: all that it needs."""
        return self.needs.delivered

    def __init__(self, **options: Any) -> None:
        """Start a run.

        Raises:
            TypeError: the rule has no such option.
        """
        if unknown := options.keys() - self.options.keys():
            raise TypeError(f"{type(self).__name__} has no option {min(unknown)!r}")
        vars(self).update(options)
        vars(self).update((name, make()) for name, make in self._fresh.items())
        self.triggered = 0
        self.reported = set()
        self.is_over = False

    def monitor(self: _Rule) -> _Rule:
        """Start a new run of this check with the same options."""
        return type(self)(**self._options)

    @abstractmethod
    def observe(self, event: Event) -> Sequence[Violation]:
        """Return the violations that an event proves, together with earlier events."""

    def finish(self) -> Sequence[Violation]:
        """Return the violations that the end of the run proves; none by default."""
        return ()

    def violation(self, event: Event, **fields: Unpack[Fields]) -> Violation:
        """Make a violation at the step, rank and stage of an event, which is also the evidence.

        fields: what is wrong, and what differs from the event or is in few violations.
        """
        whole: Fields = {
            "step": event.step,
            "rank": event.rank,
            "stage": event.stage,
            "evidence": (event,),
            **fields,
        }
        return Violation(check_id=self.code, **whole)

    def found(self, event: Event, **fields: Unpack[Fields]) -> list[Violation]:
        """A violation, as the only one that is found."""
        return [self.violation(event, **fields)]


class EventRule(BuiltInRule):
    """Judges each event on its own, with little or no state."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.observe = cls.judge  # type: ignore[method-assign]  # saves a call for each event

    def observe(self, event: Event) -> Sequence[Violation]:
        return self.judge(event)

    @abstractmethod
    def judge(self, event: Event) -> Sequence[Violation]:
        """Return the violations that an event proves."""


_Key = TypeVar("_Key")


@dataclass(slots=True)
class Streak:
    """count: number of consecutive steps. first: the first of them."""

    first: int | None
    count: int = 0

    def at(self, confirmed: int, now: int | None) -> int | None:
        """The step of a report: the first one in the report that confirms it, later the present."""
        return self.first if self.count == confirmed else now


def extend(streaks: dict[_Key, Streak], key: _Key, step: int | None) -> Streak:
    """Add a step to the streak of a key, which starts if there is none."""
    streak = streaks.setdefault(key, Streak(step))
    streak.count += 1
    return streak
