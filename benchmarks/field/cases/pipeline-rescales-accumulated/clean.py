"""Two pipeline stages on two ranks; each optimizer step accumulates three schedule steps."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn import functional as F

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 20
MICRO = 4
ACCUMULATE = 3


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    centers = torch.randn(4, 10)
    first = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
    last = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    module = first if rank == 0 else last
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(
        stage,
        n_microbatches=MICRO,
        loss_fn=lambda out, y: F.cross_entropy(out, y) / (MICRO * ACCUMULATE),
        scale_grads=False,
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    module.train()
    generator = torch.Generator().manual_seed(SEED + 1)
    for step in range(STEPS):
        optimizer.zero_grad()
        for _ in range(ACCUMULATE):
            y = torch.randint(0, 4, (32,), generator=generator)
            x = centers[y] + 0.5 * torch.randn(32, 10, generator=generator)
            if rank == 0:
                schedule.step(x)
            else:
                losses = []
                schedule.step(target=y, losses=losses)
        optimizer.step()
        if rank == 1 and step % 5 == 0:
            print(f"step {step} loss {torch.stack(losses).mean().item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
