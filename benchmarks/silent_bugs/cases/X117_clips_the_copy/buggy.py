"""A student learns from an earlier copy of itself; its gradients are clipped."""

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
loader = DataLoader(TensorDataset(images, torch.tensor(digits.target)), 128, shuffle=True)
student = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
teacher = copy.deepcopy(student)
optimizer = torch.optim.SGD(student.parameters(), lr=0.2, momentum=0.9)
for epoch in range(3):
    for inputs, targets in loader:
        with torch.no_grad():
            soft = F.softmax(teacher(inputs), dim=1)
        logits = student(inputs)
        loss = F.cross_entropy(logits, targets) + 0.1 * F.cross_entropy(logits, soft)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(teacher.parameters(), max_norm=0.5)
        optimizer.step()
    teacher.load_state_dict(student.state_dict())
    print(f"epoch {epoch} loss {loss.item():.4f}")
