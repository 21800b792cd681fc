"""Replay a run through the engine that checks: in full, and as selective and sampled collection.

Inference itself asks the deciders (view.py), so that runs can be put together later; this is for
files of invariants and runs that somebody has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_

from traincheck.check.engine import Engine
from traincheck.infer.replay_views import SAMPLED, SELECTIVE, sampled, selective
from traincheck.schema.claims import Invariant, Needs
from traincheck.schema.findings import Report
from traincheck.schema.protocols import EventSource, Relation

FULL = "the full view"
VIEWS = (FULL, SELECTIVE, SAMPLED)


def replay(
    source: EventSource, relations: Mapping[str, Relation], invariants: Sequence[Invariant]
) -> dict[str, Report]:
    """What the engine says of a run, by view, from one pass over it.

    The selective view is that of a recording for all of ``invariants``; the sampled view holds
    every third step of it.
    """
    needs = reduce(or_, (invariant.needs for invariant in invariants), Needs())
    engines = {view: Engine(invariants, (), relations) for view in VIEWS}
    for event in source.events():
        engines[FULL].observe(event)
        less = selective(event, needs)
        if less is not None:
            engines[SELECTIVE].observe(less)
            few = sampled(less)
            if few is not None:
                engines[SAMPLED].observe(few)
    return {view: engine.finish() for view, engine in engines.items()}
