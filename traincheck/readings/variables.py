"""The variables of a process, and their optimizers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from traincheck.readings.optimizers import Holders
from traincheck.readings.provider import RunState
from traincheck.schema.claims import Context, Needs
from traincheck.schema.events import Event, OptimizerEvent, StateEvent
from traincheck.schema.marks import LIFECYCLE_CHANGES
from traincheck.schema.words import is_unowned

_SPENT = 0.01  # of the highest rate: below it, a schedule ends, and float32 rounds updates to zero
_TINY = 1e-7  # at the start of a warm-up or a range test: float32 has seven digits
# Optimizer state that a healthy step may leave unchanged: maxima, schedules, step sizes.
_MAY_STAY = frozenset({"max_exp_avg_sq", "mu", "eta", "step_size"})


@dataclass(slots=True, eq=False)
class Variable:
    """The present state of one variable.

    Attributes:
        born: step in which this object was first seen.
        base: name of its parameter.
        leaf: ``weight``, ``running_mean``, ``exp_avg``.
    """

    name: str
    role: str
    base: str
    leaf: str
    model: str
    module_class: str
    ndim: int
    identity: int
    requires_grad: bool
    owner: str | None
    born: int | None
    is_sharded: bool = False
    is_single: bool = False  # of one element
    is_empty: bool = False  # of none: for example a shard of another rank
    dtype: str = ""
    cache: dict[Any, Any] = field(default_factory=dict)  # derived by deciders; dropped on change


class Variables(RunState):
    """The variables of one process by role and name, and the optimizers that hold them."""

    reads = Needs(kinds=frozenset({"optimizer"}), states=frozenset({"*@new"}))

    def __init__(self) -> None:
        self.by_role: dict[str, dict[str, Variable]] = defaultdict(dict)
        self.version = 0  # rises when variables appear, vanish, or get other objects or flags
        self.optimizers = Holders()
        self._contexts: dict[tuple[Any, ...], Context] = {}
        self._models: set[str] = set()
        self._models_version = -1
        self._frozen: set[str] = set()

    def observe(self, event: Event) -> None:
        """Enter a variable that appeared, vanished, or has other flags; or an optimizer."""
        if not isinstance(event, StateEvent):
            if isinstance(event, OptimizerEvent):
                self.hold(event)
            return
        change, role = event.change, event.role
        if role == "gradient" or change not in LIFECYCLE_CHANGES:
            return
        if role == "parameter" and is_unowned(event.name):
            return  # claims about every parameter apply to models
        known = self.by_role[role]
        if change in ("new", "replaced") or (event.name not in known and change != "gone"):
            if not may_stay(event):
                known[event.name] = variable_of(event)
                self.version += 1
        elif change == "gone":
            known.pop(event.name, None)
            self.version += 1
        elif change == "flags":
            self.version += 1
            known[event.name].requires_grad = event.requires_grad
            if event.summary is not None:
                known[event.name].dtype = event.summary.dtype
            for variable in (known[event.name], *self.by_role["optimizer_state"].values()):
                if variable.base == event.name:
                    variable.cache.clear()

    def hold(self, event: OptimizerEvent) -> None:
        """Enter the parameters of an optimizer."""
        self.optimizers.enter(event)
        self.version += 1
        for known in self.by_role.values():
            for variable in known.values():
                variable.cache.clear()

    def below(self, module: str) -> set[int]:
        """Identities of the parameters of a module and of those inside it."""
        known = self.by_role["parameter"].values()
        return {v.identity for v in known if v.name.startswith(f"{module}.")}

    def held_by(self, optimizer: str | None, variable: Variable) -> bool:
        holder = self.optimizers.by_id.get(optimizer or "")
        return holder is not None and variable.identity in holder.ids

    def is_held(self, variable: Variable) -> bool:
        """Whether any optimizer holds this variable, or its parameter."""
        identity = self.parameter_of(variable).identity
        return any(identity in holder.ids for holder in self.optimizers.by_id.values())

    def held_models(self) -> set[str]:
        """The models of which any optimizer holds a parameter."""
        if self._models_version != self.version:
            self._models_version = self.version
            self._models = {variable.model for variable in self.held_parameters()}
            known = self.by_role["parameter"].values()
            self._frozen = {v.model for v in known if not v.requires_grad}
        return self._models

    def frozen_models(self) -> set[str]:
        """The models of which any parameter does not require grad."""
        self.held_models()
        return self._frozen

    def held_parameters(self) -> list[Variable]:
        """All parameters that any optimizer holds."""
        held = self.optimizers.held()
        return [v for v in self.by_role["parameter"].values() if v.identity in held]

    def parameter_of(self, variable: Variable) -> Variable:
        """The parameter of optimizer state; else the variable itself."""
        if variable.role != "optimizer_state":
            return variable
        return self.by_role["parameter"].get(variable.base, variable)

    def holders(self, variable: Variable) -> set[str]:
        """The optimizers that hold this variable."""
        return self.optimizers.of(variable.identity)

    def rate_is_zero(
        self,
        variable: Variable,
        rates: Iterable[Mapping[str, Any]],
        highest: Mapping[tuple[str, int], float],
    ) -> bool:
        """Whether a learning rate of zero, or near zero at one end of a schedule, explains it."""
        for optimizer, holder in self.optimizers.by_id.items():
            group = holder.groups.get(variable.identity)
            if group is None:
                continue
            for rate in rates:
                known = rate.get(optimizer, ())
                if group >= len(known):
                    continue
                spent = _SPENT * highest.get((optimizer, group), 0.0)
                if not known[group] or known[group] < max(_TINY, spent):
                    return True
        return False

    def context(self, variable: Variable, **dynamic: Any) -> Context:
        """Features that may explain why a variable changes. Equal contexts are one object.

        requires_grad, in_optimizer: of the parameter of the variable. model: its root module.
        sharded: each rank has a part of it.
        """
        known = variable.cache.get(key := tuple(dynamic.items()))
        if known is None:
            features = {
                **dynamic,
                "module_class": variable.module_class,
                "leaf": variable.leaf,
                "model": variable.model,
                "ndim": variable.ndim,
                "sharded": variable.is_sharded,
            }
            if variable.role != "buffer":
                features["requires_grad"] = self.parameter_of(variable).requires_grad
                features["in_optimizer"] = self.is_held(variable)
            shared = tuple(sorted(features.items()))
            known = variable.cache[key] = self._contexts.setdefault(shared, features)
        context: Context = known
        return context


def select(variables: Variables, params: Mapping[str, Any]) -> list[Variable]:
    """The variables that a claim applies to; those with a gradient are parameters.

    Variables without elements never change: FSDP leaves some parameters of a rank empty.
    """
    role = "parameter" if params["role"] == "gradient" else params["role"]
    return [
        variable
        for variable in variables.by_role[role].values()
        if not variable.is_empty
        and params.get("leaf") in (None, variable.leaf)
        and params.get("model") in (None, variable.model)
        and params.get("module_class") in (None, variable.module_class)
    ]


def may_stay(event: StateEvent) -> bool:
    """Whether it is no evidence that the variable did not change."""
    return event.role == "optimizer_state" and _leaf(event) in _MAY_STAY


def _leaf(event: StateEvent) -> str:
    base, slash, key = event.name.partition("/")
    return key if slash else base.rpartition(".")[2]


def variable_of(event: StateEvent) -> Variable:
    """The variable of a state event."""
    base = event.name.partition("/")[0]
    summary = event.summary
    return Variable(
        name=event.name,
        role=event.role,
        base=base,
        leaf=_leaf(event),
        model=base.partition(".")[0],
        module_class=event.module_class or "",
        ndim=len(summary.shape) if summary is not None else -1,
        identity=event.identity,
        requires_grad=event.requires_grad,
        owner=event.owner,
        born=event.step,
        is_sharded=summary is not None and str(summary.fingerprint).startswith("shard-"),
        is_single=summary is not None and math.prod(summary.shape) == 1,
        is_empty=summary is not None and 0 in summary.shape,
        dtype="" if summary is None else summary.dtype,
    )
