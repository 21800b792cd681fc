"""A language model whose state goes on from one part of the text to the next."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

WORDS, ROWS, PART = 30, 8, 12
step_of = torch.randint(1, 4, (ROWS, 1))
stream = (torch.randint(0, WORDS, (ROWS, 1)) + step_of * torch.arange(361)) % WORDS


class Language(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.read = nn.LSTM(width, width, 2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids, state):
        hidden, state = self.read(self.embed(ids), state)
        return self.head(hidden), state


model = Language()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
for epoch in range(2):
    model.train()
    state = (torch.zeros(2, ROWS, 32), torch.zeros(2, ROWS, 32))
    for begin in range(0, 360, PART):
        ids, goal = stream[:, begin : begin + PART], stream[:, begin + 1 : begin + PART + 1]
        state = tuple(part.detach() for part in state)
        scores, state = model(ids, state)
        loss = F.cross_entropy(scores.flatten(0, 1), goal.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
