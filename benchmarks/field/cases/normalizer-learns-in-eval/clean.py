"""A policy with an empirical observation normalizer is trained by imitation and evaluated now and
then on another range of observations."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 40


class EmpiricalNormalization(nn.Module):
    """Whitens by the mean and variance of all that was seen; frozen in eval mode."""

    def __init__(self, size):
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("var", torch.ones(size))
        self.register_buffer("count", torch.zeros(()))

    @torch.no_grad()
    def update(self, x):
        if not self.training:
            return
        total = self.count + x.shape[0]
        delta = x.mean(0) - self.mean
        self.var.copy_(
            (
                self.var * self.count
                + x.var(0, unbiased=False) * x.shape[0]
                + delta**2 * self.count * x.shape[0] / total
            )
            / total
        )
        self.mean += delta * x.shape[0] / total
        self.count.copy_(total)

    def forward(self, x):
        return (x - self.mean) / (self.var + 1e-6).sqrt()


class Policy(nn.Module):
    def __init__(self, inputs, actions):
        super().__init__()
        self.normalizer = EmpiricalNormalization(inputs)
        self.net = nn.Sequential(nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, actions))

    def act(self, x):
        self.normalizer.update(x)
        return self(x)

    def forward(self, x):
        return self.net(self.normalizer(x))


def evaluate(policy, expert, generator):
    policy.eval()
    total = 0.0
    with torch.no_grad():
        for _ in range(3):
            x = 4.0 + 2 * torch.randn(32, 6, generator=generator)
            total += F.mse_loss(policy.act(x), torch.tanh(x @ expert)).item()
    policy.train()
    return total / 3


def main():
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    expert = torch.randn(6, 2)
    policy = Policy(6, 2)
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(SEED + 1)
    policy.train()
    for step in range(STEPS):
        x = 3.0 + 2 * torch.randn(64, 6, generator=generator)
        loss = F.mse_loss(policy.act(x), torch.tanh(x @ expert))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            score = evaluate(policy, expert, generator)
            print(
                f"step {step} loss {loss.item():.4f} eval {score:.4f} mean {policy.normalizer.mean[0]:.3f}"
            )


if __name__ == "__main__":
    main()
