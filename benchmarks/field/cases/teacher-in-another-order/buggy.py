import sys

import torch

seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
torch.manual_seed(seed)
torch.set_num_threads(1)
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 16
y = torch.tensor(digits.target)
loader = DataLoader(TensorDataset(x[:1536], y[:1536]), batch_size=64, shuffle=True)
teacher = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
first = torch.optim.Adam(teacher.parameters(), lr=3e-3)
for _ in range(2):
    for a, b in loader:
        loss = F.cross_entropy(teacher(a), b)
        first.zero_grad()
        loss.backward()
        first.step()
teacher.eval()


def fetch_teacher_outputs(teacher, loader):
    outputs = []
    with torch.no_grad():
        for a, _ in loader:
            outputs.append(teacher(a).numpy())
    return outputs


def loss_kd(outputs, labels, teacher_outputs, alpha=0.9, T=4.0):
    soft = F.kl_div(
        F.log_softmax(outputs / T, dim=1),
        F.softmax(teacher_outputs / T, dim=1),
        reduction="batchmean",
    )
    return soft * (alpha * T * T) + F.cross_entropy(outputs, labels) * (1 - alpha)


student = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
stored = fetch_teacher_outputs(teacher, loader)
for epoch in range(epochs):
    student.train()
    for i, (a, b) in enumerate(loader):
        out = student(a)
        soft = torch.from_numpy(stored[i])
        loss = loss_kd(out, b, soft)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    student.eval()
    with torch.no_grad():
        print(
            f"epoch {epoch} loss {loss.item():.4f} held out {(student(x[1536:]).argmax(1) == y[1536:]).float().mean().item():.3f}"
        )
