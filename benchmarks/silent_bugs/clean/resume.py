"""A run that is stopped after an epoch, saved whole, and resumed in a fresh model."""

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make() -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    model = nn.Sequential(nn.Linear(64, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data[:384], dtype=torch.float32) / 16
    data = TensorDataset(x, torch.tensor(digits.target[:384]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        for first, last in ((0, 2), (2, 4)):
            model, optimizer, scheduler = make()
            if first:
                saved = torch.load(path, weights_only=True)
                model.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])
                scheduler.load_state_dict(saved["scheduler"])
                torch.set_rng_state(saved["rng"])
                assert saved["epoch"] == first
            for epoch in range(first, last):
                for images, labels in DataLoader(data, batch_size=64, shuffle=True):
                    loss = F.cross_entropy(model(images), labels)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                scheduler.step()
                print(epoch, round(loss.item(), 3))
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"scheduler": scheduler.state_dict(), "rng": torch.get_rng_state()}
            torch.save({**state, "epoch": last}, path)


main()
