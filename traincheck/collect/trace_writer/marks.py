"""Observations as marks of the trace."""

from __future__ import annotations

from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.schema.observations.base import Observation


def write(em: Emitter, observation: Observation) -> None:
    """Record an observation."""
    em.event("mark", {"text": observation.text, "data": observation.data()})
