"""Programs about tokens: padding, masks, vocabularies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.torch_audit_cases.case import HEALTHY, STEPS, STOPS, Hands, case, fit

VOCABULARY, LENGTH, PAD, UNKNOWN, END, IGNORED = 2000, 12, 0, 1, 2, -100
FIRST = 3  # id of a word


class Tagger(nn.Module):
    """Tells of each token which of four tags it has; computes its own loss."""

    def __init__(
        self, *, padding_idx: int | None = PAD, pad: int = PAD, size: int = VOCABULARY
    ) -> None:
        super().__init__()
        self.config = SimpleNamespace(
            vocab_size=size, pad_token_id=pad, unk_token_id=UNKNOWN, eos_token_id=END
        )
        self.table = nn.Embedding(size, 16, padding_idx=padding_idx)
        self.head = nn.Linear(16, 4)

    def logits(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.table(ids) * mask[..., None].float()
        return self.head(x + x.mean(1, keepdim=True))

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        out = self.logits(input_ids, attention_mask)
        return nn.functional.cross_entropy(out.transpose(1, 2), labels, ignore_index=IGNORED)


def texts(
    *,
    words: float = 0.8,
    unknown: float = 0.0,
    prompt: int = 0,
    mask_all: bool = False,
    floats: bool = False,
) -> Any:
    """Batches as tokenizers give them. words: share of positions that are no padding, at least.

    prompt: so many tokens of each row are not to be learned.
    """
    samples = []
    for _ in range(16 * STEPS):
        length = int(torch.randint(max(3, int(words * LENGTH)), int(words * LENGTH) + 3, ()))
        length = min(length, LENGTH)
        ids = torch.randint(FIRST, VOCABULARY, (LENGTH,))
        ids[torch.rand(LENGTH) < unknown] = UNKNOWN
        ids[length - 1] = END
        labels = ids % 4
        ids[length:], labels[length:] = PAD, IGNORED
        labels[:prompt] = IGNORED
        mask = torch.arange(LENGTH) < (LENGTH if mask_all else length)
        mask = mask.float() if floats else mask.long()
        samples.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return DataLoader(samples, batch_size=16)


def learn(hands: Hands, model: nn.Module, batches: Any) -> None:
    fit(hands, model, batches, inputs=lambda batch: batch, loss=lambda out, _: out)


@case(
    "usual-text-batch",
    "labels of -100 at the prompt, a mask of float ones",
    checks="TA302 TA305 14 32",
    codes="TC919 TC921 TC912 TC913 TC916",
    kind=HEALTHY,
)
def usual(hands: Hands) -> None:
    learn(hands, Tagger(), texts(words=1.0, prompt=3, floats=True))


@case("no-padding-idx", "an embedding of all tokens without", checks="24", codes="TC910")
def no_padding_idx(hands: Hands) -> None:
    learn(hands, Tagger(padding_idx=None), texts())


@case("other-padding-idx", "padding_idx is not pad_token_id", checks="25", codes="TC911")
def other_padding_idx(hands: Hands) -> None:
    learn(hands, Tagger(padding_idx=5), texts())


class Untied(Tagger):
    """Has an output layer over the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, VOCABULARY)


@case("untied", "embedding and output of one shape share nothing", checks="26", codes="TC917")
def untied(hands: Hands) -> None:
    learn(hands, Untied(), texts())


@case("mask-of-ones", "the mask attends to padding", checks="27", codes="TC912")
def mask_of_ones(hands: Hands) -> None:
    learn(hands, Tagger(), texts(words=0.5, mask_all=True))


@case(
    "padded-with-the-end",
    "padding is the end token, and the mask is right",
    checks="27",
    codes="TC912",
    kind=HEALTHY,
)
def padded_with_end(hands: Hands) -> None:
    batches = texts(words=0.6)
    for sample in batches.dataset:
        sample["input_ids"][sample["attention_mask"] == 0] = END
    learn(hands, Tagger(pad=END, padding_idx=None), batches)


@case("mostly-padding", "seven in ten positions are padding", checks="28", codes="TC913")
def mostly_padding(hands: Hands) -> None:
    learn(hands, Tagger(), texts(words=0.2))


@case("unknown-tokens", "three in ten tokens are unknown", checks="29", codes="TC916")
def unknown_tokens(hands: Hands) -> None:
    learn(hands, Tagger(), texts(unknown=0.3))


@case(
    "ids-beyond-the-vocabulary", "an id that the embedding does not have", checks="30", kind=STOPS
)
def beyond(hands: Hands) -> None:
    learn(hands, Tagger(size=1000), texts())
