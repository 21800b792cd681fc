"""Modules that are called several times in one forward. Which ones count, a rule says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from traincheck.rules._models import about
from traincheck.schema.apis import Families
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import CheckInfo, Violation


class ReusedModules:
    """Counts the calls of each module from one training forward of a model to the next.

    Args:
        info: of the rule.
        counts: whether a call is one that counts. Must be picklable.
        in_a_row: forwards in which a module was called again before it is told.
    """

    def __init__(
        self, info: CheckInfo, counts: Callable[[CallEvent], bool], *, in_a_row: int
    ) -> None:
        self.triggered = 0
        self._info = info
        self._counts = counts
        self._in_a_row = in_a_row
        self._calls: Counter[str] = Counter()
        self._reused: Counter[str] = Counter()

    def observe(self, event: Event) -> Sequence[Violation]:
        if not isinstance(event, CallEvent):
            return ()
        if Families.BACKWARD in (event.family, event.api):
            self._calls.clear()  # what was computed again for it
        elif event.root:
            return self._close(event)
        elif event.module is not None and self._counts(event):
            self._calls[event.module] += 1
        return ()

    def finish(self) -> Sequence[Violation]:
        """Nothing: what was called has been judged."""
        return ()

    def _close(self, event: CallEvent) -> Sequence[Violation]:
        calls, self._calls = self._calls, Counter()
        if not event.grad_enabled or not event.training:
            return ()
        self.triggered += bool(calls)
        found = []
        for module, count in sorted(calls.items()):
            if count == 1:
                self._reused.pop(module, None)
                continue
            self._reused[module] += 1
            if self._reused[module] == self._in_a_row:
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
