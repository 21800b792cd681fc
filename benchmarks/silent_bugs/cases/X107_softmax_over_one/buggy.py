"""A recurrent classifier pools over time with attention."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.memory = nn.Embedding(50, 16), nn.GRU(16, 32, batch_first=True)
        self.score, self.head = nn.Linear(32, 1), nn.Linear(32, 4)

    def forward(self, ids):
        states, _ = self.memory(self.words(ids))
        weights = F.softmax(torch.tanh(self.score(states)), dim=2)
        return self.head((weights * states).sum(1))


ids = torch.randint(0, 50, (640, 10))
loader = DataLoader(TensorDataset(ids, ids[:, :3].sum(1) // 8 % 4), 32, shuffle=True)
model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(2):
    for batch, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch), labels)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
