"""Elastic weight consolidation: Fisher information after the first task guards the second one."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fisher: list[torch.Tensor] = []
    for task in (labels < 5, labels >= 5):
        loader = DataLoader(TensorDataset(images[task], labels[task]), 64, shuffle=True)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        model.train()
        for inputs, targets in loader:
            loss = F.cross_entropy(model(inputs), targets)
            for weight, parameter, old in zip(fisher, model.parameters(), before, strict=False):
                loss = loss + (weight * (parameter - old) ** 2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"loss {loss.item():.4f}")
        model.eval()
        fisher = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for inputs, targets in loader:
            model.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            for weight, parameter in zip(fisher, model.parameters(), strict=True):
                weight.add_(parameter.grad**2 / len(loader))


main()
