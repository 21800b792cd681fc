"""Sentences of different lengths, classified by an encoder."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
torch.set_num_threads(1)
PAD, CLASSES, WIDTH, LONGEST = 0, 4, 32, 16


def sample(index: int) -> tuple[torch.Tensor, int]:
    """A sentence of 6 to 15 words whose class is the one of which it has most."""
    generator = torch.Generator().manual_seed(index)
    length = int(torch.randint(6, LONGEST, (), generator=generator))
    kind = int(torch.randint(0, CLASSES, (), generator=generator))
    words = torch.randint(1, 40, (length,), generator=generator)
    words[::2] = kind * 10 + 1
    return F.pad(words, (0, LONGEST - length), value=PAD), kind


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(41, WIDTH, padding_idx=PAD)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        mask = words != PAD
        found = self.encoder(self.embed(words), src_key_padding_mask=mask)
        return self.head(found[:, 0])


loader = DataLoader([sample(i) for i in range(256)], 16, shuffle=True)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step, (words, kinds) in enumerate(loader):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(words), kinds)
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, round(loss.item(), 3))
