"""What models are given in training and in evaluation, in numbers.

Looked at are inputs in floating point, at the first calls and some later ones. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson
import torch

from traincheck.collect.emit import Emitter
from traincheck.schema.apis import Marks

if TYPE_CHECKING:
    from traincheck.collect.session import Session

MOMENT = "given"  # in ``input@given``
_FIRST, _EVERY = 8, 10  # steps with such a call in which is looked
_CALLS = 4  # of a step
_MOST = 2  # tensors of a call


class _Use:
    """Calls of one model in one mode. step: the last one that had any; calls: in it."""

    def __init__(self) -> None:
        self.step: int | None = -1
        self.steps = 0
        self.calls = 0

    def is_due(self, step: int | None) -> bool:
        if self.step != step:
            self.step, self.calls = step, 0
            self.steps += 1
        self.calls += 1
        return self.calls <= _CALLS and (self.steps <= _FIRST or not self.steps % _EVERY)


class Given:
    """Looks at the inputs of models that are called from outside."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.is_wanted = session.tracker.wants("input", MOMENT)
        self._uses: dict[tuple[str, bool], _Use] = {}

    def enter(
        self,
        em: Emitter,
        model: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        training: bool,
    ) -> None:
        """A forward begins: in training mode with grad, or in evaluation mode without."""
        if not self.is_wanted:
            return
        use = self._uses.setdefault((model, training), _Use())
        if not use.is_due(self._session.clock.step):
            return
        found: list[bytes] = []
        for name, value in (*enumerate(args), *kwargs.items()):
            if type(value) is torch.Tensor and len(found) < _MOST:
                text = self._session.numbers.of_given(em, value)
                if text:
                    found.append(b"%b:%b" % (orjson.dumps(str(name)), text))
        if found:
            head = orjson.dumps({"model": model, "training": training})[:-1]
            data = b'%b,"inputs":{%b}}' % (head, b",".join(found))
            em.ready("mark", b'"text":"%b","data":%b' % (Marks.GIVEN.encode(), data))
