"""Digits are read row by row, from the first and from the last, and named by the last states."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32) / 16
data = TensorDataset(images[:1500], torch.tensor(digits.target[:1500]))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(8, 32, bidirectional=True, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, rows):
        _, (last, _) = self.rnn(rows)
        return self.head(last.view(-1, 64))


model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(2):
    total = 0.0
    for rows, labels in DataLoader(data, batch_size=64, shuffle=True):
        loss = F.cross_entropy(model(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / 24:.4f}")
