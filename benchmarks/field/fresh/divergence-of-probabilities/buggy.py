import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


def network():
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 5, 1),
    )


def scenes(count):
    labels = torch.randint(0, 5, (count, 4, 4)).repeat_interleave(4, 1).repeat_interleave(4, 2)
    colors = torch.linspace(-1, 1, 15).view(5, 3)
    return colors[labels].permute(0, 3, 1, 2) + 0.2 * torch.randn(count, 3, 16, 16), labels


student, teacher = network(), network()
optimizer = torch.optim.Adam(teacher.parameters(), lr=5e-3)
for _ in range(20):
    images, labels = scenes(8)
    optimizer.zero_grad()
    F.cross_entropy(teacher(images), labels).backward()
    optimizer.step()

for parameter in teacher.parameters():
    parameter.requires_grad_(False)
start = copy.deepcopy(student.state_dict())
optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
for step in range(30):
    images, labels = scenes(8)
    with torch.no_grad():
        soft = F.softmax(teacher(images), dim=1)
    logits = student(images)
    prediction = F.softmax(logits, dim=1)
    distilled = F.kl_div(prediction, soft, reduction="none").sum(1).mean()
    loss = F.cross_entropy(logits, labels) + distilled
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.4f} kl {distilled.item():.4f}")
