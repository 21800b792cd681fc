"""A resume does not restore the saved states of random generators."""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.readings.resumptions import brings_back
from traincheck.rules.base.rule import EventRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, CheckpointEvent, Event, RngEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.loads import LoadedGenerator, LoadedGenerators
from traincheck.schema.observations.reading import observed
from traincheck.schema.places import short
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined

_SETTERS = {
    "torch": "torch.set_rng_state",
    "python": "random.setstate",
    "numpy": "numpy.random.set_state",
    "cuda": "torch.cuda.set_rng_state_all",
}


class RandomStateNotRestored(EventRule, code="TC610", severity="warning"):
    """random-state-not-restored: states of random generators are saved but not restored.

    What it checks:
        After a resume, each global random generator has a state of the loaded file before training
        draws from it. A resume loads a model and the state of an optimizer that has not stepped.

    Why it matters:
        The resumed run draws other numbers than the stopped run, or repeats those of its start.
        Orders and dropout masks repeat, and results are not reproducible.

    Fires on:
        - A resume that loads everything except the generators, or restores some of them only.
        - A state that is restored, and then overwritten by a seed. The program has set the same
          seed before: the resumed run repeats the numbers of its start.

    Stays quiet on:
        - Files without such a state.
        - Fine-tuning and evaluation: the state of the optimizer is not loaded.
        - A generator that is not drawn from up to the first update.
        - Programs that seed with another number after the load, such as one for each epoch.
        - States that the generator of a loader, sampler or dataset gets, and states of torch,
          Python or NumPy if a running function holds a further generator of that kind.
        - A rollback: the optimizer has stepped before the load.

    Fix:
        Call torch.set_rng_state(checkpoint["rng"]) after everything that seeds.

    Source:
        https://pytorch.org/docs/stable/notes/randomness.html
    """

    title = "Random generators are not restored on resume"
    likely_cause = (
        "The checkpoint holds states of random generators, but the program leaves some unused."
    )
    fix = "After the load and after everything that seeds: {expected}."
    needs = needs_of(LoadedGenerators) | Needs(
        calls=frozenset({Families.OPTIMIZER_STEP}), kinds=frozenset({"checkpoint", "rng", "step"})
    )
    _loads: dict[str, CheckpointEvent] = fresh(dict)  # since the last update: what, and its load
    _stepped: set[str | None] = fresh(set)
    _updated = False
    _earlier: set[tuple[str, int | None]] = fresh(set)  # sources and seeds before the load
    _since: set[tuple[str, int | None]] = fresh(set)

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, CheckpointEvent):
            self._load(event)
        elif isinstance(event, RngEvent) and event.change == "seed":
            self._since.add((event.source, event.seed))
        elif isinstance(event, CallEvent) and event.family == Families.OPTIMIZER_STEP:
            self._stepped.add(event.owner)
            self._updated = True
        elif isinstance(event, StepEvent) and self._updated:
            self._loads, self._updated = {}, False
        found = observed(event, LoadedGenerators)
        if found is None or not self._loads.keys() >= {"model", "optimizer"}:
            return []
        self.triggered += 1
        lost = sorted(set(self._lost(found)))
        if not lost or self.is_over:
            return []
        self.is_over = True
        states = [state for state in found.states if state.generator in lost]
        again = [state.generator for state in states if state.seeded]
        keys = joined(
            [f"{state.generator} ({state.key or 'the whole file'})" for state in states], 3
        )
        calls = joined(list(dict.fromkeys(map(_call, states))), 4)
        now = f"not restored: {joined(lost, 4)}"
        if again:
            now = f"seeded again with the number of the start: {joined(again, 4)}"
        return self.found(
            event,
            subject=Subject(api=_SETTERS[lost[0]]),
            symptom=Symptom.NOT_RESTORED,
            message=f"the file loaded at {short(found.where)} holds states of random generators: "
            f"{keys}; training continues with its model and optimizer; {now}",
            expected=calls,
            observed=now,
            evidence=(self._loads["optimizer"],),
        )

    def _load(self, event: CheckpointEvent) -> None:
        if event.op == "load":
            self._earlier |= self._since
            self._since = set()
        elif event.op != "load_state_dict" or "lr_scheduler" in (event.target or ""):
            return
        elif "optim" in (event.target or ""):
            if event.owner not in self._stepped and brings_back(event):
                self._loads["optimizer"] = event
        elif event.matched and brings_back(event):
            self._loads["model"] = event

    def _lost(self, found: LoadedGenerators) -> Iterator[str]:
        """Kinds of generators that have none of their states."""
        restored = {state.generator for state in found.states if state.restored}
        for state in found.states:
            kind = state.generator
            if kind in restored or state.owned or not state.drawn:
                continue
            if not state.seeded or self._is_seeded_again(kind):
                yield kind

    def _is_seeded_again(self, kind: str) -> bool:
        seeds = {source for source in self._since if source[0] == kind}
        return bool(seeds) and seeds <= self._earlier


def _call(state: LoadedGenerator) -> str:
    """The call that restores a state."""
    parts = state.key.replace("[]", ".[]").split(".") if state.key else []
    place = "".join("[rank]" if part == "[]" else f'["{part}"]' for part in parts if part)
    return f"{_SETTERS[state.generator]}(checkpoint{place})"
