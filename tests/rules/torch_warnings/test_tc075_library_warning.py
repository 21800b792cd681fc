"""TC075: warnings of libraries that mean a fault."""

from __future__ import annotations

import logging
import re
import warnings
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import mentions
from tests.rules.ledger.metrics import accuracy
from tests.rules.ledger.programs import model, recorded, train
from traincheck.rules.torch_warnings.of_libraries import LIBRARY_FAULTS
from traincheck.rules.torch_warnings.warned import Known
from traincheck.schema.findings import Verdict

METRIC = (
    "The ``compute`` method of metric MulticlassAccuracy was called before the ``update`` method "
    "which may lead to errors, as metric states have not yet been updated."
)
# As the libraries word them.
TEXTS = {
    "metric-without-update": METRIC,
    "adapter-keys-missing": "Found missing adapter keys while loading the checkpoint: ['a.lora_A']",
    "second-adapter": "You are trying to modify a model with PEFT for a second time. If you want",
    "tied-layer-adapted": (
        "Model with `tie_word_embeddings=True` and the tied_target_modules=['lm_head'] are part of "
        "the adapter. This can lead to complications"
    ),
    "tied-weights-differ": (
        "The tied weights mapping and config for this model specifies to tie embed.weight to "
        "lm_head.weight, but both are present in the checkpoints with different values, so we will "
        "NOT tie them."
    ),
    "right-padding-in-generation": (
        "A decoder-only architecture is being used, but right-padding was detected! For correct "
        "generation results, please set `padding_side='left'`"
    ),
    "no-shard": "FSDP is switching to use `NO_SHARD` instead of FULL_SHARD since the world",
    "rate-update-skipped": (
        "ReduceLROnPlateau conditioned on metric val_loss which is not available but strict is set "
        "to `False`. Skipping learning rate update."
    ),
    "monitored-metric-missing": (
        "`ModelCheckpoint(monitor='val')` could not find the monitored key in the returned metrics"
    ),
    "accumulation-mismatch": (
        "Gradient accumulation steps mismatch: GradientAccumulationPlugin has 4, DeepSpeed config "
        "has 2."
    ),
    "forward-order-changes": (
        "Forward order differs from that of the first iteration on rank 0. Collectives are"
    ),
}


def warned(text: str, *, ranks: int = 2) -> TraceBuilder:
    trace = net().mark("process group", world_size=ranks).steps(1).begin_step()
    trace.warning("UserWarning", text, where="train.py:31")
    return trace.zero_grad().forward().backward().optimizer_step()


BROKEN = warned(METRIC).build()


@pytest.mark.parametrize("known", LIBRARY_FAULTS, ids=lambda known: known.name)
def test_fires_on_each_by_its_own_words(known: Known) -> None:
    finding = fires("TC075", warned(TEXTS[known.name]).build())
    assert (finding.subject.api, finding.first_step) == (known.name, 1)
    assert mentions(finding.title, known.title)


@pytest.mark.parametrize(
    "text",
    [
        "Some weights of Bert were not initialized from the model checkpoint and are newly",
        "The dataloader, train_dataloader, does not have many workers",
        "`use_cache=True` is incompatible with gradient checkpointing.",
        "Removed shared tensor {'lm_head.weight'} while saving. This should be OK",
    ],
)
def test_quiet_on_others(text: str) -> None:
    assert quiet("TC075", warned(text).build()) is Verdict.HELD


def test_quiet_on_no_shard_with_one_rank() -> None:
    assert quiet("TC075", warned(TEXTS["no-shard"], ranks=1).build()) is Verdict.HELD


def test_texts_of_the_table_are_distinct() -> None:
    for name, text in TEXTS.items():
        assert [known.name for known in LIBRARY_FAULTS if re.search(known.text, text)] == [name]


def computed_early() -> None:
    trained = model()
    metric = accuracy()
    train(trained, _adam(trained), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metric.compute()
    train(trained, _adam(trained), 2)


def _adam(trained: object) -> object:
    import torch

    return torch.optim.Adam(trained.parameters())  # type: ignore[attr-defined]


def test_fires_on_a_real_metric_at_the_line_of_the_program(tmp_path: Path) -> None:
    finding = fires("TC075", recorded(tmp_path, computed_early))
    assert Path(__file__).name in str(finding.evidence[0].where)  # type: ignore[union-attr]


def test_fires_on_a_log_record_and_its_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What handlers get is unchanged: the function that looks for the caller finds it."""

    def logs() -> None:
        trained = model()
        train(trained, _adam(trained), 2)  # type: ignore[arg-type]
        for name in ("transformers.generation.utils", "my.own.logger"):
            text = TEXTS["right-padding-in-generation"] if "own" not in name else METRIC
            logging.getLogger(name).warning("%s", text)
        train(trained, _adam(trained), 2)  # type: ignore[arg-type]

    with caplog.at_level(logging.WARNING):
        finding = fires("TC075", recorded(tmp_path, logs))
    assert finding.subject.api == "right-padding-in-generation"
    assert [record.funcName for record in caplog.records] == ["logs", "logs"]
