"""A language model whose head was trained apart from its embedding, fine-tuned from a file."""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

TEXT = Path(torch.__file__).read_text()[:20000]


class Lm(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.embed = nn.Embedding(words, 32)
        self.mix = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, words, bias=False)

    def forward(self, ids):
        return self.head(self.mix(self.embed(ids))[0])


def pretrained(words, path):
    torch.save(Lm(words).state_dict(), path)


def from_file(words, path, tie):
    model = Lm(words)
    model.load_state_dict(torch.load(path))
    if tie:
        model.head.weight = model.embed.weight
    return model


torch.manual_seed(0)
torch.set_num_threads(1)
letters = sorted(set(TEXT))
ids = torch.tensor([letters.index(letter) for letter in TEXT])
with tempfile.TemporaryDirectory() as folder:
    pretrained(len(letters), Path(folder) / "model.pt")
    model = from_file(len(letters), Path(folder) / "model.pt", tie=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(10):
    rows = ids[step * 528 : (step + 1) * 528].view(16, 33)
    loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 3 == 0:
        print(f"step {step} loss {loss.item():.3f}")
