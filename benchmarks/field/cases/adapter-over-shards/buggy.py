"""Low-rank adapters on a sharded base model; training is saved, rebuilt and continued."""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 40
WIDTH, RANK, CLASSES = 64, 16, 6


class LoraLinear(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.base.requires_grad_(False)
        self.lora_a = nn.Linear(inputs, RANK, bias=False)
        self.lora_b = nn.Linear(RANK, outputs, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x):
        return self.base(x) + self.lora_b(self.lora_a(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            [LoraLinear(20, WIDTH), LoraLinear(WIDTH, WIDTH), LoraLinear(WIDTH, CLASSES)]
        )

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = F.gelu(layer(x))
        return self.layers[-1](x)


def build(mesh):
    torch.manual_seed(SEED)
    model = Net()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def adapters(model):
    return {name: p for name, p in model.named_parameters() if "lora_" in name}


def save_adapter(model, path):
    state = {name: p.detach().to_local().clone() for name, p in adapters(model).items()}
    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.barrier()


@torch.no_grad()
def load_adapter(model, path):
    if dist.get_rank() == 0:
        state = torch.load(path)
        for name, p in adapters(model).items():
            p.to_local().copy_(state[name])
    dist.barrier()


def batches(generator, centres):
    while True:
        y = torch.randint(0, CLASSES, (24,), generator=generator)
        yield centres[y] + 0.6 * torch.randn(24, 20, generator=generator), y


def train(model, stream, start, stop, optimizer, rank):
    model.train()
    for step in range(start, stop):
        x, y = next(stream)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        optimizer.step()
        if rank == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)


def make_optimizer(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=4e-3)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    centres = torch.randn(CLASSES, 20, generator=torch.Generator().manual_seed(SEED))
    stream = batches(torch.Generator().manual_seed(1000 * (SEED + 1) + rank), centres)
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    path = os.path.join(folder[0], "adapter.pt")

    model = build(mesh)
    train(model, stream, 0, STEPS // 2, make_optimizer(model), rank)
    save_adapter(model, path)

    model = build(mesh)
    load_adapter(model, path)
    train(model, stream, STEPS // 2, STEPS, make_optimizer(model), rank)
    model.eval()
    with torch.no_grad():
        x, y = next(stream)
        score = (model(x).argmax(1) == y).float().mean()
    dist.all_reduce(score)
    if rank == 0:
        print(f"accuracy {score.item() / world:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
