"""Whether a difference may come from a random generator: whether the differing part draws from it.

The state of a generator nobody draws from decides nothing. A program draws where the states at two
moments differ (schema/comparison/generator_states.py), and where its code calls for numbers.
"""

from __future__ import annotations

import ast
import base64
import random
from collections.abc import Iterator, Sequence

import msgspec

from traincheck.diff.evidence import Evidence, Side
from traincheck.diff.items import Item, Phase
from traincheck.schema.comparison.generator_states import TWISTERS, WORDS, Twister, philox, twister
from traincheck.schema.events import BatchEvent, RngEvent

MOST = 1_000_000
_VERSION = 3  # of the states of Python's generator


def distance(source: str, a: str, b: str, most: int = MOST) -> int | None:
    """By how many draws of 32 bits state B is ahead of state A; negative if it is behind.

    Args:
        source: torch, python, numpy, or a GPU.
        a: a state in base64, as rng events hold it; empty if it was not kept.
        b: another state of the generator.
        most: the largest distance that is looked for.

    Returns:
        None if a state was not kept, or neither reaches the other.
    """
    if not a or not b:
        return None
    try:
        mine, yours = base64.b64decode(a), base64.b64decode(b)
        if source not in TWISTERS:
            x, y = philox(mine), philox(yours)
            return y.offset - x.offset if x.seed == y.seed else None
        first, second = twister(source, mine), twister(source, yours)
    except ValueError:
        return None
    ahead = _steps(first, second, most)
    if ahead is not None:
        return ahead
    behind = _steps(second, first, most)
    return None if behind is None else -behind


def _steps(start: Twister, end: Twister, most: int) -> int | None:
    """How many draws lead from one state to the other; None if more than `most`."""
    if start.position <= end.position and start.words == end.words:
        return end.position - start.position
    generator = random.Random()  # of Python: a Mersenne Twister that C steps
    generator.setstate((_VERSION, (*start.words, start.position), None))
    drawn = 0
    position = start.position
    while drawn <= most:
        block = WORDS - position + 1  # one draw into the next words
        generator.getrandbits(32 * block)
        drawn += block
        position = 1
        if generator.getstate()[1][:WORDS] == end.words:
            found = drawn + end.position - 1
            return found if found <= most else None
    return None


_CONSTANT = ("zeros_", "ones_", "constant_", "eye_", "dirac_")
_BASE_SEED = 2  # draws of 32 bits: a loader draws the seed of its workers in each epoch
_RANDOM_SAMPLERS = ("Random", "Weighted", "Distributed")
# Parts of names of torch's modules and functions that draw.
_LAYERS = ("dropout", "rrelu", "gumbel", "bernoulli", "stochasticdepth", "droppath")
_MAYBE = ("attention", "lstm", "gru", "rnn", "transformer")  # if their dropout is not 0
# Names of functions that draw, by generator.
_CALLS = {
    "torch": frozenset(
        {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like",
         "normal", "normal_", "uniform_", "bernoulli", "bernoulli_", "multinomial", "sample",
         "rsample", "random_", "exponential_", "poisson", "dropout", "gumbel_softmax",
         "trunc_normal_", "log_normal_", "geometric_", "cauchy_", "rrelu", "orthogonal_"}
    ),
    "python": frozenset(
        {"random", "randint", "randrange", "choice", "choices", "shuffle", "sample", "uniform",
         "gauss", "normalvariate", "getrandbits", "betavariate"}
    ),
    "numpy": frozenset(
        {"rand", "randn", "randint", "random", "choice", "shuffle", "permutation", "normal",
         "uniform", "beta", "standard_normal", "random_sample", "binomial", "poisson"}
    ),
}  # fmt: skip


