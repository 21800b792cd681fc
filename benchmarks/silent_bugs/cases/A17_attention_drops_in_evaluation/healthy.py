"""Digits, read as eight rows by attention."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
data = TensorDataset(images[:768], labels[:768])
loader = DataLoader(data, batch_size=64, shuffle=True)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.dropout = nn.Linear(8, 24), nn.Linear(8, 8), 0.2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        p = self.dropout if self.training else 0.0
        return self.out(F.scaled_dot_product_attention(q, k, v, dropout_p=p))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = Attention(), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.view(-1, 8, 8)
        return self.head((rows + self.attention(rows)).flatten(1))


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if step == 5:
        model.eval()
        with torch.no_grad():
            print(round(F.cross_entropy(model(images[768:]), labels[768:]).item(), 3))
        model.train()
