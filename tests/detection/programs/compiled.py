"""A model compiled with the eager back end: prints how often Dynamo broke and compiled."""

import torch
import torch.nn.functional as F
from common import env, print_digest, seed_everything
from torch import nn
from torch._dynamo.utils import counters


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.fc2 = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.dropout(F.gelu(self.norm(self.fc1(x))), 0.1, self.training)
        return self.fc2(x)


def main() -> None:
    seed_everything()
    model = Net()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses: list[float] = []
    for step in range(env("STEPS", 8, int)):
        compiled.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(compiled(torch.randn(16, 8)), torch.randint(0, 4, (16,)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 4 == 3:
            compiled.eval()
            with torch.no_grad():
                compiled(torch.randn(16, 8))
    print("COMPILED", "graph_breaks", sum(counters["graph_break"].values()))
    for key in ("unique_graphs", "calls_captured"):
        print("COMPILED", key, counters["stats"][key])
    print("COMPILED", "frames", sorted(counters["frames"].items()))
    print_digest(model, optimizer, losses=losses)


if __name__ == "__main__":
    main()
