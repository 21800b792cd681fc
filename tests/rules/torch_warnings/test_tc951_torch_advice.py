"""TC951: warnings that are worth a look."""

from __future__ import annotations

import pytest

from tests.checking import fires, net, quiet
from traincheck.rules.torch_warnings.of_torch import TORCH_ADVICE
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

# As torch words them.
SCHEDULER = (
    "Detected call of `lr_scheduler.step()` before `optimizer.step()`. In PyTorch 1.1.0 and later, "
    "you should call them in the opposite order"
)
TEXTS = {
    "scheduler-before-optimizer": SCHEDULER,
    "gradient-of-non-leaf": (
        "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its .grad "
        "attribute won't be populated during autograd.backward()."
    ),
    "implicit-softmax-dim": "Implicit dimension choice for softmax has been deprecated.",
    "scaler-off": "torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling.",
    "scheduler-epoch": "The epoch parameter in `scheduler.step()` was not necessary and is",
    "array-not-writable": "The given NumPy array is not writable, and PyTorch does not support",
}


def warned(text: str, where: str = "train.py:7") -> list[Event]:
    return net().warning("UserWarning", text, where).steps(2).build()


BROKEN = warned(TEXTS["scheduler-epoch"])


@pytest.mark.parametrize("known", TORCH_ADVICE, ids=lambda known: known.name)
def test_fires_as_advice_on_each(known: object) -> None:
    finding = fires("TC951", warned(TEXTS[known.name]))  # type: ignore[attr-defined]
    assert (finding.severity, finding.subject.api) == ("info", known.name)  # type: ignore[attr-defined]


def test_quiet_on_others() -> None:
    assert quiet("TC951", warned("something else")) is Verdict.HELD


def test_quiet_on_gradients_that_the_compiler_reads() -> None:
    text = TEXTS["gradient-of-non-leaf"]
    for file in ("_dynamo/variables/builder.py:358", "_subclasses/meta_utils.py:85"):
        at = f"/venv/lib/python3.11/site-packages/torch/{file}"
        assert quiet("TC951", warned(text, at)) is Verdict.HELD
    fires("TC951", warned(text, "/home/me/torch/_train.py:7"))


def test_quiet_on_a_scheduler_after_a_skipped_step() -> None:
    trace = net().begin_step().zero_grad().forward().backward()
    trace.call(Families.SCALER_STEP, family=Families.SCALER_STEP)
    assert quiet("TC951", trace.warning("UserWarning", SCHEDULER).build()) is Verdict.HELD
