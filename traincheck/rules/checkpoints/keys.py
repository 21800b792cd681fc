"""Loads of state dicts whose keys do not fit, or whose weights get lost."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from traincheck.rules.base.rule import EventRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, CheckpointEvent, Event, StateEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
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
        return self.found(
            event,
            subject=Subject(module=event.target),
            symptom=Symptom.NOT_RESTORED,
            message=f"none of the {event.entries} keys given to {event.target}.load_state_dict "
            f"matches: it received {given}, but has {wanted}",
            expected=f"keys such as {wanted}",
            observed=f"keys such as {given}",
        )

    def _in_part(self, event: CheckpointEvent, renamed: _Renamed) -> Violation:
        wanted, given = (prefix + renamed.ends[0] for prefix in (renamed.wanted, renamed.given))
        missing = counted(len(event.missing), "name")
        return self.violation(
            event,
            subject=Subject(module=event.target),
            symptom=Symptom.NOT_RESTORED,
            title="load_state_dict leaves most of {subject} unchanged: names do not match",
            message=f"{missing} of {event.target} are missing from the state passed to "
            f"load_state_dict, which holds them under other names: {given} for {wanted}",
            expected=f"keys such as {wanted}",
            observed=f"keys such as {given}",
            likely_cause="Names differ{where}, and strict=False hides this: {observed}, not "
            "{expected}.",
            fix=f"Rename the keys ({given} to {wanted}), and use strict=True or check the "
            "missing_keys that are returned.",
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


class LoadedWeightLostByTying(EventRule, code="TC606", aliases=("loaded-weight-given-up",)):
    """loaded-weight-lost-by-tying: weights are tied after a load with different values for them.

    What it checks:
        Two parameters with different values in a checkpoint do not become one parameter before the
        first step.

    Why it matters:
        One of the trained weights is discarded. The model starts with an output layer that does not
        belong to its body, without a message.

    Fires on:
        - head.weight = embedding.weight after load_state_dict() of a model in which they differ.

    Stays quiet on:
        - Checkpoints in which both are equal, or only one is present.
        - Weights that were tied before the load.
        - Layers that are replaced after the load.
        - Parameters on a GPU.

    Fix:
        Do not tie the weights (tie_word_embeddings=False), or load a checkpoint with tied weights.

    Source:
        https://github.com/huggingface/transformers/pull/42612
    """

    title = "The loaded {variables} {was|were} replaced by another weight"
    likely_cause = "Weights may be tied after load_state_dict(), which gave them different values."
    fix = "Leave the weights untied, as in the checkpoint."
    needs = Needs(
        calls=frozenset({Families.OPTIMIZER_STEP}),
        states=frozenset({"parameter@new"}),
        kinds=frozenset({"checkpoint", "step"}),
    )
    _loads: dict[str, CheckpointEvent] = fresh(dict)  # root -> load of it
    _names: dict[tuple[str, int], StateEvent] = fresh(dict)  # (root, identity) -> its first name

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, CheckpointEvent):
            if event.values and event.changed:
                self.triggered += 1
                self._loads[_root(next(iter(event.values)))] = event
        elif isinstance(event, CallEvent):
            self._loads.clear()
        elif isinstance(event, StateEvent) and event.role == "parameter":
            if event.change not in ("new", "replaced"):
                return []
            root = _root(event.name)
            other = self._names.setdefault((root, event.identity), event)
            load = self._loads.get(root)
            if load is None or other.name == event.name or event.summary is None:
                return []
            pair = (load.values.get(event.name), load.values.get(other.name))
            now = event.summary.fingerprint
            if None in pair or pair[0] == pair[1] or now not in pair:
                return []
            lost, kept = (event, other) if pair[1] == now else (other, event)
            return self.found(
                event,
                subject=Subject(variable=lost.name),
                symptom=Symptom.NOT_RESTORED,
                message=f"{lost.name}, loaded with other values, is now the same as {kept.name}",
                expected=f"{lost.name} and {kept.name} with different values, as loaded",
                observed="both names refer to one parameter",
                evidence=(load, lost),
            )
        return []


def _root(name: str) -> str:
    return name.partition(".")[0]
