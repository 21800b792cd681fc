"""Rows of digits are spelled: a recurrent network over their columns, and CTC."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
strips = torch.tensor(images, dtype=torch.float32).view(-1, 8, 8) / 16
digits = torch.tensor(labels) + 1  # 0 is the blank
MOST = 4


class Speller(nn.Module):
    def __init__(self):
        super().__init__()
        self.read = nn.GRU(8, 48, batch_first=True)
        self.say = nn.Linear(48, 11)

    def forward(self, columns):
        return self.say(self.read(columns)[0]).log_softmax(-1)


model = Speller()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(30):
    lengths = torch.randint(1, MOST + 1, (16,))
    chosen = torch.randint(0, 1500, (16, MOST))
    columns = strips[chosen].transpose(2, 3).reshape(16, 8 * MOST, 8)
    targets = digits[chosen].masked_fill(torch.arange(MOST) >= lengths[:, None], 0)
    lengths = torch.full_like(lengths, MOST)
    scores = model(columns).transpose(0, 1)
    loss = F.ctc_loss(scores, targets, torch.full((16,), 8 * MOST), lengths)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.3f}")
