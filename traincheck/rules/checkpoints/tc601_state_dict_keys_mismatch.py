"""A load that fits nothing, or most of which has other names. Judges single loads."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from traincheck.rules.base.event_rule import EventRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.words import counted

_TOLD = 20  # names at most that are told of a load
_FEWEST = 2  # layers whose names differ in the same way: a new head is one


class StateDictKeysMismatch(EventRule, code="TC601", severity="error", aliases=("nothing-loaded",)):
    """state-dict-keys-mismatch: load_state_dict(strict=False) loads nothing.

    What it checks:
        Of the keys given to a model's load_state_dict, at least one is the name of a parameter or
        buffer of that model, and what most of the model lacks is not there under another prefix.

    Why it matters:
        With strict=False a wrong prefix is no error. Training goes on from random weights while
        everyone believes it was fine-tuned or resumed.

    Fires on:
        State with a prefix such as module., model. or _orig_mod. given to a model without it. A
        part that has another name in the state, backbone.conv1.weight for encoder.conv1.weight: if
        so it is for several layers, and more values are missing than come back.

    Stays quiet on:
        States that fit in part, as when a head is new, only an encoder or only adapters are
        loaded; empty states; loads that raise.

    Fix:
        Strip the prefix from the keys, and look at the missing_keys that load_state_dict returns.

    Source:
        https://github.com/torchgeo/torchgeo/issues/4036,
        https://github.com/stefanopini/simple-HRNet/issues/79
    """

    title = "load_state_dict takes nothing from the state given to {subject}"
    likely_cause = "No key fits{where}, and strict=False hides it: {observed}."
    fix = (
        "Strip the prefix (module., model., _orig_mod.) from the keys, and use strict=True or "
        "check the missing_keys that are returned."
    )
    needs = Needs(kinds=frozenset({"checkpoint", "step"}))

    def judge(self, event: Event) -> list[Violation]:
        if not isinstance(event, CheckpointEvent) or event.matched is None:
            return []
        self.triggered += 1
        if not event.entries or not event.missing:
            return []
        if event.matched:
            renamed = _renamed(event)
            return [] if renamed is None else [self._in_part(event, renamed)]
        given = ", ".join(event.unexpected[:2]) or "other keys"
        wanted = ", ".join(event.missing[:2])
        return [
            self.violation(
                event,
                subject=Subject(module=event.target),
                symptom=Symptom.NOT_RESTORED,
                message=f"none of the {event.entries} keys given to {event.target}.load_state_dict "
                f"fits: it was given {given}, and has {wanted}",
                expected=f"keys such as {wanted}",
                observed=f"keys such as {given}",
            )
        ]

    def _in_part(self, event: CheckpointEvent, renamed: _Renamed) -> Violation:
        wanted, given = (prefix + renamed.ends[0] for prefix in (renamed.wanted, renamed.given))
        missing = counted(len(event.missing), "name")
        return Violation(
            check_id=self.code,
            step=event.step,
            rank=event.rank,
            stage=event.stage,
            subject=Subject(module=event.target),
            symptom=Symptom.NOT_RESTORED,
            title="load_state_dict leaves most of {subject} as it was: names do not match",
            message=(
                f"{missing} of {event.target} are missing from what load_state_dict is given, and "
                f"stand there under other names: {given} for {wanted}"
            ),
            expected=f"keys such as {wanted}",
            observed=f"keys such as {given}",
            likely_cause=(
                "Names differ{where}, and strict=False hides it: {observed}, not {expected}."
            ),
            fix=(
                f"Rename the keys ({given} to {wanted}), and use strict=True or check the "
                "missing_keys that are returned."
            ),
            evidence=(event,),
        )


class _Renamed(NamedTuple):
    """A prefix of names that are missing, and the one under which their ends were given."""

    wanted: str
    given: str
    ends: list[str]


def _renamed(event: CheckpointEvent) -> _Renamed | None:
    """What explains most of what is missing, if that is more than what came back."""
    starts: dict[str, list[str]] = defaultdict(list)  # by end of the name: what is before it
    for name in event.unexpected:
        for start, end in _splits(name):
            starts[end].append(start)
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in event.missing:
        for start, end in _splits(name):  # the longest end first
            if end in starts:
                for other in starts[end]:
                    found[start, other].append(end)
                break
    if not found:
        return None
    (wanted, given), ends = max(found.items(), key=lambda item: len(item[1]))
    layers = {end.rpartition(".")[0] for end in ends}
    matched, lost = event.matched or 0, len(event.missing)
    if lost >= _TOLD:
        lost = (event.entries or 0) - matched
    is_most = 2 * len(ends) > len(event.missing) and lost > matched
    return _Renamed(wanted, given, ends) if is_most and len(layers) >= _FEWEST else None


def _splits(name: str) -> list[tuple[str, str]]:
    """What stands before each end of a name that has a layer in it, with its dot, and the end."""
    parts = name.split(".")
    cuts = [".".join(parts[count:]) for count in range(len(parts) - 1)]
    return [(name.removesuffix(end), end) for end in cuts]
