"""A small language model learns sequences of different lengths, padded to one."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

torch.manual_seed(0)
torch.set_num_threads(1)
PADDING, LENGTH, WORDS = 0, 24, 32


def text():
    count = int(torch.randint(6, LENGTH, ()))
    start, stride = torch.randint(0, WORDS - 2, ()), torch.randint(1, 4, ())
    ids = 2 + (start + stride * torch.arange(count)) % (WORDS - 2)
    ids = F.pad(ids, (0, LENGTH - count), value=PADDING)
    mask = (torch.arange(LENGTH) < count).long()
    labels = ids.clone()
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 32, padding_idx=PADDING)
        self.memory = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, WORDS)

    def forward(self, ids):
        return self.head(self.memory(self.words(ids))[0])


data = [text() for _ in range(320)]
model = Writer()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(2):
    for batch in DataLoader(data, batch_size=16, shuffle=True):
        logits = model(batch["input_ids"][:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
