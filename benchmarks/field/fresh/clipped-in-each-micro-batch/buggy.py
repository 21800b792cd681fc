import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
WORDS, LENGTH, ACCUMULATE = 40, 12, 4


class Language(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.read = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, WORDS)

    def forward(self, ids):
        hidden, _ = self.read(self.embed(ids))
        return self.head(hidden)


def texts(count):
    steps = torch.randint(1, 4, (count, 1))
    return (torch.randint(0, WORDS, (count, 1)) + steps * torch.arange(LENGTH + 1)) % WORDS


model = Language()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 5)
optimizer.zero_grad()
for micro in range(80):
    batch = texts(8)
    logits = model(batch[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    (loss / ACCUMULATE).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    if (micro + 1) % ACCUMULATE == 0:
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if micro % 20 == 19:
        print(f"micro-batch {micro}: loss {loss.item():.4f} norm {norm.item():.3f}")
