"""A difference as a sentence, and the two values as short texts.

A mark, which is no letter, stands for a run in sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traincheck.diff.items import Item, Phase
from traincheck.schema.events import BatchEvent, RngEvent
from traincheck.schema.values import is_tensor

A, B = "\ue00a", "\ue00b"  # for private use: no name or value of a program holds them


class Told(str):
    """A sentence that calls the runs A and B, and can be said with other names.

    Attributes:
        marked: the sentence with the marks.
    """

    marked: str

    def __new__(cls, marked: str) -> Told:
        told = super().__new__(cls, _named(marked, "A", "B"))
        told.marked = marked
        return told

    def named(self, a: str, b: str) -> str:
        """The sentence with these names of the runs."""
        return _named(self.marked, a, b)


def _named(marked: str, a: str, b: str) -> str:
    return marked.translate({ord(A): a, ord(B): b})


_SHOWN = 6  # indices of a batch
_DIGITS = 8  # of a fingerprint
_MOMENTS = {
    "start": "when training begins",
    "loader": "when the loader begins",
    "load": "after the load",
    "forward": "before the forward pass",
}


def message_of(item: Item) -> str:
    """The difference as a sentence without its end."""
    if item.phase is Phase.SETTINGS:
        return f"{item.name} is {text_of(item.b)} in {B} and {text_of(item.a)} in {A}"
    if item.phase is Phase.EVALUATION:
        words = _batches if isinstance(item.a or item.b, BatchEvent) else _forward
        return f"in evaluation, {words(item)}"
    return _WORDS.get(item.phase, _state)(item)


def texts_of(item: Item) -> tuple[str, str]:
    """Both values as short texts: fingerprints where these show more than numbers."""
    a, b = text_of(item.a, item.what), text_of(item.b, item.what)
    if a == b and is_tensor(item.a) and is_tensor(item.b):
        return _digits(item.a.get("fingerprint")), _digits(item.b.get("fingerprint"))
    return a, b


def text_of(value: Any, what: str = "") -> str:
    """One value: numbers where there are some, else the beginning of its fingerprint."""
    if value is None:
        return "none"
    if isinstance(value, BatchEvent):
        return _batch(value, what)
    if isinstance(value, RngEvent):
        return f"seed {value.seed}" if value.change == "seed" else _digits(value.fingerprint)
    if is_tensor(value):
        return _tensor(value)
    if isinstance(value, list) and len(value) == 1:
        return text_of(value[0], what)
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def _batch(batch: BatchEvent, what: str) -> str:
    if what == "count":
        return f"batch {batch.index}"
    values: Sequence[Any] = batch.indices if what == "indices" and batch.indices else batch.samples
    most = _SHOWN if what == "indices" else _SHOWN // 3
    shown = ", ".join(map(str, values[:most]))
    more = ", ..." if len(values) > most else ""
    return f"[{shown}{more}]"


def _tensor(value: Mapping[str, Any]) -> str:
    kind = f"{value['dtype']}{list(value['shape'])}"
    number = value.get("value")
    if number is not None:
        return f"{number:.8g}" if isinstance(number, float) else str(number)
    norm = (value.get("stats") or {}).get("norm")
    if isinstance(norm, float):
        return f"{kind} norm {norm:.8g}"
    return f"{kind} {_digits(value.get('fingerprint'))}".rstrip()


def _digits(fingerprint: str | None) -> str:
    return (fingerprint or "").rpartition(":")[2][:_DIGITS]


def _rng(item: Item) -> str:
    source = (item.a or item.b).source
    if item.what == "seed":
        return f"{source} is seeded with {item.b.seed} in {B} and with {item.a.seed} in {A}"
    if item.what == "presence":
        side = A if item.b is None else B
        return f"{source} is seeded in {side} only"
    moment = item.a.moment if isinstance(item.a, RngEvent) else ""
    when = _MOMENTS.get(moment, "before the first batch of the step")
    return f"the {item.name} is in another state {when}"


def _batches(item: Item) -> str:
    if item.what == "indices":
        return f"{item.name} draws other samples"
    if item.what == "count":
        return f"the step takes another number of batches: {item.note}"
    if item.what == "key":
        side = B if isinstance(item.b, BatchEvent) and item.note in item.b.leaves else A
        return f"only {side} has {item.note} in the batches of {item.name}"
    part = f"other contents of {item.leaf}" if item.leaf else "other contents"
    if item.what == "rows":
        return f"{item.name} returns {part}"
    return f"{item.name} returns {item.leaf or 'tensors'} of another {item.what}"


def _forward(item: Item) -> str:
    part = f" in {item.leaf}" if item.leaf else ""
    if item.what == "mode":
        return f"{item.name} runs in {item.b} mode in {B} and in {item.a} mode in {A}"
    if item.what == "presence":
        return f"{item.name} is called {item.note}"
    if item.what == "key":
        side, key = (A, item.a) if item.b is None else (B, item.b)
        return f"{item.name} returns {item.leaf}[{key!r}] in {side} only"
    if item.argument:
        return f"{item.name} is given another value{part}"
    kind = item.what if item.what in ("dtype", "shape", "form") else "value"
    return f"{item.name} returns another {kind}{part}"


def _loss(item: Item) -> str:
    if item.what == "presence":
        return f"{item.name} is computed {item.note}"
    if item.argument:
        return f"the loss {item.name} is given another value"
    return f"the {item.name} differs" if "loss" in item.name else f"the loss {item.name} differs"


def _state(item: Item) -> str:
    is_gradient = item.phase is Phase.GRADIENT
    if item.what == "presence":
        side, verb = A if item.b is None else B, "has a gradient" if is_gradient else "exists"
        return f"{item.name} {verb} in {side} only"
    if is_gradient:
        return f"the gradient of {item.name} differs"
    moment = ", before the first batch of the step" if item.is_opening else ""
    if item.what in ("dtype", "shape"):
        return f"{item.name} has another {item.what}{moment}"
    return f"{item.name} differs{moment}"


def _saved(item: Item) -> str:
    if item.what == "presence":
        return f"only {A if item.b is None else B} saves {item.name}"
    if item.what == "key":
        side, key = (A, item.a) if item.b is None else (B, item.b)
        return f"only {side} saves {item.leaf}[{key!r}] in {item.name}"
    part = f"{item.leaf} in " if item.leaf else ""
    return f"another {part}{item.name} is saved"


_WORDS = {
    Phase.SAVED: _saved,
    Phase.RNG: _rng,
    Phase.BATCH: _batches,
    Phase.FORWARD: _forward,
    Phase.LOSS: _loss,
}
