"""Fine-tuning: a frozen backbone with batch normalization kept in eval mode, a new head."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Transfer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())
        self.neck = nn.Linear(64, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.neck(self.backbone(x))))

    def train(self, mode: bool = True) -> "Transfer":
        super().train(mode)
        self.backbone.eval()
        return self


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data[:512], dtype=torch.float32) / 16
    y = torch.tensor(digits.target[:512])
    loader = DataLoader(TensorDataset(x[:384], y[:384]), batch_size=48, shuffle=True)
    model = Transfer()
    model.backbone.requires_grad_(False)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    for epoch in range(3):
        model.train()
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = (model(x[384:]).argmax(dim=1) == y[384:]).float().mean()
        print(epoch, round(loss.item(), 3), round(right.item(), 2))


main()
