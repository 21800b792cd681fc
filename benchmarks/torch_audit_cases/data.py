"""Programs about batches: ranges, layouts, sizes, and what only looks odd."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import torch
from torch import nn

from benchmarks.torch_audit_cases.case import (
    CLASSES,
    FEATURES,
    HEALTHY,
    Hands,
    case,
    classify,
    convnet,
    first,
    fit,
    image_tensors,
    images,
    labels,
    loader,
    mlp,
    row_tensors,
    rows,
    sgd,
)


def _mapped(change: Any, scale: float = 1.0) -> Any:
    """Batches of images, all changed at once."""
    x, y = image_tensors(scale=scale)
    return loader(change(x), y, size=16)


@case("bytes-as-floats", "images in 0..255", checks="TA301 15 31", codes="TC918")
def bytes_as_floats(hands: Hands) -> None:
    fit(hands, convnet(), images(scale=255.0))


@case("bytes-as-doubles", "the same in float64", checks="TA301 15 31", codes="TC918")
def bytes_as_doubles(hands: Hands) -> None:
    fit(hands, convnet().double(), _mapped(torch.Tensor.double, scale=255.0))


@case("bytes", "uint8 images that the loop only casts", checks="TA301 15 31", codes="TC918")
def only_cast(hands: Hands) -> None:
    batches = _mapped(torch.Tensor.byte, scale=255.0)
    fit(hands, convnet(), batches, inputs=lambda batch: batch[0].float())


@case("far-below-zero", "images around -200", checks="TA301 15", codes="TC918")
def far_below(hands: Hands) -> None:
    fit(hands, convnet(), _mapped(lambda x: x - 200))


def _as_user_dict(samples: Any) -> UserDict[str, Any]:
    x, y = (torch.stack(parts) for parts in zip(*samples, strict=True))
    return UserDict(image=x, label=y)


class TakesBatch(nn.Module):
    """Is given the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = convnet()

    def forward(self, batch: Any) -> torch.Tensor:
        return self.net(batch["image"])


@case("own-batch-class", "0..255 in a UserDict", checks="TA301 15 31", codes="TC918")
def own_batch_class(hands: Hands) -> None:
    batches = loader(*image_tensors(scale=255.0), size=16, collate=_as_user_dict)

    def loss(out: torch.Tensor, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(out, batch["label"])

    fit(hands, TakesBatch(), batches, inputs=lambda batch: batch, loss=loss)


@case("table", "a column of ages, up to 60", checks="TA301 15 31", codes="TC918", kind=HEALTHY)
def table(hands: Hands) -> None:
    x, y = row_tensors()
    x[:, 0] = torch.rand(len(x)) * 42 + 18
    model = nn.Sequential(nn.BatchNorm1d(FEATURES), mlp())
    fit(hands, model, loader(x, y, size=32))


class WithTarget(nn.Module):
    """Computes its own loss, as models of some libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(FEATURES, 1)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.huber_loss(self.net(x).squeeze(1), target, delta=1.0)


@case(
    "large-targets",
    "regression targets up to 300, in the batch",
    checks="TA301 15",
    codes="TC918",
    kind=HEALTHY,
)
def large_targets(hands: Hands) -> None:
    x = torch.randn(320, FEATURES)
    batches = loader(x, x.sum(1) * 30, size=32)
    fit(
        hands,
        WithTarget(),
        batches,
        inputs=lambda batch: {"x": batch[0], "target": batch[1]},
        loss=lambda out, _: out,
    )


@case("flat-images", "every image is black", checks="TA302 32", codes="TC919")
def flat_images(hands: Hands) -> None:
    fit(hands, convnet(), _mapped(torch.zeros_like))


@case("channels-last-batch", "images as (batch, 32, 32, 3)", checks="TA303 33", codes="TC920")
def channels_last(hands: Hands) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    fit(hands, model, _mapped(lambda x: x.permute(0, 2, 3, 1).contiguous()))


@case(
    "feature-maps",
    "features of 64 x 4 x 4 that were computed before",
    checks="TA303 33",
    codes="TC920",
    kind=HEALTHY,
)
def feature_maps(hands: Hands) -> None:
    y = labels(320)
    x = torch.randn(CLASSES, 64, 4, 4)[y] + torch.randn(320, 64, 4, 4)
    model = nn.Sequential(nn.Conv2d(64, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES))
    fit(hands, model, loader(x, y, size=32))


def _normed() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(FEATURES, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, CLASSES)
    )


@case("tiny-batch", "batches of 4 in front of a batch norm", checks="TA304 12", codes="TC914")
def tiny_batch(hands: Hands) -> None:
    fit(hands, _normed(), rows(size=4))


@case("sync-batch-norm", "SyncBatchNorm over 2 samples", checks="TA304 12", codes="TC914")
def sync_batch_norm(hands: Hands) -> None:
    fit(hands, nn.SyncBatchNorm.convert_sync_batchnorm(_normed()), rows(size=2))


@case(
    "tiny-batch-in-evaluation",
    "the same in eval(): its statistics are not used",
    checks="TA304 12",
    codes="TC914",
    kind=HEALTHY,
)
def tiny_evaluation(hands: Hands) -> None:
    model = _normed()
    optimizer = sgd(model)
    hands.begin(model, optimizer)
    for batch in rows():
        optimizer.zero_grad()
        hands.backward(classify(hands.forward(model, batch[0]), batch))
        hands.step(optimizer)
        model.eval()
        with torch.no_grad():
            hands.forward(model, batch[0][:4])
        model.train()
    hands.end()


class Lookup(nn.Module):
    """A table read by indexing, which counts negative ids from the end."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(50, FEATURES))
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table[ids].mean(1))


@case("negative-ids", "ids from -7 on index from the end", checks="TA305 14", codes="TC921")
def negative_ids(hands: Hands) -> None:
    ids = torch.randint(-7, 43, (320, 6))
    fit(hands, Lookup(), loader(ids, labels(320)[torch.randperm(320)], size=32), inputs=first)
