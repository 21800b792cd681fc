"""TC915: one batch norm that serves several places of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from traincheck.rules._models import about
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, Families
from traincheck.schema.findings import CheckInfo, Violation

_API = "torch.nn.functional.batch_norm"
_IN_A_ROW = 2


class BatchNormReused:
    """TC915 batch-norm-reused: one batch norm that serves several places of a model.

    What it checks:
        A batch norm in training mode is called once in a forward of the model.

    Why it matters:
        Its running statistics mix two distributions, and fit neither in evaluation.

    Fires on:
        A block with a batch norm that is applied twice in one forward, in two training steps in
        a row.

    Stays quiet on:
        Several forwards in a step (accumulation, GAN, siamese branches that call the whole
        model); evaluation mode; recomputation in gradient checkpointing.

    Fix:
        One batch norm for each place.

    Source:
        https://github.com/pytorch/pytorch/issues/7289
    """

    info = CheckInfo(
        check_id="TC915",
        kind="rule",
        code="TC915",
        severity="info",
        title="A batch norm is used at several places of one forward",
        likely_cause="The same layer object is called more than once.",
        fix="Build one batch norm for each place, or use a norm without running statistics.",
    )
    needs = Needs(calls=frozenset({_API, Families.MODULE, Families.BACKWARD}))

    def monitor(self) -> Reuse:
        return Reuse(self.info)


class Reuse:
    """Counts the calls of each batch norm from one forward of a model to the next."""

    def __init__(self, info: CheckInfo) -> None:
        self.triggered = 0
        self._info = info
        self._calls: Counter[str] = Counter()
        self._reused: Counter[str] = Counter()

    def observe(self, event: Event) -> Sequence[Violation]:
        if not isinstance(event, CallEvent):
            return ()
        if Families.BACKWARD in (event.family, event.api):
            self._calls.clear()  # what was computed again for it
        elif event.root:
            return self._close(event)
        elif event.api == _API and event.args.get("training") is True and event.module is not None:
            self._calls[event.module] += 1
        return ()

    def finish(self) -> Sequence[Violation]:
        return ()

    def _close(self, event: CallEvent) -> Sequence[Violation]:
        calls, self._calls = self._calls, Counter()
        self.triggered += bool(calls)
        found = []
        for module, count in sorted(calls.items()):
            if count == 1:
                self._reused.pop(module, None)
                continue
            self._reused[module] += 1
            if self._reused[module] == _IN_A_ROW:
                found.append(
                    about(
                        self._info,
                        event,
                        [module],
                        expected="one call in each forward",
                        observed=f"{count} calls in one forward",
                    )
                )
        return found
