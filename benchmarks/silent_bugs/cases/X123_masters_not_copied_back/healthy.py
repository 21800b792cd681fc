"""Weights in bfloat16; the program gives float32 masters their gradients and copies them back."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.bfloat16)
    loader = DataLoader(TensorDataset(images, torch.tensor(digits.target)), 128, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).bfloat16()
    masters = [p.detach().clone().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.Adam(masters, lr=1e-3)
    for epoch in range(3):
        for inputs, targets in loader:
            loss = F.cross_entropy(model(inputs).float(), targets)
            model.zero_grad()
            (loss * 1024).backward()
            for master, parameter in zip(masters, model.parameters(), strict=True):
                if master.grad is None:
                    master.grad = torch.empty_like(master)
                master.grad.copy_(parameter.grad).div_(1024)
            optimizer.step()
            with torch.no_grad():
                for master, parameter in zip(masters, model.parameters(), strict=True):
                    parameter.copy_(master)
        print(f"epoch {epoch} loss {loss.item():.4f}")


main()
