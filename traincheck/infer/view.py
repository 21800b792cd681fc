"""The events that selective collection would record: a full trace is replayed as if selective."""

from __future__ import annotations

from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, Families
from traincheck.schema.invariant_file import needs_json

_ALWAYS = frozenset({"step", "stage", "mark"})
_TELLING = frozenset({"new", "gone", "replaced", "flags"})  # of variables, whatever was asked for
_MOMENTS = {"parameter": "step", "optimizer_state": "step", "buffer": "forward"}


def selective(event: Event, needs: Needs) -> Event | None:
    """``event`` as a trace recorded for ``needs`` would hold it; None when it would not."""
    kind = event.kind
    if kind == "call":
        family = event.family  # type: ignore[union-attr]
        if event.api in needs.calls:  # type: ignore[union-attr]
            return event
        # Of all modules only the outermost are recorded for their family.
        is_wanted = family in needs.calls and (
            family != Families.MODULE or event.root  # type: ignore[union-attr]
        )
        return event if is_wanted else None
    if kind == "state":
        role, change = event.role, event.change  # type: ignore[union-attr]
        moment = _MOMENTS.get(role) or ("zero_grad" if change == "cleared" else "backward")
        is_wanted = change in _TELLING or not needs.states.isdisjoint(
            (f"{role}@{moment}", f"{role}@*")
        )
        return event if is_wanted else None
    if kind == "mark" and event.text == "process":  # type: ignore[union-attr]
        data = {**event.data, "recorded": needs_json(needs)}  # type: ignore[union-attr]
        return event._replace(data=data)  # type: ignore[call-arg]
    return event if kind in _ALWAYS or kind in needs.kinds else None
