"""An optimizer written by hand whose update is one fused function."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


@torch.no_grad()
def update(p: torch.Tensor, m: torch.Tensor, v: torch.Tensor, t: int, lr: float) -> None:
    m.lerp_(p.grad, 0.1)
    v.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
    size = lr / (1 - 0.9**t)
    p.addcdiv_(m, (v / (1 - 0.999**t)).sqrt().add_(1e-8), value=-size)


class Adam(torch.optim.Optimizer):
    def __init__(self, params: object, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(m=torch.zeros_like(p), v=torch.zeros_like(p), t=0)
                state["t"] += 1
                update(p, state["m"], state["v"], state["t"], group["lr"])


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = Adam(model.parameters(), lr=1e-2)
    for step in range(16):
        picked = torch.randint(0, len(x), (64,))
        loss = F.cross_entropy(model(x[picked]), y[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(step, round(loss.item(), 3))


main()
