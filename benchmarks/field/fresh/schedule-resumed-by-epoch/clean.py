import io
import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
EPOCHS, BATCHES, WARM_UP = 6, 12, 10


def factor(update):
    if update < WARM_UP:
        return (update + 1) / WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (update - WARM_UP) / (EPOCHS * BATCHES - WARM_UP)))


def build(checkpoint=None, previous=-1):
    model = nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    if checkpoint is not None:
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor, last_epoch=previous)
    return model, optimizer, schedule


def train(model, optimizer, schedule, epochs):
    for epoch in epochs:
        for _ in range(BATCHES):
            x = torch.randn(32, 16)
            loss = F.cross_entropy(model(x), x[:, :4].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch}: loss {loss.item():.4f} rate {schedule.get_last_lr()[0]:.5f}")


model, optimizer, schedule = build()
train(model, optimizer, schedule, range(3))
file = io.BytesIO()
saved = {"epoch": 3, "global_step": 3 * BATCHES}
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), **saved}, file)

file.seek(0)
checkpoint = torch.load(file)
model, optimizer, schedule = build(checkpoint, previous=checkpoint["global_step"] - 1)
train(model, optimizer, schedule, range(checkpoint["epoch"], EPOCHS))
