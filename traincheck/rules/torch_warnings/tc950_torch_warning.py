"""Warnings of torch that mean that training is not what it seems."""

from __future__ import annotations

from dataclasses import replace

from traincheck.rules.torch_warnings.warned import Known, WarningRule
from traincheck.schema.findings import Topic

_AUTOCAST_OFF = Known(
    name="autocast-off",
    text=r"Disabling autocast",
    title="Autocast is switched off: its device or dtype is not there",
    cause="Autocast was asked for{where}, and torch has switched it off: {observed}",
    fix="Give autocast the device type the model is on, and a dtype that device supports.",
    topic=Topic.AUTOCAST,
)
KNOWN = (
    Known(
        name="checkpoint-without-gradient",
        text=r"None of the inputs have requires_grad=True\. Gradients will be None",
        title="A checkpointed block gets no gradients",
        cause=(
            "Re-entrant checkpointing{where} is given inputs that do not require grad, so that the "
            "block records no graph and its parameters get no gradients."
        ),
        fix="Use checkpoint(..., use_reentrant=False), or let an input require grad.",
        topic=Topic.REQUIRES_GRAD,
        in_training=True,
    ),
    Known(
        name="clip-of-nothing",
        text=r"`parameters` is an empty generator",
        title="Gradients are clipped over no parameter",
        cause=(
            "The generator passed to clip_grad_norm_{where} was used up before, so that nothing is "
            "clipped."
        ),
        fix="Pass model.parameters() afresh in every call, or a list.",
        topic=Topic.CLIPPING,
    ),
    _AUTOCAST_OFF,
    replace(
        _AUTOCAST_OFF,
        text=r"device_type of '\w+', but \w+ is not available\. Disabling",
        topic=None,  # a finding of its own
    ),
)


class TorchWarning(WarningRule, code="TC950"):
    """torch-warning: torch warned of something that spoils training.

    What it checks:
        Warnings, shown or not, against a list of those that mean that a part of training does not
        do what the script says.

    Why it matters:
        They are printed once among hundreds of lines, or filtered out, and nobody reads them.

    Fires on:
        Re-entrant checkpointing of inputs without grad; clipping over no parameter; autocast for a
        device or dtype that is not there.

    Stays quiet on:
        All other warnings: deprecations, notes on speed, warnings of other libraries; what is
        harmless in evaluation; losses that broadcast, which TC313 judges by their shapes; what may
        be harmless, which TC951 tells.

    Fix:
        As the warning says; the finding names the line.

    Source:
        https://docs.pytorch.org/docs/stable/amp.html, https://github.com/huggingface/transformers/issues/26221
    """

    title = "A warning of torch that matters"
    likely_cause = "{observed}."
    fix = "Change the call{where} as the warning says: {observed}."
    known = KNOWN
