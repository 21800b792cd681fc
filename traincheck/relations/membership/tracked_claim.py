"""A claim about the variables of a model, and which of them break it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from traincheck.facts.variables import Variable, Variables
from traincheck.relations.membership.places import (
    DTYPE,
    FREE,
    FROZEN,
    HELD,
    PLACES,
    REACHED,
    ROLES,
    TRAINABLE,
    UNMOVED,
    is_float,
    structure,
)
from traincheck.relations.subtrees import expand, matcher


@dataclass(slots=True)
class TrackedClaim:
    """A claim and the variables that it covers now.

    Attributes:
        variables: the variables of the place.
        names: their names.
        broken: names of those that break the claim, and how.
        applies: whether the claim can be decided.
    """

    index: int
    params: Mapping[str, Any]
    variables: tuple[Variable, ...] = ()
    names: frozenset[str] = frozenset()
    broken: tuple[tuple[str, str], ...] = ()
    applies: bool = False

    def refresh(self, variables: Variables) -> None:
        """Find out what does not depend on the step."""
        if "has" in self.params:
            self._compare_structure(variables)
        elif "under" in self.params:
            self._select(variables)
            self._compare_flags(variables)

    def _select(self, variables: Variables) -> None:
        matches = matcher(self.params["under"]).match
        found = variables.by_role[self.params.get("role", "parameter")].values()
        self.variables = tuple(v for v in found if matches(v.name))
        self.names = frozenset(v.name for v in self.variables)
        self.applies = bool(self.names)

    def _compare_flags(self, variables: Variables) -> None:
        what = self.params["is"]
        if what in (TRAINABLE, FROZEN):
            wanted = what == TRAINABLE
            self.broken = tuple((v.name, "") for v in self.variables if v.requires_grad != wanted)
        elif what == DTYPE:
            dtype = self.params["dtype"]
            known = [v for v in self.variables if is_float(v.dtype)]
            self.applies = bool(known)
            self.broken = tuple((v.name, f"dtype {v.dtype}") for v in known if v.dtype != dtype)
        elif what in (HELD, FREE):
            wanted = what == HELD
            self.broken = tuple(
                (v.name, "")
                for v in self.variables
                # A frozen parameter is not trained, whoever holds it: TRAINABLE reports that.
                if variables.is_held(v) != wanted and v.requires_grad
            )

    def _compare_structure(self, variables: Variables) -> None:
        params = self.params
        found = structure(variables, params["model"], params["role"])
        known = variables.by_role["parameter"], variables.by_role["buffer"]
        self.applies = any(v.model == params["model"] for role in known for v in role.values())
        self.broken = ()
        if self.applies and found != list(params["has"]):
            have = {name for pattern in found for name in expand(pattern)}
            wanted = {name for pattern in params["has"] for name in expand(pattern)}
            missing = [(name, "is missing") for name in sorted(wanted - have)]
            self.broken = tuple(missing + [(n, "is new") for n in sorted(have - wanted)])


def refuse_unknown(params: Mapping[str, Any]) -> None:
    """Raise ValueError for parameters that no version wrote."""
    if params.get("is") == DTYPE:
        known = params.get("role") in ROLES and "under" in params and "dtype" in params
    elif "is" in params:
        known = params["is"] in (REACHED, UNMOVED) or (params["is"] in PLACES and "under" in params)
    else:
        known = params.get("role") in ROLES and "model" in params and "has" in params
    if not known:
        raise ValueError(f"nothing is known of {dict(params)}")
