"""Loss scaling with clipping of unscaled gradients; two steps overflow and are skipped."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

STEPS = 24
OVERFLOWS = (6, 15)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for step in range(STEPS):
        picked = torch.randperm(len(x))[:64]
        loss = F.cross_entropy(model(x[picked]), y[picked])
        optimizer.zero_grad()
        # what a rare overflow of half precision does to the gradients
        factor = torch.inf if step in OVERFLOWS else 1.0
        (scaler.scale(loss) * factor).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= before:
            scheduler.step()
        if step % 6 == 0:
            print(step, round(loss.item(), 3))


main()
