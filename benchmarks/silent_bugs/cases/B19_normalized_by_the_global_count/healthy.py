"""Two replicas with rows of unlike length: the loss is a mean over all valid tokens."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class LM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 30)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.embed(ids))[0])


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DDP(LM())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(1 + rank)
    for step in range(10):
        rows = (torch.arange(13) + torch.randint(0, 30, (8, 1))) % 30
        labels = rows[:, 1:].clone()
        labels[:, int(torch.randint(6, 12, ())) :] = -100
        count = (labels != -100).sum()
        dist.all_reduce(count)
        total = F.cross_entropy(model(rows[:, :-1]).mT, labels, reduction="sum")
        loss = total * dist.get_world_size() / count
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0 and rank == 0:
            print(step, round(loss.item(), 3))
    dist.barrier()
    os._exit(0)


main()
