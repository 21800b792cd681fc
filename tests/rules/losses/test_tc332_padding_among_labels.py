"""TC332: labels that are a copy of the tokens, padding included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.batches import leaf
from tests.rules.loss_runs import F, tensor
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.operations import OperationUses

ROWS, COLUMNS = 8, 16
PADDED = {"padding": 0.4, "padding_label": 0}


def run(
    tokens: dict[str, Any] = PADDED,
    *,
    steps: int = 3,
    elements: int = ROWS * COLUMNS,
    ignored: float = 1 / COLUMNS,
    **args: Any,
) -> list[Event]:
    """Steps of a language model. ignored: share of the labels that the loss leaves out."""
    trace = net()
    shape = (ROWS, COLUMNS)
    leaves = {f"batch.{name}": leaf(shape=shape) for name in ("input_ids", "labels")}
    logits, labels = tensor((elements, 30)), tensor((elements,), "int64", ignored=ignored, min=0)
    given = {"input": logits, "target": labels, "reduction": "mean", "ignore_index": -100, **args}
    for _ in range(steps):
        trace.begin_step().batch(leaves=leaves, tokens=tokens).zero_grad().forward()
        trace.call(f"{F}cross_entropy", args=given).backward().optimizer_step()
    return trace.build()


BROKEN = run()


@pytest.mark.parametrize(
    "events", [BROKEN, run(elements=ROWS * (COLUMNS - 1), ignored=0.0), run(reduction="sum")]
)
def test_fires_at_the_first_loss(events: list[Event], golden: Golden) -> None:
    finding = fires("TC332", events)
    assert (finding.first_step, finding.violations) == (0, 1)
    golden(finding)
    assert mentions(finding, "40%", 0)


@pytest.mark.parametrize(
    "events",
    [
        run({"padding": 0.4}),  # with the label -100
        run({"padding": 0.02, "padding_label": 0}),
        run(steps=1),
        run(ignore_index=0),
        run(reduction="none"),
        run(weight=tensor((30,))),
        run(ignored=0.4 + 1 / COLUMNS),  # set by the model
        run(elements=ROWS),  # of whole texts
        net().steps(3).build(),
    ],
)
def test_quiet(events: list[Event]) -> None:
    assert quiet("TC332", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))


@pytest.mark.parametrize(("label", "ignore_index"), [(0, -100), (-100, -100), (0, 0)])
def test_recorded_runs(tmp_path: Path, label: int, ignore_index: int) -> None:
    mask = (torch.arange(12) < torch.randint(4, 9, (32, 1))).long()
    ids = torch.randint(1, 20, (32, 12)) * mask
    rows = [
        {"input_ids": i, "attention_mask": m, "labels": i.masked_fill(m == 0, label)}
        for i, m in zip(ids, mask)
    ]
    model, loss = Reader(), nn.CrossEntropyLoss(ignore_index=ignore_index)
    with recording(tmp_path / "run") as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in DataLoader(rows, batch_size=8):
            optimizer.zero_grad()
            logits = model(batch["input_ids"][:, :-1])
            loss(logits.flatten(0, 1), batch["labels"][:, 1:].flatten()).backward()
            optimizer.step()
    if (label, ignore_index) == (0, -100):
        assert fires("TC332", recorded.events).first_step == 0
    else:
        assert quiet("TC332", recorded.events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


# -- the mask that a model is given

TEXT = {"made": 1.0, "one_value": 1.0, "masked": 0.5, "counted": 0.75}


def looked_at(*numbers: dict[str, float]) -> list[Event]:
    """Steps in which a model was given a mask beside the tokens of its labels."""
    trace = net()
    where = "/home/ana/train.py:31"
    for one in numbers:
        trace.begin_step().batch().zero_grad().forward().backward().optimizer_step()
        use = {"look": "padded", "function": "cross_entropy", "where": where, "calls": 1}
        trace.mark(OperationUses.text, uses=[{**use, "of": "attention_mask", "numbers": one}])
        trace.end_step()
    return trace.build()


def test_fires_with_the_share_of_the_labels(golden: Golden) -> None:
    finding = fires("TC332", looked_at(TEXT, TEXT, {**TEXT, "counted": 0.45}))
    assert (finding.first_step, finding.violations, finding.severity) == (0, 1, "error")
    golden(finding)
    assert mentions(finding, "65%", "attention_mask")


def test_steps_without_padding_are_no_evidence() -> None:
    full = {**TEXT, "masked": 0.0, "counted": 0.0, "made": 0.0}
    assert fires("TC332", looked_at(full, TEXT, full, TEXT, TEXT)).first_step == 1


@pytest.mark.parametrize(
    "events",
    [
        looked_at(TEXT, TEXT),
        looked_at(*3 * [{**TEXT, "counted": 0.0}]),
        looked_at(*3 * [{**TEXT, "counted": 0.04}]),
        looked_at(*3 * [{**TEXT, "made": 0.0}]),  # of another text
        looked_at(*3 * [{**TEXT, "one_value": 0.0}]),  # what the mask hides is predicted
        looked_at(TEXT, {**TEXT, "counted": 0.0}, TEXT, TEXT),
    ],
)
def test_quiet_beside_a_mask(events: list[Event]) -> None:
    assert quiet("TC332", events) is Verdict.HELD


class Masked(nn.Module):
    """A language model that is given a mask, or two."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(40, 8), nn.Linear(8, 40)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        weights = mask.float() / mask.sum(1, keepdim=True).clamp(min=1)
        hidden = self.embed(ids)
        return self.head(hidden + (hidden * weights[..., None]).sum(1, keepdim=True))


