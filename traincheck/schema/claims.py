"""Claims about training: hypotheses, preconditions, invariants, and excerpts of call trees.

An invariant stores an excerpt of a reference run: the calls of a window in a few lines. A finding
shows it next to that of the checked run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from traincheck.schema.marks import EVAL_STAGE
from traincheck.schema.torch_api import Families


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A call, or several equal ones in a row.

    Attributes:
        depth: in the tree, from 0.
        api: empty for a group of deeper lines that repeats ``count`` times.
        family: of a landmark, and of a forward of a whole model.
        note: further details.
    """

    depth: int
    api: str
    family: str | None = None
    note: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """The calls of one window.

    depth: of the shown tree; -1 for landmarks only.
    """

    lines: tuple[Line, ...]
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the reference next to a line of this run; None if one side has no line.

    mark: ``-`` only in the reference, ``+`` only in this run, ``~`` different, else a space.
    """

    reference: str | None
    observed: str | None
    mark: str = " "


def excerpt_id(excerpt: Excerpt) -> str:
    """The id of an excerpt; equal excerpts have equal ids."""
    content = orjson.dumps(excerpt_json(excerpt), option=orjson.OPT_SORT_KEYS)
    return f"x-{hashlib.sha256(content).hexdigest()[:10]}"


def excerpts_json(excerpts: Iterable[Excerpt | None]) -> dict[str, Any]:
    """The different ones by id, in the order of their ids."""
    found = {excerpt_id(excerpt): excerpt for excerpt in {e for e in excerpts if e is not None}}
    return {key: excerpt_json(excerpt) for key, excerpt in sorted(found.items())}


def excerpt_json(excerpt: Excerpt) -> dict[str, Any]:
    """``{"depth": 1, "lines": [{"depth": 0, "api": ...}, ...]}``; what is usual is left out."""
    lines = [
        {
            "depth": line.depth,
            "api": line.api,
            **({} if line.family is None else {"family": line.family}),
            **({"note": line.note} if line.note else {}),
            **({} if line.count == 1 else {"count": line.count}),
        }
        for line in excerpt.lines
    ]
    return {"depth": excerpt.depth, "lines": lines}


Scalar = None | bool | int | float | str
Context = Mapping[str, Scalar]  # feature name -> value, for one example

BATCH_CONTENT = "batch@content"
BATCH_ROWS = "batch@rows"
_SAMPLED = "@some"  # suffix of a name in `Needs.stats`, `Needs.calls` or `Needs.states`

LEVELS = ("", "default", "deep")  # each takes more than those before it

OPERATORS = ("==", "!=", ">", "<=")

# A feature of every context: the program (readings/programs.py). Conditions on it are tested for
# each process, not for each example.
PROGRAM = "program"

# Calls that are recorded in sampled steps for the statistics of an "activation".
ACTIVATION_FUNCTIONS = frozenset(
    {f"torch.{name}" for name in ("relu", "tanh", "sigmoid")}
    | {f"torch.Tensor.{name}{end}" for name in ("relu", "tanh", "sigmoid") for end in ("", "_")}
    | {
        f"torch.nn.functional.{name}"
        for name in (
            "relu", "relu_", "relu6", "hardswish", "leaky_relu", "leaky_relu_", "prelu", "rrelu",
            "rrelu_", "elu", "elu_", "celu", "celu_", "selu", "selu_", "gelu", "silu", "mish",
            "tanh", "hardtanh", "hardtanh_", "sigmoid", "hardsigmoid",
        )
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """``feature op value``, for instance ``stage == "train"``.

    A feature that a context lacks makes every condition on it false.
    """

    feature: str
    op: str
    value: Scalar

    def holds(self, context: Context) -> bool:
        if self.feature not in context:
            return False
        found = context[self.feature]
        if self.op == "==":
            return found == self.value
        if self.op == "!=":
            return found != self.value
        if isinstance(found, (int, float)) and isinstance(self.value, (int, float)):
            return found > self.value if self.op == ">" else found <= self.value
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Precondition:
    """A disjunction of conjunctions. Without clauses it always holds."""

    clauses: tuple[tuple[Condition, ...], ...] = ()

    def holds(self, context: Context) -> bool:
        for clause in self.clauses:
            for condition in clause:
                if not condition.holds(context):
                    break
            else:
                return True
        return not self.clauses

    @property
    def is_always(self) -> bool:
        return not self.clauses

    def programs(self) -> tuple[str, ...]:
        """The programs that it is restricted to; none if it applies to all."""
        return tuple(
            str(c.value) for clause in self.clauses for c in clause if c.feature == PROGRAM
        )

    def within(self, program: str | None) -> Precondition | None:
        """The conditions left for a process of this program; None if it never applies there."""
        if not self.programs():
            return self
        left = []
        for clause in self.clauses:
            names = [str(c.value).partition("#")[0] for c in clause if c.feature == PROGRAM]
            if all(name == program for name in names):
                left.append(tuple(c for c in clause if c.feature != PROGRAM))
        if not left:
            return None
        return Precondition(clauses=tuple(dict.fromkeys(left)) if all(left) else ())

    def under_any_name(self) -> Precondition | None:
        """The conditions left for a renamed script; None if they differ between the programs."""
        files = {program.partition("#")[0] for program in self.programs()}
        left = {self.within(file) for file in files}
        return left.pop() if len(left) == 1 else None


def sampled(*names: str) -> frozenset[str]:
    """Names for `Needs` that are recorded in sampled steps only: these show most bugs."""
    return frozenset(name + _SAMPLED for name in names)


def without_sampling(names: Iterable[str]) -> frozenset[str]:
    """The names without the suffix for sampling."""
    return frozenset(name.removesuffix(_SAMPLED) for name in names)


def _has(names: frozenset[str], name: str) -> bool:
    return name in names or name + _SAMPLED in names


def _only_sampled(names: frozenset[str]) -> frozenset[str]:
    return without_sampling(name for name in names if name.endswith(_SAMPLED)) - names


def within_modules(*names: str) -> frozenset[str]:
    """Names for `Needs.calls`: those that modules call are recorded in sampled steps only.

    A bug in the other steps shows in what is recorded in every step, or soon after.
    """
    return frozenset(name + _SAMPLED if is_within_modules(name) else name for name in names)


def is_within_modules(name: str) -> bool:
    """Whether modules make most of the calls of this name."""
    if name.startswith("torch.nn.functional."):
        return not name.endswith(("_loss", "cross_entropy", "_logits", "kl_div"))
    return name.endswith(".forward") and name != Families.MODULE


# Moments in `Needs.states` at which variables are scanned.
_SCAN_MOMENTS = frozenset({"forward", "backward", "step", "zero_grad", "*"})
# Those whose events are states. What observations need comes as marks.
_STATE_MOMENTS = _SCAN_MOMENTS | {"new", "hand", "ranks"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The steps in which sampled data is recorded: the first ones, and every n-th."""

    first: int = 4
    every: int = 10

    def __str__(self) -> str:
        return f"the first {self.first} and each {self.every}th"

    def includes(self, step: int | None) -> bool:
        """Whether data is recorded in ``step``. Outside of steps (None) it always is."""
        return step is None or step < self.first or step % self.every == 0

    def is_full(self, step: int | None, stage: str | None) -> bool:
        """Whether all calls are recorded then."""
        return stage == EVAL_STAGE or self.includes(step)


