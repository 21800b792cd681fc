"""Records for the comparison of runs, beside calls and variables. In the view "diff" only.

States of generators at moments of the loop, gradients as optimizers see them, and the digests of a
step.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter

from traincheck.collect.instruments.base import Instrument
from traincheck.collect.templates import GENERATOR_MOMENT, KEPT_STATE
from traincheck.collect.tensors.devices import KIND
from traincheck.collect.tensors.generator_states import generator_states
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.tracking.tracked_tensor import GRADIENT
from traincheck.collect.tracking.tracker import known_contents
from traincheck.schema.comparison.generator_states import fingerprint

# The most moments of each kind at which whole states are kept: 5 kB for each generator.
_KEPT = {"start": 1, "loader": 4, "forward": 4, "step": 2, "load": 3, "save": 2}


class Comparison(Instrument):
    """Replaces nothing: it uses hooks of the session, which other instruments call."""

    name = "comparison"

    def is_wanted(self) -> bool:
        """In the view "diff", also when everything is recorded."""
        return self.session.compared is not None

    def install(self) -> None:
        self._kept: Counter[str] = Counter()
        self._forward_step: int | None = -1  # in which a forward has begun
        # Written with the first other moment: a process that does not train leaves no trace
        self._start = list(generator_states())
        hooks = self.session.hooks
        self.listen(hooks.before_loader, self._before_loader)
        self.listen(hooks.before_forward, self._before_forward)
        self.listen(hooks.before_optimizer, self._before_update)
        self.listen(hooks.after_state, self._moment)
        self.listen(hooks.at_step_end, self._end)

    # -- generators

    def _before_loader(self, em: Emitter) -> None:
        """An iteration begins: its sampler and its workers are not seeded yet."""
        self._moment(em, "loader")

    def _before_forward(self, em: Emitter) -> None:
        step = self.session.clock.step
        if step != self._forward_step and not self.session.is_worker:
            self._forward_step = step
            self._moment(em, "forward")

    def _moment(self, em: Emitter, moment: str) -> None:
        """Record the states of all generators at a moment of the loop."""
        if self._start:
            start, self._start = self._start, []
            self._write(em, "start", start)
        self._write(em, moment, list(generator_states()))

    def _write(self, em: Emitter, moment: str, states: list[tuple[str, bytes]]) -> None:
        self._kept[moment] += 1
        is_kept = self._kept[moment] <= _KEPT[moment]
        compared = self.session.compared
        for source, state in states:
            found = fingerprint(source, state)
            body = GENERATOR_MOMENT % (source.encode(), found.encode(), moment.encode())
            if is_kept or source.startswith(KIND):  # 16 bytes
                body += KEPT_STATE % b64encode(state)
            em.write_json("rng", body)
            is_same = compared is not None and source.partition(":")[0] in compared.seeded
            if compared is not None and moment != "start" and is_same:
                name = f"{source}@{moment}"
                compared.digests.add("rng", f"{name}#{compared.digests.number(name)}", found)

    # -- variables

    def _before_update(self, em: Emitter, owner: str) -> None:
        """An optimizer is about to use the gradients: reduced, accumulated, unscaled, clipped."""
        tracker = self.session.tracker
        if self.session.recording.scans:
            after = em.next_span if em.top is None else em.top  # the step
            tracker.scans.scan_gradients(em, after)
            tracker.detector.pending.then(self._take_gradients)

    def _take_gradients(self) -> None:
        compared = self.session.compared
        if compared is not None:
            found = known_contents(self.session.tracker)
            compared.digests.add_all(
                "gradient", [(n, d) for role, n, d in found if role == GRADIENT]
            )

    def _end(self, em: Emitter) -> None:
        """A recorded step ends."""
        compared = self.session.compared
        if compared is None or self.session.is_worker:
            return
        self._moment(em, "step")
        for role, name, digest in known_contents(self.session.tracker):
            if role != GRADIENT and digest is not None:
                compared.digests.add(role, name, digest)
        compared.close_step()
