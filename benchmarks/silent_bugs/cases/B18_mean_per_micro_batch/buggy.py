"""A language model over texts of different lengths, with gradient accumulation."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
VOCAB, ACCUMULATE = 30, 2


def texts(longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of ids, and labels that leave out what is behind the end of each text."""
    ids = (torch.randint(0, VOCAB, (8, 1)) + torch.arange(33)) % VOCAB
    labels = ids[:, 1:].clone()
    lengths = torch.randint(2, longest, (8, 1))
    labels[torch.arange(32) >= lengths] = -100
    return ids[:, :-1], labels


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, 32), nn.Linear(32, VOCAB)
        self.mix = nn.GRU(32, 32, batch_first=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.embed(ids))[0])


model = Decoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(12):
    batches = [texts(5), texts(33)]
    optimizer.zero_grad()
    for ids, labels in batches:
        logits = model(ids).flatten(0, 1)
        loss = F.cross_entropy(logits, labels.flatten()) / ACCUMULATE
        loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, round(loss.item(), 3))
