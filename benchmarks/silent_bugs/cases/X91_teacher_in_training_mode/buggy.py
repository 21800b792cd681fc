"""A trained teacher on digits, whose answers a smaller student learns."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data[:640], dtype=torch.float32) / 16
labels = torch.tensor(digits.target[:640])
loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)


def classifier(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(64, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(width, 10),
    )


class Distiller(nn.Module):
    def __init__(self, teacher: nn.Module) -> None:
        super().__init__()
        self.teacher = teacher.eval().requires_grad_(False)
        self.student = classifier(16)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = F.softmax(self.teacher(x) / 2, dim=1)
        logits = self.student(x)
        soft = F.kl_div(F.log_softmax(logits / 2, dim=1), target, reduction="batchmean")
        return F.cross_entropy(logits, y) + 4 * soft


def train_teacher() -> nn.Module:
    teacher = classifier(96)
    optimizer = torch.optim.Adam(teacher.parameters(), lr=1e-2)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        optimizer.step()
    return teacher


distiller = Distiller(train_teacher())
optimizer = torch.optim.Adam(distiller.student.parameters(), lr=1e-2)
for epoch in range(2):
    distiller.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = distiller.loss(x, y)
        loss.backward()
        optimizer.step()
    print(epoch, round(loss.item(), 3))
