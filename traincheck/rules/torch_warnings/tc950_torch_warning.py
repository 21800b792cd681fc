"""Torch warnings that mean that training does not do what the script says."""

from __future__ import annotations

from dataclasses import replace

from traincheck.rules.torch_warnings.warned import Known, WarningRule
from traincheck.schema.findings import Topic

_AUTOCAST_OFF = Known(
    name="autocast-off",
    text=r"Disabling autocast",
    title="Autocast is disabled: its device or dtype is not available",
    cause="Autocast was requested{where}, but torch has disabled it: {observed}",
    fix="Use autocast with the device type of the model, and a dtype that the device supports.",
    topic=Topic.AUTOCAST,
)
KNOWN = (
    Known(
        name="checkpoint-without-gradient",
        text=r"None of the inputs have requires_grad=True\. Gradients will be None",
        title="A checkpointed block gets no gradients",
        cause=(
            "Re-entrant checkpointing{where} received inputs that do not require grad. The block "
            "records no graph, and its parameters get no gradients."
        ),
        fix="Use checkpoint(..., use_reentrant=False), or make an input require grad.",
        topic=Topic.REQUIRES_GRAD,
        in_training=True,
    ),
    Known(
        name="clip-of-nothing",
        text=r"`parameters` is an empty generator",
        title="Gradients are clipped over no parameters",
        cause=(
            "The generator passed to clip_grad_norm_{where} was already exhausted, so nothing is "
            "clipped."
        ),
        fix="Pass a new model.parameters() in every call, or a list.",
        topic=Topic.CLIPPING,
    ),
    _AUTOCAST_OFF,
    replace(
        _AUTOCAST_OFF,
        text=r"device_type of '\w+', but \w+ is not available\. Disabling",
        topic=None,  # a separate finding
    ),
)


class TorchWarning(WarningRule, code="TC950"):
    """torch-warning: torch warned about a problem that spoils training.

    What it checks:
        Warnings, shown or filtered, against a list of those that mean that a part of training does
        not do what the script says.

    Why it matters:
        They are printed once among hundreds of lines, or filtered out, and are easily missed.

    Fires on:
        - Re-entrant checkpointing of inputs without grad.
        - Clipping over no parameters.
        - Autocast for a device or dtype that is not available.

    Stays quiet on:
        - All other warnings: deprecations, notes on speed, warnings of other libraries.
        - Warnings that are harmless in evaluation.
        - Losses that broadcast, whose shapes TC313 checks.
        - Warnings that may be harmless, which TC951 reports.

    Fix:
        Follow the warning. The finding names the line.

    Source:
        https://docs.pytorch.org/docs/stable/amp.html, https://github.com/huggingface/transformers/issues/26221
    """

    title = "Torch warned about a problem in training"
    likely_cause = "{observed}."
    fix = "Change the call{where} as the warning says: {observed}."
    known = KNOWN
