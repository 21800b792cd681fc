"""Greedy generation with a context window: a long prompt is trimmed before it is continued."""

import torch
from torch import nn

CONTEXT = 16
NEW = 6


class Recognizer(nn.Module):
    def __init__(self, vocab: int = 20, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.embed(ids))[0])

    @torch.no_grad()
    def generate(self, prompt: torch.Tensor, max_new_tokens: int) -> torch.Tensor:
        ids = prompt[:, -(CONTEXT // 2 - 1) :]
        limit = ids.shape[1] + max_new_tokens
        while ids.shape[1] < limit:
            ids = self.extend(ids)
        return ids[:, -max_new_tokens:]

    def extend(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.cat([ids, self(ids)[:, -1:].argmax(dim=-1)], dim=1)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Recognizer()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(12):
        rows = (torch.arange(13) + torch.randint(0, 20, (16, 1))) % 20
        loss = nn.functional.cross_entropy(model(rows[:, :-1]).mT, rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 3:
            model.eval()
            prompt = (torch.arange(20) + step)[None] % 20
            text = model.generate(prompt, max_new_tokens=NEW)
            print(step, round(loss.item(), 3), text.tolist())
            model.train()


main()
