"""Claims about training: hypotheses, the preconditions they hold under, accepted invariants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from traincheck.schema.apis import EVAL_STAGE, Families
from traincheck.schema.excerpts import Excerpt

Scalar = None | bool | int | float | str
Context = Mapping[str, Scalar]  # feature name -> value, for one example

BATCH_CONTENT = "batch@content"
_SOME = "@some"  # behind a name in `Needs.stats`, `Needs.calls` or `Needs.states`

LEVELS = ("", "default", "deep")  # each takes more than those before it

OPERATORS = ("==", "!=", ">", "<=")

# A feature of every context: the program (facts/programs.py). Conditions on it are tested for each
# process, not for each example.
PROGRAM = "program"

# Calls that are recorded, in some of the steps, for the numbers of an "activation".
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
    """Any of: all of clauses. No clause at all means always."""

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
        """The programs that it is limited to; empty if it applies to all."""
        return tuple(
            str(c.value) for clause in self.clauses for c in clause if c.feature == PROGRAM
        )

    def within(self, program: str | None) -> Precondition | None:
        """The remaining precondition for a process of this file name; None if it never holds."""
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


def some(*names: str) -> frozenset[str]:
    """Numbers or looks in some steps: what is wrong is so in these, too, or shows in the loss."""
    return frozenset(name + _SOME for name in names)


def without_some(names: Iterable[str]) -> frozenset[str]:
    """What is wanted at all, however often."""
    return frozenset(name.removesuffix(_SOME) for name in names)


def _has(names: frozenset[str], name: str) -> bool:
    return name in names or name + _SOME in names


def _rare(names: frozenset[str]) -> frozenset[str]:
    return without_some(name for name in names if name.endswith(_SOME)) - names


def within_modules(*names: str) -> frozenset[str]:
    """Names for `Needs.calls`: those that models call again and again, in some steps only.

    What is wrong with these only in others shows in what is looked at in every step, or soon.
    """
    return frozenset(name + _SOME if is_within_modules(name) else name for name in names)


def is_within_modules(name: str) -> bool:
    """Whether modules make most of the calls of this name, by which steps are not told apart."""
    if name.startswith("torch.nn.functional."):
        return not name.endswith(("_loss", "cross_entropy", "_logits", "kl_div"))
    return name.endswith(".forward") and name != Families.MODULE


# Moments in `Needs.states` at which variables are looked at.
_LOOKS = frozenset({"forward", "backward", "step", "zero_grad", "*"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The steps with sampled records: the first ones, and every n-th."""

    first: int = 4
    every: int = 10

    def __str__(self) -> str:
        return f"the first {self.first} and each {self.every}th"

    def takes(self, step: int | None) -> bool:
        """Whether ``step`` is one; a process without steps (None) has nothing to take some of."""
        return step is None or step < self.first or step % self.every == 0

    def is_whole(self, step: int | None, stage: str | None) -> bool:
        """Whether all calls are taken then."""
        return stage == EVAL_STAGE or self.takes(step)


