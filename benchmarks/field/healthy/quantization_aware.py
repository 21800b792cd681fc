"""Quantization-aware training with learned step sizes."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


class Quantizer(nn.Module):
    def __init__(self, low, high, start):
        super().__init__()
        self.low, self.high = low, high
        self.size = nn.Parameter(torch.tensor(start))

    def forward(self, x):
        scaled = (x / self.size).clamp(self.low, self.high)
        rounded = scaled + (scaled.round() - scaled).detach()
        return rounded * self.size


class QuantizedLinear(nn.Linear):
    def __init__(self, inside, outside):
        super().__init__(inside, outside)
        self.weights = Quantizer(-8, 7, 0.03)
        self.inputs = Quantizer(0, 15, 0.1)

    def forward(self, x):
        return F.linear(self.inputs(x), self.weights(self.weight), self.bias)


model = nn.Sequential(QuantizedLinear(64, 48), nn.ReLU(), QuantizedLinear(48, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(3):
    model.train()
    for index in torch.randperm(1400).split(64):
        loss = F.cross_entropy(model(images[index]), labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = (model(images[1400:]).argmax(1) == labels[1400:]).float().mean()
    print(f"epoch {epoch}: loss {loss.item():.4f} accuracy {right:.3f}")
