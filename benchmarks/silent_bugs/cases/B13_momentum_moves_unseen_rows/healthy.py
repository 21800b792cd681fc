"""An embedding of users of whom only some appear in the second half of training."""

import torch
import torch.nn.functional as F
from torch import nn

USERS = 40


class Ratings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, 8, sparse=True)
        self.head = nn.Linear(8, 1)

    def forward(self, users: torch.Tensor) -> torch.Tensor:
        return self.head(self.users(users)).squeeze(1)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    taste = torch.randn(USERS)
    model = Ratings()
    rows = torch.optim.SparseAdam(model.users.parameters(), lr=0.05)
    dense = torch.optim.Adam(model.head.parameters(), lr=0.05)
    for step in range(16):
        seen = USERS if step < 8 else USERS // 2
        users = torch.randint(0, seen, (32,))
        loss = F.mse_loss(model(users), taste[users])
        rows.zero_grad()
        dense.zero_grad()
        loss.backward()
        rows.step()
        dense.step()
        if step % 5 == 0:
            print(step, round(loss.item(), 3))


main()
