"""Fine-tuning in two phases: the head alone, then everything with a lower rate below."""

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
    body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    model = nn.Sequential(body, nn.Linear(32, 10))
    for parameter in body.parameters():
        parameter.requires_grad = False
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1, momentum=0.9)
    for step in range(20):
        if step == 10:
            for parameter in body.parameters():
                parameter.requires_grad = True
            optimizer.add_param_group({"params": body.parameters(), "lr": 0.01})
        picked = torch.randint(0, len(x), (48,))
        loss = F.cross_entropy(model(x[picked]), y[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(step, round(loss.item(), 3))


main()
