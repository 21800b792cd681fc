"""DDP with a loader that shards a shuffled order over the ranks."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 36


class Blobs(Dataset):
    def __init__(self, size, centers):
        generator = torch.Generator().manual_seed(77)
        self.y = torch.randint(0, centers.shape[0], (size,), generator=generator)
        self.x = centers[self.y] + 0.6 * torch.randn(size, centers.shape[1], generator=generator)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class SharedOrder(Sampler):
    """Every rank draws one order of the whole set and takes its share of it."""

    def __init__(self, size, rank, world):
        self.size, self.rank, self.world = size, rank, world
        self.generator = torch.Generator()
        self.generator.manual_seed(1000 * SEED + 17 * rank)

    def synchronize(self):
        seed = torch.tensor([self.generator.initial_seed() % 2**31])
        dist.broadcast(seed, src=0)
        self.generator.manual_seed(int(seed))

    def prepare(self):
        self.order = torch.randperm(self.size, generator=self.generator)

    def __iter__(self):
        order = self.order
        self.prepare()
        return iter(order[self.rank :: self.world].tolist())

    def __len__(self):
        return self.size // self.world


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    centers = torch.randn(4, 10)
    data = Blobs(96, centers)
    sampler = SharedOrder(len(data), rank, world)
    sampler.prepare()
    sampler.synchronize()
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model.train()
    for epoch in range(max(1, STEPS // len(loader))):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
