"""Bags of words with a sparse embedding: most rows get no gradient in a step."""

import torch
import torch.nn.functional as F
from torch import nn


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(500, 16, mode="mean", sparse=True)
        self.head = nn.Linear(16, 2)

    def forward(self, words: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(words, offsets))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Bag()
    rows = torch.optim.SparseAdam(list(model.embed.parameters()), lr=1e-2)
    dense = torch.optim.Adam(model.head.parameters(), lr=1e-2)
    for step in range(20):
        lengths = torch.randint(3, 9, (32,))
        words = torch.randint(0, 500, (int(lengths.sum()),))
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)[:-1]])
        labels = (words[offsets] < 250).long()
        loss = F.cross_entropy(model(words, offsets), labels)
        rows.zero_grad()
        dense.zero_grad()
        loss.backward()
        rows.step()
        dense.step()
        if step % 5 == 0:
            print(step, round(loss.item(), 3))


main()
