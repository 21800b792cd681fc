"""Averages of late weights with torch.optim.swa_utils, and batch statistics computed afterwards."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data[:384], dtype=torch.float32) / 16
    data = TensorDataset(x, torch.tensor(digits.target[:384]))
    loader = DataLoader(data, batch_size=64, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=1)
    for epoch in range(4):
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch >= 2:
            average.update_parameters(model)
            scheduler.step()
        print(epoch, round(loss.item(), 3))
    update_bn(loader, average)
    average.eval()
    with torch.no_grad():
        print((average(x).argmax(dim=1) == data.tensors[1]).float().mean().item())


main()
