"""Energy and force model on small clusters of atoms, two ranks, validation through an evaluator."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 48
ATOMS = 6


def make_clusters(n, generator):
    grid = (
        torch.tensor(
            [[i, j, k] for i in range(2) for j in range(3) for k in range(1)], dtype=torch.float32
        )
        * 1.2
    )
    spread = 0.05 + 0.25 * torch.rand(n, 1, 1, generator=generator)
    positions = grid + spread * torch.randn(n, ATOMS, 3, generator=generator)
    order = spread.flatten().argsort()
    positions = positions[order].requires_grad_(True)
    energy = pair_energy(positions)
    (gradient,) = torch.autograd.grad(energy.sum(), positions)
    return TensorDataset(positions.detach(), energy.detach(), -gradient.detach())


def pair_energy(positions):
    i, j = torch.triu_indices(ATOMS, ATOMS, 1)
    r = (positions[:, i] - positions[:, j]).norm(dim=-1)
    return ((1 - torch.exp(-1.5 * (r - 1.2))) ** 2 - 1).sum(-1) * 0.2


class ForceModel(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.pair = nn.Sequential(
            nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2)
        )
        self.register_buffer("centres", torch.linspace(0.4, 4.0, 16))

    def forward(self, positions):
        i, j = torch.triu_indices(ATOMS, ATOMS, 1)
        delta = positions[:, i] - positions[:, j]
        r = delta.norm(dim=-1, keepdim=True)
        out = self.pair(torch.exp(-4 * (r - self.centres) ** 2))
        energy = out[..., 0].sum(-1)
        push = out[..., 1:] * delta / r
        forces = torch.zeros_like(positions).index_add(1, i, push).index_add(1, j, -push)
        return energy, forces


class Evaluator:
    names = ("energy_mae", "forces_mae")

    def eval(self, prediction, target, metrics):
        values = {
            "energy_mae": (prediction[0] - target[0]).abs(),
            "forces_mae": (prediction[1] - target[1]).abs(),
        }
        for name in self.names:
            entry = metrics.setdefault(name, {"total": torch.zeros(()), "numel": torch.zeros(())})
            entry["total"] += values[name].sum()
            entry["numel"] += values[name].numel()
        return metrics


def reduce_metrics(metrics):
    for entry in metrics.values():
        dist.all_reduce(entry["total"])
        dist.all_reduce(entry["numel"])
        entry["metric"] = (entry["total"] / entry["numel"]).item()
    return metrics


@torch.no_grad()
def validate(model, loader, evaluator):
    model.eval()
    metrics = {}
    for positions, energy, forces in loader:
        metrics = evaluator.eval(model(positions), (energy, forces), metrics)
        metrics = reduce_metrics(metrics)
    model.train()
    return {name: metrics[name]["metric"] for name in evaluator.names}


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(50 + SEED)
    train_set, valid_set = make_clusters(512, generator), make_clusters(192, generator)
    model = DistributedDataParallel(ForceModel())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    sampler = DistributedSampler(train_set, world, rank, shuffle=True, seed=SEED)
    loader = DataLoader(train_set, batch_size=16, sampler=sampler, drop_last=True)
    valid_loader = DataLoader(
        valid_set, batch_size=8, sampler=DistributedSampler(valid_set, world, rank, shuffle=False)
    )
    evaluator = Evaluator()
    step, epoch, best = 0, 0, float("inf")
    while step < STEPS:
        sampler.set_epoch(epoch)
        for positions, energy, forces in loader:
            predicted_energy, predicted_forces = model(positions)
            loss = (predicted_energy - energy).abs().mean() + 10 * (
                predicted_forces - forces
            ).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            step += 1
            if step % 12 == 0:
                scores = validate(model.module, valid_loader, evaluator)
                plateau.step(scores["forces_mae"])
                if scores["forces_mae"] < best:
                    best = scores["forces_mae"]
                if rank == 0:
                    print(
                        f"step {step} loss {loss.item():.4f} energy_mae {scores['energy_mae']:.4f} forces_mae {scores['forces_mae']:.4f}",
                        flush=True,
                    )
            if step >= STEPS:
                break
        epoch += 1
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
