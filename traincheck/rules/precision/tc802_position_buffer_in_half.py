"""Frequencies or positions were cast to half precision with the rest of the model."""

from __future__ import annotations

import re

from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, StateEvent
from traincheck.schema.findings import Subject, Symptom, Violation

# Usual names of rotary frequencies, and of tables of positions or time steps.
_POSITIONS = re.compile(
    r"(^|[._])(inv_?freqs?|original_inv_freq|rope_freqs?|rotary_freqs?|position_?ids|positions"
    r"|timesteps?|timescales?)$"
)
_HALF = ("bfloat16", "float16")


class PositionBufferInHalf(BuiltInRule, code="TC802"):
    """position-buffer-in-half: a buffer of positions or frequencies has too little precision.

    What it checks:
        Buffers named like rotary frequencies, positions or time steps are not in bfloat16 or
        float16.

    Why it matters:
        bfloat16 has eight significant bits. Positions beyond 256 coincide, and rounded frequencies
        shift the angles of late positions by whole radians. No error is raised.

    Fires on:
        - model.to(torch.bfloat16) or .half() on a model with such a buffer.

    Stays quiet on:
        - Buffers in float32.
        - Integers.
        - Other buffers in half precision.
        - Models loaded with their buffers left in float32.

    Fix:
        Cast only the parameters, or restore these buffers to float32 after the cast.

    Source:
        https://github.com/huggingface/transformers/issues/25681, https://github.com/EleutherAI/gpt-neox/issues/1003
    """

    title = "{variables} {is|are} in half precision"
    likely_cause = (
        "The whole model may have been cast (.to(torch.bfloat16) or .half()), including "
        "{variables}: positions or frequencies are rounded."
    )
    fix = "Load or cast only the parameters, or recompute {variables} in float32 after the cast."
    needs = Needs(states=frozenset({"buffer@new"}), kinds=frozenset({"step"}))

    def observe(self, event: Event) -> list[Violation]:
        if not isinstance(event, StateEvent) or event.summary is None:
            return []
        if event.change not in ("new", "flags", "replaced") or not _POSITIONS.search(event.name):
            return []
        self.triggered += 1
        dtype = event.summary.dtype
        if dtype not in _HALF:
            return []
        return [
            self.violation(
                event,
                subject=Subject(variable=event.name),
                symptom=Symptom.PRECISION,
                message=f"a cast to {dtype} rounds the positions in {event.name}",
                expected="float32",
                observed=dtype,
            )
        ]
