"""TC076: warnings of libraries that may matter."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import mentions
from traincheck.rules.torch_warnings.of_libraries import LIBRARY_ADVICE
from traincheck.rules.torch_warnings.warned import Known
from traincheck.schema.findings import Verdict

# As the libraries word them.
TEXTS = {
    "mask-not-passed": (
        "The attention mask and the pad token id were not set, with a batched input. As a "
        "consequence, you may observe unexpected behavior."
    ),
    "loss-type-unknown": (
        "`loss_type=Mine` was set in the config but it is unrecognized. Using the default loss: "
        "`ForCausalLMLoss`."
    ),
    "batch-size-guessed": (
        "Trying to infer the `batch_size` from an ambiguous collection. The batch size we found is "
        "1."
    ),
    "metric-not-reduced": (
        "It is recommended to use `self.log('val', ..., sync_dist=True)` when logging on epoch "
        "level in distributed setting"
    ),
    "training-step-skipped": "`training_step` returned `None`. If this was on purpose, ignore this",
    "evaluation-shuffled": "Your `val_dataloader`'s sampler has shuffling enabled, it is strongly",
    "no-evaluation": "You defined a `validation_step` but have no `val_dataloader`. Skipping val",
    "no-optimizer": (
        "`LightningModule.configure_optimizers` returned `None`, this fit will run with no "
        "optimizer"
    ),
    "labels-unknown": "No label_names provided for model class `PeftModel`.",
    "sequence-too-long": (
        "Token indices sequence length is longer than the specified maximum sequence length for "
        "this model (600 > 512)."
    ),
    "classes-without-samples": (
        "3 NaN values found in confusion matrix have been replaced with zeros."
    ),
}


def warned(text: str) -> TraceBuilder:
    trace = net().steps(1).begin_step().warning("UserWarning", text, where="train.py:31")
    return trace.zero_grad().forward().backward().optimizer_step()


BROKEN = warned(TEXTS["batch-size-guessed"]).build()


@pytest.mark.parametrize("known", LIBRARY_ADVICE, ids=lambda known: known.name)
def test_fires_on_each_by_its_own_words(known: Known) -> None:
    finding = fires("TC076", warned(TEXTS[known.name]).build())
    assert (finding.subject.api, finding.first_step) == (known.name, 1)
    assert mentions(finding.title, known.title)


@pytest.mark.parametrize(
    "text",
    [
        "This is deprecated.",
        "`loss_type=None` was set in the config but it is unrecognized. Using the default loss",
        "There were missing keys in the checkpoint model loaded: ['lm_head.weight'].",
    ],
)
def test_quiet_on_others(text: str) -> None:
    assert quiet("TC076", warned(text).build()) is Verdict.HELD
