"""The events that a trace needs to decide a limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traincheck.facts.losses import LOSSES
from traincheck.relations.readings.reading import (
    AHEAD,
    DEAD,
    END_TOKEN,
    FLAT,
    GRADIENT,
    GRADIENT_NORM,
    HIDDEN,
    LARGEST,
    LEAST_SHARE,
    LEFT_OUT,
    LOSS,
    LOSS_SCALE,
    MASK,
    MOVED,
    NON_FINITE,
    OF_TERMS,
    PADDING,
    SATURATED,
    SCALED_LOSS,
    SMALLEST,
)
from traincheck.schema.claims import Needs, sampled, within_modules
from traincheck.schema.torch_api import Families


def needs_of(params: Mapping[str, Any]) -> Needs:
    """Of a claim with these parameters."""
    quantity, api = params["quantity"], params.get("api", "")
    kinds = frozenset({"mark", "step"})
    if quantity == LOSS_SCALE:
        calls = frozenset({*LOSSES, Families.BACKWARD, Families.SCALE, Families.OPTIMIZER_STEP})
        # The number of terms must be known where a sum is divided; a mean needs no numbers.
        sums = () if params.get("name") == OF_TERMS else params.get("sums", ())
        return Needs(calls=calls, kinds=kinds | {"batch"}, stats=sampled(*sums))
    if quantity in (DEAD, SATURATED):
        calls = within_modules(api) | {Families.MODULE}
        return Needs(calls=calls, kinds=kinds, stats=sampled("activation"))
    if quantity in (HIDDEN, LARGEST, LEFT_OUT, SMALLEST):
        batches = frozenset({"batch"} if quantity == LEFT_OUT else ())
        return Needs(calls=frozenset({api}), kinds=kinds | batches, stats=sampled(api))
    name = params.get("name")
    if quantity == NON_FINITE and name in (LOSS, SCALED_LOSS):
        return Needs(calls=frozenset({Families.BACKWARD, Families.SCALE}), kinds=kinds)
    if quantity in (END_TOKEN, PADDING):
        return Needs(kinds=kinds | {"batch"}, stats=sampled("batch"))
    if quantity in (AHEAD, MASK):
        calls = frozenset({api, Families.MODULE} if quantity == AHEAD else {api})
        return Needs(calls=calls, kinds=kinds | {"batch"}, stats=sampled(api, "batch"))
    if quantity == NON_FINITE and name != GRADIENT:
        return Needs(kinds=kinds | {"batch"}, stats=sampled("batch"))
    if quantity == MOVED:
        return Needs(
            states=sampled("parameter@step"),
            kinds=kinds | {"checkpoint", "optimizer"},
            stats=sampled("parameter") | {"update"},
        )
    if quantity in (GRADIENT_NORM, NON_FINITE, LEAST_SHARE, FLAT):
        return Needs(
            calls=frozenset({Families.SCALE, Families.BACKWARD}),
            states=sampled("gradient@backward", "gradient@zero_grad"),
            kinds=kinds,
            stats=sampled("gradient"),
        )
    return Needs(calls=frozenset({api}), kinds=kinds)
