"""A small language model over sentences of different lengths."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
torch.set_num_threads(1)
EOS, VOCAB = 1, 32
PAD = EOS


def sentence(index: int) -> list[int]:
    generator = torch.Generator().manual_seed(index)
    length = int(torch.randint(6, 14, (), generator=generator))
    start = int(torch.randint(2, 20, (), generator=generator))
    return [2 + (start + i) % 30 for i in range(length)] + [EOS]


def collate(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    longest = max(map(len, rows))
    ids = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    labels = ids.clone()
    labels[mask == 0] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 32)
        self.mix = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, VOCAB)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.embed(ids))[0])


loader = DataLoader([sentence(i) for i in range(192)], 16, shuffle=True, collate_fn=collate)
model = Decoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step, batch in enumerate(loader):
    optimizer.zero_grad()
    logits = model(batch["input_ids"])[:, :-1]
    loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, round(loss.item(), 3))
