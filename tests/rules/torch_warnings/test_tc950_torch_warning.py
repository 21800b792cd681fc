"""TC950: warnings that mean a fault."""

from __future__ import annotations

import pytest

from tests.checking import fires, net, quiet, report_of
from tests.golden import mentions
from traincheck.rules.torch_warnings.of_torch import TORCH_FAULTS
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

# As torch words them.
CHECKPOINT = "None of the inputs have requires_grad=True. Gradients will be None"
TEXTS = {
    "checkpoint-without-gradient": CHECKPOINT,
    "clip-of-nothing": "`parameters` is an empty generator, no gradient clipping will occur.",
    "autocast-off": "CUDA is not available or torch_xla is imported. Disabling autocast.",
}


def warned(*texts: str) -> list[Event]:
    trace = net().steps(1).begin_step()
    for text in texts:
        trace.warning("UserWarning", text, where="train.py:31")
    return trace.zero_grad().forward().backward().optimizer_step().build()


BROKEN = warned(CHECKPOINT)


@pytest.mark.parametrize("known", TORCH_FAULTS, ids=lambda known: known.name)
def test_fires_on_each_by_its_own_words(known: object) -> None:
    name, title = known.name, known.title  # type: ignore[attr-defined]
    finding = fires("TC950", warned(TEXTS[name]))
    assert (finding.subject.api, finding.first_step) == (name, 1)
    assert mentions(finding.title, title)
    assert mentions(finding, " ".join(TEXTS[name].split()[:4]), "train.py:31")


def test_two_warnings_are_two_findings() -> None:
    both = report_of(warned(CHECKPOINT, TEXTS["clip-of-nothing"])).findings
    assert len([finding for finding in both if finding.code == "TC950"]) == 2


@pytest.mark.parametrize(
    "text",
    [
        "torch.cuda.amp.autocast(args...) is deprecated.",
        "Using a target size (torch.Size([3])) that is different to the input size",
        "The dataloader does not have many workers which may be a bottleneck.",
        "Lazy modules are a new feature under heavy development",
    ],
)
def test_quiet_on_others(text: str) -> None:
    assert quiet("TC950", warned(text)) is Verdict.HELD


def test_quiet_on_a_checkpoint_in_evaluation() -> None:
    trace = net().steps(1).train(False).forward(grad=False)
    assert quiet("TC950", trace.warning("UserWarning", CHECKPOINT).build()) is Verdict.HELD
