"""Fine-tune with accelerate and accumulation; the rate is to fall to zero by the end."""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from transformers import get_linear_schedule_with_warmup

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
EPOCHS, ACCUMULATE = 4, 4


def main():
    torch.manual_seed(SEED)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    centres = torch.randn(5, 20)
    y = torch.randint(0, 5, (640,))
    loader = DataLoader(
        TensorDataset(centres[y] + torch.randn(640, 20), y), batch_size=16, shuffle=True
    )
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    updates = EPOCHS * len(loader) // ACCUMULATE
    scheduler = get_linear_schedule_with_warmup(
        optimizer, num_warmup_steps=updates // 10, num_training_steps=updates
    )
    model.train()
    for epoch in range(EPOCHS):
        for x, target in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), target)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                if accelerator.sync_gradients:
                    scheduler.step()
                optimizer.zero_grad()
        print(f"epoch {epoch}: loss {loss.item():.3f}, rate {scheduler.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    main()
