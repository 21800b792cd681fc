"""Programs about what models and optimizers are made of, and where they are."""

from __future__ import annotations

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
    fit,
    images,
    loader,
    mlp,
    row_tensors,
    rows,
    sgd,
)


@case(
    "clean-mlp",
    "a plain program on a CPU: nothing to say",
    checks="TA200 TA203 1 2 4",
    codes="TC901 TC903",
    kind=HEALTHY,
)
def clean_mlp(hands: Hands) -> None:
    fit(hands, mlp(), rows())


@case(
    "clean-cnn",
    "three colours, ten classes, a CPU: nothing to say",
    checks="TA200 TA201 TA202 TA203 1 2 3 4 5 6",
    codes="TC901 TC902 TC903 TC904",
    kind=HEALTHY,
)
def clean_cnn(hands: Hands) -> None:
    fit(hands, convnet(), images())


@case("bias-before-norm", "Conv2d with bias, then BatchNorm2d", checks="TA400 36", codes="TC905")
def bias_before_norm(hands: Hands) -> None:
    fit(hands, convnet(bias=True), images())


class Block(nn.Module):
    """A convolution and its norm, called one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


@case("bias-before-norm-in-a-class", "the same in forward()", checks="TA400 36", codes="TC905")
def bias_in_a_class(hands: Hands) -> None:
    fit(hands, Block(), images())


@case("adam-with-decay", "Adam(weight_decay=0.01)", checks="TA401 7", codes="TC906")
def adam_with_decay(hands: Hands) -> None:
    model = mlp()
    fit(hands, model, rows(), optimizer=torch.optim.Adam(_weights(model), weight_decay=0.01))


def _weights(model: nn.Module) -> Any:
    """Groups in which only matrices decay."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]


@case(
    "decoupled-adam",
    "Adam(weight_decay=0.01, decoupled_weight_decay=True)",
    checks="TA401 7",
    codes="TC906",
    kind=HEALTHY,
)
def decoupled(hands: Hands) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(_weights(model), weight_decay=0.01, decoupled_weight_decay=True)
    fit(hands, model, rows(), optimizer=optimizer)


@case(
    "adamw-on-matrices",
    "AdamW, and only matrices decay",
    checks="TA401 TA402 7 8 9",
    codes="TC906 TC907",
    kind=HEALTHY,
)
def adamw(hands: Hands) -> None:
    model = mlp()
    fit(hands, model, rows(), optimizer=torch.optim.AdamW(_weights(model)))


@case("second-optimizer", "the second of two is Adam with decay", checks="TA401 7", codes="TC906")
def second_optimizer(hands: Hands) -> None:
    model = mlp()
    second = torch.optim.Adam([model[2].weight], weight_decay=0.01)
    rest = [p for p in model.parameters() if p is not model[2].weight]
    fit(hands, model, rows(), optimizer=torch.optim.SGD(rest, lr=0.05), others=[second])


@case("decay-on-bias", "AdamW over all parameters", checks="TA402 8", codes="TC907")
def decay_on_bias(hands: Hands) -> None:
    model = mlp()
    fit(hands, model, rows(), optimizer=torch.optim.AdamW(model.parameters()))


@case("decay-on-norm", "only weights, those of norms too", checks="TA402 9", codes="TC907")
def decay_on_norm(hands: Hands) -> None:
    model = convnet()
    kept = [p for name, p in model.named_parameters() if not name.endswith("bias")]
    rest = [p for name, p in model.named_parameters() if name.endswith("bias")]
    groups = [{"params": kept}, {"params": rest, "weight_decay": 0.0}]
    fit(hands, model, images(), optimizer=torch.optim.AdamW(groups))


class Words(nn.Module):
    """Classifies bags of ids."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids).mean(1))


@case("decay-on-embedding", "AdamW over an embedding", checks="TA403 10", codes="TC908")
def decay_on_embedding(hands: Hands) -> None:
    model = Words()
    ids, y = torch.randint(0, 50, (320, 6)), torch.randint(0, CLASSES, (320,))
    batches = loader(ids, y, size=32)
    fit(hands, model, batches, optimizer=torch.optim.AdamW(model.parameters()))


@case("small-eps", "Adam's eps of 1e-8 in float16", checks="11 TA100", codes="TC803")
def small_eps(hands: Hands) -> None:
    model = mlp().half()
    x, y = row_tensors()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss(out: torch.Tensor, batch: Any) -> torch.Tensor:
        return classify(out.float(), batch)

    fit(hands, model, loader(x.half(), y, size=32), optimizer=optimizer, loss=loss)


@case("even-kernel", "a 4 x 4 convolution", checks="TA404 34", codes="TC909")
def even_kernel(hands: Hands) -> None:
    fit(hands, convnet(kernel=4), images())


@case(
    "patches", "4 x 4 patches, stride 4, as in ViT", checks="TA404 34", codes="TC909", kind=HEALTHY
)
def patches(hands: Hands) -> None:
    layers = [nn.Conv2d(3, 16, 4, stride=4), nn.GELU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()]
    fit(hands, nn.Sequential(*layers, nn.Linear(256, CLASSES)), images())


@case("dead-filters", "10 of 16 filters are zero", checks="TA405 35", codes="TC714")
def dead_filters(hands: Hands) -> None:
    model = convnet()
    with torch.no_grad():
        model[0].weight[:10] = 0
    fit(hands, model, images())


@case("dead-rows", "20 of 64 rows of a linear layer are zero", checks="TA405 35", codes="TC714")
def dead_rows(hands: Hands) -> None:
    model = mlp()
    with torch.no_grad():
        model[0].weight[:20] = 0
    fit(hands, model, rows())


@case(
    "lazy-model",
    "sizes are known with the first batch",
    checks="TA000",
    kind=HEALTHY,
)
def lazy(hands: Hands) -> None:
    model = nn.Sequential(nn.LazyLinear(32), nn.ReLU(), nn.LazyLinear(CLASSES))
    fit(hands, model, rows(), optimizer=sgd(model))
