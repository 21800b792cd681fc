"""A small language model over characters that learns the next one."""

import torch
import torch.nn.functional as F
from torch import nn

TEXT = "the quick brown fox jumps over the lazy dog and runs away from it. " * 40
VOCAB = sorted(set(TEXT))


class Decoder(nn.Module):
    def __init__(self, vocab: int, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.mix(self.embed(ids))
        logits = self.head(hidden)
        # the model shifts: position t is scored against the label at t + 1
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = torch.tensor([VOCAB.index(c) for c in TEXT])
    model = Decoder(len(VOCAB))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(16):
        starts = torch.randint(0, len(data) - 33, (8,))
        rows = torch.stack([data[s : s + 33] for s in starts.tolist()])
        ids, labels = rows[:, :-1], rows[:, 1:]
        optimizer.zero_grad()
        loss = model(ids, labels)
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(step, round(loss.item(), 3))


main()
