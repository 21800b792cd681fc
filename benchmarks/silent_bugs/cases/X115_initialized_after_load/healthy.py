"""A model is trained on some data, and fine-tuned on other data."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


def build():
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))


def init(module):
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


def train(model, rows, rate):
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    loader = DataLoader(TensorDataset(rows, (rows @ taste).argmax(1)), 32, shuffle=True)
    for epoch in range(2):
        for batch, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")


taste = torch.randn(16, 4)
model = build()
model.apply(init)
train(model, torch.randn(640, 16), 0.1)
state = {name: value.clone() for name, value in model.state_dict().items()}

tuned = build()
tuned.apply(init)
tuned.load_state_dict(state)
train(tuned, torch.randn(320, 16) + 0.5, 0.01)
