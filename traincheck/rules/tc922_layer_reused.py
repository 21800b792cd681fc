"""TC922: one layer that serves several places of a model. Counts calls, like TC915."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from traincheck.rules._arrival import LEAVES
from traincheck.rules._models import about
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, Families
from traincheck.schema.findings import CheckInfo, Violation

_IN_A_ROW = 3
# Called over and over on purpose, or TC915's.
_USUAL = ("batchnorm", "embedding", "rnn", "normalization")


class LayerReused:
    """TC922 layer-reused: one layer with weights that serves several places of a model.

    What it checks:
        A linear, convolutional or attention layer is called once in a forward of the model.

    Why it matters:
        Shared weights may be meant. Where a list of layers was built by [layer] * n, or one name
        was written twice, the model is smaller than it looks.

    Fires on:
        A layer that is applied twice within each forward, in three training steps in a row.

    Stays quiet on:
        Several forwards of the model in a step (accumulation, GAN); embeddings, recurrent layers
        and norms; batch norms, which are TC915's; recomputation in gradient checkpointing;
        evaluation.

    Fix:
        Build one layer for each place; ignore this where sharing is meant.

    Source:
        https://github.com/pytorch/pytorch/issues/7289
    """

    info = CheckInfo(
        check_id="TC922",
        kind="rule",
        code="TC922",
        severity="info",
        title="A layer is used at several places of one forward",
        likely_cause="The same layer object is called more than once.",
        fix="Build one layer for each place, unless the weights are to be shared.",
    )
    needs = LEAVES | Needs(calls=frozenset({Families.BACKWARD}))

    def monitor(self) -> SharedLayers:
        return SharedLayers(self.info)


class SharedLayers:
    """Counts the calls of each layer from one forward of a model to the next."""

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
        elif event.module is not None and event.grad_enabled and event.training:
            kind = event.api.removeprefix("torch.nn.modules.")
            if kind != event.api and not kind.startswith(_USUAL):
                self._calls[event.module] += _is_leaf(kind)
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
            if count <= 1:
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


def _is_leaf(kind: str) -> bool:
    return kind.startswith(("linear.", "conv.", "activation.MultiheadAttention"))
