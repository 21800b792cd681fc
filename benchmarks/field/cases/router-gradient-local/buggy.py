"""Mixture of experts over two tensor-parallel ranks: each rank runs half of every expert, the
router is replicated."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.nn import functional as F

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 30


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Router(nn.Module):
    """The gate of the experts; its weight is replicated over the mesh."""

    def __init__(self, width, experts, mesh):
        super().__init__()
        self.mesh = mesh
        self.weight = nn.Parameter(
            distribute_tensor(torch.randn(experts, width) * 0.2, mesh, [Replicate()])
        )

    def forward(self, x):
        x = DTensor.from_local(x, self.mesh, [Replicate()], run_check=False)
        scores = F.linear(x, self.weight)
        return scores.to_local()


class Experts(nn.Module):
    """This rank's slice of the hidden units of all experts."""

    def __init__(self, width, hidden, experts, rank, world):
        super().__init__()
        up = torch.randn(experts, width, hidden) * 0.3
        down = torch.randn(experts, hidden, width) * 0.3
        part = slice(rank * hidden // world, (rank + 1) * hidden // world)
        self.up = nn.Parameter(up[:, :, part].clone())
        self.down = nn.Parameter(down[:, part].clone())

    def forward(self, x, gates):
        h = F.relu(torch.einsum("bw,ewh->beh", x, self.up))
        y = torch.einsum("beh,ehw->bew", h, self.down)
        return SumOverRanks.apply((y * gates.unsqueeze(-1)).sum(1))


class Net(nn.Module):
    def __init__(self, width, mesh):
        super().__init__()
        self.router = Router(width, 4, mesh)
        self.experts = Experts(width, 16, 4, dist.get_rank(), dist.get_world_size())

    def forward(self, x):
        gates = self.router(x).softmax(-1)
        return self.experts(x, gates)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(SEED)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = Net(8, mesh)
    teacher = torch.randn(8, 8) * 0.5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(SEED + 1)
    model.train()
    for step in range(STEPS):
        x = torch.randn(64, 8, generator=generator)
        loss = F.mse_loss(model(x), torch.tanh(x @ teacher))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            first = model.router.weight.to_local()[0, 0].item()
            print(
                f"rank {dist.get_rank()} step {step} loss {loss.item():.4f} router {first:.5f}",
                flush=True,
            )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