def padded(*, left: bool = False) -> tuple[Tensor, Tensor]:
    """Tokens and a mask. The token of padding is 0."""
    mask = (torch.arange(12) < torch.randint(4, 9, (8, 1))).long()
    mask = mask.flip(1) if left else mask
    return torch.randint(1, 40, (8, 12)) * mask, mask


def next_token(logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
    return functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), **options
    )


def same_token(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.transpose(1, 2), labels)


def copied(model: Masked) -> Tensor:
    ids, mask = padded()
    return next_token(model(ids, mask), ids)


def left_padded(model: Masked) -> Tensor:
    ids, mask = padded(left=True)
    return next_token(model(ids, mask.bool()), ids) / 2


def cut_before(model: Masked) -> Tensor:
    """The batch is cut before the model gets it."""
    ids, mask = padded()
    return same_token(model(ids[:, :-1], mask[:, :-1]), ids[:, 1:])


def columns_hidden(model: Masked) -> Tensor:
    """The first columns are taken for the prompt, although rows are padded there."""
    ids, mask = padded(left=True)
    return next_token(model(ids, mask), ids.masked_fill(torch.arange(12) < 2, -100))


@pytest.mark.parametrize("loss_of", [copied, left_padded, cut_before, columns_hidden])
def test_fires_on_masks_beside_labels(tmp_path: Path, loss_of: Callable[[Masked], Tensor]) -> None:
    finding = fires("TC332", trained(tmp_path, loss_of))
    assert (finding.first_step, finding.severity) == (0, "error")
    assert mentions(finding, "mask")


def ignored(model: Masked) -> Tensor:
    ids, mask = padded()
    return next_token(model(ids, mask), ids.masked_fill(mask == 0, -100))


def ignored_by_index(model: Masked) -> Tensor:
    ids, mask = padded()
    return next_token(model(ids, mask), ids, ignore_index=0)


def ends_learned(model: Masked) -> Tensor:
    """The end of a text is the token of padding, and the mask excludes the first one, too."""
    ids, mask = padded()
    learned = torch.cat([torch.ones(8, 1), mask[:, :-1]], 1)
    return next_token(model(ids, mask), ids.masked_fill(learned == 0, -100))


def without_padding(model: Masked) -> Tensor:
    ids = torch.randint(1, 40, (8, 12))
    return next_token(model(ids, torch.ones_like(ids)), ids)


def weighted(model: Masked) -> Tensor:
    ids, mask = padded()
    terms = functional.cross_entropy(model(ids, mask).transpose(1, 2), ids, reduction="none")
    return (terms * mask).sum() / mask.sum()


def hidden_tokens(model: Masked) -> Tensor:
    """A random mask, of tokens that are to be predicted."""
    ids, mask = torch.randint(1, 40, (8, 12)), (torch.rand(8, 12) < 0.7).long()
    return same_token(model(ids, mask), ids.clone())


def hidden_ends(model: Masked) -> Tensor:
    """The second part of a text is hidden, and predicted."""
    ids = torch.randint(1, 40, (8, 12))
    mask = (torch.arange(12) < 6).expand(8, 12).long()
    return same_token(model(ids, mask), ids.masked_fill(mask == 1, -100))


def replaced_tokens(model: Masked) -> Tensor:
    ids, mask = torch.randint(1, 40, (8, 12)), (torch.rand(8, 12) < 0.7).long()
    return same_token(model(ids * mask, mask), ids)


def of_another_text(model: Masked) -> Tensor:
    ids, mask = padded()
    return same_token(model(ids, mask), torch.randint(1, 40, (8, 12)))


def causal(model: Masked) -> Tensor:
    ids = torch.randint(1, 40, (12, 12))
    return next_token(model(ids, torch.ones(12, 12).tril()), ids)


def not_used(model: Masked) -> Tensor:
    """A loss for a log, which does not train."""
    ids, mask = padded()
    logits = model(ids, mask)
    next_token(logits, ids)
    return next_token(logits, ids.masked_fill(mask == 0, -100))


@pytest.mark.parametrize(
    "loss_of",
    [
        ignored, ignored_by_index, ends_learned, without_padding, weighted, hidden_tokens,
        hidden_ends, replaced_tokens, of_another_text, causal, not_used,
    ],
)  # fmt: skip
def test_quiet_on_masks_beside_labels(tmp_path: Path, loss_of: Callable[[Masked], Tensor]) -> None:
    assert quiet("TC332", trained(tmp_path, loss_of)) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


def trained(folder: Path, loss_of: Callable[[Masked], Tensor]) -> list[Event]:
    torch.manual_seed(0)
    model = Masked()
    with recording(folder / "run") as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
    return recorded.events
