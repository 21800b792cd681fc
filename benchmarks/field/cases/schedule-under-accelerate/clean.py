"""Part segmentation of point sets with Accelerate on two processes and a cosine schedule."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 48
POINTS = 32


def make_parts(n, generator):
    """Three blobs per object; the label of a point is its blob."""
    centres = torch.randn(n, 3, 3, generator=generator) * 1.5
    label = torch.randint(0, 3, (n, POINTS), generator=generator)
    centres = centres[torch.arange(n)[:, None], centres[:, :, 2].argsort(1)]
    points = torch.gather(centres, 1, label[..., None].expand(-1, -1, 3)) + 0.2 * torch.randn(
        n, POINTS, 3, generator=generator
    )
    return TensorDataset(points, label)


class Segmenter(nn.Module):
    def __init__(self, width=48, depth=2):
        super().__init__()
        self.embed = nn.Linear(3, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 3)

    def forward(self, points):
        return self.head(self.encoder(self.embed(points)))


@torch.no_grad()
def evaluate(accelerator, model, loader):
    model.eval()
    right, total = 0, 0
    for points, label in loader:
        predicted = model(points).argmax(-1)
        predicted, label = accelerator.gather_for_metrics((predicted, label))
        right += (predicted == label).sum().item()
        total += label.numel()
    model.train()
    return right / total


def main():
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    set_seed(SEED)
    generator = torch.Generator().manual_seed(SEED + 3)
    train_loader = DataLoader(
        make_parts(1024, generator), batch_size=16, shuffle=True, drop_last=True
    )
    valid_loader = DataLoader(make_parts(96, generator), batch_size=32)
    model = Segmenter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS, eta_min=1e-6)
    model, optimizer, train_loader, valid_loader = accelerator.prepare(
        model, optimizer, train_loader, valid_loader
    )
    step = 0
    while step < STEPS:
        for points, label in train_loader:
            loss = F.cross_entropy(model(points).flatten(0, 1), label.flatten())
            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            step += 1
            if step % 12 == 0:
                rate = optimizer.param_groups[0]["lr"]
                accelerator.print(f"step {step} loss {loss.item():.4f} lr {rate:.2e}")
            if step >= STEPS:
                break
    score = evaluate(accelerator, model, valid_loader)
    accelerator.print(f"valid accuracy {score:.4f}")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