# Of calls and looks. What goes wrong does so at the start, as a rule. Then a prime, so that what a
# loop does in every second or fifth step is met in its turn.
THIN = Schedule(first=8, every=7)
# Of the uses of a model, at which marks tell of it.
USES = Schedule(first=8, every=10)
# Elements of a tensor that is known again by what it holds: fewer may be alike by chance.
FEWEST_KNOWN, MOST_KNOWN = 16, 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a trace must hold to decide a check.

    Also what is routed to the check and what selective collection records.

    Attributes:
        calls: API or family names. With ``@some`` behind it, its calls are taken in the steps of
            `THIN`, and whenever models are evaluated.
        states: ``role@moment`` with moment one of forward, backward, step, zero_grad, or
            ``role@*``, with ``@some`` behind it in the steps of `THIN`; ``role@new``: only which
            there are, not what becomes of them;
            ``parameter@hand``: what the program updates itself, while no optimizer has stepped;
            ``parameter@ranks``: with exact fingerprints where there are several ranks;
            ``collective@ranks``: with exact fingerprints of what ranks send and get;
            ``batch@content``: with fingerprints of what batches hold, with ``@some`` as above;
            ``average@loaded``: marks of models that no optimizer holds, when they change soon after
            their load;
            ``parameter@evaluation``: marks of the weights that models are evaluated with, and of
            those that this writes; ``parameter@untrained``: marks of the weights of models that
            serve the training of another in training mode, and of batch norms of theirs that are
            evaluated with initial statistics; ``parameter@between``: marks of those
            that are not as their optimizer left them; ``input@given``: marks of what models are
            given; ``loss@broadcast``: marks of operations of losses that broadcast;
            ``loss@attention``: of weights of attention.
        kinds: further event kinds (step, optimizer, batch ... ).
        exact: whether fingerprints are compared; else "did it change" is enough.
        stats: of which tensors numbers are taken: ``parameter``, ``gradient``, ``batch``,
            ``activation``, ``input``, or the name of an API, of whose arguments they are taken;
            ``update``, of parameters: also how far the first updates move them.
            With ``@some`` behind it, at the first steps and then at each tenth is enough.
        level: at which calls of operators are to be recorded, "default" or "deep", which count
            them differently; empty where it makes no difference.
        packages: the user's own, whose functions are to be recorded.
    """

    calls: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    exact: bool = False
    stats: frozenset[str] = frozenset()
    level: str = ""
    packages: frozenset[str] = frozenset()

    def asks_for(self, api: str) -> bool:
        """Whether calls of this name are wanted, in all steps or in some."""
        return _has(self.calls, api)

    def hears(self, api: str) -> bool:
        """Whether its calls are to be delivered: also those that come for their numbers."""
        return self.asks_for(api) or (
            api in ACTIVATION_FUNCTIONS and "activation" in without_some(self.stats)
        )

    @property
    def rare(self) -> frozenset[str]:
        """Names of the calls that are wanted in some steps only."""
        return _rare(self.calls)

    @property
    def rare_looks(self) -> frozenset[str]:
        """States that are wanted in some steps only."""
        return _rare(self.states)

    def looks(self, state: str) -> bool:
        """Whether this state is wanted, in all steps or in some."""
        return _has(self.states, state)

    @property
    def looks_rarely(self) -> bool:
        """Whether in other steps no variable is to be looked at."""
        usual = (state.partition("@")[2] for state in self.states)
        return bool(self.rare_looks) and _LOOKS.isdisjoint(usual) and "state" not in self.kinds

    @property
    def is_sparse(self) -> bool:
        """Whether in other steps no call within modules is wanted but that of a loss."""
        usual = self.calls - some(*self.rare)
        return bool(self.rare) and not (
            any(map(is_within_modules, usual)) or "*" in usual or "call" in self.kinds
        )

    def at(self, *, is_whole: bool) -> Needs:
        """What is taken in a step, which is one of the whole ones or not."""
        calls = without_some(self.calls) if is_whole else self.calls - some(*self.rare)
        return replace(self, calls=calls)

    def settled(self, *, calls: bool, looks: bool) -> Needs:
        """What a recording takes that leaves out calls, or looks, of other steps, or does not."""
        return replace(
            self,
            calls=self.calls if calls else without_some(self.calls),
            states=self.states if looks else without_some(self.states),
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
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A relation with its parameters filled in: JSON values only, to be written and compared."""

    relation: str
    params: Mapping[str, Any]


def key_of(claim: Hypothesis) -> str:
    """Equal for equal claims, and a stable order among different ones."""
    params = orjson.dumps(dict(claim.params), option=orjson.OPT_SORT_KEYS).decode()
    return f"{claim.relation} {params}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """The number of examples that support an invariant."""

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