# For calls and state scans. Most bugs show at the start. A prime period, so that sampling does not
# miss what a loop does in every second or fifth step.
SAMPLED_STEPS = Schedule(first=8, every=7)
# For the uses of a model that marks report.
USE_SCHEDULE = Schedule(first=8, every=10)
# Number of elements of a tensor that is recognized by its content: fewer match by chance.
MIN_MATCHED_ELEMENTS, MAX_MATCHED_ELEMENTS = 16, 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The contents that a trace needs to decide a check.

    The router gives the check these events, and selective collection records them.

    Attributes:
        calls: API or family names. With the suffix ``@some``, calls are recorded in the steps of
            `SAMPLED_STEPS`, and whenever models are evaluated.
        states: ``role@moment`` with moment one of forward, backward, step, zero_grad, or
            ``role@*``; with the suffix ``@some`` in the steps of `SAMPLED_STEPS`;
            ``role@new``: only which variables exist, not how they change;
            ``parameter@hand``: what the program updates itself, while no optimizer has stepped;
            ``parameter@ranks``: with exact fingerprints where there are several ranks;
            ``collective@ranks``: with exact fingerprints of what ranks send and get;
            ``batch@content``: with fingerprints of what batches hold, with ``@some`` as above;
            ``batch@rows``: with fingerprints of rows, in the steps of `SAMPLED_STEPS` and in
            evaluations;
            and what observations need (`Observation.need`, listed in docs/trace-format.md).
        kinds: further event kinds (step, optimizer, batch ... ).
        exact: whether fingerprints are compared; else "did it change" is enough.
        stats: of which tensors numbers are taken: ``parameter``, ``gradient``, ``batch``,
            ``activation``, ``input``, or the name of an API, of whose arguments they are taken;
            ``update``, of parameters: also how far the first updates move them.
            With ``@some`` behind it, at the first steps and then at each tenth is enough.
        level: at which calls of operators are to be recorded, "default" or "deep", which count
            them differently; empty where it makes no difference.
        packages: the user's own, whose functions are to be recorded.
        marks: texts of the observations that are read, also of those that are always recorded.
    """

    calls: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    exact: bool = False
    stats: frozenset[str] = frozenset()
    level: str = ""
    packages: frozenset[str] = frozenset()
    marks: frozenset[str] = frozenset()

    def asks_for(self, api: str) -> bool:
        """Whether calls of this name are needed, in all steps or in sampled ones."""
        return _has(self.calls, api)

    def delivers(self, api: str) -> bool:
        """Whether calls of this name are delivered, also those recorded for statistics."""
        return self.asks_for(api) or (
            api in ACTIVATION_FUNCTIONS and "activation" in without_sampling(self.stats)
        )

    @property
    def sampled_calls(self) -> frozenset[str]:
        """Names of the calls that are needed in sampled steps only."""
        return _only_sampled(self.calls)

    @property
    def sampled_states(self) -> frozenset[str]:
        """States that are needed in sampled steps only."""
        return _only_sampled(self.states)

    def scans(self, state: str) -> bool:
        """Whether this state is needed, in all steps or in sampled ones."""
        return _has(self.states, state)

    @property
    def delivered(self) -> Needs:
        """These needs without those of observations, for which a check gets marks, not states."""
        plain = {name: name.removesuffix(_SAMPLED).partition("@")[2] for name in self.states}
        states = frozenset(name for name, moment in plain.items() if moment in _STATE_MOMENTS)
        return replace(self, states=states)

    @property
    def samples_scans(self) -> bool:
        """Whether no variable needs to be scanned outside of sampled steps."""
        usual = (state.partition("@")[2] for state in self.states)
        is_scanned = "state" in self.kinds or not _SCAN_MOMENTS.isdisjoint(usual)
        return bool(self.sampled_states) and not is_scanned

    @property
    def samples_calls(self) -> bool:
        """Whether no call within modules but that of a loss is needed outside of sampled steps."""
        usual = self.calls - sampled(*self.sampled_calls)
        return bool(self.sampled_calls) and not (
            any(map(is_within_modules, usual)) or "*" in usual or "call" in self.kinds
        )

    def for_step(self, *, is_full: bool) -> Needs:
        """The needs in a step. is_full: whether all calls are recorded in it."""
        skipped = sampled(*self.sampled_calls)
        calls = without_sampling(self.calls) if is_full else self.calls - skipped
        return replace(self, calls=calls)

    def resolve(self, *, sample_calls: bool, sample_scans: bool) -> Needs:
        """The needs that a recording satisfies, which may sample calls or scans."""
        return replace(
            self,
            calls=self.calls if sample_calls else without_sampling(self.calls),
            states=self.states if sample_scans else without_sampling(self.states),
        )

    def __or__(self, other: Needs) -> Needs:
        return Needs(
            calls=self.calls | other.calls,
            states=self.states | other.states,
            kinds=self.kinds | other.kinds,
            exact=self.exact or other.exact,
            stats=self.stats | other.stats,
            level=max(self.level, other.level, key=LEVELS.index),
            packages=self.packages | other.packages,
            marks=self.marks | other.marks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A relation with its parameters filled in: JSON values only, to be written and compared."""

    relation: str
    params: Mapping[str, Any]


