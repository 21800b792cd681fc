"""Digits, evaluated and saved with an average of the weights that is swapped in."""

import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F


class Average:
    """A shadow of the weights, copied into the model for evaluation."""

    def __init__(self, model, decay=0.8):
        self.decay = decay
        self.shadow = {name: value.clone() for name, value in model.state_dict().items()}

    def update(self, model):
        for name, value in model.state_dict().items():
            self.shadow[name].lerp_(value, 1 - self.decay)


torch.manual_seed(0)
torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
average = Average(model)
with tempfile.TemporaryDirectory() as folder:
    for epoch in range(4):
        model.train()
        for start in range(0, 512, 64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[start : start + 64]), y[start : start + 64]).backward()
            optimizer.step()
            average.update(model)
        model.load_state_dict(average.shadow)
        model.eval()
        with torch.no_grad():
            right = (model(x[1024:]).argmax(1) == y[1024:]).float().mean().item()
        torch.save({"model": model.state_dict(), "epoch": epoch}, Path(folder) / "last.pt")
        print(f"epoch {epoch} accuracy {right:.3f}")
