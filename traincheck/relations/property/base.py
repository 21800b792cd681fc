"""A property of training that events show, and how it is worded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from traincheck.readings.reading import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Property(Row):
    """A property that has one value in each run, a word.

    Attributes:
        claims: value -> what a claim of it says, with ``{of}``. Other values are never claimed.
    """

    claims: Mapping[str, str]

    def claimed(self, values: Iterable[Any]) -> Iterable[dict[str, Any]]:
        found = set(values)
        return [{"value": value} for value in found if len(found) == 1 and value in self.claims]

    def is_known(self, params: Mapping[str, Any]) -> bool:
        return params.get("value") in self.claims

    def allows(self, params: Mapping[str, Any], value: Any) -> bool:
        return bool(value == params["value"])

    def says(self, params: Mapping[str, Any]) -> str:
        return self.claims[params["value"]].format(of=params.get("of", ""))