def key_of(claim: Hypothesis) -> str:
    """A text that is equal for equal claims, and gives different ones a stable order."""
    params = orjson.dumps(dict(claim.params), option=orjson.OPT_SORT_KEYS).decode()
    return f"{claim.relation} {params}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """The number of examples of an invariant, and of runs and steps that have them."""

    positive: int = 0
    negative: int = 0
    runs: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """An accepted hypothesis.

    Attributes:
        confidence: 1 - probability of this support by coincidence, in [0, 1].
        excerpt: calls of a reference run in which the claim held; None if calls do not show it.
    """

    id: str
    hypothesis: Hypothesis
    precondition: Precondition = field(default_factory=Precondition)
    support: Support = field(default_factory=Support)
    confidence: float = 0.0
    text: str = ""
    needs: Needs = field(default_factory=Needs)
    excerpt: Excerpt | None = None


def needs_json(needs: Needs) -> dict[str, Any]:
    """The JSON form of needs, each set as a sorted list."""
    return {
        "calls": sorted(needs.calls),
        "states": sorted(needs.states),
        "kinds": sorted(needs.kinds),
        "exact": needs.exact,
        **({"stats": sorted(needs.stats)} if needs.stats else {}),
        **({"level": needs.level} if needs.level else {}),
        **({"packages": sorted(needs.packages)} if needs.packages else {}),
    }


def own_needs(value: Mapping[str, Any]) -> Needs:
    """Needs that `needs_json` wrote. Those of a file are read by `invariant_file`, which is strict.

    Raises:
        TypeError: ``value`` has a key that needs have not.
    """
    sets = {name: frozenset(part) for name, part in value.items() if isinstance(part, list)}
    return Needs(**{**value, **sets})
