"""How many draws lie between two states of a random generator, found by stepping one of them."""

from __future__ import annotations

import base64
import random

from traincheck.schema.comparison.generator_states import WORDS, Twister, philox, twister

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
        if source.startswith("cuda"):
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
