"""A load that matches no key, or whose keys mostly have other names. Judges single loads."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from traincheck.rules.base.rule import EventRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.words import counted

_TOLD = 20  # names recorded of a load, at most
_FEWEST = 2  # layers whose names differ in the same way; one may be a new head


class StateDictKeysMismatch(EventRule, code="TC601", severity="error", aliases=("nothing-loaded",)):
    """state-dict-keys-mismatch: load_state_dict(strict=False) loads nothing.

    What it checks:
        - At least one key passed to a model's load_state_dict is the name of a parameter or buffer
          of that model.
        - Most of the missing keys are not present under another prefix.

    Why it matters:
        With strict=False a wrong prefix is no error. Training continues from random weights that
        look fine-tuned or resumed.

    Fires on:
        - A state with a prefix such as module., model. or _orig_mod. for a model without it.
        - A part with another name in the state, e.g. backbone.conv1.weight for
          encoder.conv1.weight. This needs several such layers, and more values missing than loaded.

    Stays quiet on:
        - States that match in part, e.g. with a new head, or when only an encoder or adapters are
          loaded.
        - Empty states.
        - Loads that raise.

    Fix:
        Strip the prefix from the keys, and check the missing_keys that load_state_dict returns.

    Source:
        https://github.com/torchgeo/torchgeo/issues/4036,
        https://github.com/stefanopini/simple-HRNet/issues/79
    """

    title = "load_state_dict takes nothing from the state passed to {subject}"
    likely_cause = "No key matches{where}, and strict=False hides this: {observed}."
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
                f"matches: it received {given}, but has {wanted}",
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
            title="load_state_dict leaves most of {subject} unchanged: names do not match",
            message=(
                f"{missing} of {event.target} are missing from the state passed to "
                f"load_state_dict, which holds them under other names: {given} for {wanted}"
            ),
            expected=f"keys such as {wanted}",
            observed=f"keys such as {given}",
            likely_cause=(
                "Names differ{where}, and strict=False hides this: {observed}, not {expected}."
            ),
            fix=(
                f"Rename the keys ({given} to {wanted}), and use strict=True or check the "
                "missing_keys that are returned."
            ),
            evidence=(event,),
        )


class _Renamed(NamedTuple):
    """A prefix of missing names, and the prefix under which the state holds them."""

    wanted: str
    given: str
    ends: list[str]


def _renamed(event: CheckpointEvent) -> _Renamed | None:
    """The renaming that explains most missing keys, if they are more than the loaded ones."""
    starts: dict[str, list[str]] = defaultdict(list)  # end of a name -> prefixes
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
    """Each split of a name into a prefix, with its dot, and an end that contains a layer."""
    parts = name.split(".")
    cuts = [".".join(parts[count:]) for count in range(len(parts) - 1)]
    return [(name.removesuffix(end), end) for end in cuts]
