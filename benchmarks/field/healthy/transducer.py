"""A transducer: the loss sums over all alignments on a lattice."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

WORDS, FRAMES, LENGTH = 5, 8, 3


class Transducer(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.encode = nn.GRU(WORDS + 1, width, batch_first=True)
        self.embed = nn.Embedding(WORDS + 1, width)
        self.predict = nn.GRU(width, width, batch_first=True)
        self.join = nn.Linear(width, WORDS + 1)

    def forward(self, frames, text):
        heard, _ = self.encode(frames)
        start = torch.zeros(len(text), 1, dtype=torch.long)
        said, _ = self.predict(self.embed(torch.cat([start, text], 1)))
        return self.join((heard[:, :, None] + said[:, None]).tanh()).log_softmax(-1)


def transducer_loss(scores, text):
    blank = scores[..., 0]
    emit = scores[:, :, :-1].gather(3, text[:, None, :, None].expand(-1, FRAMES, -1, 1)).squeeze(3)
    rows = [[scores.new_zeros(len(text))]]
    for u in range(1, LENGTH + 1):
        rows[0].append(rows[0][-1] + emit[:, 0, u - 1])
    for t in range(1, FRAMES):
        row = [rows[-1][0] + blank[:, t - 1, 0]]
        for u in range(1, LENGTH + 1):
            stay = rows[-1][u] + blank[:, t - 1, u]
            row.append(torch.logaddexp(stay, row[-1] + emit[:, t, u - 1]))
        rows.append(row)
    return -(rows[-1][-1] + blank[:, -1, -1]).mean()


model = Transducer()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(25):
    text = torch.randint(1, WORDS + 1, (16, LENGTH))
    frames = F.one_hot(F.pad(text.repeat_interleave(2, 1), (1, 1)), WORDS + 1).float()
    loss = transducer_loss(model(frames + 0.1 * torch.randn_like(frames), text), text)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 4:
        print(f"step {step}: loss {loss.item():.4f}")
