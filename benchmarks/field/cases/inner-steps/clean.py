import os
import sys
import tempfile

import torch
import torch.nn.functional as F
from torch import nn

FOLDER = tempfile.mkdtemp()


class Net(nn.Module):
    def __init__(self, n_in=1, width=40):
        super().__init__()
        sizes = [(width, n_in), (width, width), (1, width)]
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(s)) for s in sizes)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(s[0])) for s in sizes)
        for w in self.weights:
            nn.init.xavier_uniform_(w)

    def forward(self, x, fast=None):
        fast = list(self.parameters()) if fast is None else fast
        ws, bs = fast[:3], fast[3:]
        for i, (w, b) in enumerate(zip(ws, bs)):
            x = F.linear(x, w, b)
            if i < 2:
                x = F.relu(x)
        return x


class Waves:
    def __init__(self, seed, shots=10):
        self.g, self.shots = torch.Generator().manual_seed(seed), shots

    def tasks(self, n):
        rand = lambda lo, hi: lo + (hi - lo) * torch.rand(n, 1, 1, generator=self.g)
        height, phase = rand(0.5, 3.0), rand(0.0, 3.14)
        x = 10 * torch.rand(n, 2 * self.shots, 1, generator=self.g) - 5
        y = height * torch.sin(x + phase)
        return x[:, : self.shots], y[:, : self.shots], x[:, self.shots :], y[:, self.shots :]


class Meta(nn.Module):
    def __init__(self, update_lr=0.01, meta_lr=2e-3, inner=3):
        super().__init__()
        self.net, self.update_lr, self.inner = Net(), update_lr, inner
        self.meta_optim = torch.optim.Adam(self.net.parameters(), lr=meta_lr)

    def adapt(self, x, y, create_graph):
        fast = list(self.net.parameters())
        for _ in range(self.inner):
            loss = F.mse_loss(self.net(x, fast), y)
            grad = torch.autograd.grad(loss, fast, create_graph=create_graph)
            fast = [p - self.update_lr * g for p, g in zip(fast, grad)]
        return fast

    def forward(self, xs, ys, xq, yq):
        total = 0.0
        for i in range(len(xs)):
            fast = self.adapt(xs[i], ys[i], create_graph=True)
            total = total + F.mse_loss(self.net(xq[i], fast), yq[i])
        loss = total / len(xs)
        self.meta_optim.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 10.0)
        self.meta_optim.step()
        return loss.item()

    def finetune(self, xs, ys, xq, yq):
        losses = []
        for i in range(len(xs)):
            fast = self.adapt(xs[i], ys[i], create_graph=False)
            with torch.no_grad():
                losses.append(F.mse_loss(self.net(xq[i], fast), yq[i]).item())
        return sum(losses) / len(losses)


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    torch.manual_seed(seed)
    train, test = Waves(seed), Waves(seed + 1)
    meta = Meta()
    for step in range(steps):
        loss = meta(*train.tasks(4))
        if step % 10 == 9:
            print(f"step {step + 1} loss {loss:.4f} test {meta.finetune(*test.tasks(8)):.4f}")
    torch.save(meta.net.state_dict(), os.path.join(FOLDER, f"model_{seed}.pt"))


main()
