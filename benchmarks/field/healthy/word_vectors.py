"""Skip-grams with negative samples drawn by frequency."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

WORDS = 100
frequency = 1 / torch.arange(1, WORDS + 1).float()
noise = frequency**0.75
topics = torch.randint(0, 5, (WORDS,))


class SkipGram(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.word, self.context = nn.Embedding(WORDS, width), nn.Embedding(WORDS, width)
        nn.init.uniform_(self.word.weight, -0.5 / width, 0.5 / width)
        nn.init.zeros_(self.context.weight)

    def forward(self, word, context, others):
        center = self.word(word)
        good = (center * self.context(context)).sum(-1)
        bad = (self.context(others) @ center[:, :, None]).squeeze(-1)
        return -(F.logsigmoid(good) + F.logsigmoid(-bad).sum(-1)).mean()


model = SkipGram()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(60):
    word = torch.multinomial(frequency, 64, replacement=True)
    near = frequency * (topics[word][:, None] == topics[None])
    context = torch.multinomial(near, 1).squeeze(1)
    others = torch.multinomial(noise.expand(64, -1), 5, replacement=True)
    loss = model(word, context, others)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(f"step {step}: loss {loss.item():.4f}")
