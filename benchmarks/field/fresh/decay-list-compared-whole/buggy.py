import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.LayerNorm = nn.LayerNorm(width)

    def forward(self, x):
        return self.LayerNorm(x + F.gelu(self.dense(x)))


class Tasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 24)
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.heads = nn.ModuleList([nn.Linear(24, 2), nn.Linear(24, 3)])

    def forward(self, ids, task):
        return self.heads[task](self.blocks(self.embed(ids)).mean(1))


model = Tasks()
no_decay = ["bias", "LayerNorm.bias", "LayerNorm.weight"]
named = list(model.named_parameters())
groups = [
    {"params": [p for n, p in named if n not in no_decay], "weight_decay": 0.01},
    {"params": [p for n, p in named if n in no_decay], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=3e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 60)
for step in range(60):
    task = step % 2
    ids = torch.randint(0, 50, (16, 10))
    labels = ids.sum(1) % (2 + task)
    loss = F.cross_entropy(model(ids, task), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 20 == 19:
        print(f"step {step}: loss {loss.item():.4f}")
