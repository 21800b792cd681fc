"""Healthy loops that are unlike the usual one; ``UP_KIND`` names which. Each must be left alone."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from common import env, print_digest, seed_everything
from torch import nn

STEPS = 16


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
        self.head = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(16, 8)
    return x, (x.sum(dim=1) > 0).long()


def loss_of(model: nn.Module) -> torch.Tensor:
    x, y = batch()
    return F.cross_entropy(model(x), y)


def unfreezing() -> list[nn.Module]:
    """The body joins the optimizer half-way."""
    model = Net()
    model.body.requires_grad_(False)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-2)
    for step in range(STEPS):
        if step == STEPS // 2:
            model.body.requires_grad_(True)
            optimizer.add_param_group({"params": list(model.body.parameters()), "lr": 1e-3})
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    return [model]


def teacher() -> list[nn.Module]:
    """A student learns from a frozen teacher; a moving average of it is kept."""
    model, fixed = Net(), Net().eval().requires_grad_(False)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        x, _y = batch()
        with torch.no_grad():
            wanted = fixed(x)
        loss = F.mse_loss(model(x), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), model.parameters()):
                mean.lerp_(parameter, 0.1)
    return [model, average]


def warm_up() -> list[nn.Module]:
    """The learning rate begins at zero."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 5))
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        scheduler.step()
    return [model]


def uneven_accumulation() -> list[nn.Module]:
    """Micro-batches without a step between; the last window is shorter."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for index in range(2 * STEPS + 1):
        (loss_of(model) / 4).backward()
        if index % 4 == 3 or index == 2 * STEPS:
            optimizer.step()
            optimizer.zero_grad()
    return [model]


def by_hand() -> list[nn.Module]:
    """No optimizer at all."""
    model = Net()
    for _ in range(STEPS):
        loss_of(model).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)
        model.zero_grad()
    return [model]


def gradient_penalty() -> list[nn.Module]:
    """A second derivative by ``autograd.grad`` before the backward of the whole."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        x, y = batch()
        x.requires_grad_(True)
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        loss = F.cross_entropy(out, y) + 0.1 * slope.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [model]


def sharpness_aware() -> list[nn.Module]:
    """Climb first, then step from there: two backwards and two clearings a step."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(STEPS):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            climbs = [0.05 * p.grad / (p.grad.norm() + 1e-12) for p in model.parameters()]
            for parameter, climb in zip(model.parameters(), climbs):
                parameter.add_(climb)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for parameter, climb in zip(model.parameters(), climbs):
                parameter.sub_(climb)
        optimizer.step()
        optimizer.zero_grad()
    return [model]


def alternating() -> list[nn.Module]:
    """Two optimizers over two halves take turns; the other half gets gradients it does not use."""
    model = Net()
    optimizers = [torch.optim.Adam(part.parameters(), lr=1e-2) for part in (model.body, model.head)]
    for step in range(STEPS):
        model.zero_grad()
        loss_of(model).backward()
        optimizers[step % 2].step()
    return [model]


def two_heads() -> list[nn.Module]:
    """Each batch uses one of two heads: the other has no gradient then."""
    model, other = Net(), nn.Linear(16, 2)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.05, momentum=0.9)
    for step in range(STEPS):
        x, y = batch()
        out = other(model.body(x)) if step % 2 else model(x)
        optimizer.zero_grad()
        F.cross_entropy(out, y).backward()
        optimizer.step()
    return [model, other]


def sparse_rows() -> list[nn.Module]:
    """An embedding with sparse gradients beside a dense layer, each with its optimizer."""
    table, head = nn.EmbeddingBag(50, 8, sparse=True), nn.Linear(8, 2)
    sparse = torch.optim.SparseAdam(table.parameters(), lr=1e-2)
    dense = torch.optim.Adam(head.parameters(), lr=1e-2)
    for _ in range(STEPS):
        words, y = torch.randint(0, 50, (16, 4)), torch.randint(0, 2, (16,))
        sparse.zero_grad()
        dense.zero_grad()
        F.cross_entropy(head(table(words)), y).backward()
        sparse.step()
        dense.step()
    return [table, head]


def skipped_batches() -> list[nn.Module]:
    """A batch whose loss is not finite is skipped, before or after its backward."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model) * (float("nan") if step % 5 == 3 else 1.0)
        if not torch.isfinite(loss):
            continue
        loss.backward()
        optimizer.step()
    return [model]


def reinforce() -> list[nn.Module]:
    """Many forwards without a gradient, then one update: a policy that plays and learns."""
    model = Net()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        seen, taken = [], []
        for _ in range(4):
            with torch.no_grad():
                x, _y = batch()
                action = torch.distributions.Categorical(logits=model(x)).sample()
            seen.append(x)
            taken.append(action)
        policy = torch.distributions.Categorical(logits=model(torch.cat(seen)))
        reward = torch.randn(64)
        loss = -(policy.log_prob(torch.cat(taken)) * reward).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [model]


def unused_layer() -> list[nn.Module]:
    """A layer that is never called sits in the model and in the optimizer."""
    model = Net()
    model.spare = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    return [model]


def cross_validation() -> list[nn.Module]:
    """Each fold creates a new model and optimizer."""
    models = []
    for _ in range(3):
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(STEPS // 2):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            loss_of(model)
        models.append(model)
    return models


def scaled() -> list[nn.Module]:
    """A GradScaler that meets an overflow and skips that step."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model)
        scaler.scale(loss * (float("inf") if step == 6 else 1.0)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return [model]


def converging() -> list[nn.Module]:
    """A line is found as exactly as float32 can tell, long before the end."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x = torch.rand(100, 1) * 2 - 1
    for _ in range(120):
        optimizer.zero_grad()
        F.mse_loss(model(x), 2 * x + 1).backward()
        optimizer.step()
    return [model]


KINDS: dict[str, Callable[[], list[nn.Module]]] = {
    kind.__name__: kind
    for kind in (
        unfreezing,
        teacher,
        warm_up,
        uneven_accumulation,
        by_hand,
        gradient_penalty,
        sharpness_aware,
        alternating,
        two_heads,
        sparse_rows,
        skipped_batches,
        reinforce,
        unused_layer,
        cross_validation,
        scaled,
        converging,
    )
}


def main() -> None:
    seed_everything()
    print_digest(*KINDS[env("KIND", "unfreezing")]())


if __name__ == "__main__":
    main()
