"""A student learns from a frozen teacher in eval mode, by soft targets; a dead branch is frozen."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    teacher = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Dropout(0.3), nn.Linear(96, 10))
    teacher.eval().requires_grad_(False)
    student = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
    for step in range(20):
        picked = torch.randint(0, len(x), (64,))
        with torch.inference_mode():
            soft = F.softmax(teacher(x[picked]) / 2, dim=1)
        logits = student(x[picked])
        hard = F.cross_entropy(logits, y[picked])
        mimic = F.kl_div(F.log_softmax(logits / 2, dim=1), soft.clone(), reduction="batchmean")
        loss = 0.5 * hard + 2.0 * mimic
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(step, round(loss.item(), 3))


main()
