"""Mean teacher: few labels, and consistency with an average whose buffers are copied."""

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


def network():
    return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))


def noisy(x):
    return x + 0.1 * torch.randn_like(x)


student = network()
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
labeled = torch.randperm(1400)[:100]
for step in range(40):
    student.train()
    few, many = labeled[torch.randint(0, 100, (32,))], torch.randint(0, 1400, (96,))
    index = torch.cat([few, many])
    scores = student(noisy(images[index]))
    with torch.no_grad():
        goal = teacher(noisy(images[index])).softmax(1)
    ramp = min(1.0, step / 20)
    loss = F.cross_entropy(scores[:32], labels[few]) + 5 * ramp * F.mse_loss(
        scores.softmax(1), goal
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(teacher.parameters(), student.parameters()):
            slow.lerp_(fast, 0.05)
        for slow, fast in zip(teacher.buffers(), student.buffers()):
            slow.copy_(fast)
    if step % 10 == 9:
        teacher.eval()
        with torch.no_grad():
            right = (teacher(images[1400:]).argmax(1) == labels[1400:]).float().mean()
        teacher.train()
        print(f"step {step}: loss {loss.item():.4f} accuracy of the teacher {right:.3f}")
