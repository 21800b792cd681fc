"""A recurrent translator with attention; now and then it is fed its output."""

import random

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

random.seed(0)
PAD, START, END, WORDS = 0, 1, 2, 20


def batch(count=16):
    sources = [torch.randint(3, WORDS, (int(torch.randint(3, 7, ())),)) for _ in range(count)]
    targets = [torch.cat([torch.tensor([START]), s.flip(0), torch.tensor([END])]) for s in sources]
    pad = nn.utils.rnn.pad_sequence
    lengths = torch.tensor([len(s) for s in sources])
    return pad(sources, batch_first=True), lengths, pad(targets, batch_first=True)


class Translator(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.source = nn.Embedding(WORDS, width, padding_idx=PAD)
        self.target = nn.Embedding(WORDS, width, padding_idx=PAD)
        self.read = nn.GRU(width, width, batch_first=True)
        self.cell = nn.GRUCell(2 * width, width)
        self.say = nn.Linear(2 * width, WORDS)

    def forward(self, source, lengths, target):
        packed = nn.utils.rnn.pack_padded_sequence(
            self.source(source), lengths, batch_first=True, enforce_sorted=False
        )
        memory, state = self.read(packed)
        memory, _ = nn.utils.rnn.pad_packed_sequence(memory, batch_first=True)
        state, word, scores = state[0], target[:, 0], []
        for t in range(1, target.shape[1]):
            weight = (memory @ state[:, :, None]).squeeze(-1)
            weight = weight.masked_fill(source == PAD, -1e9).softmax(1)
            seen = (weight[:, :, None] * memory).sum(1)
            state = self.cell(torch.cat([self.target(word), seen], 1), state)
            scores.append(self.say(torch.cat([state, seen], 1)))
            word = target[:, t] if random.random() < 0.8 else scores[-1].argmax(1)
        return torch.stack(scores, 1)


model = Translator()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(40):
    source, lengths, target = batch()
    scores = model(source, lengths, target)
    loss = F.cross_entropy(scores.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.4f}")
