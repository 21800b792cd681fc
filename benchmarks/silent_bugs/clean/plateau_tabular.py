"""Regression on a table: features up to 60, targets up to 300; the rate follows the loss."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    table = load_diabetes(scaled=False)
    x = torch.tensor(table.data, dtype=torch.float32)
    x = x / x.amax(dim=0) * 60
    y = torch.tensor(table.target, dtype=torch.float32)
    loader = DataLoader(TensorDataset(x[:352], y[:352]), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.BatchNorm1d(10), nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    for epoch in range(3):
        model.train()
        for features, wanted in loader:
            loss = F.smooth_l1_loss(model(features).squeeze(1), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            held_out = F.l1_loss(model(x[352:]).squeeze(1), y[352:])
        scheduler.step(held_out)
        print(epoch, round(loss.item(), 2), round(held_out.item(), 2))


main()
