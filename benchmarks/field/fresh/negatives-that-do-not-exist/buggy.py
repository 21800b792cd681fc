import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
USERS, LARGEST = 60, 600


class Factors(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.user = nn.Embedding(USERS, width)
        self.item = nn.Embedding(LARGEST, width)
        self.bias = nn.Embedding(LARGEST, 1)
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)
        nn.init.zeros_(self.bias.weight)

    def forward(self, users, items):
        return (self.user(users) * self.item(items)).sum(-1) + self.bias(items).squeeze(-1)


items = torch.randperm(LARGEST)[:80].sort().values
taste = torch.randn(USERS, 4) @ torch.randn(4, len(items))
likes = taste.topk(8, dim=1).indices
users = torch.arange(USERS).repeat_interleave(8)
liked = items[likes.flatten()]


def negatives(count):
    return torch.randint(0, LARGEST, (count,))


model = Factors()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
for epoch in range(4):
    for index in torch.randperm(len(users)).split(48):
        positive = model(users[index], liked[index])
        negative = model(users[index], negatives(len(index)))
        loss = -F.logsigmoid(positive - negative).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
