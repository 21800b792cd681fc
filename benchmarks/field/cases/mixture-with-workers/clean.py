"""Behaviour cloning on a weighted mixture of trajectory sets; samples are drawn from (epoch, index, seed)."""

import multiprocessing
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 48
BATCH = 32
EPOCH_LENGTH = 256


def trajectories(n, length, gain, generator):
    state = torch.randn(n, length, 8, generator=generator)
    action = torch.tanh(state[..., :3] * gain + 0.5 * state[..., 3:6] ** 2 - state[..., 5:8])
    return state, action


class MixtureDataset(Dataset):
    """Map-style view of several trajectory sets; another set of samples in each epoch."""

    def __init__(self, sources, weights, seed):
        self.sources = sources
        self.weights = torch.tensor(weights)
        self.seed = seed
        self._epoch = multiprocessing.Value("q", 0)

    @property
    def epoch(self):
        return self._epoch.value

    def set_epoch(self, epoch):
        self._epoch.value = epoch

    def __len__(self):
        return EPOCH_LENGTH

    def sample_step(self, index):
        generator = torch.Generator().manual_seed(hash((self.epoch, index, self.seed)) % (2**31))
        source = torch.multinomial(self.weights, 1, generator=generator).item()
        state, action = self.sources[source]
        row = torch.randint(0, state.shape[0], (1,), generator=generator).item()
        frame = torch.randint(0, state.shape[1], (1,), generator=generator).item()
        return state[row, frame], action[row, frame]

    def __getitem__(self, index):
        return self.sample_step(index)


class Policy(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(8, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, 3),
            nn.Tanh(),
        )

    def forward(self, state):
        return self.net(state)


@torch.no_grad()
def evaluate(policy, held_out):
    policy.eval()
    error = F.mse_loss(policy(held_out[0].flatten(0, 1)), held_out[1].flatten(0, 1)).item()
    policy.train()
    return error


def main():
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED + 20)
    sources = [
        trajectories(60, 40, 1.0, generator),
        trajectories(40, 40, 1.5, generator),
        trajectories(20, 40, 0.7, generator),
    ]
    held_out = trajectories(20, 20, 1.0, generator)
    dataset = MixtureDataset(sources, [0.5, 0.3, 0.2], SEED)
    loader = DataLoader(
        dataset,
        batch_size=BATCH,
        shuffle=False,
        num_workers=2,
        persistent_workers=True,
        drop_last=True,
    )
    policy = Policy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    step, epoch = 0, 0
    while step < STEPS:
        dataset.set_epoch(epoch)
        for state, action in loader:
            loss = F.mse_loss(policy(state), action)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            step += 1
            if step >= STEPS:
                break
        print(
            f"epoch {epoch} step {step} loss {loss.item():.4f} held-out {evaluate(policy, held_out):.4f}"
        )
        epoch += 1


if __name__ == "__main__":
    main()
