"""A language model whose prompts are left out of the loss."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
VOCAB = 30


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompt and answer; the prompt is no label. Every fourth batch has long prompts."""
    ids = (torch.randint(0, VOCAB, (8, 1)) + torch.arange(40)) % VOCAB
    labels = ids.clone()
    labels[:, : 36 if step % 4 == 3 else 8] = -100
    return ids[:, :40], labels[:, :40]


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, 32), nn.Linear(32, VOCAB)
        self.mix = nn.GRU(32, 32, batch_first=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.embed(ids))[0])


model = Decoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(8):
    ids, labels = batch(step)
    optimizer.zero_grad()
    logits = model(ids[:, :-1]).flatten(0, 1)
    loss = F.cross_entropy(logits, labels[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    if step % 4 == 0:
        print(step, round(loss.item(), 3))