def draws_from(generator: Item, evidence: Evidence) -> bool | None:
    """Whether the first difference draws from a generator whose states differ.

    Args:
        generator: the difference of its states.
        evidence: of the first other difference.

    Returns:
        None if the traces do not show it.
    """
    source, item = source_of(generator), evidence.item
    if item.phase is Phase.BATCH:
        found = [_loads_from(side, source, item) for side in (evidence.a, evidence.b)]
        return True if any(found) else (None if None in found else False)
    if item.phase in (Phase.FORWARD, Phase.LOSS):
        return _computes_from(evidence, source, item)
    if item.phase in (Phase.PARAMETER, Phase.BUFFER) and item.is_opening and source == "torch":
        # Initial values are drawn one after the other: if the first one differs, all do.
        a, b = _drawn(evidence.a), _drawn(evidence.b)
        differing = sum(one.is_opening and one.phase is Phase.PARAMETER for one in evidence.items)
        return list(a.values()) == list(b.values()) and differing >= len(a)
    return False


def source_of(item: Item) -> str:
    """The generator of an item: torch, python, numpy, cuda."""
    source: str = (item.a or item.b).source
    return source


def _loads_from(side: Side, source: str, item: Item) -> bool | None:
    """Whether the loading of a batch draws from a generator."""
    before, after = _last(side.view.generators, source), _last(side.view.after_batch, source)
    if before is None or after is None or before.fingerprint == after.fingerprint:
        return _advances(before, after)
    if source != "torch":
        return True
    if item.what == "indices":
        return _draws_order(item)
    if isinstance(item.a, BatchEvent) and item.a.workers:
        return True  # workers are seeded from it
    drawn = distance(source, before.state, after.state)
    is_first = isinstance(item.a, BatchEvent) and item.a.index == 0
    shuffles = _draws_order(item)
    return not is_first or drawn is None or drawn > _BASE_SEED * (1 + shuffles)


def _draws_order(item: Item) -> bool:
    """Whether the sampler is one that draws an order, or not one of torch's."""
    a = item.a
    if not isinstance(a, BatchEvent) or a.sampler is None:
        return True
    name = a.sampler.rpartition(".")[2]
    is_own = not a.sampler.startswith("torch.utils.data")
    return is_own or any(word in name for word in _RANDOM_SAMPLERS)


def _computes_from(evidence: Evidence, source: str, item: Item) -> bool | None:
    """Whether a forward pass or a loss draws from a generator, in the part that differs."""
    advances = [
        _advances(
            _last(side.view.after_batch, source) or _last(side.view.generators, source),
            _last(side.view.closing, source),
        )
        for side in (evidence.a, evidence.b)
    ]
    if not any(advances) and None not in advances:
        return False
    call = item.call
    if source == "torch" and call is not None:
        name = f"{call.api} {item.name}".lower()
        if any(word in name for word in _LAYERS):
            return call.training is not False
        if any(word in name for word in _MAYBE) and call.api.startswith("torch."):
            return True
    if not evidence.has_sources:
        return None
    names = _CALLS.get(source.partition(":")[0], _CALLS["torch"])
    return any(not names.isdisjoint(_called(text)) for text in evidence.functions_of(item))


def _advances(before: RngEvent | None, after: RngEvent | None) -> bool | None:
    """Whether a generator is drawn from between two moments; None if not known."""
    return None if before is None or after is None else before.fingerprint != after.fingerprint


def _drawn(side: Side) -> dict[object, str]:
    """The last function that draws the initial values of each parameter, in order."""
    found: dict[object, str] = {}
    for number, call in enumerate(side.view.inits):
        if not call.api.endswith(_CONSTANT):
            result = msgspec.json.decode(call.result)
            known = result.get("identity") if isinstance(result, dict) else None
            found[known or -number] = call.api
    return found


def _last(events: Sequence[RngEvent], source: str) -> RngEvent | None:
    found = [e for e in events if e.source == source and e.fingerprint is not None]
    return found[-1] if found else None


def _called(text: str) -> Iterator[str]:
    """The names of the functions that a piece of source code calls."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Attribute):
                yield function.attr
            elif isinstance(function, ast.Name):
                yield function.id
