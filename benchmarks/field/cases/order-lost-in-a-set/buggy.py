"""Train sentence embeddings with in-batch negatives; no batch may hold one text twice."""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 48


class Pairs(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(3 + SEED)
        self.anchor = torch.randint(1, 200, (n, 6), generator=g)
        self.positive = (self.anchor + torch.randint(0, 2, (n, 6), generator=g)) % 200

    def __len__(self):
        return len(self.anchor)

    def __getitem__(self, i):
        return self.anchor[i], self.positive[i]


class NoDuplicatesBatchSampler:
    """Shuffled batches in which no text comes twice."""

    def __init__(self, dataset, batch_size, seed):
        self.dataset, self.batch_size, self.seed, self.epoch = dataset, batch_size, seed, 0
        self.generator = torch.Generator()

    def __len__(self):
        return len(self.dataset) // self.batch_size

    def __iter__(self):
        self.generator.manual_seed(self.seed + self.epoch)
        self.epoch += 1
        remaining = set(torch.randperm(len(self.dataset), generator=self.generator).tolist())
        for _ in range(len(self)):
            batch, texts = [], set()
            for i in remaining:
                text = tuple(self.dataset.anchor[i].tolist())
                if text in texts:
                    continue
                texts.add(text)
                batch.append(i)
                if len(batch) == self.batch_size:
                    break
            for i in batch:
                remaining.discard(i)
            yield batch


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.body = (
            nn.Embedding(200, 32),
            nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)),
        )

    def forward(self, ids):
        return F.normalize(self.body(self.words(ids).mean(1)), dim=-1)


def main():
    torch.manual_seed(SEED)
    accelerator = Accelerator(cpu=True)
    data = Pairs(256)
    loader = DataLoader(data, batch_sampler=NoDuplicatesBatchSampler(data, 16, SEED))
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    model.train()
    while step < STEPS:
        for anchor, positive in loader:
            score = model(anchor) @ model(positive).T * 20
            loss = F.cross_entropy(score, torch.arange(len(score)))
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step >= STEPS:
                break
        print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
