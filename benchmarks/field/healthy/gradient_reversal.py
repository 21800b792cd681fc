"""Domain adaptation: the gradient of a domain classifier is reversed."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.weight * grad, None


body = nn.Sequential(nn.Linear(64, 48), nn.ReLU())
digit, domain = nn.Linear(48, 10), nn.Sequential(nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 1))
parameters = [p for net in (body, digit, domain) for p in net.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
for step in range(40):
    progress = step / 40
    source, target = torch.randint(0, 900, (64,)), torch.randint(900, 1797, (64,))
    h_source, h_target = body(images[source]), body(0.7 * images[target] + 0.3)
    both = Reverse.apply(torch.cat([h_source, h_target]), 2 * progress)
    where = torch.cat([torch.zeros(64), torch.ones(64)])
    loss = F.cross_entropy(digit(h_source), labels[source])
    loss = loss + F.binary_cross_entropy_with_logits(domain(both).squeeze(1), where)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.4f}")
