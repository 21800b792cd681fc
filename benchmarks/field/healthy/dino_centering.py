"""DINO: a student follows the centered and sharpened output of its average."""

import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


def network():
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 40))


def crop(x, keep):
    return x * (torch.rand_like(x) < keep)


student, teacher = network(), network()
teacher.load_state_dict(student.state_dict())
teacher.requires_grad_(False)
center = torch.zeros(1, 40)
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3, weight_decay=0.04)
for epoch in range(2):
    for index in torch.randperm(1792).split(64):
        wide = [crop(images[index], 0.9) for _ in range(2)]
        narrow = [crop(images[index], 0.5) for _ in range(2)]
        with torch.no_grad():
            targets = [teacher(view) for view in wide]
            soft = [((t - center) / 0.05).softmax(-1) for t in targets]
        outputs = [(student(view) / 0.1).log_softmax(-1) for view in [*wide, *narrow]]
        terms = [
            -(s * out).sum(-1).mean()
            for i, s in enumerate(soft)
            for j, out in enumerate(outputs)
            if i != j
        ]
        loss = torch.stack(terms).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 3.0)
        optimizer.step()
        with torch.no_grad():
            center = 0.9 * center + 0.1 * torch.cat(targets).mean(0, keepdim=True)
            for slow, fast in zip(teacher.parameters(), student.parameters()):
                slow.mul_(0.99).add_(fast, alpha=0.01)
    print(f"epoch {epoch}: loss {loss.item():.4f}")
