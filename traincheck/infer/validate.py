"""Replay a run through the checking engine: in full, selectively recorded, and sampled.

It validates the invariants of a file on a run. Inference uses replay_views.py instead, as its
results can be merged with those of other runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_

from traincheck.check.engine import Engine
from traincheck.infer.replay_views import SAMPLED, SELECTIVE, in_selective_view, in_step_sample
from traincheck.schema.claims import Invariant, Needs
from traincheck.schema.findings import Report
from traincheck.schema.protocols import EventSource, Relation

FULL = "the full view"
VIEWS = (FULL, SELECTIVE, SAMPLED)


def replay(
    source: EventSource, relations: Mapping[str, Relation], invariants: Sequence[Invariant]
) -> dict[str, Report]:
    """The reports of a run by view, from one pass over it.

    The selective view is a recording for all of ``invariants``. The sampled view holds every third
    step of that.
    """
    needs = reduce(or_, (invariant.needs for invariant in invariants), Needs())
    engines = {view: Engine(invariants, (), relations) for view in VIEWS}
    for event in source.events():
        engines[FULL].observe(event)
        less = in_selective_view(event, needs)
        if less is not None:
            engines[SELECTIVE].observe(less)
            few = in_step_sample(less)
            if few is not None:
                engines[SAMPLED].observe(few)
    return {view: engine.finish() for view, engine in engines.items()}
